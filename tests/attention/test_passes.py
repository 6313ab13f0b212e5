"""Passes over scores that numba compiles give what PyTorch's give, and are taken by the call alone."""

from typing import Any

import pytest
import torch
from torch import Tensor

from nadaraya import kernel_attention
from nadaraya.attention import passes
from nadaraya.attention.passes import can_compile
from nadaraya.kernels import Gaussian

pytest.importorskip("numba")

B, H, NQ, NK, D = 2, 2, 320, 384, 8


def calls() -> dict[str, dict[str, Any]]:
    random = torch.Generator().manual_seed(3)
    table = torch.randn(H, NK, generator=random)
    compact = torch.where(torch.arange(NK) < 90, table, -torch.inf)
    signed = torch.randn(H, 2 * NK - 1, generator=random)
    key_bias = torch.randn(B, H, NK, generator=random)
    return {
        "table": {"position": table, "causal": True},
        "one table for all heads": {"position": table[:1], "causal": True},
        "of compact support": {"position": compact, "causal": True},
        "signed": {"position": signed},
        "bias by key": {"position": table, "causal": True, "key_bias": key_bias},
        "hidden keys": {"position": table, "causal": True, "key_mask": key_bias[:, 0] < 1.0},
        "window": {"position": table, "causal": True, "window": 50},
        "excluded self": {"position": table, "causal": True, "exclude_self": True},
        "Gaussian": {"content": Gaussian(2.0), "causal": True},
    }


def gradients(call: dict[str, Any], dtype: torch.dtype, backend: str) -> dict[str, Tensor]:
    random = torch.Generator().manual_seed(1)
    rows = NK if "content" in call else NQ
    shapes = {"query": (B, H, rows, D), "key": (B, H, NK, D), "value": (B, H, NK, D)}
    given = {
        name: torch.randn(shape, generator=random).to(dtype).requires_grad_()
        for name, shape in shapes.items()
    }
    options = {
        name: each.detach().to(dtype).requires_grad_()
        if isinstance(each, Tensor) and each.is_floating_point()
        else each
        for name, each in call.items()
    }
    out = kernel_attention(**given, **options, backend=backend)  # type: ignore[arg-type]
    out.backward(torch.randn(out.shape, generator=random).to(dtype))
    tensors = {**given, **options}
    return {
        name: each.grad.double()
        for name, each in tensors.items()
        if isinstance(each, Tensor) and each.grad is not None
    }


@pytest.mark.parametrize("name", calls())
def test_gradients_are_those_of_the_definition_and_of_pytorchs_passes(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    call, taken = calls()[name], []
    weights = passes.Compiled.weights
    monkeypatch.setattr(passes, "_PAYS", 1)
    monkeypatch.setattr(passes.Compiled, "weights", lambda *given: (taken.append(True), weights(*given))[1])
    compiled = gradients(call, torch.float32, "sdpa")
    assert taken
    expected = gradients(call, torch.float64, "reference")
    monkeypatch.setattr(passes, "_numba_is_installed", lambda: False)
    by_torch = gradients(call, torch.float32, "sdpa")
    assert compiled.keys() == expected.keys() == by_torch.keys()
    for key, want in expected.items():
        finite = want.nan_to_num()  # of −∞ in a table there is no gradient
        largest = finite.abs().max()
        assert (compiled[key].nan_to_num() - finite).abs().max() <= 2e-5 * largest
        assert (compiled[key].nan_to_num() - by_torch[key].nan_to_num()).abs().max() <= 1e-5 * largest


def test_they_are_for_large_calls_of_float32_on_the_cpu_with_numba(monkeypatch: pytest.MonkeyPatch) -> None:
    single = torch.zeros(1)
    assert can_compile(2**22, single)
    assert not can_compile(2**22 - 1, single)
    assert not can_compile(2**22, single.double())
    assert not can_compile(2**22, torch.zeros(1, device="meta"))
    monkeypatch.setattr(passes, "_numba_is_installed", lambda: False)
    assert not can_compile(2**22, single)
