"""Heads and items shared out over threads: every pair once, and nothing that threads change."""

import os

import pytest
import torch

from nadaraya import kernel_attention
from nadaraya.attention import MixedKernels, MixedLogits, partition
from nadaraya.kernels import ExponentialDecay, Gaussian


@pytest.fixture(autouse=True)
def _threads(monkeypatch: pytest.MonkeyPatch):
    """Three threads, and work for them in every call, however short."""
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    monkeypatch.setattr(partition, "_LEAST_SCORES", 0)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("batch", [1, 2, 3, 7])
@pytest.mark.parametrize("heads", [1, 2, 5])
def test_every_head_of_every_item_is_in_one_part(batch: int, heads: int) -> None:
    counts = torch.zeros(batch, heads)
    parts = partition.partition(batch, heads, 1, torch.device("cpu"))
    for part in parts:
        counts[part] += 1
        for subpart in partition.subparts(part, 2, heads):
            counts[subpart] += 1
    assert (counts == 2).all()
    assert len(parts) <= 3


def test_one_thread_and_other_devices_have_one_part() -> None:
    assert len(partition.partition(4, 4, 100, torch.device("cuda"))) == 1
    torch.set_num_threads(1)
    assert len(partition.partition(4, 4, 100, torch.device("cpu"))) == 1


def test_results_keep_the_order_of_their_parts_and_errors_arrive() -> None:
    parts = partition.partition(1, 3, 1, torch.device("cpu"))
    assert partition.work_on(parts, lambda part: part[1].start) == [0, 1, 2]
    with pytest.raises(ZeroDivisionError):
        partition.work_on(parts, lambda part: 1 // (part[1].start - 1))


def test_threads_have_their_share_and_the_process_keeps_its_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    switched = []
    monkeypatch.setattr(torch, "set_num_threads", switched.append)
    partition._pool.cache_clear()
    parts = partition.partition(1, 2, 1, torch.device("cpu"))
    assert partition.work_on(parts, lambda part: torch.get_num_threads()) == [1, 1]
    assert not switched  # torch.set_num_threads would slow PyTorch's own attention down
    assert torch.get_num_threads() == 3


def test_a_forked_process_has_threads_of_its_own() -> None:
    parts = partition.partition(1, 3, 1, torch.device("cpu"))
    partition.work_on(parts, lambda part: None)
    child = os.fork()
    if child == 0:
        os._exit(sum(partition.work_on(parts, lambda part: part[1].start)))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3


@pytest.mark.parametrize("shape", [(1, 4), (4, 1), (2, 3)])
@pytest.mark.parametrize("position", ["table", "mixed logits", "mixed kernels"])
@pytest.mark.parametrize("masked", [False, True])
def test_values_and_gradients_are_those_of_the_definition(
    shape: tuple[int, int], position: str, masked: bool
) -> None:
    torch.manual_seed(3)
    tokens = 150  # more than a block of rows
    leaves = {
        name: torch.randn(*shape, tokens, 6, dtype=torch.float64).requires_grad_()
        for name in ("query", "key", "value")
    }
    leaves["logits"] = torch.randn(shape[0], shape[1], tokens, dtype=torch.float64).requires_grad_()
    leaves["sigma"] = torch.linspace(1.5, 2.5, shape[1], dtype=torch.float64).requires_grad_()
    if position == "table":
        decay = ExponentialDecay(torch.linspace(5.0, 90.0, shape[1], dtype=torch.float64))
        leaves["position"] = decay.lag_logits(tokens).detach().requires_grad_()
    else:
        leaves["weights"] = torch.rand(*shape, tokens, 3, dtype=torch.float64).requires_grad_()
        leaves["profiles"] = torch.randn(3, 40, dtype=torch.float64).requires_grad_()
    mask = torch.randn(1, shape[1], tokens, tokens, dtype=torch.float64).requires_grad_() if masked else None

    def attend(backend: str) -> tuple[torch.Tensor, ...]:
        form = {"mixed logits": MixedLogits, "mixed kernels": MixedKernels}.get(position)
        at = leaves["position"] if form is None else form(leaves["weights"], leaves["profiles"])
        out = kernel_attention(
            *(leaves[name] for name in ("query", "key", "value")), content=Gaussian(leaves["sigma"]),
            position=at, key_bias=leaves["logits"], attn_mask=mask, causal=True, backend=backend,
        )  # fmt: skip
        wanted = [*leaves.values(), *([mask] if mask is not None else [])]
        return out, *torch.autograd.grad(out.cos().sum(), wanted)

    for got, expected in zip(attend("sdpa"), attend("reference"), strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-9)


@torch.inference_mode()
def test_inference_mode_reaches_the_threads() -> None:
    x = torch.randn(3, 2, 40, 4)
    position = ExponentialDecay(7.0)
    for causal in (False, True):
        got, expected = (
            kernel_attention(x, x, x, position=position, causal=causal, backend=backend)
            for backend in ("sdpa", "reference")
        )
        torch.testing.assert_close(got, expected)
