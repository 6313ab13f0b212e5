"""The benchmark of the related systems: what a file has stays, and what would take too long is not run."""

import argparse
import importlib
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers")
OPTIONS = argparse.Namespace(systems=None, rounds=2, limit=8.0, memory=4.0)


@pytest.fixture(scope="module")
def related() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(Path(__file__).parents[2] / "benchmarks")
        yield importlib.import_module("related")


def test_cells_of_a_file_are_not_measured_again(related: Any) -> None:
    made = []

    def make(name: str, tokens: int) -> Any:
        made.append((name, tokens))
        return lambda: None

    grid = related.Grid({"a": {}, "b": {}}, (8,), make)
    kept = {"median": 1.0, "peak_mib": 1.0}
    cells = {"8": {"a": dict(kept)}}
    related.measure(grid, 8, cells, OPTIONS)
    assert made == [("b", 8)]
    assert cells["8"]["a"] == kept
    assert cells["8"]["b"]["low"] <= cells["8"]["b"]["median"] <= cells["8"]["b"]["high"]


def test_what_grows_beyond_a_limit_is_not_run_and_says_why(related: Any) -> None:
    quadratic = {str(n): {"a": {"median": 1e3 * (n / 1024) ** 2, "peak_mib": 10.0}} for n in (1024, 2048)}
    assert related.why_not(quadratic, "a", 2048, OPTIONS) is None
    assert related.why_not(quadratic, "a", 4096, OPTIONS) == "about 16 s"
    wide = {str(n): {"a": {"median": 1.0, "peak_mib": float(n)}} for n in (1024, 2048)}
    assert related.why_not(wide, "a", 8192, OPTIONS) == "about 8 GiB"
    refused = {"1024": {"a": {"not_run": "about 9 s"}}}
    assert related.why_not(refused, "a", 2048, OPTIONS) == "a smaller size was not run"


def test_decoding_by_a_state_needs_the_same_bytes_after_more_tokens(related: Any) -> None:
    found = {n: [related.decoding(name, n)() for name in ("linear-bank", "rope")] for n in (256, 512)}
    assert found[256][0] == found[512][0]
    assert found[512][1] - found[256][1] == 2 * 4 * 256 * related.WIDTH
