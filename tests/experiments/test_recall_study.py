"""The experiment on recall: rows ask for what is there, once, and a run of two updates leaves its figures."""

import json
import runpy
from pathlib import Path
from typing import Any

import pytest
import torch
from scripts import run_script

SCRIPT = Path(__file__).parents[2] / "experiments" / "recall.py"


@pytest.fixture(scope="module")
def script() -> dict[str, Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(SCRIPT.parent))
        return runpy.run_path(str(SCRIPT), run_name="recall")


@pytest.mark.parametrize("ends", [None, 32])
def test_each_row_asks_for_each_of_its_pairs_once(script: dict[str, Any], ends: int | None) -> None:
    rows = script["rows_of"](torch.Generator().manual_seed(0), 128, 50, ends)
    asked, pairs = script["answers"](rows), script["PAIRS"]
    assert (asked.sum(1) == pairs).all()
    distances = []
    for row, places in zip(rows.tolist(), asked, strict=True):
        for place in places.nonzero().flatten().tolist():
            shown = row.index(row[place])
            assert row[shown + 1] == row[place + 1]  # which alone says the answer
            assert row.count(row[place]) == 2
            distances.append(place - shown)
            if ends is not None:
                assert shown < ends
                assert place >= 128 - ends
    if ends is None:  # at all scales: as many from 2 to 16 tokens as from 16 to 128
        near = sum(distance <= 16 for distance in distances) / len(distances)
        assert 0.4 < near < 0.75


@pytest.mark.slow
def test_it_leaves_recall_by_length_and_does_nothing_twice(tmp_path: Path) -> None:
    path = tmp_path / "recall.json"
    options = ["--updates", 2, "--seeds", "0", "--only", "nope-gate", "--workers", 1, "--json", path]
    assert run_script(SCRIPT, *options).count("nope-gate") == 4  # three rates, and the best with a seed
    found = json.loads(path.read_text("utf-8"))
    assert [run["seed"] for run in found["runs"]] == [100, 100, 100, 0]
    for run in found["runs"]:
        assert list(run["recall"]) == [""]  # no rotations that could be changed
    *searched, last = [list(run["recall"][""]) for run in found["runs"]]
    assert searched == [["128"]] * 3
    assert last == ["128", "256", "512", "1024", "2048"]
    assert run_script(SCRIPT, *options) == ""
