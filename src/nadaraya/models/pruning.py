"""Heads removed from a language model: a smaller model, not a mask; and such models loaded again."""

import copy
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, AutoConfig, PreTrainedModel

from nadaraya.errors import must_be
from nadaraya.models.attach.pruning import prune_attention_heads
from nadaraya.models.block import KernelGPTBlock
from nadaraya.models.config import KernelGPTConfig
from nadaraya.models.feed_forward import feed_forward_layers, prune_units
from nadaraya.models.gpt import KernelGPTPreTrainedModel
from nadaraya.models.inputs import loading

_Model = TypeVar("_Model", bound=PreTrainedModel)


def prune_heads(model: _Model, heads: Mapping[Any, Sequence[int]]) -> _Model:
    """A model without some heads: their projections, kernels, gates and columns of W_O are gone.

    It computes what the model would with these heads' contributions to W_O set to zero. Keys and values that
    several heads share go with the last of these. `config.pruned_heads` keeps the list, so that
    KernelGPT's `save_pretrained` and `from_pretrained` work as for any model.

    Args:
        model: a KernelGPT model, or one of transformers as `attach.pruning` says; left as it is.
        heads: the heads to remove by layer, e.g. {3: [0, 2]}; as they were numbered before any was removed.

    Returns:
        The smaller model, with copies of the weights; at least one head of each layer remains.

    Raises:
        InputError: another model, or heads that it has not, or all of a layer.

    >>> from nadaraya.models import KernelGPTConfig, KernelGPTForCausalLM, prune_heads
    >>> model = KernelGPTForCausalLM(KernelGPTConfig.preset("demo", variant="gpa-mul"))
    >>> smaller = prune_heads(model, {0: [1, 2]})
    >>> smaller.config.pruned_heads, smaller.num_parameters() < model.num_parameters()
    ({'0': [1, 2]}, True)
    """
    if not isinstance(model, PreTrainedModel):
        raise must_be("model", "a model of transformers (PreTrainedModel)", type(model))
    if not isinstance(model, KernelGPTPreTrainedModel):
        pruned: _Model = prune_attention_heads(model, heads)
        return pruned
    before = model.config.pruned_heads or {}
    together = {layer: list(pruned) for layer, pruned in before.items()}
    for layer, removed in heads.items():
        if gone := sorted(set(before.get(str(layer), ())) & set(removed)):
            raise must_be("heads", f"there in layer {layer}", gone)
        together.setdefault(str(layer), []).extend(removed)
    config = KernelGPTConfig.from_dict(model.config.to_dict(), pruned_heads=together)
    smaller = copy.deepcopy(model)
    for block in smaller.modules():
        if isinstance(block, KernelGPTBlock) and (kept := config.kept_heads(block.layer)):
            block.keep_heads(kept)
    smaller.config.pruned_heads = config.pruned_heads
    return smaller


def load_pruned(folder: str | Path, **options: Any) -> Any:
    """A causal model of transformers that `prune_heads` or `prune_units` made smaller, from its folder.

    Its class expects other shapes, so that its own `from_pretrained` refuses the weights; KernelGPT's does
    not.

    Args:
        folder: that `save_pretrained` wrote.
        options: of the configuration, e.g. `attn_implementation="nadaraya"`, which heads that share keys
            unevenly need.

    Returns:
        The model, in eval mode, on the CPU.

    Raises:
        InputError: the folder has no such model, or its weights are not those of its configuration.

    >>> from transformers import LlamaConfig, LlamaForCausalLM
    >>> from nadaraya.models import load_pruned, prune_heads
    >>> sizes = dict(hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2)
    >>> model = LlamaForCausalLM(LlamaConfig(vocab_size=9, **sizes))
    >>> prune_heads(model, {0: [1]}).save_pretrained("small-llama")
    >>> load_pruned("small-llama").config.pruned_heads
    {'0': [1]}
    """
    with loading(folder, "a pruned model of transformers"):
        config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False, **options)
        if "attn_implementation" not in options:
            config._attn_implementation = None  # what the file names could be code on the Hub
        cls: Any = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]

        def init(self: Any, config: Any) -> None:
            cls.__init__(self, config)
            self.__dict__ = _smaller(self, config).__dict__

        # Transformers' own reading knows parts of a model and weights that it writes in another form.
        small: Any = type(cls.__name__, (cls,), {"__init__": init, "__module__": cls.__module__})
        model, report = small.from_pretrained(
            folder, config=config, local_files_only=True, use_safetensors=True, output_loading_info=True
        )
        model.__class__ = cls
        if lacking := report["missing_keys"] | report["unexpected_keys"]:
            raise must_be("weights", "those of its configuration", sorted(lacking)[0])
    return model.eval()


def _smaller(model: Any, config: Any) -> Any:
    """A whole model without what its configuration says was removed."""
    if heads := getattr(config, "pruned_heads", None):
        model = prune_heads(model, heads)
    sizes, layers = getattr(config, "intermediate_sizes", None) or {}, feed_forward_layers(model)
    units = {layer: range(size, layers[int(layer)].size) for layer, size in sizes.items()}
    return prune_units(model, units) if units else model
