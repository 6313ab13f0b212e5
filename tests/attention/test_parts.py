"""Parts of keys go together, documents stay apart, logits by key are what they say."""

from typing import Any

import pytest
import torch

from nadaraya import InputError, KernelSelfAttention, kernel_attention, variants
from nadaraya.attention import MixedLogits, document_ids_of, document_ids_of_lengths, merge_attention
from nadaraya.kernels import Gaussian

BACKENDS = ["reference", "sdpa"]


def tensors(num_keys: int = 12) -> list[torch.Tensor]:
    torch.manual_seed(0)
    return [torch.randn(2, 3, n, 4, dtype=torch.float64) for n in (5, num_keys, num_keys)]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("options", [{}, {"content": Gaussian(1.3)}])
def test_parts_of_the_keys_go_together(backend: str, options: dict[str, Any]) -> None:
    inputs = [t.requires_grad_() for t in tensors()]
    query, key, value = inputs
    present = torch.ones(2, 12, dtype=torch.bool)
    present[1, :7] = False  # of the second item the first part is empty
    whole = kernel_attention(query, key, value, key_mask=present, backend=backend, return_lse=True, **options)
    parts = []
    for keys in (slice(0, 7), slice(7, 10), slice(10, 12)):
        mask = {"key_mask": present[:, keys], "backend": backend, **options}
        parts.append(kernel_attention(query, key[:, :, keys], value[:, :, keys], return_lse=True, **mask))
    merged = merge_attention(parts)
    for ours, theirs in zip(merged, whole, strict=True):
        torch.testing.assert_close(ours, theirs)
        grads = (
            torch.autograd.grad(x.sin().sum(), inputs, retain_graph=True, allow_unused=True)
            for x in (ours, theirs)
        )
        for grad, expected in zip(*grads, strict=True):
            if expected is None:
                assert grad is None or not grad.any()
            else:
                torch.testing.assert_close(grad, expected)


def test_rows_that_saw_nothing_anywhere_merge_to_zero() -> None:
    out, lse = torch.zeros(1, 1, 2, 3), torch.full((1, 1, 2), -torch.inf)
    merged = merge_attention([(out, lse), (out, lse)])
    assert not merged[0].any()
    assert merged[1].isneginf().all()


def test_parts_of_different_shapes_are_refused() -> None:
    with pytest.raises(InputError, match="parts must be pairs"):
        merge_attention([])
    with pytest.raises(InputError, match="parts must be pairs"):
        merge_attention([(torch.zeros(1, 1, 2, 3), torch.zeros(1, 1, 3))])


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("options", [{}, {"exclude_self": True}, {"content": Gaussian(1.3)}])
@pytest.mark.parametrize("by_lag", [False, True])
def test_documents_are_calls_of_their_own(backend: str, options: dict[str, Any], by_lag: bool) -> None:
    """Whether rows are divided alike, each in its own way, or not at all."""
    borders = [[3, 8], [4], [3, 8], [], [4], []]
    torch.manual_seed(0)
    inputs = [torch.randn(6, 2, 9, 4, dtype=torch.float64, requires_grad=True) for _ in range(3)]
    table = torch.randn(2, 9, dtype=torch.float64) if by_lag else None
    options = {"causal": True, "backend": backend, **options}
    numbers = [4, 0, 7]  # any that differ from one document to the next
    ids = torch.tensor([[numbers[sum(t >= border for border in row)] for t in range(9)] for row in borders])
    out = kernel_attention(*inputs, position=table, document_ids=ids, **options)
    rows = []
    for row, inner in enumerate(borders):
        ends = zip([0, *inner], [*inner, 9], strict=True)
        alone = [[t[row : row + 1, :, begin:end] for t in inputs] for begin, end in ends]
        tables = [None if table is None else table[:, : part[0].shape[2]] for part in alone]
        rows.append(
            torch.cat(
                [
                    kernel_attention(*part, position=lags, **options)
                    for part, lags in zip(alone, tables, strict=True)
                ],
                2,
            )
        )
    expected = torch.cat(rows)
    torch.testing.assert_close(out, expected)
    grads = (torch.autograd.grad(x.sin().sum(), inputs) for x in (out, expected))
    for ours, theirs in zip(*grads, strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize(
    "borders", [[[3, 8], [4], [3, 8], [], [4], []], [[4]] * 6, [[], [4], [], [4], [4], [4]]]
)
@pytest.mark.parametrize("own_rows", [False, True])
def test_what_each_row_has_of_its_own_goes_with_its_documents(
    borders: list[list[int]], own_rows: bool
) -> None:
    """Masks, logits by key and mixed positions, of each row or of all, wherever rows are divided alike."""
    torch.manual_seed(0)
    rows = 6 if own_rows else 1
    inputs = [torch.randn(6, 2, 9, 4, dtype=torch.float64, requires_grad=True) for _ in range(3)]
    of_key = torch.randn(rows, 2, 9, dtype=torch.float64, requires_grad=True)
    mixing = torch.randn(6, 2, 9, 3, dtype=torch.float64, requires_grad=True)
    profiles = torch.randn(3, 9, dtype=torch.float64)
    ids = torch.tensor([[sum(token >= border for border in row) for token in range(9)] for row in borders])
    added = torch.randn(rows, 1, 9, 9, dtype=torch.float64)
    present = torch.rand(6, 9) > 0.2
    choices: list[dict[str, Any]] = [
        {"attn_mask": added}, {"attn_mask": added > -0.5}, {"key_bias": of_key}, {"key_mask": present},
        {"position": MixedLogits(mixing, profiles), "causal": True},
    ]  # fmt: skip
    for options in choices:
        needed = [
            *inputs,
            *([of_key] if "key_bias" in options else [mixing] if "position" in options else []),
        ]
        found = []
        for backend in BACKENDS:
            out = kernel_attention(*inputs, document_ids=ids, backend=backend, **options)
            found.append((out, *torch.autograd.grad(out.sin().sum(), needed)))
        for ours, theirs in zip(*found, strict=True):
            torch.testing.assert_close(ours, theirs)


def test_a_forget_gate_is_a_logit_by_key() -> None:
    """Σ_{t = j+1 … i} log f_t = c_i − c_j, and c_i cancels (Lin et al. 2025)."""
    query, key, value = (torch.randn(1, 2, 7, 4, dtype=torch.float64) for _ in range(3))
    log_forget = torch.nn.functional.logsigmoid(torch.randn(1, 2, 7, dtype=torch.float64))
    total = log_forget.cumsum(-1)
    mask = (total[..., :, None] - total[..., None, :]).masked_fill(
        torch.ones(7, 7, dtype=torch.bool).triu(1), -torch.inf
    )
    torch.testing.assert_close(
        kernel_attention(query, key, value, causal=True, key_bias=-total),
        kernel_attention(query, key, value, attn_mask=mask),
    )


def test_a_layer_keeps_documents_apart() -> None:
    torch.manual_seed(1)
    layer = KernelSelfAttention(16, 2, causal=True, **variants.get("gpa-rope", num_terms=3)).double()
    x = torch.randn(2, 10, 16, dtype=torch.float64)
    packed = layer(x, document_ids=torch.tensor([[0] * 4 + [1] * 6] * 2))
    torch.testing.assert_close(packed, torch.cat([layer(x[:, :4]), layer(x[:, 4:])], 1))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"key_bias": torch.zeros(3, 12)}, r"key_bias must be of shape \(2, 3, 12\), .* got \(3, 12\)"),
        ({"key_bias": torch.zeros(2, 3, 11)}, r"key_bias must be of shape .* got \(2, 3, 11\)"),
        ({"key_bias": torch.zeros(2, 3, 12).long()}, "key_bias must be floating point, got torch.int64"),
        ({"document_ids": torch.zeros(2, 12)}, r"document_ids must be whole numbers of shape \(2, 12\)"),
        ({"document_ids": torch.zeros(12).long()}, r"document_ids must be whole numbers of shape \(2, 12\)"),
        (
            {"document_ids": torch.tensor([[0] * 12, [0] * 5 + [1] * 5 + [0] * 2])},
            "every document of document_ids must be in one piece, got 0 in several pieces of item 1",
        ),
        ({"return_weights": True, "return_lse": True}, "must not be given together"),
    ],
)
def test_bad_input_is_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        kernel_attention(*tensors(), **options)


def test_more_queries_than_keys_have_no_documents() -> None:
    with pytest.raises(
        InputError, match="number of queries with document_ids must be at most that of keys, 3"
    ):
        kernel_attention(*tensors(3), document_ids=torch.zeros(2, 3).long())


def test_documents_and_a_cache_exclude_each_other() -> None:
    layer = KernelSelfAttention(8, 2)
    with pytest.raises(InputError, match="document_ids must not be given with a cache"):
        layer(torch.zeros(1, 3, 8), document_ids=torch.zeros(1, 3).long(), cache=object())


def test_packed_positions_tell_documents() -> None:
    packed = torch.tensor([[0, 1, 0, 1, 2, 0], [0, 1, 2, 3, 4, 5]])
    assert document_ids_of(packed).tolist() == [[0, 0, 1, 1, 1, 2], [0] * 6]


def test_cumulative_lengths_tell_documents() -> None:
    ids = document_ids_of_lengths(torch.tensor([0, 2, 5, 6], dtype=torch.int32))
    assert ids.tolist() == [[0, 0, 1, 1, 1, 2]]
    assert torch.equal(ids, document_ids_of(torch.tensor([[0, 1, 0, 1, 2, 0]])))
    assert document_ids_of_lengths(torch.tensor([0, 2]), 4).tolist() == [[0, 0, 1, 1]]
