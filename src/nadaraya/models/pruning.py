"""Heads removed from a language model: a smaller model, not a mask."""

import copy
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from transformers import PreTrainedModel

from nadaraya.errors import must_be
from nadaraya.models.attach.pruning import prune_attention_heads
from nadaraya.models.block import KernelGPTBlock
from nadaraya.models.config import KernelGPTConfig
from nadaraya.models.gpt import KernelGPTPreTrainedModel

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
    for layer, removed in heads.items():
        gone = sorted(set(before.get(str(layer), ())) & set(removed))
        if gone:
            raise must_be("heads", f"there in layer {layer}", gone)
    together = {layer: list(pruned) for layer, pruned in before.items()}
    for layer, removed in heads.items():
        together.setdefault(str(layer), []).extend(removed)
    config = KernelGPTConfig.from_dict(model.config.to_dict(), pruned_heads=together)
    smaller = copy.deepcopy(model)
    for block in smaller.modules():
        if isinstance(block, KernelGPTBlock) and (kept := config.kept_heads(block.layer)):
            block.keep_heads(kept)
    smaller.config.pruned_heads = config.pruned_heads
    return smaller
