"""`nadaraya study`: the plan, a whole study in small, errors in one line."""

import json
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from forked import Forked

from nadaraya.cli import main
from nadaraya.training.folder import FolderLock

FILE = Path(__file__).parents[2] / "experiments" / "studies" / "smoke.yaml"


def test_a_dry_run_shows_what_would_be_trained_and_trains_nothing(nadaraya: Any, tmp_path: Path) -> None:
    out = tmp_path / "out"
    plan = json.loads(nadaraya("study", FILE, "--out", out, "--dry-run", "--json").out)
    rope, gka, *_ = plan["cells"]
    assert [(cell["size"], cell["variant"], cell["runs_left"]) for cell in plan["cells"]] == [
        (size, variant, 1) for size in ("small",) for variant in ("rope", "gka")
    ]
    assert gka["steps"] > rope["steps"] == 6
    assert gka["parameters"] < rope["parameters"]
    assert plan["hours"] > 0
    assert plan["hours"] == pytest.approx(sum(cell["hours"] for cell in plan["cells"]))
    assert not (out / "runs").exists()
    shown = nadaraya("study", FILE, "--out", out, "--dry-run", "--only", "gka", "--speed", "1e6").out
    assert "rope" not in shown
    assert "1 run is left" in shown
    shown = nadaraya("study", FILE, "--out", out, "--dry-run", "--seeds", "1,2,3", "--speed", "1e6").out
    assert "6 runs are left" in shown


@pytest.mark.slow
def test_a_study_is_trained_goes_on_and_is_summarised(nadaraya: Any, tmp_path: Path) -> None:
    out = tmp_path / "out"
    none = nadaraya("study", FILE, "--out", out, "--hours", "1e-9")
    assert none.status == 0
    assert "2 runs are left: the same command goes on" in none.err
    part = nadaraya("study", FILE, "--out", out, "--only", "rope", "--workers", "2")
    assert part.status == 0
    done = (out / "runs/small/rope/lr0.01-seed0.json").stat().st_mtime_ns
    broken = out / "runs/small/gka/lr0.01-seed0"
    broken.mkdir(parents=True)
    (broken / "mine.txt").write_text("not a run folder")
    failed = nadaraya("study", FILE, "--out", out, "--workers", "2")
    assert failed.status == 1
    assert "error: small/gka/lr0.01-seed0 failed with status 2: see " in failed.err
    assert "gka" not in failed.out
    (broken / "mine.txt").unlink()
    whole = nadaraya("study", FILE, "--out", out, "--json")
    assert whole.status == 0
    assert (out / "runs/small/rope/lr0.01-seed0.json").stat().st_mtime_ns == done
    assert list(json.loads(whole.out)["cells"]) == ["rope", "gka"]
    again = nadaraya("study", FILE, "--out", out, "--summarise")
    assert again.out.splitlines()[-1] == f"summary: {out / 'summary.md'}"
    assert again.out.startswith("`gka` does not differ significantly from `rope` (1 size, 1 seed")


@pytest.mark.slow
def test_a_killed_study_ends_its_workers_and_the_same_command_goes_on(nadaraya: Any, tmp_path: Path) -> None:
    out, study = tmp_path / "out", tmp_path / "study.yaml"
    study.write_text(FILE.read_text().replace("steps: 6", "steps: 1000000"))
    shutil.copy(FILE.with_name("smoke-recipe.yaml"), tmp_path)
    words = ["study", study, "training.log_every=1", "--out", out]
    started = Forked(main, *words)
    begun = time.monotonic()
    while not (metrics := list(out.glob("runs/*/*/*/metrics.jsonl"))) and time.monotonic() < begun + 300:
        time.sleep(0.2)
    run = metrics[0].parent
    while metrics[0].read_text().count("\n") < 5 and time.monotonic() < begun + 300:
        time.sleep(0.2)
    started.send(signal.SIGKILL)
    assert started.end().status == -signal.SIGKILL
    with FolderLock(run, 60) as lock:
        lock.take()  # the worker has ended
    assert list((run / "training_state").glob("step-*"))  # and saved what it had
    again = nadaraya(*words, "--hours", "0.002")
    assert again.status == 0, again.err
    assert "failed" not in again.err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["absent.yaml"], ["absent.yaml"]),
        (["--only", "gkaa"], ["--only must be one of", "did you mean 'gka'"]),
        (["--hours", "0"], ["--hours must be a positive finite number"]),
        (["--seeds", "1,1"], ["--seeds must be different whole numbers"]),
        (["--summarise"], ["has no results of a study"]),
        (["model.varaint=gka"], ["did you mean 'model.variant'"]),
    ],
)
def test_what_cannot_be_is_one_line(
    nadaraya: Any, tmp_path: Path, arguments: list[str], words: list[str]
) -> None:
    given = arguments if arguments[0].endswith(".yaml") else [str(FILE), *arguments]
    nadaraya("study", *given, "--out", tmp_path / "out").refuses(*words)
    assert not (tmp_path / "out" / "runs").exists()
