"""Texts packed one after another into a row: pairs of tokens take part within one document only."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from nadaraya.attention.arguments import AttentionArguments

_DIMENSION_OF_KEYS = {"key": 2, "value": 2, "key_padding_mask": 1, "key_bias": 2}
Attend = Callable[[AttentionArguments], tuple[Tensor, Tensor | None]]


def document_ids_of(position_ids: Tensor) -> Tensor:
    """Return the number of the document that every token of packed rows belongs to.

    Args:
        position_ids: (B, N) whole numbers that count the tokens of a document one by one; where one does not
            follow the one before it a new document begins, as transformers packs them.

    Returns:
        (B, N) 0, 1, … from the first document of each row.

    >>> import torch
    >>> from nadaraya.attention import document_ids_of
    >>> document_ids_of(torch.tensor([[0, 1, 2, 0, 1, 0]])).tolist()
    [[0, 0, 0, 1, 1, 2]]
    """
    begins = position_ids[:, 1:] != position_ids[:, :-1] + 1
    return torch.cat([begins.new_zeros((len(begins), 1)), begins], dim=1).cumsum(dim=1)


def document_ids_of_lengths(cumulative_lengths: Tensor, num_tokens: int | None = None) -> Tensor:
    """Return the number of the document that every token belongs to, from the lengths of documents.

    Args:
        cumulative_lengths: (D + 1,) whole numbers 0, n_1, n_1 + n_2, …: documents of n_1, n_2, … tokens lie
            one after another in a row, as libraries of variable-length attention want them.
        num_tokens: length N of the row, default the last of `cumulative_lengths`; tokens beyond it are a
            document of their own. Given, it spares a GPU a wait.

    Returns:
        (1, N) 0, 1, …

    >>> import torch
    >>> from nadaraya.attention import document_ids_of_lengths
    >>> document_ids_of_lengths(torch.tensor([0, 3, 5, 6])).tolist()
    [[0, 0, 0, 1, 1, 2]]
    """
    if num_tokens is None:
        num_tokens = int(cumulative_lengths[-1])
    tokens = torch.arange(num_tokens, device=cumulative_lengths.device)
    return torch.searchsorted(cumulative_lengths[1:].to(tokens.dtype), tokens, right=True)[None]


def starts_of(key_mask: Tensor | None, document_ids: Tensor | None) -> Tensor | None:
    """Start of each token's text, (B, N): its document, or (B, 1): after the padding on the left."""
    if document_ids is not None:
        return document_starts(document_ids)
    return None if key_mask is None else (~key_mask).long().cumprod(1).sum(1, keepdim=True)


def document_starts(document_ids: Tensor) -> Tensor:
    """Start of each token's document, (B, N)."""
    begins = F.pad(document_ids.diff() != 0, (1, 0), value=True)
    indices = torch.arange(begins.shape[1], device=begins.device)
    return torch.where(begins, indices, 0).cummax(1).values


def log_length(query: Tensor, seen: int, starts: Tensor | None) -> Tensor:
    """log n of queries (B, H, N, d), the n-th tokens of their texts, (B or 1, 1, N, 1)."""
    places = torch.arange(seen, seen + query.shape[2], device=query.device)[None]
    if starts is not None:
        places = (places - starts).clamp(min=0)
    return torch.log1p(places)[:, None, :, None].to(query.dtype)


def document_by_document(args: AttentionArguments, attend: Attend) -> tuple[Tensor, Tensor | None]:
    """Attention within documents, rows divided alike in one call: no pair of two documents is visited.

    Args:
        args: the checked arguments, with `document_ids`.
        attend: output and log-sum-exp of a call without them, or None where it is not wanted.

    Returns:
        Output (B, H, Nq, dv) and log-sum-exp (B, H, Nq), None if that of any call was.
    """
    assert args.document_ids is not None
    rows_of: dict[tuple[int, ...], list[int]] = {}
    for row, ids in enumerate(args.document_ids):
        lengths = torch.unique_consecutive(ids, return_counts=True)[1].tolist()
        rows_of.setdefault(tuple(lengths), []).append(row)
    outs, sums = [], []
    for lengths, rows in rows_of.items():
        parts = [attend(document) for document in _documents(_of_rows(args, rows), lengths)]
        outs.append(torch.cat([out for out, _ in parts], dim=2))
        sums.append(_joined([lse for _, lse in parts], dim=2))
    out, lse = torch.cat(outs), _joined(sums, dim=0)
    if len(rows_of) > 1:
        order = torch.tensor(list(chain(*rows_of.values())), device=out.device).argsort()
        out, lse = out[order], None if lse is None else lse[order]
    return out, lse


def _joined(parts: list[Tensor | None], dim: int) -> Tensor | None:
    given = [part for part in parts if part is not None]
    return torch.cat(given, dim=dim) if len(given) == len(parts) else None


def _of_rows(args: AttentionArguments, rows: list[int]) -> AttentionArguments:
    """The call of some rows of the batch; what has one row serves all."""
    if len(rows) == len(args.query):
        return args
    index = torch.tensor(rows, device=args.query.device)

    by_item = ("query", "key", "value", "key_padding_mask", "key_bias", "attn_mask", "document_ids")
    given = {name: tensor for name in by_item if (tensor := getattr(args, name)) is not None}
    chosen: dict[str, Any] = {
        name: tensor if len(tensor) == 1 else tensor.index_select(0, index) for name, tensor in given.items()
    }
    if args.mixture is not None:
        weights = args.mixture.weights
        chosen["mixture"] = replace(args.mixture, weights=weights.index_select(0, index))
    return replace(args, **chosen)


def _documents(args: AttentionArguments, lengths: Sequence[int]) -> Iterator[AttentionArguments]:
    """The calls of the documents that have queries, where all rows have documents of these lengths."""
    # Queries are the last tokens of the row: documents before them have none.
    queries, left = [], args.query.shape[2]
    for length in reversed(lengths):
        queries.append(min(length, left))
        left -= queries[-1]
    queries.reverse()

    def parts(tensor: Tensor | None, sizes: Sequence[int], dim: int) -> list[Tensor | None]:
        """In one split, whose gradient is one concatenation; a dimension of 1 serves all documents."""
        if tensor is None or tensor.shape[dim] != sum(sizes):
            return [tensor] * len(sizes)
        return list(tensor.split(tuple(sizes), dim))

    given = {name: parts(getattr(args, name), lengths, dim) for name, dim in _DIMENSION_OF_KEYS.items()}
    given["query"], given["attn_mask"] = parts(args.query, queries, 2), []
    for number, mask in enumerate(parts(args.attn_mask, queries, 2)):
        given["attn_mask"].append(parts(mask, lengths, 3)[number])
    weights: Any = parts(None if args.mixture is None else args.mixture.weights, queries, 2)
    for number, count in enumerate(queries):
        if count:
            document: dict[str, Any] = {name: tensors[number] for name, tensors in given.items()}
            if args.mixture is not None:
                document["mixture"] = replace(args.mixture, weights=weights[number])
            yield replace(args, **document, document_ids=None)
