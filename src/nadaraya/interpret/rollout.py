"""Numbers read off attention maps: rollout, the weights of one query, bandwidths, thinned matrices."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from nadaraya.errors import InputError, must_be
from nadaraya.interpret.attention_maps import QUERIES, AttentionMaps
from nadaraya.interpret.bandwidths import head_bandwidths

Query = str | int | tuple[int, int]


def rollout(weights: Sequence[Tensor], discard: float = 0.0) -> Tensor:
    """Shares of the input tokens in each token of the last layer (Abnar and Zuidema 2020).

        Â_ℓ = ½ mean_h A_ℓh + ½ I, rows normalised        R = Â_(L−1) ⋯ Â_1 Â_0    (Kundu et al. 2026, eq. 13)

    Layer 0 is nearest the input, so it stands on the right; the paper's product names the factors in
    order of depth. With `discard` the weakest entries of each row of mean_h A_ℓh become zero, and Â's rows
    are normalised after that. The quantile is that of the row, over the tokens that the query sees at all
    (weights above zero): every query then keeps its strongest tokens, also a diffuse one among peaked ones,
    whose row a quantile of the whole matrix would empty.

    Args:
        weights: (B, H, N, N) of each layer, the first layer first.
        discard: share of each row's entries to drop, in [0, 1); default 0. Ties with the quantile stay.

    Returns:
        (B, N, N) float32, rows summing to 1: row i says where token i of the last layer comes from.

    Raises:
        InputError: no layers, or discard outside [0, 1).

    >>> import torch
    >>> from nadaraya.interpret.rollout import rollout
    >>> rollout([torch.full((1, 2, 2, 2), 0.5)])  # half a token's own, half of the mean over both
    tensor([[[0.7500, 0.2500],
             [0.2500, 0.7500]]])
    """
    if not weights:
        raise InputError("rollout needs the weights of at least one layer: got none")
    if not 0.0 <= discard < 1.0:
        raise must_be("discard", "a share of at least 0, below 1", discard)
    own = result = torch.eye(weights[0].shape[-1], device=weights[0].device)
    for layer in weights:
        step = 0.5 * without_weak(layer.float().mean(dim=1), discard) + 0.5 * own
        result = step / step.sum(dim=-1, keepdim=True) @ result
    return result


def without_weak(matrix: Tensor, discard: float) -> Tensor:
    """(..., N) weights without the weakest share `discard` of each row's entries above zero; ties stay."""
    ordered = matrix.sort(dim=-1).values
    seen = (matrix > 0).sum(dim=-1, keepdim=True)
    first_kept = matrix.shape[-1] - seen + (discard * seen).long()
    threshold = ordered.gather(-1, first_kept.clamp(max=matrix.shape[-1] - 1))
    return matrix.masked_fill(matrix < threshold, 0.0)


def query_position(maps: AttentionMaps, query: Query | None = None) -> str | int:
    """A query of `query_rows` as "cls", "mean", "last" or a position.

    Raises:
        InputError: an unknown query, or a token that does not exist.
    """
    if query is None:
        return maps.reads
    if isinstance(query, tuple) and maps.grid is not None:
        rows, columns = maps.grid
        if not (0 <= query[0] < rows and 0 <= query[1] < columns):
            raise must_be("query", f"a patch of rows 0 to {rows - 1}, columns 0 to {columns - 1}", query)
        return maps.num_prefix_tokens + query[0] * columns + query[1]
    names = QUERIES if maps.class_token else QUERIES[1:]
    if query in names or (isinstance(query, int) and 0 <= query < maps.num_tokens):
        return query  # type: ignore[return-value]
    patch = ", a (row, column) of a patch" if maps.grid is not None else ""
    accepted = f"{', '.join(map(repr, names))}{patch} or a position from 0 to {maps.num_tokens - 1}"
    raise must_be("query", accepted, query)


def query_rows(matrix: Tensor, maps: AttentionMaps, query: Query | None = None) -> Tensor:
    """The weights with which one query sees all tokens.

    Args:
        matrix: (B, ..., N, N), query by key: a layer's weights, or a rollout.
        maps: says what the tokens are.
        query: "cls", the class token; "mean", the average over all patches (over all tokens where there is no
            grid); "last", the last token that is not padding; (row, column) of a patch; or a position from 0,
            prefix tokens included. Default: the query that the model reads its answer from.

    Returns:
        (B, ..., N).

    Raises:
        InputError: an unknown query, or a token that does not exist.

    >>> import torch
    >>> from nadaraya.interpret.attention_maps import AttentionMaps, LayerMaps
    >>> from nadaraya.interpret.rollout import query_rows
    >>> layer = LayerMaps("attn", torch.eye(3).expand(1, 1, 3, 3), bandwidth=None, error=0.0)
    >>> query_rows(layer.weights, AttentionMaps((layer,), output=None, reads="last"))
    tensor([[[0., 0., 1.]]])
    """
    position = query_position(maps, query)
    if position == "mean":
        return matrix[..., maps.num_prefix_tokens :, :].mean(dim=-2)
    if position == "last" and maps.padding is not None:
        # The first that is no padding, seen from the end.
        last = matrix.shape[-1] - 1 - (~maps.padding).flip(-1).int().argmax(dim=-1)
        return torch.stack([text[..., row, :] for text, row in zip(matrix, last.tolist(), strict=True)])
    row = -1 if position == "last" else 0 if position == "cls" else int(position)
    return matrix[..., row, :]


def on_grid(row: Tensor, maps: AttentionMaps) -> Tensor:
    """The patches' part of (..., N) weights, (..., rows, columns), as they are (Kundu et al. 2026, eq. 14).

    Raises:
        InputError: the tokens are no patches of a known grid.

    >>> import torch
    >>> from nadaraya.interpret.attention_maps import AttentionMaps
    >>> from nadaraya.interpret.rollout import on_grid
    >>> maps = AttentionMaps((), output=None, reads="mean", num_prefix_tokens=1, grid=(1, 2))
    >>> on_grid(torch.tensor([0.5, 0.25, 0.25]), maps)
    tensor([[0.2500, 0.2500]])
    """
    if maps.grid is None:
        raise InputError("the tokens of this model are not a known grid of patches")
    return row[..., maps.num_prefix_tokens :].unflatten(-1, maps.grid)


def query_patches(grid: tuple[int, int]) -> list[tuple[int, int]]:
    """Four query patches as (row, column) from 0: quarter points and centre (Kundu et al. 2026, section 7.5).

    They are (⌊P/4⌋, ⌊P/4⌋), (⌊P/2⌋, ⌊P/2⌋), (⌊3P/4⌋, ⌊3P/4⌋) and (⌊P/4⌋, ⌊3P/4⌋), rows and columns each with
    their own P; those that coincide on a small grid once.
    """
    rows, columns = grid
    quarters = ((1, 1), (2, 2), (3, 3), (1, 3))
    return list(dict.fromkeys((a * rows // 4, b * columns // 4) for a, b in quarters))


def query_positions(tokens: int) -> list[int]:
    """Four query positions of a text of N tokens: quarter points and the last, each once."""
    return sorted({tokens // 4, tokens // 2, 3 * tokens // 4, tokens - 1})


def sigma_matrix(maps: AttentionMaps) -> np.ndarray | None:
    """The bandwidths of all heads in all layers, or None without any (Kundu et al. 2026, section 7.3).

    They are (H, L), in the units of the features, heads by number, NaN where a layer or a head has none; of
    bandwidths per channel, the geometric mean over the channels of the head.

    >>> import torch
    >>> from nadaraya.interpret.attention_maps import AttentionMaps, LayerMaps
    >>> from nadaraya.interpret.rollout import sigma_matrix
    >>> layer = LayerMaps("attn", torch.eye(2).expand(1, 1, 2, 2), bandwidth=torch.tensor([0.5]), error=0.0)
    >>> sigma_matrix(AttentionMaps((layer,), output=None, reads="last"))
    array([[0.5]])
    """
    return head_bandwidths([layer.bandwidth for layer in maps.layers], [layer.heads for layer in maps.layers])


def thinned(tokens: int, most: int = 50) -> np.ndarray:
    """At most `most` positions, evenly spread from the first to the last (Kundu et al. 2026, section 7.7)."""
    return np.arange(tokens) if tokens <= most else np.linspace(0, tokens - 1, most).round().astype(int)
