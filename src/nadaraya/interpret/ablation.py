"""A language model as if some heads or hidden units were gone, and what each hidden unit is worth."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.hooks import RemovableHandle

from nadaraya.attention.layer import KernelSelfAttention
from nadaraya.errors import must_be
from nadaraya.interpret.windows import Windows
from nadaraya.modes import evaluating


class HeadLayer(NamedTuple):
    """The heads of one attention layer."""

    heads: tuple[int, ...]  # their numbers, as before any was removed
    output: nn.Module  # W_O, whose inputs are their outputs one after the other


def head_layers(model: nn.Module) -> dict[int, HeadLayer]:
    """The attention layers, by index, of KernelGPT or a model whose heads `prune_heads` can remove."""
    own = [module.projections for module in model.modules() if isinstance(module, KernelSelfAttention)]
    if own:
        return {layer: HeadLayer(tuple(part.heads), part.o_proj) for layer, part in enumerate(own)}
    from nadaraya.models.attach.decoders import attention_layers, heads_of, linear_maps

    layers = attention_layers(model)
    return {layer: HeadLayer(tuple(heads_of(part)), linear_maps(part)["o"]) for layer, part in layers.items()}


@contextmanager
def ablated(
    model: nn.Module,
    heads: Mapping[int, Sequence[int]],
    units: Mapping[int, Sequence[int]] | None = None,
) -> Iterator[None]:
    """While the context lasts, the output of some heads and hidden units is zero: what follows sees nothing.

    Heads by layer, as they were numbered before any was removed; units of feed-forward layers as the model
    has them. An InputError for those that it has not.
    """
    from nadaraya.models.feed_forward import feed_forward_layers

    layers, feed_forward = head_layers(model), feed_forward_layers(model) if units else {}
    with ExitStack() as hooks:
        for layer, removed in heads.items():
            if layer not in layers or not set(removed) <= set(layers[layer].heads):
                raise must_be("heads", "heads that the model has", {layer: list(removed)})
            names, output = layers[layer]
            hooks.enter_context(_ablate(output, [names.index(head) for head in removed], len(names)))
        for layer, removed in (units or {}).items():
            if layer not in feed_forward or not set(removed) <= set(range(feed_forward[layer].size)):
                raise must_be("units", "hidden units that the model has", {layer: list(removed)})
            hooks.enter_context(_ablate(feed_forward[layer].out, removed, feed_forward[layer].size))
        yield


def _ablate(linear: nn.Module, blocks: Sequence[int], count: int) -> RemovableHandle:
    """Zero some of the `count` equal blocks of inputs of a linear map, until the handle is left."""

    def hook(module: nn.Module, arguments: tuple[Tensor]) -> tuple[Tensor]:
        values = arguments[0].unflatten(-1, (count, -1))
        gone = torch.zeros(count, 1, dtype=torch.bool, device=values.device)
        gone[list(blocks)] = True
        return (values.masked_fill(gone, 0.0).flatten(-2),)

    return linear.register_forward_pre_hook(hook)


def unit_scores(model: Any, windows: Windows) -> dict[int, Tensor]:
    """The change of the loss without each hidden unit, to first order and in absolute value.

    With a the activation of a unit and L the loss of the tokens of a window, the mean over all positions of

        |a · ∂L/∂a|

    as Michel et al. (2019) have it for heads and Molchanov et al. (2017), without the absolute value inside
    the mean, for channels. It takes one forward and one backward pass. A unit without outgoing weights has 0.
    (hidden,) float64 scores on the CPU by the index of the layer; the model is left as it is.
    """
    from nadaraya.models.feed_forward import feed_forward_layers

    layers = feed_forward_layers(model)
    if not layers:
        raise must_be("model", "one with feed-forward layers of linear maps", type(model).__name__)
    found: dict[int, Tensor] = {}

    def keep(layer: int, arguments: tuple[Tensor]) -> tuple[Tensor]:
        values = arguments[0]  # with gradients also where the weights are frozen
        found[layer] = values if values.requires_grad else values.detach().requires_grad_()
        return (found[layer],)

    device = next(model.parameters()).device
    sums = {layer: torch.zeros(part.size, dtype=torch.float64) for layer, part in layers.items()}
    with evaluating(model), ExitStack() as hooks, torch.enable_grad():
        for layer, part in layers.items():
            hook = part.out.register_forward_pre_hook(lambda _, given, layer=layer: keep(layer, given))
            hooks.enter_context(hook)
        for inputs, targets, positions in windows.pieces():
            packed = {} if positions is None else {"position_ids": positions.to(device)}
            logits = model(input_ids=inputs.to(device), use_cache=False, **packed).logits.flatten(0, 1)
            nats = F.cross_entropy(logits.float(), targets.to(device).flatten(), reduction="sum")
            gradients = torch.autograd.grad(nats, list(found.values()))
            for (layer, values), gradient in zip(found.items(), gradients, strict=True):
                sums[layer] += (values.detach() * gradient).abs().flatten(0, -2).double().sum(0).cpu()
    return {layer: total / windows.tokens for layer, total in sums.items()}


class Slices:
    """The slice of a feed-forward layer that goes with each removed head: as large a share as the head is.

    That is intermediate_size / heads units of the layer's width as it was made, those with the least
    `unit_scores`; a second head of the layer takes the next ones.

    Args:
        model: whose heads may be removed.
        windows: on which the units are measured, once.

    Raises:
        InputError: a layer whose feed-forward layer cannot lose units.
    """

    def __init__(self, model: Any, windows: Windows) -> None:
        config = model.config.get_text_config()
        scores = unit_scores(model, windows)
        self._ranked = {layer: values.argsort(stable=True).tolist() for layer, values in scores.items()}
        # GPT-2 has another name for it, and none where it is 4 D.
        named = (getattr(config, name, None) for name in ("intermediate_size", "n_inner"))
        made = next((width for width in named if width is not None), 4 * config.hidden_size)
        self._share = made // config.num_attention_heads

    def of(self, heads: Mapping[int, Sequence[int]]) -> dict[int, list[int]]:
        """Units by layer that go with some heads, numbered as the model has them."""
        for layer in heads:
            if layer not in self._ranked:
                raise must_be("layer", "one whose feed-forward layer can lose hidden units", layer)
        return {layer: self._ranked[layer][: len(gone) * self._share] for layer, gone in heads.items()}
