"""Laws of the numbers read off attention maps, and rollout against a sum over all paths."""

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from nadaraya.errors import InputError
from nadaraya.interpret.attention_maps import AttentionMaps, LayerMaps
from nadaraya.interpret.rollout import (
    Query,
    on_grid,
    query_patches,
    query_positions,
    query_rows,
    rollout,
    sigma_matrix,
    thinned,
    without_weak,
)


def weights(layers: int = 3, tokens: int = 5, causal: bool = False) -> list[Tensor]:
    torch.manual_seed(0)
    raw = torch.rand(layers, 2, 3, tokens, tokens) ** 3
    raw = raw.tril() if causal else raw
    return list(raw / raw.sum(-1, keepdim=True))


def maps_of(layers: list[Tensor], **options: Any) -> AttentionMaps:
    found = tuple(LayerMaps(str(n), layer, None, 0.0) for n, layer in enumerate(layers))
    return AttentionMaps(found, None, **{"reads": "mean", **options})


@pytest.mark.parametrize("discard", [0.0, 0.5, 0.9])
def test_rows_of_a_rollout_sum_to_one(discard: float) -> None:
    flow = rollout(weights(), discard)
    assert (flow >= 0).all()
    torch.testing.assert_close(flow.sum(-1), torch.ones(2, 5))


def test_rollout_is_the_sum_over_all_paths() -> None:
    layers = weights(3, 4)
    mixed = [0.5 * layer[0].mean(0) + 0.5 * torch.eye(4) for layer in layers]
    expected = torch.zeros(4, 4)
    for last, second, first, start in itertools.product(range(4), repeat=4):
        # from token `start` of the input up to token `last` after the third layer
        expected[last, start] += mixed[2][last, second] * mixed[1][second, first] * mixed[0][first, start]
    torch.testing.assert_close(rollout(layers)[0], expected)


def test_attention_to_oneself_alone_rolls_out_to_the_identity() -> None:
    identity = torch.eye(6).expand(1, 2, 6, 6)
    assert torch.equal(rollout([identity] * 4, 0.9), torch.eye(6)[None])


def test_uniform_attention_has_nothing_weak_to_discard() -> None:
    uniform = torch.full((1, 2, 8, 8), 1 / 8)
    torch.testing.assert_close(rollout([uniform] * 2, 0.9), rollout([uniform] * 2))


def test_causal_attention_rolls_out_causally_and_keeps_early_tokens() -> None:
    flow = rollout(weights(causal=True), 0.9)
    assert not flow.triu(1).any()
    torch.testing.assert_close(flow.sum(-1), torch.ones(2, 5))


@given(st.integers(1, 40), st.floats(0, 0.99), st.integers(0, 10))
def test_discarding_keeps_the_strongest_of_each_row(tokens: int, discard: float, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    matrix = torch.rand(3, tokens, generator=generator) + 1e-3
    kept = without_weak(matrix, discard)
    assert ((kept == 0) | (kept == matrix)).all()
    assert ((kept > 0).sum(-1) == tokens - int(discard * tokens)).all()
    dropped = matrix.masked_fill(kept > 0, 0.0).amax(-1)
    assert (dropped <= kept.masked_fill(kept == 0, torch.inf).amin(-1)).all()


def test_tokens_that_a_query_cannot_see_do_not_count_among_its_entries() -> None:
    row = torch.tensor([0.4, 0.3, 0.2, 0.1, 0.0, 0.0, 0.0, 0.0])
    assert torch.equal(without_weak(row, 0.5), torch.tensor([0.4, 0.3, 0, 0, 0, 0, 0, 0]))


@pytest.mark.parametrize("discard", [-0.1, 1.0, float("nan")])
def test_discard_ratios_out_of_range_are_refused(discard: float) -> None:
    with pytest.raises(InputError, match="discard"):
        rollout(weights(), discard)
    with pytest.raises(InputError, match="at least one layer"):
        rollout([])


def test_rows_of_queries() -> None:
    layers = weights(1, 7)
    maps = maps_of(layers, class_token=True, reads="cls", num_prefix_tokens=3, grid=(2, 2))
    assert torch.equal(query_rows(layers[0], maps), layers[0][..., 0, :])
    assert torch.equal(query_rows(layers[0], maps, 4), layers[0][..., 4, :])
    assert torch.equal(query_rows(layers[0], maps, "last"), layers[0][..., 6, :])
    assert torch.equal(query_rows(layers[0], maps, (1, 0)), layers[0][..., 5, :])
    torch.testing.assert_close(query_rows(layers[0], maps, "mean"), layers[0][..., 3:, :].mean(-2))
    grid = on_grid(query_rows(layers[0], maps), maps)
    assert torch.equal(grid.flatten(-2), layers[0][..., 0, 3:])
    assert grid.shape == (2, 3, 2, 2)


def test_patches_of_a_grid_that_is_no_square_are_counted_along_its_rows() -> None:
    layers = weights(1, 8)
    maps = maps_of(layers, num_prefix_tokens=2, grid=(2, 3))
    weight = on_grid(layers[0], maps)  # (B, H, query, row, column)
    for place in [(0, 0), (0, 2), (1, 0), (1, 2)]:
        query = query_rows(layers[0], maps, place)
        assert torch.equal(query, layers[0][..., 2 + 3 * place[0] + place[1], :])
        # What a token sees of a patch stands where the patch is.
        assert torch.equal(weight[..., place[0], place[1]], layers[0][..., 2 + 3 * place[0] + place[1]])


def test_the_last_token_is_the_last_that_is_no_padding() -> None:
    layers = weights(1, 4)
    padding = torch.tensor([[True, False, False, False], [False, False, True, True]])
    rows = query_rows(layers[0], maps_of(layers, reads="last", padding=padding))
    assert torch.equal(rows, torch.stack([layers[0][0, :, 3], layers[0][1, :, 1]]))


@pytest.mark.parametrize("query", [-1, 5, "class", "cls", (0, 0)])
def test_queries_that_do_not_exist_are_refused(query: Query) -> None:
    layers = weights(1, 5)
    with pytest.raises(InputError, match="query must be 'mean', 'last' or a position from 0 to 4, got"):
        query_rows(layers[0], maps_of(layers), query)
    with pytest.raises(InputError, match="grid"):
        on_grid(layers[0], maps_of(layers))


@pytest.mark.parametrize("patch", [(2, 0), (0, 2), (-1, 0), (0, -1)])
def test_patches_outside_the_grid_are_refused(patch: tuple[int, int]) -> None:
    layers = weights(1, 4)
    with pytest.raises(InputError, match="a patch of rows 0 to 1, columns 0 to 1, got"):
        query_rows(layers[0], maps_of(layers, grid=(2, 2)), patch)


def test_query_patches_are_those_of_the_paper() -> None:
    assert query_patches((14, 14)) == [(3, 3), (7, 7), (10, 10), (3, 10)]
    assert query_patches((4, 8)) == [(1, 2), (2, 4), (3, 6), (1, 6)]
    assert query_patches((1, 1)) == [(0, 0)]
    assert query_positions(100) == [25, 50, 75, 99]
    assert query_positions(1) == [0]


def test_sigma_matrix_has_gaps_and_geometric_means() -> None:
    layers = weights(3, 4)
    bandwidths = [torch.tensor([1.0, 2.0, 3.0]), None, torch.tensor([[1.0, 4.0], [2.0, 2.0], [0.5, 8.0]])]
    found = tuple(LayerMaps("", w, b, 0.0) for w, b in zip(layers, bandwidths, strict=True))
    sigma = sigma_matrix(AttentionMaps(found, None, "cls"))
    expected = [[1, np.nan, 2], [2, np.nan, 2], [3, np.nan, 2]]
    np.testing.assert_allclose(sigma, expected, rtol=1e-6)
    assert sigma_matrix(maps_of(layers)) is None


@given(st.integers(1, 400), st.integers(2, 60))
def test_thinned_positions_are_evenly_spread(tokens: int, most: int) -> None:
    positions = thinned(tokens, most)
    assert len(positions) == min(tokens, most)
    assert (positions[0], positions[-1]) == (0, tokens - 1)
    steps = np.diff(positions)
    assert steps.size == 0 or (steps.min() >= 1 and steps.max() - steps.min() <= 1)
