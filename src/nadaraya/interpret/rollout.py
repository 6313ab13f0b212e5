"""Numbers read off attention maps: rollout, the weights of one query, bandwidths, thinned matrices."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from nadaraya.errors import InputError
from nadaraya.interpret.attention_maps import QUERIES, AttentionMaps


def rollout(weights: Sequence[Tensor], discard: float = 0.0) -> Tensor:
    """How much of each input token reaches each token of the last layer (Abnar and Zuidema 2020).

        Â_ℓ = ½ mean_h A_ℓh + ½ I, rows normalised        R = Â_L ⋯ Â_2 Â_1        (document D, equation 13)

    Layer 1 is nearest the input, so it stands on the right; the document's product names the factors in
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
    """
    if not weights:
        raise InputError("rollout needs the weights of at least one layer: got none")
    if not 0.0 <= discard < 1.0:
        raise InputError(f"discard = {discard}: accepted are 0 and above, below 1")
    result: Tensor | None = None
    for layer in weights:
        fused = without_weak(layer.float().mean(dim=1), discard)
        step = 0.5 * fused + 0.5 * torch.eye(fused.shape[-1], device=fused.device)
        step = step / step.sum(dim=-1, keepdim=True)
        result = step if result is None else step @ result
    assert result is not None
    return result


def without_weak(matrix: Tensor, discard: float) -> Tensor:
    """The matrix with the weakest entries of each row set to zero; rows are not normalised again.

    Args:
        matrix: (..., N), non-negative.
        discard: share of the row's entries above zero to drop, in [0, 1). Ties with the quantile stay.

    Returns:
        As `matrix`.
    """
    ordered = matrix.sort(dim=-1).values
    seen = (matrix > 0).sum(dim=-1, keepdim=True)
    first_kept = matrix.shape[-1] - seen + (discard * seen).long()
    threshold = ordered.gather(-1, first_kept.clamp(max=matrix.shape[-1] - 1))
    return matrix.masked_fill(matrix < threshold, 0.0)


def query_rows(matrix: Tensor, maps: AttentionMaps, query: str | int | None = None) -> Tensor:
    """The weights with which one query sees all tokens.

    Args:
        matrix: (B, ..., N, N), query by key: a layer's weights, or a rollout.
        maps: says what the tokens are.
        query: "cls", the class token; "mean", the average over all patches (over all tokens where there is no
            grid); "last", the last token that is not padding; or a position from 0, the prefix included.
            Default: the query that the model reads its answer from.

    Returns:
        (B, ..., N).

    Raises:
        InputError: an unknown query, or a position that does not exist.
    """
    query = maps.reads if query is None else query
    tokens = matrix.shape[-1]
    if query == "mean":
        return matrix[..., maps.num_prefix_tokens :, :].mean(dim=-2)
    if query == "cls":
        if not maps.class_token:
            raise InputError("query 'cls': this model has no class token; accepted are mean or a position")
        return matrix[..., 0, :]
    if query == "last":
        if maps.padding is None:
            return matrix[..., -1, :]
        # The first that is no padding, seen from the end.
        last = tokens - 1 - (~maps.padding).flip(-1).int().argmax(dim=-1)
        return torch.stack([text[..., row, :] for text, row in zip(matrix, last.tolist(), strict=True)])
    if isinstance(query, str) or not 0 <= query < tokens:
        raise InputError(
            f"query {query!r}: accepted are {', '.join(QUERIES)} or a position from 0 to {tokens - 1}"
        )
    return matrix[..., query, :]


def on_grid(row: Tensor, maps: AttentionMaps) -> Tensor:
    """The patches' part of rows of weights, on the grid (document D, equation 14); not normalised again.

    Args:
        row: (..., N).
        maps: says where the patches are.

    Returns:
        (..., rows, columns).

    Raises:
        InputError: the tokens are no patches of a known grid.
    """
    if maps.grid is None:
        raise InputError("the tokens of this model are not a known grid of patches")
    return row[..., maps.num_prefix_tokens :].unflatten(-1, maps.grid)


def query_patches(grid: tuple[int, int]) -> list[tuple[int, int]]:
    """The document's four query patches as (row, column) from 0: quarter points and centre (section 7.5).

    Args:
        grid: rows and columns of patches.

    Returns:
        (⌊P/4⌋, ⌊P/4⌋), (⌊P/2⌋, ⌊P/2⌋), (⌊3P/4⌋, ⌊3P/4⌋), (⌊P/4⌋, ⌊3P/4⌋), rows and columns each with their
        own P; those that coincide on a small grid once.
    """
    rows, columns = grid
    quarters = ((1, 1), (2, 2), (3, 3), (1, 3))
    return list(dict.fromkeys((a * rows // 4, b * columns // 4) for a, b in quarters))


def query_positions(tokens: int) -> list[int]:
    """Four query positions of a text, as an image has query patches: quarter points and the last token.

    Args:
        tokens: N.

    Returns:
        Positions from 0, each once.
    """
    return sorted({tokens // 4, tokens // 2, 3 * tokens // 4, tokens - 1})


def sigma_matrix(maps: AttentionMaps) -> np.ndarray | None:
    """The bandwidths σ of all heads in all layers (document D, section 7.3).

    Args:
        maps: of a model.

    Returns:
        (H, L) in the units of the features, NaN where a layer has none; by channel, the geometric mean over
        the head's channels. None when no layer has a bandwidth.
    """
    if all(layer.bandwidth is None for layer in maps.layers):
        return None
    heads = max(layer.weights.shape[1] for layer in maps.layers)
    matrix = np.full((heads, len(maps.layers)), np.nan)
    for column, layer in enumerate(maps.layers):
        if layer.bandwidth is not None:
            channels = layer.bandwidth.double().reshape(len(layer.bandwidth), -1)
            matrix[: len(channels), column] = channels.log().mean(dim=1).exp().numpy()
    return matrix


def thinned(tokens: int, most: int = 50) -> np.ndarray:
    """Positions of at most so many tokens, evenly spread, the first and the last among them (section 7.7).

    Args:
        tokens: N.
        most: how many are kept at most; default 50, the document's.

    Returns:
        Increasing positions from 0.
    """
    return np.arange(tokens) if tokens <= most else np.linspace(0, tokens - 1, most).round().astype(int)


def without_diagonal(matrix: Tensor) -> Tensor:
    """A copy of (..., N, N) with zeros on the diagonal (document D, section 7.7)."""
    return matrix - torch.diag_embed(matrix.diagonal(dim1=-2, dim2=-1))
