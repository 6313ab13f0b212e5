"""The study of vision forms: two of them trained for an epoch on a few made-up images."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scripts import run_script

from nadaraya.cli import main
from nadaraya.study.queue import Ended, Job

pytest.importorskip("timm")
pytest.importorskip("typer")

SCRIPT = Path(__file__).parents[2] / "experiments" / "vision.py"
RECIPE = SCRIPT.with_name("vision-cpu.yaml")
TINY = ["model.options.embed_dim=16", "model.options.depth=2", "model.options.num_heads=2"]
SHORT = ["training.epochs=2", "training.batch_size=16"]


def in_this_process(pending: Callable[[], list[Job]], **options: Any) -> Ended:
    """The queue without processes, which take longer to start than these runs take."""
    jobs = pending()
    for job in jobs:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "argv", job.command[2:])
            with pytest.raises(SystemExit) as ended:
                main()
        assert not ended.value.code, job.name
    return Ended([job.name for job in jobs])


@pytest.mark.slow
def test_forms_are_gathered_with_what_tells_them_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nadaraya.study.queue.run_queue", in_this_process)
    generator = np.random.default_rng(0)
    arrays = {}
    for split, count in (("train", 32), ("val", 16)):
        arrays[f"{split}_images"] = generator.integers(0, 256, (count, 32, 32, 3), dtype=np.uint8)
        arrays[f"{split}_labels"] = np.arange(count) % 4
    np.savez(tmp_path / "noise.npz", **arrays)
    forms = ["--source", tmp_path / "noise.npz", "--seeds", "0", "--forms", "deit", "gka-loo-grid"]
    folders = ["--out", tmp_path / "out", "--runs", tmp_path / "runs", "--workers", "2"]
    run_script(SCRIPT, RECIPE, *forms, *folders, "--set", *TINY, *SHORT)

    results = json.loads((tmp_path / "out" / "results.json").read_text())
    deit, gka = (
        next(row for row in results["runs"] if row["form"] == name) for name in ("deit", "gka-loo-grid")
    )
    assert deit["sigma"] == [None, None]
    assert [len(heads) for heads in gka["sigma"]] == [2, 2]
    # W_Q, W_K and W_V with their biases go; what is left is the kernels.
    assert gka["parameters"] == deit["parameters"] - 2 * 3 * (16 * 16 + 16) + gka["kernel_parameters"]
    assert deit["kernel_parameters"] == 0
    assert gka["flops_per_image"] < deit["flops_per_image"]
    table = (tmp_path / "out" / "results.md").read_text()
    assert f"{gka['parameters']:,}" in table
    assert (tmp_path / "out" / "results.png").stat().st_size > 1000


@pytest.mark.slow
def test_a_run_that_fails_is_named_with_its_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    forms = ["--source", tmp_path / "absent.npz", "--seeds", "0", "--forms", "gka"]
    with pytest.raises(SystemExit) as ended:
        run_script(SCRIPT, RECIPE, *forms, "--out", tmp_path / "out", "--runs", tmp_path / "runs")
    assert ended.value.code == 1
    (line,) = capsys.readouterr().err.splitlines()
    log = tmp_path / "runs" / "vision-cpu-gka-0.log"
    assert line.endswith(f"see {log}")
    assert "absent.npz" in log.read_text()
