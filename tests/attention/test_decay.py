"""What is left out where a kernel has decayed weighs at most δ, whatever queries, keys and masks are."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from nadaraya import kernel_attention
from nadaraya.attention import blocked, sdpa
from nadaraya.attention.blocked import LONGEST_BLOCK
from nadaraya.attention.passes import exp_without_underflow
from nadaraya.kernels import ExponentialDecay, Gaussian, KernelBank

N = 1700  # tokens: three blocks of rows, the last one incomplete
Call = tuple[list[Tensor], dict[str, Any]]


def plain(num_queries: int = N, **options: Any) -> Call:
    """Normalised queries and keys, two heads whose kernels decay by 0.2 and 0.5 nats per token."""
    torch.manual_seed(0)
    shapes = ((1, 2, num_queries, 8), (1, 2, N, 8), (1, 2, N, 3))
    inputs = [torch.nn.functional.normalize(torch.randn(s, dtype=torch.float64), dim=-1) for s in shapes]
    return inputs, {"position": -torch.tensor([[0.2], [0.5]]).double() * torch.arange(N), **options}


def both_sides() -> Call:
    inputs, options = plain(causal=False)
    table = options["position"]
    return inputs, {"position": torch.cat([1.5 * table[:, 1:].flip(1), table], dim=1)}


def gaussian() -> Call:
    return plain(
        causal=True, content=Gaussian(0.4), exclude_self=True, key_bias=torch.randn(1, 2, N).double()
    )


def grouped_heads() -> Call:
    (query, key, value), options = plain(causal=True)
    return [query, key[:, :1], value[:, :1]], options


def a_large_query_points_at_a_far_key() -> Call:
    (query, key, value), options = plain(causal=True)
    query[:, :, 1650] = 3000 * key[:, :, 10]
    return [query, key, value], options


def a_far_key_is_large() -> Call:
    (query, key, value), options = plain(causal=True)
    key[:, 1, 3] = 2500 * query[:, 1, 1699]
    return [query, key, value], options


def a_far_key_has_a_huge_logit() -> Call:
    inputs, options = plain(causal=False)
    logits = torch.zeros(1, 2, N, dtype=torch.float64)
    logits[0, 1, 1690], logits[0, 0, 2] = 700, 500
    return inputs, {**options, "key_bias": logits}


def near_keys_are_padding() -> Call:
    mask = torch.ones(1, N, dtype=torch.bool)
    mask[:, 700:1690] = False
    return plain(causal=True, key_mask=mask, exclude_self=True)


def rows_are_alone() -> Call:
    mask = torch.zeros(1, N, dtype=torch.bool)
    mask[:, [0, 900, 1699]] = True
    return plain(causal=True, key_mask=mask, exclude_self=True)


def the_kernel_comes_back() -> Call:
    inputs, options = plain(causal=True)
    options["position"][:, 1400:1420] = 1.0
    return inputs, options


def far_keys_weigh_just_too_much() -> Call:
    """By 2 % together: the bound has no room here, as all content is equal and the kernel is a step."""
    inputs, options = plain(causal=True, content=0.0)
    options["position"] = torch.where(torch.arange(N) < 600, 0.0, math.log(0.012)).double().expand(2, N)
    return inputs, options


CALLS: dict[str, Callable[[], Call]] = {
    "causal": lambda: plain(causal=True),
    "both sides": both_sides,
    "window": lambda: plain(window=900),
    "few queries": lambda: plain(num_queries=300, causal=True),
    "Gaussian": gaussian,
    "grouped heads": grouped_heads,
    "large query": a_large_query_points_at_a_far_key,
    "large key": a_far_key_is_large,
    "huge logit": a_far_key_has_a_huge_logit,
    "padding": near_keys_are_padding,
    "alone": rows_are_alone,
    "comes back": the_kernel_comes_back,
    "a step": far_keys_weigh_just_too_much,
}
HARMLESS = {"causal", "both sides", "window", "few queries", "Gaussian", "grouped heads"}


def active_pairs(monkeypatch: pytest.MonkeyPatch, inputs: list[Tensor], options: dict[str, Any]) -> Tensor:
    """Which pairs the call may visit, (Nq, Nk)."""
    found = []
    original = sdpa.active_keys

    def spy(*arguments: Any) -> Tensor:
        found.append(original(*arguments))
        return found[-1]

    with monkeypatch.context() as patch:
        patch.setattr(sdpa, "active_keys", spy)
        kernel_attention(*inputs, **options, backend="sdpa")
    (ranges,) = found
    pairs = torch.zeros(inputs[0].shape[2], inputs[1].shape[2], dtype=torch.bool)
    for block, (first, stop) in enumerate(ranges.tolist()):
        pairs[block * LONGEST_BLOCK : (block + 1) * LONGEST_BLOCK, first:stop] = True
    return pairs


@pytest.mark.parametrize("name", CALLS)
def test_what_is_left_out_weighs_at_most_the_share(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    inputs, options = CALLS[name]()
    _, weights = kernel_attention(*inputs, **options, backend="reference", return_weights=True)
    for prune_tol in (2**-24, 1e-2):
        pairs = active_pairs(monkeypatch, inputs, {**options, "prune_tol": prune_tol})
        assert weights.masked_fill(pairs, 0.0).sum(-1).max() <= prune_tol
        assert not pairs[-1, 0] or name not in HARMLESS


@pytest.mark.parametrize("name", ["both sides", "window", "Gaussian", "grouped heads", "padding", "alone"])
def test_values_and_gradients_are_those_of_the_pairs_that_are_kept(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs, options = CALLS[name]()
    pairs = active_pairs(monkeypatch, inputs, {**options, "prune_tol": 0.3})
    leaves = [*inputs, options["position"]]
    for leaf in leaves:
        leaf.requires_grad_()

    def results(**more: Any) -> tuple[Tensor, ...]:
        out, lse = kernel_attention(*inputs, **options, **more, return_lse=True)
        seen = torch.where(lse == -torch.inf, 0.0, lse)
        weights = torch.sin(torch.arange(out.numel())).view_as(out)
        return out, lse, *torch.autograd.grad((out * weights).sum() + seen.cos().sum(), leaves)

    kept = results(prune_tol=0.3, backend="sdpa")
    masked = results(attn_mask=pairs, backend="reference")
    for ours, expected in zip(kept, masked, strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-9, atol=1e-9)


def test_at_the_last_digit_of_float32_the_results_are_those_of_the_full_sum() -> None:
    inputs, options = CALLS["causal"]()
    full = kernel_attention(*inputs, **options, backend="reference")
    single = [t.float() for t in inputs]
    out = kernel_attention(*single, **options, prune_tol=2**-24, backend="sdpa")
    torch.testing.assert_close(out.double(), full, rtol=0, atol=2e-6)


def visited(monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]) -> int:
    """Pairs of a call with a trained bank's decay that go through the products, forward and backward."""
    torch.manual_seed(0)
    inputs = [
        torch.nn.functional.normalize(torch.randn(1, 2, 6000, 8), dim=-1).requires_grad_() for _ in range(3)
    ]
    counts: list[int] = []  # from several threads
    forward, tiles = blocked._attend, blocked._tiles

    def attend(query: Tensor, key: Tensor, *others: Any) -> tuple[Tensor, Tensor]:
        counts.append(query.shape[:3].numel() * key.shape[2])
        return forward(query, key, *others)

    def counted(*arguments: Any) -> Any:
        for tile, (items, heads) in tiles(*arguments):
            pairs = (items.stop - items.start) * (heads.stop - heads.start)
            counts.append(pairs * tile.num_rows * tile.num_keys)
            yield tile, (items, heads)

    with monkeypatch.context() as patch:
        patch.setattr(blocked, "_attend", attend)
        patch.setattr(blocked, "_tiles", counted)
        kernel_attention(*inputs, position=KernelBank(2, 8), causal=True, **options).sum().backward()
    return sum(counts)


@pytest.mark.slow
def test_keys_that_are_left_out_are_not_visited(monkeypatch: pytest.MonkeyPatch) -> None:
    full = visited(monkeypatch, {})
    assert visited(monkeypatch, {"prune_tol": 2**-24}) < 0.9 * full
    assert visited(monkeypatch, {"prune_tol": 0.01}) < 0.5 * full


def test_nothing_is_negligible_by_default() -> None:
    inputs, options = CALLS["causal"]()
    out = kernel_attention(*inputs, **options, backend="sdpa")
    assert torch.equal(out, kernel_attention(*inputs, **options, prune_tol=0.0, backend="sdpa"))
    assert not torch.equal(out, kernel_attention(*inputs, **options, prune_tol=1e-3, backend="sdpa"))


def test_a_mask_of_pairs_leaves_nothing_out() -> None:
    """It may hide the near keys, and no bound is known."""
    inputs, options = CALLS["causal"]()
    mask = torch.ones(N, N, dtype=torch.bool).tril(-1000)
    mask[:, 0] = True
    expected = kernel_attention(*inputs, **options, attn_mask=mask, backend="reference")
    out = kernel_attention(*inputs, **options, attn_mask=mask, prune_tol=0.1, backend="sdpa")
    torch.testing.assert_close(out, expected)


def test_documents_leave_out_their_own_far_keys() -> None:
    inputs, options = CALLS["causal"]()
    ids = torch.zeros(1, N, dtype=torch.long)
    ids[:, 1100:] = 1
    out = kernel_attention(*inputs, **options, document_ids=ids, prune_tol=1e-6, backend="sdpa")
    expected = kernel_attention(*inputs, **options, document_ids=ids, backend="reference")
    torch.testing.assert_close(out, expected, rtol=0, atol=4e-6)


def test_a_compiled_call_leaves_out_the_same() -> None:
    inputs, options = CALLS["causal"]()
    options = {**options, "position": ExponentialDecay(3.0), "prune_tol": 1e-3, "backend": "sdpa"}

    def call(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return kernel_attention(query, key, value, **options)

    compiled = torch.compile(call, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(*inputs), call(*inputs))


def test_weights_near_underflow_are_zero_in_the_backward_pass() -> None:
    """Numbers below the smallest normal one take a hundred times as long, in exponentials and in products."""
    logits = torch.tensor([-torch.inf, -100.0, -80.0, -20.0, -1.0, 0.0])
    weights = logits.clone()
    exp_without_underflow(weights)
    assert weights[:3].tolist() == [0.0, 0.0, 0.0]
    torch.testing.assert_close(weights[3:], logits[3:].exp())
