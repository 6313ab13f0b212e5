"""What every verb does with Ctrl-C, closed pipes and names that the system refuses."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest


def test_ctrl_c_before_a_run_begins_is_one_line_and_status_130(
    nadaraya: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("nadaraya.training.load_recipe", interrupted)
    outcome = nadaraya("train", "demo")
    assert (outcome.status, outcome.out, outcome.err) == (130, "", "stopped\n")


def test_a_closed_pipe_ends_nothing() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "nadaraya.cli", "--help"]
    ended = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writer)
    assert (ended.returncode, ended.stderr) == (0, "")


def test_progress_that_nobody_reads_does_not_end_a_training(tiny: tuple[str, ...], tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "nadaraya.cli", "train", *tiny, "--run", str(tmp_path / "run")]
    ended = subprocess.run(command, stdout=subprocess.PIPE, stderr=writer, text=True, check=False)
    os.close(writer)
    assert ended.returncode == 0
    assert "validation loss" in ended.stdout


def test_the_help_needs_no_torch() -> None:
    code = "import sys, nadaraya.cli.app; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("verb", ["compare", "evaluate", "report", "lags", "count", "train"])
def test_a_name_too_long_for_the_system_is_one_line(nadaraya: Any, verb: str) -> None:
    nadaraya(verb, "x" * 5000).refuses()


def test_pipes_and_devices_are_no_texts(nadaraya: Any, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero")):
        nadaraya("lags", path).refuses("must be a regular file")


@pytest.mark.parametrize(
    ("arguments", "option"),
    [(("lags", "embedded", "--max-lag"), "--max-lag"), (("count", "gpa", "--vocabulary"), "--vocabulary")],
)
def test_sizes_beyond_all_bounds_are_refused(nadaraya: Any, arguments: tuple[str, ...], option: str) -> None:
    for value in ("0", "-1", "100000000000000000000"):
        outcome = nadaraya(*arguments, value)
        assert outcome.status == 2
        assert option in outcome.err


@pytest.mark.slow
@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&-", "<&- >&- 2>&-", ">/dev/full", "2>/dev/full"])
@pytest.mark.parametrize(("line", "status"), [("--version", 0), ("--import absent list", 2)])
def test_streams_that_are_closed_or_full_end_in_no_traceback(closed: str, line: str, status: int) -> None:
    command = f"{sys.executable} -m nadaraya.cli {line} {closed}"
    ended = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
    assert ended.returncode == (2 if closed == ">/dev/full" else status)
    assert "Traceback" not in ended.stderr
    assert ended.stderr.count("\n") <= 1 + (closed == ">/dev/full")
