"""Grids of test cases of which `make test` runs a part that has every pair of values."""

from collections.abc import Sequence
from itertools import combinations, product
from typing import Any

import pytest


def covering(*axes: Sequence[Any], whole: bool = True) -> list[Any]:
    """The whole grid of the axes; cases that the pairwise part does not need are marked slow, or left out.

    @pytest.mark.parametrize(("causal", "width", "dtype"), covering([False, True], [16, 24, 128], DTYPES))
    """
    grid = list(product(*(range(len(axis)) for axis in axes)))
    missing = {pair for case in grid for pair in _pairs(case)}
    quick = set()
    while missing:
        best = max(grid, key=lambda case: len(missing.intersection(_pairs(case))))
        quick.add(best)
        missing.difference_update(_pairs(best))
    return [
        pytest.param(
            *(axis[place] for axis, place in zip(axes, case, strict=True)),
            marks=() if case in quick else pytest.mark.slow,
        )
        for case in grid
        if whole or case in quick
    ]


def _pairs(case: tuple[int, ...]) -> list[tuple[tuple[int, int], ...]]:
    """Pairs of (axis, value); with a single axis its values."""
    return list(combinations(enumerate(case), min(2, len(case))))
