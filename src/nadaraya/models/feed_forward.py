"""The feed-forward layers of language models: found by layer, and with fewer hidden units."""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from torch import nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from nadaraya.errors import must_be
from nadaraya.kernels.heads import keep_columns, keep_rows

_Model = TypeVar("_Model", bound=PreTrainedModel)
# Maps into the hidden units and out of them: Llama's, KernelGPT's, nanochat's, GPT-2's, GPT-NeoX's.
_NAMES = (
    (("gate_proj", "up_proj"), "down_proj"),
    (("up_proj",), "down_proj"),
    (("fc1",), "fc2"),
    (("c_fc",), "c_proj"),
    (("dense_h_to_4h",), "dense_4h_to_h"),
)


@dataclass(frozen=True)
class FeedForward:
    """The linear maps of one feed-forward layer."""

    into: tuple[Any, ...]  # those whose outputs are the hidden units: one, or two where one is a gate
    out: Any  # the one that has them as inputs

    @property
    def size(self) -> int:
        """Hidden units."""
        return int(self.outgoing.shape[1])

    @property
    def outgoing(self) -> Any:
        """(D, hidden) weights of the map out of the hidden units."""
        return self.out.weight.T if isinstance(self.out, Conv1D) else self.out.weight

    def keep(self, units: Sequence[int]) -> None:
        """Keep some hidden units, in place."""
        size = self.size
        for linear in self.into:
            keep_rows(linear, units, size)
        keep_columns(self.out, units, size)


def feed_forward_layers(model: nn.Module) -> dict[int, FeedForward]:
    """The feed-forward layers of a language model, by the index of the layer.

    They are those of KernelGPT, and of models of transformers whose blocks have an attention that knows its
    layer and an `mlp` of two or three linear maps, as Llama and its relatives, nanochat, GPT-2 and GPT-NeoX.
    Mixtures of experts, and units with parameters of their own, are not of this kind.
    """
    found = {}
    for block in model.modules():
        part = _feed_forward(getattr(block, "mlp", None))
        indices = (getattr(block, "layer", None), *(getattr(c, "layer_idx", None) for c in block.children()))
        index = next((number for number in indices if isinstance(number, int)), None)
        if part is not None and index is not None:
            found[index] = part
    return found


def prune_units(model: _Model, units: Mapping[Any, Sequence[int]]) -> _Model:
    """A model without some hidden units of its feed-forward layers: their rows and columns are gone.

    It computes what the model would with the columns of these units in the map out of them set to zero.
    `config.intermediate_sizes` keeps the new widths, so that KernelGPT's `save_pretrained` and
    `from_pretrained` work as for any model; `load_pruned` loads models of transformers.

    Args:
        model: as `feed_forward_layers` says; left as it is.
        units: the hidden units to remove by layer, e.g. {3: [0, 2]}; numbers from 0, as the model has them
            now.

    Returns:
        The smaller model, with copies of the weights; at least one unit of each layer remains.

    Raises:
        InputError: another kind of model, or units that it has not, or all of a layer.

    >>> from nadaraya.models import KernelGPTConfig, KernelGPTForCausalLM, prune_units
    >>> model = KernelGPTForCausalLM(KernelGPTConfig.preset("demo"))
    >>> smaller = prune_units(model, {0: range(128)})
    >>> smaller.config.intermediate_sizes, model.num_parameters() - smaller.num_parameters()
    ({'0': 384}, 32768)
    """
    smaller = copy.deepcopy(model)
    layers = feed_forward_layers(smaller)
    if not isinstance(model, PreTrainedModel) or not layers:
        accepted = "with feed-forward layers of linear maps (up_proj and down_proj, …)"
        raise must_be("model", f"a model of transformers {accepted}", type(model).__name__)
    sizes = dict(getattr(smaller.config, "intermediate_sizes", None) or {})
    for layer, removed in units.items():
        part = layers.get(int(layer))
        if part is None:
            raise must_be("units", f"by layer, from 0 to {max(layers)}", {layer: list(removed)})
        gone = set(removed)
        kept = [unit for unit in range(part.size) if unit not in gone]
        if not kept or not gone <= set(range(part.size)):
            accepted = f"of 0 … {part.size - 1} in layer {layer}, and not all of them"
            raise must_be("units", accepted, list(removed))
        if gone:
            part.keep(kept)
            sizes[str(layer)] = part.size
    smaller.config.intermediate_sizes = sizes or None
    return smaller


def _feed_forward(mlp: Any) -> FeedForward | None:
    """The maps of a feed-forward layer; None for other modules, and for one with further parameters."""
    for names, last in _NAMES:
        parts = [getattr(mlp, name, None) for name in (*names, last)]
        if all(isinstance(part, nn.Linear) for part in parts) or all(isinstance(p, Conv1D) for p in parts):
            known = {id(parameter) for part in parts for parameter in part.parameters()}  # type: ignore[union-attr]
            if all(id(parameter) in known for parameter in mlp.parameters()):
                return FeedForward(tuple(parts[:-1]), parts[-1])
    return None
