"""Heads removed from a language model: a smaller model, not a mask; and changed models loaded again."""

import copy
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, TypeVar

import torch
from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, AutoConfig, AutoModelForCausalLM, PreTrainedModel

from nadaraya.errors import must_be
from nadaraya.kernels.heads import seen_keys
from nadaraya.models.attach.pruning import prune_attention_heads
from nadaraya.models.block import KernelGPTBlock
from nadaraya.models.config import KernelGPTConfig
from nadaraya.models.feed_forward import feed_forward_layers, prune_units
from nadaraya.models.gpt import KernelGPTPreTrainedModel
from nadaraya.models.inputs import loading
from nadaraya.models.replacing import REPLACED, replace_attention

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
    """A causal model of transformers that `prune_heads`, `prune_units` or `replace_attention` changed.

    Its class expects other weights, which its own `from_pretrained` refuses; KernelGPT's does not.

    Args:
        folder: that `save_pretrained` wrote; verbs take it too.
        options: of the configuration, e.g. `attn_implementation="eager"`; heads that share keys unevenly
            need "nadaraya", their default.

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
        config = changed_config(folder, **options)
        model, report = class_of(config).from_pretrained(
            folder, config=config, local_files_only=True, use_safetensors=True, output_loading_info=True
        )
        if lacking := report["missing_keys"] | report["unexpected_keys"]:
            raise must_be("weights", "those of its configuration", sorted(lacking)[0])
    return model.eval()


def changed_config(name: str | Path, local: bool = True, **options: Any) -> Any:
    """The configuration of a causal model of transformers, for `class_of`; no code of the source runs.

    The name is that of a folder, or at the hub where it is not `local`; options are those of `load_pruned`.
    """
    config = AutoConfig.from_pretrained(name, local_files_only=local, trust_remote_code=False, **options)
    if "attn_implementation" not in options:  # what the file names could be code on the Hub
        config._attn_implementation = "nadaraya" if _shares_unevenly(config) else None
    return config


def _shares_unevenly(config: Any) -> bool:
    """Return whether some layer is left with keys that serve unequal numbers of heads."""
    if isinstance(config, KernelGPTConfig) or not (removed := getattr(config, "pruned_heads", None)):
        return False
    heads = config.num_attention_heads
    shared = heads // (getattr(config, "num_key_value_heads", None) or heads)
    left = (sorted({*range(heads)} - {*gone}) for gone in removed.values())
    return any(seen_keys(kept, shared) is not None for kept in left)


def class_of(config: Any) -> Any:
    """The class whose `from_pretrained` reads a causal model as its configuration says it was changed."""
    changes = [getattr(config, name, None) for name in ("pruned_heads", "intermediate_sizes", REPLACED)]
    if isinstance(config, KernelGPTConfig) or not any(changes):
        return AutoModelForCausalLM
    cls: Any = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    wide = [*(cls._keep_in_fp32_modules_strict or ()), *KernelGPTPreTrainedModel._keep_in_fp32_modules_strict]

    def init(self: Any, config: Any) -> None:
        self.__class__ = cls
        # New layers take over rotary angles, which are not among the weights.
        with torch.device("cpu") if changes[-1] else nullcontext():
            self.__init__(config)
            self.__dict__ = _changed(self).__dict__

    # Transformers' own reading knows parts of a model and weights that it writes in another form.
    inside = {"__init__": init, "__module__": cls.__module__, "_keep_in_fp32_modules_strict": wide}
    return type(cls.__name__, (cls,), inside)


def _changed(model: Any) -> Any:
    """A whole model without what its configuration says was removed, and with what was replaced."""
    if heads := getattr(model.config, "pruned_heads", None):
        model = prune_heads(model, heads)
    sizes, layers = getattr(model.config, "intermediate_sizes", None) or {}, feed_forward_layers(model)
    if units := {layer: range(size, layers[int(layer)].size) for layer, size in sizes.items()}:
        model = prune_units(model, units)
    calls = getattr(model.config, REPLACED, None) or ()
    setattr(model.config, REPLACED, [])
    for call in calls:
        replace_attention(model, **call)
    return model
