"""The kernels of a model in training: its kernel parameters, and bandwidths that leave the usable range."""

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from nadaraya.training.metrics import TrainingDiverged

# Below, a Gaussian of float32 features is the identity; above, it is the plain mean: neither comes back.
SMALLEST_BANDWIDTH, LARGEST_BANDWIDTH = 1e-4, 1e6


def kernel_parameters(model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """Names and values of a model's kernel parameters; none of a model that knows of none."""
    found = getattr(model, "kernel_parameters", None)
    if callable(found):
        yield from found()


class BandwidthWatch:
    """Notices a bandwidth σ that training drives to zero or to infinity.

    Args:
        model: its parameters named `log_bandwidth` are watched, (H,) or (H, d) with one per channel.
    """

    def __init__(self, model: nn.Module) -> None:
        self._watched = [(n, p) for n, p in kernel_parameters(model) if n.split(".")[-1] == "log_bandwidth"]

    def check(self, step: int) -> None:
        """Look at every bandwidth.

        Args:
            step: the update just made.

        Raises:
            TrainingDiverged: one is not finite or outside [1e-4, 1e6]; names parameter, head and step.
        """
        if not self._watched:
            return
        sigma = torch.cat([p.detach().float().flatten() for _, p in self._watched]).exp().cpu()
        good = (sigma >= SMALLEST_BANDWIDTH) & (sigma <= LARGEST_BANDWIDTH)  # false for NaN
        if bool(good.all()):
            return
        place = int((~good).nonzero()[0])
        value = float(sigma[place])
        for name, parameter in self._watched:
            if place < parameter.numel():
                head, *channel = _index(parameter, place)
                where = f"head {head}" + "".join(f", channel {number}" for number in channel)
                raise TrainingDiverged(
                    f"the bandwidth of {name}, {where}, is {value:.3g} after step {step}, outside "
                    f"{SMALLEST_BANDWIDTH:g} to {LARGEST_BANDWIDTH:g}"
                )
            place -= parameter.numel()


def _index(parameter: Tensor, place: int) -> list[int]:
    return [int(axis) for axis in torch.unravel_index(torch.tensor(place), parameter.shape)]
