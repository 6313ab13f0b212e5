"""The study of pruning: two small runs, of which one has no banks."""

import json
from pathlib import Path

import pytest
from scripts import run_script

from nadaraya.training import load_recipe, train

pytest.importorskip("matplotlib")

SCRIPT = Path(__file__).parents[2] / "experiments" / "pruning.py"
TINY = [
    "training.steps=2",
    "training.warmup_steps=0",
    "model.hidden_size=8",
    "model.num_hidden_layers=2",
    "data.limit=9000",
    "data.context=32",
    "training.sample_characters=0",
]


@pytest.mark.slow
def test_runs_are_pruned_in_every_order_that_they_have_and_entries_are_made_once(tmp_path: Path) -> None:
    folders = []
    for variant in ("rope", "gpa-mul"):
        recipe = load_recipe("demo", [*TINY, "training.batch_size=1", f"model.variant={variant}"])
        folders.append(train(recipe, tmp_path / variant, progress=False).path)
    options = ["--budget", "50%", "--tune", "1", "--windows", "4", "--out", tmp_path / "out"]
    run_script(SCRIPT, *folders, *options)

    results = tmp_path / "out" / "results.json"
    entries = json.loads(results.read_text("utf-8"))["pruned"]
    orders = [(entry["variant"], entry["by"], entry["seed"]) for entry in entries]
    at_random = [("random", 0), ("random", 1), ("random", 2)]
    assert orders == [
        *(("rope", *order) for order in [("loss", 0), *at_random]),
        *(("gpa-mul", *order) for order in [("loss", 0), ("bank", 0), *at_random]),
    ]
    for entry in entries:
        # These models have learnt nothing yet: all but one head of each layer can go.
        assert entry["removed"] == len(entry["order"]) == 6
        assert entry["after"]["parameters"] < entry["before"]["parameters"]
        assert entry["after"]["cache_bytes_per_token"] * 4 == entry["before"]["cache_bytes_per_token"]
    written, table = results.read_text("utf-8"), (tmp_path / "out" / "summary.md").read_text("utf-8")
    assert table.count("\n") == 2 + 2 + 3
    assert (tmp_path / "out" / "gpa-mul.png").stat().st_size > 1000

    assert run_script(SCRIPT, *folders, *options) == ""
    assert results.read_text("utf-8") == written
    (tmp_path / "out" / "summary.md").unlink()
    run_script(SCRIPT, "--summarise", *options[-2:])
    assert (tmp_path / "out" / "summary.md").read_text("utf-8") == table
