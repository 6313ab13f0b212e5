"""`make results`: every committed summary again, from the JSON beside it."""

import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from nadaraya.cli import main

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "experiments" / "results"
SUMMARIES = [
    path.relative_to(RESULTS)
    for name in ("summary.md", "comparison.md", "heights.md", "inside.md", "remains.md")
    for path in sorted(RESULTS.rglob(name))
    if "runs" not in path.parts
]


# In place of the programs of .venv: what make starts is written down.
NOTED = """#!/bin/sh
echo "${0##*/}" "$@" >> commands
"""


@pytest.mark.slow
def test_summaries_come_from_the_results_beside_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("Makefile", "README.md"):
        shutil.copy(ROOT / name, tmp_path)
    shutil.copytree(ROOT / "experiments", tmp_path / "experiments", ignore=shutil.ignore_patterns("runs"))
    shutil.copytree(ROOT / "benchmarks" / "results", tmp_path / "benchmarks" / "results")
    shutil.copytree(ROOT / "docs", tmp_path / "docs", ignore=shutil.ignore_patterns("figures", "_build"))
    (tmp_path / "docs" / "figures").mkdir()
    copied = tmp_path / "experiments" / "results"
    for summary in SUMMARIES:
        (copied / summary).unlink()
    for name in ("nadaraya", "python"):
        (tmp_path / name).write_text(NOTED)
        (tmp_path / name).chmod(0o755)
    command = ["make", "results", "--old-file=.venv/.ready-test", "BIN=."]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    # All in this process: each of their own would take seconds to import torch.
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path / "experiments")
    for name, module in list(sys.modules.items()):  # that other tests have imported: their paths are of ROOT
        if Path(getattr(module, "__file__", None) or ".").parent == ROOT / "experiments":
            monkeypatch.delitem(sys.modules, name)
    for line in (tmp_path / "commands").read_text().splitlines():
        program, *words = line.split()
        monkeypatch.setattr(sys, "argv", words if program == "python" else [program, *words])
        if program == "python":
            runpy.run_path(words[0], run_name="__main__")
        else:
            with pytest.raises(SystemExit) as ended:
                main()
            assert not ended.value.code, line
    assert len(SUMMARIES) > 10
    for summary in SUMMARIES:
        assert (copied / summary).read_text(encoding="utf-8") == (RESULTS / summary).read_text(
            encoding="utf-8"
        )
    for page in ("results/speed.md", "results/papers.md", "results/related.md", "findings.md"):
        assert (tmp_path / "docs" / page).read_text("utf-8") == (ROOT / "docs" / page).read_text("utf-8")
    drawn = {path.name for path in (tmp_path / "docs" / "figures").iterdir()}
    assert drawn == {"findings.png", "implied.png", "related.png"}
