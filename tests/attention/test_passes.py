"""Passes over scores that numba compiles give what PyTorch's give, and are taken by the call alone."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from nadaraya import kernel_attention
from nadaraya.attention import blocked, partition, passes
from nadaraya.attention.passes import can_compile
from nadaraya.kernels import Gaussian

pytest.importorskip("numba")

NQ, NK, D, DV = 320, 384, 8, 5


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def calls(batch: int, heads: int) -> dict[str, dict[str, Any]]:
    random = torch.Generator().manual_seed(3)
    table = torch.randn(heads, NK, generator=random)
    compact = torch.where(torch.arange(NK) < 90, table, -torch.inf)
    signed = torch.randn(heads, 2 * NK - 1, generator=random)
    key_bias = torch.randn(batch, heads, NK, generator=random)
    return {
        "table": {"position": table, "causal": True},
        "one table for all heads": {"position": table[:1], "causal": True},
        "of compact support": {"position": compact, "causal": True},
        "steep": {"position": -0.7 * torch.arange(NK) * torch.ones(heads, 1), "causal": True},
        "signed": {"position": signed},
        "bias by key": {"position": table, "causal": True, "key_bias": key_bias},
        "hidden keys": {"position": table, "causal": True, "key_mask": key_bias[:, 0] < 1.0},
        "window": {"position": table, "causal": True, "window": 50},
        "excluded self": {"position": table, "causal": True, "exclude_self": True},
        "Gaussian": {"content": Gaussian(2.0), "causal": True},
    }


def gradients(
    call: dict[str, Any], batch: int, heads: int, dtype: torch.dtype, backend: str
) -> dict[str, Tensor]:
    random = torch.Generator().manual_seed(1)
    rows = NK if "content" in call else NQ
    shapes = {
        "query": (batch, heads, rows, D), "key": (batch, heads, NK, D), "value": (batch, heads, NK, DV)
    }  # fmt: skip
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


@pytest.mark.parametrize("shape", [(1, 4), (4, 1), (2, 3)], ids=str)
@pytest.mark.parametrize("name", calls(1, 1))
def test_gradients_are_those_of_the_definition_and_of_pytorchs_passes(
    name: str, shape: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    call, taken = calls(*shape)[name], []
    weights = passes.Compiled.weights
    monkeypatch.setattr(passes, "_PAYS", 1)
    # Several tiles of keys, and a part for each of two threads.
    monkeypatch.setattr(blocked, "_BACKWARD_SCORES", 2**14)
    monkeypatch.setattr(partition, "_LEAST_SCORES", 0)
    torch.set_num_threads(2)
    monkeypatch.setattr(passes.Compiled, "weights", lambda *given: (taken.append(True), weights(*given))[1])
    compiled = gradients(call, *shape, torch.float32, "sdpa")
    assert taken
    expected = gradients(call, *shape, torch.float64, "reference")
    monkeypatch.setattr(passes, "_loops_are_there", lambda: False)
    by_torch = gradients(call, *shape, torch.float32, "sdpa")
    assert compiled.keys() == expected.keys() == by_torch.keys()
    for key, want in expected.items():
        finite = want.nan_to_num()  # of −∞ in a table there is no gradient
        largest = finite.abs().max()
        assert (compiled[key].nan_to_num() - finite).abs().max() <= 2e-5 * largest
        assert (compiled[key].nan_to_num() - by_torch[key].nan_to_num()).abs().max() <= 1e-5 * largest


def test_they_are_for_large_calls_of_float32_on_the_cpu_with_numba(monkeypatch: pytest.MonkeyPatch) -> None:
    single, threads = torch.zeros(1), torch.get_num_threads()
    assert can_compile(2**22, threads, single)
    assert not can_compile(2**22 - 1, threads, single)
    assert not can_compile(2**22, threads + 1, single)
    assert not can_compile(2**22, threads, single.double())
    assert not can_compile(2**22, threads, torch.zeros(1, device="meta"))
    monkeypatch.setattr(passes, "_loops_are_there", lambda: False)
    assert not can_compile(2**22, threads, single)


def test_weights_near_underflow_are_zero_and_queries_of_no_width_have_gradients() -> None:
    bias = torch.tensor([-torch.inf, -100.0, -80.0, -20.0, -1.0, 0.0])
    of_nothing = torch.zeros(1, 1, 0), torch.zeros(1, 6, 0)
    weights = passes.Compiled(6, bias).weights(*of_nothing, bias.view(1, 1, 1, 6), (1, 1, 1, 6)).flatten()
    assert weights[:3].tolist() == [0.0, 0.0, 0.0]
    torch.testing.assert_close(weights[3:], bias[3:].exp())
    empty = torch.zeros(1, 1, 300, 0, requires_grad=True)
    value = torch.randn(1, 1, 300, 3, requires_grad=True)
    table = torch.zeros(1, 300, requires_grad=True)
    kernel_attention(empty, empty, value, position=table, causal=True, backend="sdpa").sum().backward()
    assert value.grad is not None
    assert value.grad.sum().item() == pytest.approx(900.0, rel=1e-4)
