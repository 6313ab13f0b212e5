"""The page of the first hour: every step runs in a fresh folder; its table is the log that is committed."""

import importlib.util
import io
import json
import subprocess
import sys
from collections.abc import Sequence
from contextlib import chdir, redirect_stderr, redirect_stdout
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from shown import ROOT

SCRIPT = ROOT / "experiments" / "first_hour.py"
PAGE = ROOT / "docs" / "first-hour.md"
LOG = ROOT / "experiments" / "results" / "first-hour.json"

pytest.importorskip("timm")


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("first_hour", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def without_a_new_interpreter(
    command: list[str], cwd: Path, **streams: bool
) -> subprocess.CompletedProcess[str]:
    """A verb in this process, as torch and transformers take seconds to import; other steps as they are."""
    if command[1:3] != ["-m", "nadaraya.cli"] or command[3].startswith("-"):
        return subprocess.run(command, cwd=cwd, **streams)
    from nadaraya import training
    from nadaraya.cli import main

    load = training.load_recipe

    def load_short(source: str, overrides: Sequence[str] = ()) -> Any:
        """`nadaraya demo` would end each of its trainings with 8,000 characters."""
        return load(source, [*overrides, *(["training.sample_characters=40"] if source == "demo" else [])])

    out, status = io.StringIO(), 0
    with chdir(cwd), redirect_stdout(out), redirect_stderr(out), pytest.MonkeyPatch.context() as patch:
        patch.setattr(training, "load_recipe", load_short)
        patch.setattr(sys, "argv", ["nadaraya", *command[3:]])
        try:
            main()
        except SystemExit as ended:
            status = int(ended.code or 0)
    return subprocess.CompletedProcess(command, status, out.getvalue(), "")


@pytest.mark.slow
def test_every_step_runs_in_its_order_and_is_timed(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder, log = tmp_path / "fresh", tmp_path / "log.json"
    folder.mkdir()
    monkeypatch.setattr(script, "subprocess", SimpleNamespace(run=without_a_new_interpreter))
    options = ["--quick", "--folder", str(folder), "--out", str(log)]
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), *options])
    script.main()
    document = json.loads(log.read_text())
    assert document["quick"]
    assert sum(entry["seconds"] for entry in document["log"]) > 0
    assert [entry["step"] for entry in document["log"]] == [
        entry["step"] for entry in json.loads(LOG.read_text())["log"]
    ]
    made = [
        "demo/report.html",
        "curves.png",
        "report.html",
        "maps-of-text/index.html",
        "maps-of-dusk/index.html",
    ]
    assert [name for name in made if not (folder / name).is_file()] == []


def test_the_table_is_that_of_the_committed_log(script: ModuleType) -> None:
    document = json.loads(LOG.read_text(encoding="utf-8"))
    assert ("--quick" in PAGE.read_text(encoding="utf-8")) == document["quick"]
    assert script.table(document["log"]) in PAGE.read_text(encoding="utf-8")


def test_the_log_has_the_steps_of_the_page(script: ModuleType) -> None:
    steps = [f"`{step}`" if "\n" not in step else "the Python above" for step in script.steps(PAGE)]
    assert [entry["step"] for entry in json.loads(LOG.read_text(encoding="utf-8"))["log"]] == steps
    assert any("data.corpus=my.txt" in step for step in steps)


def test_a_quick_step_names_what_the_page_names(script: ModuleType) -> None:
    words = script.arguments("nadaraya train demo data.corpus=my.txt", quick=True)
    assert words[1:6] == ["-m", "nadaraya.cli", "train", "demo", "data.corpus=my.txt"]
    assert "training.steps=4" in words
    assert script.arguments("nadaraya demo --steps 30", quick=True)[-2:] == ["--steps", "1"]


def test_a_step_that_fails_ends_the_hour_with_what_it_said(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    page = tmp_path / "page.md"
    page.write_text("```\nnadaraya train no-such-recipe\n```\n")
    monkeypatch.setattr(script, "PAGE", page)
    with pytest.raises(SystemExit, match="no-such-recipe"):
        script.run(tmp_path, quick=True)
