"""Attention with logits by the rows and columns of a grid: every backend is the definition, gradients too."""

from typing import Any

import pytest
import torch
from torch import Tensor

from nadaraya import kernel_attention
from nadaraya.attention.positions import GridLogits
from nadaraya.kernels import Gaussian

HEIGHT, WIDTH, PREFIX = 3, 4, 2
N = PREFIX + HEIGHT * WIDTH
UNIT = Gaussian(1.0).requires_grad_(False)


def normal(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64)


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def test_the_logits_of_two_patches_are_those_of_their_rows_and_columns() -> None:
    table = normal(2, 2 * HEIGHT - 1, 2 * WIDTH - 1)
    dense = GridLogits(table, PREFIX).dense()
    assert not dense[:, :PREFIX].any()
    assert not dense[:, :, :PREFIX].any()
    for i in range(HEIGHT * WIDTH):
        for j in range(HEIGHT * WIDTH):
            below, right = i // WIDTH - j // WIDTH, i % WIDTH - j % WIDTH
            expected = table[:, below + HEIGHT - 1, right + WIDTH - 1]
            assert torch.equal(dense[:, PREFIX + i, PREFIX + j], expected)


MASKS: dict[str, dict[str, Any]] = {
    "none": {},
    "padding": {"key_mask": torch.arange(N) < torch.tensor([[N], [5], [1], [0], [9]])},
    "pairs": {"attn_mask": (torch.arange(N)[:, None] * torch.arange(N)) % 3 != 1},
    "added": {"attn_mask": torch.linspace(-2, 2, 5 * N * N, dtype=torch.float64).view(5, 1, N, N)},
    "keys": {"key_bias": torch.linspace(-1, 1, 5 * N, dtype=torch.float64).view(5, 1, N)},
}


def assert_agreement(inputs: list[Tensor], table: Tensor, prefix: int, **options: Any) -> None:
    """Values and the gradients of all tensors, those of masks and logits by key too."""
    leaves = [
        *inputs,
        table,
        *(t for t in options.values() if isinstance(t, Tensor) and t.is_floating_point()),
    ]
    for leaf in leaves:
        leaf.requires_grad_()
    results = []
    for backend in ("sdpa", "reference"):
        position = GridLogits(table, prefix)
        out, lse = kernel_attention(*inputs, position=position, backend=backend, return_lse=True, **options)
        seen = torch.where(lse == -torch.inf, 0.0, lse)
        weights = torch.sin(torch.arange(out.numel())).view_as(out)
        grads = torch.autograd.grad((out * weights).sum() + seen.cos().sum(), leaves)
        results.append((out, lse, *grads))
    for ours, expected in zip(*results, strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("heads", [1, 2])
@pytest.mark.parametrize("exclude_self", [False, True])
@pytest.mark.parametrize("content", [None, UNIT, Gaussian(0.7)], ids=["dot", "unit Gaussian", "Gaussian"])
@pytest.mark.parametrize("mask", MASKS)
def test_values_and_all_gradients_equal_the_reference(
    mask: str, content: Gaussian | None, exclude_self: bool, heads: int
) -> None:
    options = {name: t.detach().clone() if isinstance(t, Tensor) else t for name, t in MASKS[mask].items()}
    inputs = [normal(5, 2, N, 6), normal(5, 2, N, 6), normal(5, 2, N, 3)]
    table = normal(heads, 2 * HEIGHT - 1, 2 * WIDTH - 1)
    assert_agreement(inputs, table, PREFIX, content=content, exclude_self=exclude_self, **options)


def test_a_unit_gaussian_far_from_the_origin_keeps_its_digits() -> None:
    """Features that serve as they are near the origin are centred elsewhere."""
    inputs = [normal(1, 2, N, 6) for _ in range(3)]
    table = torch.zeros(1, 2 * HEIGHT - 1, 2 * WIDTH - 1)
    far = [(t + 3000 * (number < 2)).float() for number, t in enumerate(inputs)]
    options: dict[str, Any] = {"content": UNIT, "position": GridLogits(table, PREFIX)}
    expected = kernel_attention(*(t.double() for t in far), **options, backend="reference")
    out = kernel_attention(*far, **options, backend="sdpa")
    torch.testing.assert_close(out.double(), expected, rtol=0, atol=2e-5)


def test_one_patch_alone_keeps_itself() -> None:
    inputs = [normal(1, 1, 1, 4) for _ in range(3)]
    options: dict[str, Any] = {
        "content": UNIT,
        "position": GridLogits(torch.zeros(1, 1, 1)),
        "exclude_self": True,
    }
    assert torch.equal(kernel_attention(*inputs, **options, backend="sdpa"), inputs[2])
