"""Bandwidths and kernels of the patch grid, as a model has learned them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from nadaraya.attention.content import GaussianContent
from nadaraya.attention.layer import KernelSelfAttention
from nadaraya.errors import check_at_least


@dataclass(frozen=True, eq=False)
class GridShape:
    """Factors by which the kernel of the patch grid multiplies the weights of a layer, by lag.

    Args:
        layer: index of the attention layer (0-based).
        initial: (H or 1, 2r + 1, 2r + 1) factors before training, 1 at the largest; None when not known.
        trained: the same after training; the middle is lag 0, one row or column per patch.

    >>> import numpy as np
    >>> from nadaraya.interpret.bandwidths import GridShape
    >>> GridShape(0, initial=None, trained=np.ones((3, 5, 5))).reach
    2
    """

    layer: int
    initial: np.ndarray | None
    trained: np.ndarray

    @property
    def reach(self) -> int:
        """r, the longest lag shown, in patches."""
        return self.trained.shape[-1] // 2


def bandwidth_matrix(model: nn.Module) -> np.ndarray | None:
    """The bandwidths of all heads in all attention layers of a model.

    Args:
        model: any model; layers that are not `KernelSelfAttention` do not count.

    Returns:
        (H, L) σ in the units of the features, heads by number, NaN where a layer or a head has none; of
        bandwidths per channel, the geometric mean over the channels of the head. None when no layer has any.

    >>> import torch
    >>> from nadaraya import KernelSelfAttention
    >>> from nadaraya.attention.content import GaussianContent
    >>> from nadaraya.interpret import bandwidth_matrix
    >>> layer = KernelSelfAttention(8, 2, content=lambda shape: GaussianContent(shape, bandwidth=1.5))
    >>> bandwidth_matrix(torch.nn.Sequential(layer))
    array([[1.5],
           [1.5]])
    """
    layers = [module for module in model.modules() if isinstance(module, KernelSelfAttention)]
    contents = [layer.content for layer in layers]
    found = [c.bandwidth.detach() if isinstance(c, GaussianContent) else None for c in contents]
    return head_bandwidths(found, [layer.projections.heads for layer in layers])


def head_bandwidths(found: Sequence[Tensor | None], heads: Sequence[Sequence[int]]) -> np.ndarray | None:
    """(H, L) of each layer's (H,) or (H, d) bandwidths and the numbers of its heads, NaN where there is none.

    None without any.
    """
    if all(bandwidth is None for bandwidth in found):
        return None
    matrix = np.full((1 + max(map(max, heads)), len(found)), np.nan)
    for column, bandwidth in enumerate(found):
        if bandwidth is not None:
            channels = bandwidth.double().cpu().reshape(len(bandwidth), -1)
            matrix[list(heads[column]), column] = channels.log().mean(dim=1).exp().numpy()
    return matrix


def grid_shapes(trained: nn.Module, initial: nn.Module | None = None, reach: int = 7) -> list[GridShape]:
    """The kernels of the patch grid of a vision transformer, one GridShape for each layer that has one.

    `initial` has the kernels that training started from; the longest lag is `reach` patches.
    """
    check_at_least(1, reach=reach)
    after = _grid_factors(trained, reach)
    before = {} if initial is None else _grid_factors(initial, reach)
    return [GridShape(layer, before.get(layer), factors) for layer, factors in after.items()]


@torch.no_grad()
def _grid_factors(model: nn.Module, reach: int) -> dict[int, np.ndarray]:
    layers = [module for module in model.modules() if isinstance(module, KernelSelfAttention)]
    found = {}
    for number, layer in enumerate(layers):
        kernel: Any = getattr(layer, "grid_kernel", None)
        if kernel is not None:
            logits = kernel.lag_logits(reach + 1, reach + 1).double().cpu()
            found[number] = torch.exp(logits - logits.amax(dim=(1, 2), keepdim=True)).numpy()
    return found
