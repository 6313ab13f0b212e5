"""`nadaraya demo`: the whole main job in small, and what happens when it is run again."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest


@pytest.mark.slow
def test_demo_trains_compares_and_reports(tmp_path: Path) -> None:
    out = tmp_path / "demo"
    command = [sys.executable, "-m", "nadaraya.cli", "demo", "--steps", "2", "--out", str(out)]
    first = subprocess.run(command, capture_output=True, text=True, check=True)
    for variant in ("rope", "gpa-rope", "gpa-mul"):
        assert variant in first.stdout
        assert (out / variant / "model.safetensors").exists()
    page = (out / "report.html").read_text(encoding="utf-8")
    assert "Lag kernels" in page
    models = {path: path.stat().st_mtime_ns for path in out.glob("*/model.safetensors")}
    again = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "finished already" in again.stderr
    assert {path: path.stat().st_mtime_ns for path in out.glob("*/model.safetensors")} == models


def test_another_configuration_in_the_folder_is_refused(nadaraya: Any, tmp_path: Path) -> None:
    (tmp_path / "demo" / "rope").mkdir(parents=True)
    (tmp_path / "demo" / "rope" / "config.yaml").write_text("seed: 7\n")
    outcome = nadaraya("demo", "--steps", "2", "--out", tmp_path / "demo")
    assert outcome.status == 2
    assert outcome.err.startswith("error: ")
    assert outcome.err.count("\n") == 1
    assert "rope has a run with name = 'run', not 'demo-rope'" in outcome.err
