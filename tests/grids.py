"""Grids of test cases of which `make test` runs a part that has every pair of values."""

from collections.abc import Sequence
from itertools import combinations, product
from typing import Any

import pytest


def covering(*axes: Sequence[Any], whole: bool = True, together: int = 2) -> list[Any]:
    """The whole grid of the axes; cases that the pairwise part does not need are marked slow, or left out.

    `together` values of different axes meet in some case of the part: 2 for pairs, 3 for triples.

    @pytest.mark.parametrize(("causal", "width", "dtype"), covering([False, True], [16, 24, 128], DTYPES))
    """
    grid = list(product(*(range(len(axis)) for axis in axes)))
    missing = {met for case in grid for met in _tuples(case, together)}
    quick = set()
    while missing:
        best = max(grid, key=lambda case: len(missing.intersection(_tuples(case, together))))
        quick.add(best)
        missing.difference_update(_tuples(best, together))
    return [
        pytest.param(
            *(axis[place] for axis, place in zip(axes, case, strict=True)),
            marks=() if case in quick else pytest.mark.slow,
        )
        for case in grid
        if whole or case in quick
    ]


def _tuples(case: tuple[int, ...], together: int) -> list[tuple[tuple[int, int], ...]]:
    """Pairs (or triples …) of (axis, value); with fewer axes all their values."""
    return list(combinations(enumerate(case), min(together, len(case))))
