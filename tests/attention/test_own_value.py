"""The token's own value left out of its output, or the direction of it."""

from typing import Any

import pytest
import torch

from nadaraya import KernelSelfAttention, kernel_attention, variants
from nadaraya.attention import Factored
from nadaraya.attention.own_value import attend
from nadaraya.kernels import ExponentialDecay, Gaussian

FORMS: dict[str, dict[str, Any]] = {
    "dot": {},
    "epsilon": {"eps": 0.5},
    "gaussian": {"content": Gaussian(1.3), "window": 4},
    "lag": {"position": ExponentialDecay(length=3.0), "key_bias": torch.linspace(-1.0, 1.0, 9)[None, None]},
    "padding": {"key_mask": torch.arange(9)[None] != 5},
    "documents": {"document_ids": (torch.arange(9)[None] > 4).long()},
    "mask": {"attn_mask": torch.arange(9) % 3 > 0},
    "sums": {"content": Factored(normalise=False)},
    "floor": {"content": Factored(floor=0.8), "window": 5},
}


def three() -> list[torch.Tensor]:
    """Queries of seven tokens and keys and values of nine, two query heads for each."""
    generator = torch.Generator().manual_seed(0)
    shapes = ((1, 4, 7, 4), (1, 2, 9, 4), (1, 2, 9, 3))
    return [torch.randn(s, generator=generator, dtype=torch.float64).requires_grad_() for s in shapes]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("causal", [False, True])
def test_a_dropped_value_leaves_its_weight_in_the_denominator(form: str, causal: bool) -> None:
    tensors = *_, value = three()
    options: Any = {"causal": causal, **FORMS[form]}
    _, weights = kernel_attention(*tensors, return_weights=True, **options)
    others = weights * (1.0 - torch.eye(9, dtype=torch.float64)[2:])
    expected = others @ value.repeat_interleave(2, 1)
    found = attend(*tensors, "drop", options, lse=True)
    torch.testing.assert_close(found.out, expected)
    torch.testing.assert_close(found.lse, kernel_attention(*tensors, return_lse=True, **options)[1])
    grads = [torch.autograd.grad(out.cos().sum(), tensors) for out in (found.out, expected)]
    for ours, theirs in zip(*grads, strict=True):
        torch.testing.assert_close(ours, theirs)
    by_definition = attend(*tensors, "drop", options, weights=True)
    torch.testing.assert_close(by_definition.out, expected)
    torch.testing.assert_close(by_definition.weights, others)


def test_dropping_the_value_under_a_gaussian_is_leave_one_out_with_an_epsilon_of_one() -> None:
    x = torch.randn(1, 1, 8, 2, dtype=torch.float64)
    options: Any = {"content": Gaussian(1.0)}  # of a point with itself it is 1
    expected = kernel_attention(x, x, x, exclude_self=True, eps=1.0, **options)
    torch.testing.assert_close(attend(x, x, x, "drop", options).out, expected)


@pytest.mark.parametrize("content", [None, 3.0, Gaussian(1.0)], ids=["dot", "scale", "gaussian"])
@pytest.mark.parametrize("eps", [0.0, 0.3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_token_that_sees_itself_alone_finds_exactly_nothing(
    dtype: torch.dtype, eps: float, content: Any
) -> None:
    for seed in range(20):
        q, k, v = torch.randn(3, 2, 2, 9, 16, generator=torch.Generator().manual_seed(seed)).to(dtype)
        options: Any = {"content": content, "eps": eps, "causal": True}
        alone = attend(q, k, v, "drop", {**options, "window": 1}).out
        first = attend(q, k, v, "drop", options).out
        assert alone.count_nonzero() == 0
        assert first[:, :, 0].count_nonzero() == 0
        assert content is not None or (first[:, :, 1:] != 0).any(-1).all()


def test_dropped_weights_do_not_bring_the_own_value_back() -> None:
    torch.manual_seed(0)
    x = torch.randn(1, 1, 6, 4)
    value = torch.eye(6)[None, None]
    found = attend(x, x, value, "drop", {"dropout_p": 0.4})
    assert found.weights is None
    assert torch.diagonal(found.out, dim1=2, dim2=3).count_nonzero() == 0
    assert 0 < found.out.count_nonzero() < 30


def test_projecting_out_leaves_nothing_along_the_tokens_own_value() -> None:
    q, k, v = (torch.randn(2, heads, 6, 3, dtype=torch.float64) for heads in (4, 2, 2))
    v[0, 0, 3] = 0.0
    out, kept = attend(q, k, v, "project-out", {}).out, kernel_attention(q, k, v)
    own = v.repeat_interleave(2, 1)
    torch.testing.assert_close((out * own).sum(-1), torch.zeros(2, 4, 6, dtype=torch.float64))
    torch.testing.assert_close(out[0, :2, 3], kept[0, :2, 3])  # a value of 0 has no direction
    torch.testing.assert_close(torch.linalg.cross(out - kept, own), torch.zeros_like(out))


@pytest.mark.parametrize("name", ["gpa-mul-drop", "gpa-mul-drop-sink", "rope-xsa", "gka-drop"])
def test_a_layer_gives_weights_and_the_same_output(name: str) -> None:
    torch.manual_seed(0)
    layer = KernelSelfAttention(16, 2, causal=True, **variants.get(name)).eval()
    x = torch.randn(2, 7, 16)
    out, weights = layer(x, return_weights=True)
    torch.testing.assert_close(layer(x), out)
    assert ("drop" in name) == (torch.diagonal(weights, dim1=2, dim2=3).count_nonzero() == 0)
