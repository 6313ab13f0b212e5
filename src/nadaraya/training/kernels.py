"""The kernels of a model: its kernel parameters, bandwidths that leave the usable range, kernels of a run."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import Field
from safetensors.torch import load_file
from torch import nn

from nadaraya.attention import variants
from nadaraya.attention.projections import LayerShape
from nadaraya.files import reading
from nadaraya.kernels import Kernel
from nadaraya.kernels.bank import shared_by_layers
from nadaraya.kernels.heads import keep_kernel_heads
from nadaraya.stored import Stored, read_stored
from nadaraya.training.metrics import TrainingDiverged
from nadaraya.training.processes import whole

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


class _Configuration(Stored):
    """The fields of config.json that describe the kernels of a model."""

    variant: str | list[str]
    variant_options: dict[str, Any] | None = None
    num_hidden_layers: Annotated[int, Field(gt=0, le=4096)]
    num_attention_heads: Annotated[int, Field(gt=0, le=2**20)]
    hidden_size: Annotated[int, Field(gt=0, le=2**20)]
    pruned_heads: dict[str, list[int]] | None = None


def read_lag_kernels(path: Path, configuration: Path) -> list[tuple[int, Kernel]]:
    """Layer index and kernel of every layer whose position is a kernel of the lag.

    They are read from weights and config.json, without the model, which takes seconds to build.
    """
    config = read_stored(configuration, _Configuration, "the configuration of a model")
    heads = config.num_attention_heads
    shape = LayerShape(config.hidden_size, heads, heads)
    layers = variants.by_layer(config.variant, config.num_hidden_layers, config.variant_options)
    pruned = config.pruned_heads or {}
    kernels, first = [], dict[str, int]()
    with reading(path, "the kernels of this run"):
        values = load_file(path)
        for layer, (variant, options) in enumerate(layers):
            kernel = options["position"](shape) if "position" in options else None
            if isinstance(kernel, Kernel):
                removed = pruned.get(str(layer), ())
                keep_kernel_heads(kernel, [head for head in range(heads) if head not in removed])
                source, shared = first.setdefault(variant, layer), set(shared_by_layers(kernel))
                for part, tensor in kernel.named_parameters():
                    block = source if part in shared else layer
                    tensor.data.copy_(values[f"model.blocks.{block}.attention.position.{part}"])
                kernels.append((layer, kernel))
    return kernels
