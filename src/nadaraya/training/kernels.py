"""The kernels of a model in training: its kernel parameters, and bandwidths that leave the usable range."""

from collections.abc import Iterator

import torch
from torch import nn

from nadaraya.training.metrics import TrainingDiverged
from nadaraya.training.sharding import whole

# Below, a Gaussian of float32 features is the identity; above, it is the plain mean: neither comes back.
_SMALLEST, _LARGEST = 1e-4, 1e6


def kernel_parameters(model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """Names and values of a model's kernel parameters; none of a model that knows of none."""
    found = getattr(model, "kernel_parameters", None)
    if callable(found):
        yield from found()


class BandwidthWatch:
    """Notices a bandwidth σ that training drives to zero or to infinity.

    It watches a model's kernel parameters named `log_bandwidth`: (H,), or (H, d) with one per channel.
    """

    def __init__(self, model: nn.Module) -> None:
        self._watched = [(n, p) for n, p in kernel_parameters(model) if n.split(".")[-1] == "log_bandwidth"]

    def check(self, step: int) -> None:
        """Raise TrainingDiverged after update `step` if a bandwidth is not finite or outside [1e-4, 1e6]."""
        if not self._watched:
            return
        # One transfer from the device for all of them.
        logs = torch.cat([whole(parameter.detach()).float().flatten() for _, parameter in self._watched])
        values = logs.exp().cpu().split([parameter.numel() for _, parameter in self._watched])
        for (name, parameter), sigma in zip(self._watched, values, strict=True):
            sigma = sigma.view(parameter.shape)
            bad = ~((sigma >= _SMALLEST) & (sigma <= _LARGEST))  # true for NaN
            if bad.any():
                place = bad.nonzero()[0].tolist()
                where = ", ".join(f"{axis} {i}" for axis, i in zip(("head", "channel"), place, strict=False))
                value = float(sigma[tuple(place)])
                raise TrainingDiverged(
                    f"the bandwidth of {name}, {where}, is {value:.3g} after step {step}, outside "
                    f"{_SMALLEST:g} to {_LARGEST:g}"
                )
