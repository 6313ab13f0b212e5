"""`nadaraya lags`: figures that parse, peaks by name, plots that overwrite nothing."""

import errno
import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from nadaraya.cli import main
from nadaraya.data import embedded_corpus

Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def lags(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    def run(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["nadaraya", "lags", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        captured = capsys.readouterr()
        return int(ended.value.code or 0), captured.out, captured.err

    return run


def test_bars_stand_around_named_peaks(lags: Command) -> None:
    status, out, _ = lags("embedded")
    assert status == 0
    assert "peak at 1 (blank line: paragraph break)" in out
    assert "peak at 70 (lines of 69 characters and the newline)" in out
    assert "█" in out


def test_json_holds_the_histogram_and_the_text_it_is_of(lags: Command, tmp_path: Path) -> None:
    (tmp_path / "story.txt").write_text("\n" + ("x" * 9 + "\n") * 60 + "x" * 99 + "\n")
    status, out, _ = lags(tmp_path / "story.txt", "--max-lag", 20, "--json")
    figures = json.loads(out)
    assert status == 0
    assert (figures["text"], figures["separations"], figures["overflow"]) == ("story", 61, 1)
    assert figures["counts"] == [60 if lag == 10 else 0 for lag in range(1, 21)]
    assert [peak["lag"] for peak in figures["peaks"]] == [10]
    assert len(figures["autocorrelation"]) == 21


def test_digest_is_that_of_the_corpus(lags: Command) -> None:
    assert json.loads(lags("embedded", "--json")[1])["sha256"] == embedded_corpus().sha256


def test_separator_escapes_are_understood(lags: Command, tmp_path: Path) -> None:
    (tmp_path / "table.txt").write_text("ab\tcd\tef\tgh")
    figures = json.loads(lags(tmp_path / "table.txt", "--separator", r"\t", "--json")[1])
    assert (figures["separator"], figures["counts"][2]) == ("\t", 2)


def test_plot_is_written_once_and_overwritten_only_when_asked(lags: Command, tmp_path: Path) -> None:
    plot = tmp_path / "lags.png"
    assert lags("embedded", "--plot", plot)[0] == 0
    assert plot.read_bytes().startswith(b"\x89PNG")
    plot.write_bytes(b"mine")
    status, _, error = lags("embedded", "--plot", plot)
    assert (status, plot.read_bytes()) == (2, b"mine")
    assert "--force" in error
    assert lags("embedded", "--plot", plot, "--force")[0] == 0
    assert plot.read_bytes().startswith(b"\x89PNG")


def test_bad_input_is_one_line_and_status_2(lags: Command, tmp_path: Path) -> None:
    (tmp_path / "binary.txt").write_bytes(b"\0\1")
    (tmp_path / "plain.txt").write_text("one line only")
    for arguments in (
        ["embeded"],
        [tmp_path / "absent.txt"],
        [tmp_path / "binary.txt"],
        [tmp_path / "plain.txt"],
        ["embedded", "--max-lag", 0],
        ["embedded", "--separator", ""],
        ["embedded", "--plot", tmp_path / "lags.docx"],
        ["embedded", "--plot", tmp_path / "absent" / "lags.png"],
    ):
        status, out, error = lags(*arguments)
        assert (status, out) == (2, "")
        assert error.startswith("error: ")
        assert error.count("\n") == 1


def test_a_plot_on_a_full_disk_is_one_line_and_no_part_of_a_file(
    lags: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: Path, data: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    (tmp_path / "old.png").write_bytes(b"mine")
    monkeypatch.setattr(Path, "write_bytes", full)
    for name in ("new.png", "new.pdf", "old.png"):
        status, _, error = lags("embedded", "--plot", tmp_path / name, "--force")
        assert status != 0
        assert "the disk is full" in error
        assert error.count("\n") == 1
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"old.png": b"mine"}


def test_a_plot_in_a_folder_that_refuses_is_one_line(lags: Command) -> None:
    status, _, error = lags("embedded", "--plot", "/proc/lags.png")
    assert status != 0
    assert error.count("\n") == 1
    assert "/proc/lags.png" in error
