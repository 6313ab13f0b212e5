"""Positions that need a logit per pair: mixtures and grids are the definition, in strips of rows."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import pytest
import torch
from grids import covering
from torch import Tensor

from nadaraya import InputError, kernel_attention
from nadaraya.attention import MixedKernels, MixedLogits, choose_backend
from nadaraya.attention.positions import GridLogits
from nadaraya.kernels import Gaussian

Agreement = Callable[..., dict[str, Tensor]]
pytestmark = pytest.mark.usefixtures("short_strips")
MASKS: dict[str, dict[str, Any]] = {
    "none": {},
    "narrow causal window": {"causal": True, "window": 3},
    "causal leave-one-out": {"causal": True, "exclude_self": True},
    "window": {"window": 9, "eps": 0.3},
}


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@pytest.fixture
def short_strips(
    monkeypatch: pytest.MonkeyPatch, cut: Callable[[int, int], AbstractContextManager[None]]
) -> Iterator[None]:
    """Of 32 rows, and small tiles: a few dozen tokens make several."""
    monkeypatch.setattr("nadaraya.attention.triton.strips._ROWS", 32)
    monkeypatch.setattr("nadaraya.attention.triton.strips._LOGITS", 1)
    with cut(16, 32):
        yield


def three(heads: tuple[int, int, int], lengths: tuple[int, int], dtype: torch.dtype) -> list[Tensor]:
    """Queries, keys and values for (batch, key-value heads, group)."""
    batch, kv_heads, group = heads
    num_queries, num_keys = lengths
    return [
        torch.randn(batch, kv_heads * group, num_queries, 16).to(dtype),
        torch.randn(batch, kv_heads, num_keys, 16).to(dtype),
        torch.randn(batch, kv_heads, num_keys, 24).to(dtype),
    ]


def mixture(query: Tensor, form: type, *shape: int, signed: bool = False) -> MixedLogits | MixedKernels:
    """With profiles (…, M, E)."""
    *_, num_terms, extent = shape
    weights = torch.randn(*query.shape[:3], num_terms)
    if form is MixedKernels:
        weights = weights.abs() + 0.1
    profiles = torch.randn(*shape[:-1], 2 * extent - 1 if signed else extent)
    return form(weights, profiles, signed)


def thinned(cases: list[Any]) -> list[Any]:
    """The cases, of which all but every third are slow."""
    return [
        case if n % 3 == 0 else pytest.param(*case.values, marks=pytest.mark.slow)
        for n, case in enumerate(cases)
    ]


@pytest.mark.parametrize(
    ("lengths", "masks", "extent", "dtype", "form", "keys", "heads", "shared", "content", "tiles"),
    thinned(
        covering(
            [(40, 40), (33, 50), (50, 33)],
            list(MASKS),
            [5, 60],  # beyond the longest text too
            [torch.float32, torch.float16, torch.bfloat16],
            [MixedLogits, MixedKernels],
            ["none", "padded", "documents", "logits"],
            [(2, 1, 1), (1, 2, 1), (1, 1, 2)],
            [False, True],
            ["dot", "gaussian"],
            [(16, 32), (32, 16)],
            whole=False,
        )
    ),
)
def test_mixtures_equal_the_definition_in_values_and_all_gradients(
    assert_agreement: Agreement,
    cut: Callable[[int, int], AbstractContextManager[None]],
    packed: Callable[[int, int, int], Tensor],
    lengths: tuple[int, int], masks: str, extent: int, dtype: torch.dtype, form: type, keys: str,
    heads: tuple[int, int, int], shared: bool, content: str, tiles: tuple[int, int],
) -> None:  # fmt: skip
    tensors, options = three(heads, lengths, dtype), dict(MASKS[masks])
    (batch, num_heads), num_keys = tensors[0].shape[:2], lengths[1]
    of_heads = () if shared else (num_heads,)
    options["position"] = mixture(tensors[0], form, *of_heads, 3, extent, signed=keys != "none")
    if content == "gaussian":
        options["content"] = Gaussian(torch.rand(num_heads) * 2 + 3)
    if keys == "padded":
        options["key_mask"] = torch.rand(batch, num_keys) < 0.6
    elif keys == "logits":
        options["key_bias"] = torch.randn(batch, num_heads, num_keys)
    elif keys == "documents" and lengths[0] <= num_keys:
        options["document_ids"] = packed(batch, num_keys, 3)
    with cut(*tiles):
        assert_agreement(tensors, options)


@pytest.mark.parametrize(
    ("grid", "shared", "masks", "dtype", "heads", "content"),
    thinned(
        covering(
            [(4, 9, 0), (9, 3, 5), (1, 40, 1)],  # height, width, tokens before the patches
            [False, True],
            ["none", "causal leave-one-out", "window"],
            [torch.float32, torch.float16, torch.bfloat16],
            [(2, 1, 1), (1, 1, 2)],
            ["dot", "gaussian"],
            whole=False,
        )
    ),
)
def test_grids_equal_the_definition_in_values_and_all_gradients(
    assert_agreement: Agreement, grid: tuple[int, int, int], shared: bool, masks: str, dtype: torch.dtype,
    heads: tuple[int, int, int], content: str,
) -> None:  # fmt: skip
    height, width, prefix = grid
    num_tokens = prefix + height * width
    tensors = three(heads, (num_tokens, num_tokens), dtype)
    num_heads = 1 if shared else tensors[0].shape[1]
    table = torch.randn(num_heads, 2 * height - 1, 2 * width - 1)
    options = {**MASKS[masks], "position": GridLogits(table, prefix)}
    if content == "gaussian":
        options["content"] = Gaussian(torch.rand(tensors[0].shape[1]) * 2 + 3)
    assert_agreement(tensors, options)


@pytest.mark.parametrize("form", [MixedLogits, MixedKernels])
def test_one_query_of_many_keys_is_not_decoded_without_its_mixture(
    assert_agreement: Agreement, form: type
) -> None:
    tensors = three((2, 1, 2), (1, 40), torch.float32)
    position = mixture(tensors[0], form, 3, 12)
    assert_agreement(tensors, {"position": position, "causal": True})
    options = {"position": position, "causal": True}
    out = kernel_attention(*tensors, **options, backend="triton")  # no gradient is wanted
    torch.testing.assert_close(out, kernel_attention(*tensors, **options, backend="reference"))


def test_one_tensor_with_a_mixture_or_a_grid_keeps_its_position(assert_agreement: Agreement) -> None:
    x = torch.randn(1, 2, 36, 16)
    for position in (mixture(x, MixedLogits, 3, 12), GridLogits(torch.randn(2, 11, 11))):
        assert_agreement([x, x, x], {"content": Gaussian(torch.tensor([3.0, 5.0])), "position": position})


def test_the_number_of_strips_changes_no_digit_that_float32_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    tensors = three((1, 1, 2), (70, 70), torch.float32)
    position = mixture(tensors[0], MixedLogits, 3, 12)
    options = {"position": position, "causal": True, "backend": "triton"}
    short = kernel_attention(*tensors, **options)
    monkeypatch.setattr("nadaraya.attention.triton.strips._LOGITS", 2**26)
    torch.testing.assert_close(kernel_attention(*tensors, **options), short, rtol=0, atol=1e-6)


def test_nan_in_a_query_stays_in_its_row_of_the_weights() -> None:
    """Rows of a strip lie one after the other: a score gradient in a wrong place would be seen here."""
    query, key, value = three((1, 1, 1), (40, 40), torch.float32)
    query[0, 0, 20, 3] = torch.nan
    position = mixture(query, MixedLogits, 2, 12)
    weights = position.weights.requires_grad_()
    out = kernel_attention(
        query, key, value, position=MixedLogits(weights, position.profiles), causal=True, backend="triton"
    )
    (grad,) = torch.autograd.grad(out.sum(), weights)
    spoilt = torch.arange(40) == 20
    for rows in (out, grad):
        assert rows[0, 0, spoilt].isnan().all()
        assert rows[0, 0, ~spoilt].isfinite().all()


@pytest.mark.slow
@pytest.mark.parametrize("form", [MixedKernels, GridLogits])
def test_the_operators_pass_pytorchs_own_checks(form: type) -> None:
    from nadaraya.attention.triton.per_query import (
        triton_attention_per_query,
        triton_attention_per_query_backward,
    )

    query, key, value = three((1, 1, 2), (12, 12), torch.float32)
    if form is GridLogits:
        position = (None, torch.randn(2, 5, 7), None)
    else:
        shift = torch.randn(1, 1, 9) if form is MixedKernels else None
        weights = torch.rand(1, 12, 2, 3).transpose(1, 2)  # as layers give them
        position = (weights, torch.rand(1, 3, 9), shift)
    options = (torch.randn(1, 2, 12), torch.rand(1, 12) < 0.3, None, True, 0, True)
    bandwidth = torch.tensor([2.0, 5.0])
    leaves = [None if t is None else t.clone().requires_grad_() for t in position]
    if leaves[2] is not None:
        leaves[2].requires_grad_(False)
    arguments = (*(t.clone().requires_grad_() for t in (query, key, value)), 1.0, bandwidth)
    torch.library.opcheck(triton_attention_per_query, (*arguments, *leaves, *options))
    arguments = (query, key, value, 1.0, bandwidth, *position, *options)
    results = triton_attention_per_query(*arguments)
    grads = torch.randn_like(results[0]), torch.randn_like(results[1])
    torch.library.opcheck(
        triton_attention_per_query_backward,
        (*grads, query, key, value, *results, 1.0, bandwidth, *position, *options, True, True),
    )


def test_the_kernels_take_every_position_but_one_of_all_pairs() -> None:
    x = torch.randn(1, 2, 36, 16)
    grid, table = GridLogits(torch.randn(2, 11, 11)), torch.randn(2, 36)
    mixtures = [mixture(x, form, 3, 12) for form in (MixedLogits, MixedKernels)]
    for position in (*mixtures, grid, table, None):
        choice = choose_backend(x, x, x, position=position, prune_tol=0.01, backend="triton")
        assert choice.name == "triton"
    with pytest.raises(InputError, match="it takes no attn_mask"):
        choose_backend(x, x, x, position=torch.randn(2, 36, 36), backend="triton")
