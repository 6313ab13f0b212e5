"""What PyTorch's fused attention is given on a GPU is the call: masks in one, dropout, empty rows."""

from itertools import product
from typing import Any

import pytest
import torch

from nadaraya.attention import functional, reference, stock
from nadaraya.kernels import Gaussian

GRID = list(product(["dot", "gaussian"], [False, True], ["none", "bool", "float"], [False, True]))


@pytest.mark.parametrize(("content", "causal", "mask", "padded"), GRID)
def test_one_mask_says_what_all_say(content: str, causal: bool, mask: str, padded: bool) -> None:
    torch.manual_seed(0)
    tensors = [torch.randn(2, heads, n, 4, dtype=torch.float64) for heads, n in ((4, 5), (2, 7), (2, 7))]
    leaves = [t.requires_grad_() for t in tensors]
    options: dict[str, Any] = {"causal": causal}
    if content == "gaussian":
        options["content"] = Gaussian(torch.tensor(0.8, dtype=torch.float64))
    if mask != "none":
        seen = torch.rand(2, 1, 5, 7) < 0.6
        seen[0, :, 2] = False  # a row that sees nothing
        logits = torch.randn(1, 4, 5, 7, dtype=torch.float64).masked_fill(~seen, -torch.inf)
        options["attn_mask"] = seen if mask == "bool" else logits.requires_grad_()
        leaves += [logits] * (mask == "float")
    if padded:
        options["key_mask"] = torch.rand(2, 7) < 0.7
    args = functional._checked(*tensors, **options)
    expected, actual = reference.attention(args).out, stock.attention(args)
    grads = [torch.autograd.grad(out.cos().sum(), leaves, allow_unused=True) for out in (actual, expected)]
    if causal and mask == "none" and not padded:
        return  # such a call is never given to it: the sequences are not lined up at their beginning
    torch.testing.assert_close(actual, expected)
    for ours, theirs in zip(*grads, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_masks_that_would_be_larger_than_what_was_given_are_not_made(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(2, 2, 6, 4)

    def can(**options: Any) -> bool:
        args = functional._checked(x, x, x, **options)
        # The rule for a GPU, asked where there is none.
        monkeypatch.setattr(type(args), "on_gpu", True)
        return stock.can(args)

    present = torch.ones(2, 6, dtype=torch.bool)
    square = torch.ones(6, 6, dtype=torch.bool)
    assert can(causal=True)
    assert can(causal=True, dropout_p=0.1)
    assert can(key_mask=present, dropout_p=0.1)
    assert can(attn_mask=square, key_mask=present, causal=True)
    assert can(content=Gaussian(1.0), causal=True)
    assert not can(key_mask=present, causal=True)
    assert not can(exclude_self=True)
    assert not can(eps=0.1)
    assert not can(window=3)
    assert not can(key_bias=torch.zeros(1, 1, 6))
