"""Bandwidths that training drives to zero or to infinity are named."""

import math
from functools import partial

import pytest
import torch
from torch import nn

from nadaraya.attention.content import GaussianContent
from nadaraya.attention.layer import KernelSelfAttention
from nadaraya.training import TrainingDiverged
from nadaraya.training.kernels import BandwidthWatch, kernel_parameters


class TwoLayers(nn.Module):
    """Two Gaussian layers of three heads."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            KernelSelfAttention(12, 3, content=GaussianContent, projections="o") for _ in range(2)
        )

    def kernel_parameters(self) -> list[tuple[str, nn.Parameter]]:
        """As the library's models have it."""
        return [(n, p) for n, p in self.named_parameters() if n.endswith("log_bandwidth")]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, math.log(2e6), math.log(5e-5)])
@pytest.mark.parametrize(("layer", "head"), [(0, 0), (1, 2)])
def test_parameter_head_and_step_are_named(value: float, layer: int, head: int) -> None:
    model = TwoLayers()
    watch = BandwidthWatch(model)
    watch.check(6)
    with torch.no_grad():
        model.layers[layer].content.kernel.log_bandwidth[head] = value
    with pytest.raises(TrainingDiverged) as raised:
        watch.check(7)
    for words in (f"layers.{layer}.content.kernel.log_bandwidth", f"head {head}", "after step 7"):
        assert words in str(raised.value)


def test_the_range_itself_is_fine() -> None:
    model = TwoLayers()
    with torch.no_grad():
        model.layers[0].content.kernel.log_bandwidth.copy_(torch.tensor([1.1e-4, 1.0, 0.9e6]).log())
    BandwidthWatch(model).check(1)


def test_bandwidths_by_channel_are_named_by_channel() -> None:
    model = TwoLayers()
    by_channel = partial(GaussianContent, per="channel")
    model.layers[1] = KernelSelfAttention(12, 3, content=by_channel, projections="o")
    with torch.no_grad():
        model.layers[1].content.log_bandwidth[2, 1] = 50.0
    with pytest.raises(TrainingDiverged, match=r"layers\.1\.content\.log_bandwidth, head 2, channel 1"):
        BandwidthWatch(model).check(3)


def test_a_model_without_kernels_has_none() -> None:
    assert list(kernel_parameters(nn.Linear(2, 2))) == []
    BandwidthWatch(nn.Linear(2, 2)).check(1)
