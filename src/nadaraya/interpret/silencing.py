"""Heads and hidden units of a language model, and the model as if some of them were gone."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from nadaraya.errors import must_be


@dataclass(frozen=True)
class HeadLayer:
    """The heads of one attention layer.

    Args:
        layer: index of the layer (0-based).
        heads: their numbers, as before any was removed.
        output: W_O, whose inputs are their outputs one after the other.
    """

    layer: int
    heads: tuple[int, ...]
    output: nn.Module


def head_layers(model: nn.Module) -> list[HeadLayer]:
    """The attention layers of a language model.

    Args:
        model: KernelGPT, or one of transformers whose heads `prune_heads` can remove.

    Raises:
        InputError: a model with attention of another kind.
    """
    from nadaraya.attention.layer import KernelSelfAttention

    own = [module.projections for module in model.modules() if isinstance(module, KernelSelfAttention)]
    if own:
        return [HeadLayer(layer, tuple(part.heads), part.o_proj) for layer, part in enumerate(own)]
    from nadaraya.models.attach.pruning import attention_layers, heads_of, output_of

    return [
        HeadLayer(layer, tuple(heads_of(part)), output_of(part))
        for layer, part in attention_layers(model).items()
    ]


def head_names(model: nn.Module) -> list[tuple[int, int]]:
    """Layer and number of every head of a language model, in order."""
    return [(part.layer, head) for part in head_layers(model) for head in part.heads]


@contextmanager
def silenced(
    model: nn.Module,
    heads: Mapping[int, Sequence[int]],
    units: Mapping[int, Sequence[int]] | None = None,
) -> Iterator[None]:
    """While the context lasts, the output of some heads and hidden units is zero: what follows sees nothing.

    Args:
        model: as `head_layers` takes it.
        heads: by layer, as they were numbered before any was removed.
        units: hidden units of feed-forward layers by layer, numbered from 0 as the model has them; default
            none.

    Raises:
        InputError: a layer, a head or a unit that the model has not.

    >>> import torch
    >>> from nadaraya.interpret.silencing import silenced
    >>> from nadaraya.models import KernelGPTConfig, KernelGPTForCausalLM
    >>> model = KernelGPTForCausalLM(KernelGPTConfig.preset("demo")).eval()
    >>> with silenced(model, {0: [1]}):
    ...     logits = model(torch.arange(8)[None]).logits
    """
    layers = {part.layer: part for part in head_layers(model)}
    if units:
        from nadaraya.models.feed_forward import feed_forward_layers

        feed_forward = feed_forward_layers(model)
    with ExitStack() as hooks:
        for layer, removed in heads.items():
            if layer not in layers or not set(removed) <= set(layers[layer].heads):
                raise must_be("heads", "heads that the model has", {layer: list(removed)})
            part = layers[layer]
            rows = [part.heads.index(head) for head in removed]
            hooks.enter_context(_silence(part.output, rows, len(part.heads)))
        for layer, removed in (units or {}).items():
            if layer not in feed_forward or not set(removed) <= set(range(feed_forward[layer].size)):
                raise must_be("units", "hidden units that the model has", {layer: list(removed)})
            hooks.enter_context(_silence(feed_forward[layer].out, removed, feed_forward[layer].size))
        yield


def _silence(linear: nn.Module, blocks: Sequence[int], count: int) -> RemovableHandle:
    """Let some of the `count` equal blocks of inputs of a linear map be zero, until the handle is left."""

    def hook(module: nn.Module, arguments: tuple[Tensor]) -> tuple[Tensor]:
        values = arguments[0].unflatten(-1, (count, -1))
        silent = torch.zeros(count, 1, dtype=torch.bool, device=values.device)
        silent[list(blocks)] = True
        return (values.masked_fill(silent, 0.0).flatten(-2),)

    return linear.register_forward_pre_hook(hook)
