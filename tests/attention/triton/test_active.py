"""Tiles of keys that are negligible are not visited; what they weigh is at most δ, whatever the inputs."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import pytest
import torch
from torch import Tensor

from nadaraya import kernel_attention
from nadaraya.attention import functional
from nadaraya.kernels import Gaussian

N, BLOCK = 120, 32
Call = tuple[list[Tensor], dict[str, Any]]
pytestmark = [
    pytest.mark.usefixtures("small_blocks"),
    pytest.mark.filterwarnings("ignore:All-NaN slice encountered"),  # of the interpreter
]


@pytest.fixture
def small_blocks(
    monkeypatch: pytest.MonkeyPatch, cut: Callable[[int, int], AbstractContextManager[None]]
) -> Iterator[None]:
    """Blocks of 32 tokens in place of 256, also for short texts, and small tiles."""
    monkeypatch.setattr("nadaraya.attention.triton.launch.ACTIVE_BLOCK", BLOCK)
    monkeypatch.setattr("nadaraya.attention.triton.active._NEAREST", 8)
    monkeypatch.setattr("nadaraya.attention.triton.backend._FEWEST_PRUNED", 1)
    with cut(16, 32):
        yield


def plain(num_queries: int = N, **options: Any) -> Call:
    """Normalised queries and keys, two heads whose kernels decay by 0.5 and 1.0 nats per token."""
    torch.manual_seed(0)
    inputs = [torch.nn.functional.normalize(torch.randn(1, 2, n, 16), dim=-1) for n in (num_queries, N, N)]
    return inputs, {"position": -torch.tensor([[0.5], [1.0]]) * torch.arange(N), **options}


def both_sides() -> Call:
    inputs, options = plain()
    table = options["position"]
    return inputs, {"position": torch.cat([1.5 * table[:, 1:].flip(1), table], dim=1)}


def gaussian() -> Call:
    return plain(causal=True, content=Gaussian(0.4), exclude_self=True, key_bias=torch.randn(1, 2, N))


def grouped_heads() -> Call:
    (query, key, value), options = plain(causal=True)
    return [query, key[:, :1], value[:, :1]], options


def a_large_query_points_at_a_far_key() -> Call:
    (query, key, value), options = plain(causal=True)
    query[:, :, 110] = 400 * key[:, :, 10]
    return [query, key, value], options


def a_far_key_is_large() -> Call:
    (query, key, value), options = plain()
    key[:, 1, 3] = 400 * query[:, 1, 119]
    return [query, key, value], options


def a_far_key_has_a_huge_logit() -> Call:
    logits = torch.zeros(1, 2, N)
    logits[0, 1, 118], logits[0, 0, 2] = 100, 60
    return plain(key_bias=logits)


def the_nearest_are_padding() -> Call:
    mask = torch.ones(1, N, dtype=torch.bool)
    mask[:, 20:] = False
    (query, key, value), options = plain(causal=True, key_mask=mask)
    key[:, :, 20:] = torch.nan
    return [query, key, value], options


def alone_but_for_far_keys() -> Call:
    mask = torch.zeros(1, N, dtype=torch.bool)
    mask[:, [3, 60, 119]] = True
    return plain(causal=True, exclude_self=True, key_mask=mask)


HARMLESS: dict[str, Callable[[], Call]] = {
    "causal": lambda: plain(causal=True),
    "both sides": both_sides,
    "Gaussian": gaussian,
    "grouped heads": grouped_heads,
    "fewer queries": lambda: plain(75, causal=True),
    "window": lambda: plain(window=100),
    "documents": lambda: plain(causal=True, document_ids=torch.arange(N)[None] // 100),
}
CALLS: dict[str, Callable[[], Call]] = {
    **HARMLESS,
    "a large query points at a far key": a_large_query_points_at_a_far_key,
    "a far key is large": a_far_key_is_large,
    "a far key has a huge logit": a_far_key_has_a_huge_logit,
    "the nearest are padding": the_nearest_are_padding,
    "alone but for far keys": alone_but_for_far_keys,
}


def ranges_of(inputs: list[Tensor], options: dict[str, Any]) -> Tensor:
    from nadaraya.attention.triton.active import active_blocks
    from nadaraya.attention.triton.launch import document_bounds

    args = functional._checked(*inputs, **options)
    documents = None if args.document_ids is None else document_bounds(args.document_ids)
    return active_blocks(args, args.query, args.key, documents, args.window or 0)


def active_pairs(inputs: list[Tensor], options: dict[str, Any]) -> Tensor:
    """Which pairs the call may visit, (B, H, Nq, Nk), by the ranges of the queries."""
    ranges = ranges_of(inputs, options)
    rows = torch.arange(inputs[0].shape[2]) // BLOCK
    first, stop = ranges[:, :, rows].unbind(-1)
    keys = torch.arange(inputs[1].shape[2])
    return (first[..., None] <= keys) & (keys < stop[..., None])


@pytest.mark.parametrize("name", CALLS)
def test_what_is_left_out_weighs_at_most_the_share(name: str) -> None:
    inputs, options = CALLS[name]()
    known = [torch.nan_to_num(t).double() for t in inputs]
    precise = {k: t.double() if k in ("position", "key_bias") else t for k, t in options.items()}
    _, weights = kernel_attention(*known, **precise, backend="reference", return_weights=True)
    for prune_tol in (2**-24, 1e-2):
        pairs = active_pairs(inputs, {**options, "prune_tol": prune_tol})
        assert weights.masked_fill(pairs, 0.0).sum(-1).max() <= prune_tol
        assert not pairs[0, :, -1, 0].any() or name not in HARMLESS


@pytest.mark.parametrize(
    "name",
    [
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("Gaussian", "grouped heads")),
        "a far key has a huge logit",
    ],
)
def test_values_and_gradients_are_those_of_the_pairs_that_are_kept(name: str) -> None:
    inputs, options = CALLS[name]()
    pairs = active_pairs(inputs, {**options, "prune_tol": 0.3})
    assert not pairs.all()
    leaves = [t.requires_grad_() for t in (*inputs, options["position"])]

    def results(**more: Any) -> tuple[Tensor, ...]:
        out, lse = kernel_attention(*inputs, **options, **more, return_lse=True)
        weights = torch.sin(torch.arange(out.numel())).view_as(out)
        return out, lse, *torch.autograd.grad((out * weights).sum() + lse.cos().sum(), leaves)

    active = results(prune_tol=0.3, backend="triton")
    masked = results(attn_mask=pairs, backend="reference")
    for ours, expected in zip(active, masked, strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-4, atol=2e-5)


def test_tiles_that_are_not_kept_are_not_visited() -> None:
    from nadaraya.attention.triton.operator import triton_attention, triton_attention_backward

    inputs, options = plain(causal=True)
    active = ranges_of(inputs, {**options, "prune_tol": 1e-3})
    near, last = 64, slice(96, N)
    assert active[0, :, 3, 0].tolist() == [near, near]  # what the last block of queries visits first
    query, key, value = inputs
    table = torch.cat((options["position"][:, 1:].flip(1), options["position"]), 1)
    options = (0.25, None, table, None, None, None, True, 0, False)
    grad_out, grad_lse = torch.zeros_like(query), torch.zeros(1, 2, N)
    grad_out[:, :, last] = 1.0

    def gradients(*tensors: Tensor) -> tuple[Tensor, ...]:
        results = triton_attention(*tensors, *options, active)
        assert results[0][:, :, last].isnan().any() == tensors[0].isnan().any()
        return triton_attention_backward(
            grad_out, grad_lse, *tensors, *results, *options, False, False, active
        )

    far_key, far_value = (t.index_fill(2, torch.arange(near), torch.nan) for t in (key, value))
    assert gradients(query, far_key, far_value)[0][:, :, last].isfinite().all()
    late_query = query.index_fill(2, torch.arange(N)[last], torch.nan)
    for grad in gradients(late_query, key, value)[1:3]:
        assert grad[:, :, :near].isfinite().all()
        assert grad[:, :, last].isnan().any()


def test_without_a_table_by_lag_nothing_is_left_out() -> None:
    inputs, _ = plain()
    out = kernel_attention(*inputs, causal=True, prune_tol=0.5, backend="triton")
    torch.testing.assert_close(out, kernel_attention(*inputs, causal=True, backend="reference"))
