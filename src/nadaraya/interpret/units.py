"""Hidden units of feed-forward layers: what each one is worth, and which go with a removed head."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nadaraya.errors import must_be
from nadaraya.interpret.attention_maps import evaluating
from nadaraya.interpret.windows import Windows
from nadaraya.models.feed_forward import FeedForward, feed_forward_layers


def unit_scores(model: Any, windows: Windows) -> dict[int, Tensor]:
    """The change of the loss without each hidden unit, to first order and in absolute value.

    With a the activation of a unit and L the loss of the tokens of a window, the mean over all places of

        |a · ∂L/∂a|

    as Michel et al. (2019) have it for heads and Molchanov et al. (2017), without the absolute value inside
    the mean, for channels. It takes one forward and one backward pass. A unit without outgoing weights has 0.

    Args:
        model: as `feed_forward_layers` takes it; left as it is, and no gradient is kept.
        windows: on which it is measured.

    Returns:
        (hidden,) float64 scores on the CPU by the index of the layer; the least are worth least.

    Raises:
        InputError: a model without feed-forward layers of that kind.

    >>> import torch
    >>> from nadaraya.interpret.units import unit_scores
    >>> from nadaraya.interpret.windows import Windows
    >>> from nadaraya.models import KernelGPTConfig, KernelGPTForCausalLM
    >>> model = KernelGPTForCausalLM(KernelGPTConfig.preset("demo", num_hidden_layers=1)).eval()
    >>> text = torch.arange(33)[None]
    >>> unit_scores(model, Windows(text[:, :-1], text[:, 1:]))[0].shape
    torch.Size([512])
    """
    layers = feed_forward_layers(model)
    if not layers:
        raise must_be("model", "one with feed-forward layers of linear maps", type(model).__name__)
    device = next(model.parameters()).device
    sums = {layer: torch.zeros(part.size, dtype=torch.float64) for layer, part in layers.items()}
    with evaluating(model):
        for inputs, targets, positions in windows.pieces():
            packed = {} if positions is None else {"position_ids": positions.to(device)}
            with torch.enable_grad(), _activations(layers) as found:
                logits = model(input_ids=inputs.to(device), use_cache=False, **packed).logits
                nats = F.cross_entropy(
                    logits.flatten(0, 1).float(), targets.to(device).flatten(), reduction="sum"
                )
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

    >>> import torch
    >>> from nadaraya.interpret.units import Slices
    >>> from nadaraya.interpret.windows import Windows
    >>> from nadaraya.models import KernelGPTConfig, KernelGPTForCausalLM
    >>> model = KernelGPTForCausalLM(KernelGPTConfig.preset("demo")).eval()
    >>> text = torch.arange(33)[None]
    >>> slices = Slices(model, Windows(text[:, :-1], text[:, 1:]))
    >>> [len(units) for units in slices.of({0: [1], 2: [0, 3]}).values()]
    [128, 256]
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


@contextmanager
def _activations(layers: Mapping[int, FeedForward]) -> Iterator[dict[int, Tensor]]:
    """The hidden units' outputs in the pass within, by layer, with gradients even of frozen weights."""
    found: dict[int, Tensor] = {}
    with ExitStack() as hooks:
        for layer, part in layers.items():

            def hook(module: nn.Module, arguments: tuple[Tensor], layer: int = layer) -> tuple[Tensor]:
                values = arguments[0]
                found[layer] = values if values.requires_grad else values.detach().requires_grad_()
                return (found[layer],)

            hooks.enter_context(part.out.register_forward_pre_hook(hook))
        yield found
