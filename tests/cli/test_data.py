"""`nadaraya data`: books from a folder, the list of what is cached, bad input in one line."""

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from nadaraya.cli import main
from nadaraya.data import load_corpus

Command = Callable[..., tuple[int, str, str]]
EDITION = "*** START OF THE PROJECT GUTENBERG EBOOK X ***\n{}\n*** END OF THE PROJECT GUTENBERG EBOOK X ***\n"


@pytest.fixture
def data(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Command:
    monkeypatch.setenv("NADARAYA_CACHE", str(tmp_path / "cache"))

    def run(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["nadaraya", "data", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        captured = capsys.readouterr()
        return int(ended.value.code or 0), captured.out, captured.err

    return run


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    folder.mkdir()
    for ebook in (580, 730):
        (folder / f"{ebook}.txt").write_text(EDITION.format(f"Book {ebook}."))
    return folder


def test_fetched_books_are_a_corpus_by_name(data: Command, source: Path) -> None:
    status, out, _ = data("dickens", "--from", source, "--books", "730,580")
    assert status == 0
    assert "nadaraya lags dickens" in out
    assert load_corpus("dickens").text == "Book 580.\n\n\nBook 730.\n"


def test_what_was_fetched_as_json(data: Command, source: Path) -> None:
    _, out, _ = data("dickens", "--from", source, "--books", "580", "--json")
    printed = json.loads(out)
    assert printed["bytes"] == Path(printed["corpus"]).stat().st_size


def test_another_cache_folder_says_how_to_use_it(data: Command, source: Path, tmp_path: Path) -> None:
    status, out, _ = data("dickens", "--from", source, "--books", 580, "--cache", tmp_path / "other")
    assert status == 0
    assert f"NADARAYA_CACHE={tmp_path / 'other'}" in out
    assert (tmp_path / "other" / "dickens" / "dickens.txt").is_file()


def test_list_tells_intact_from_damaged(data: Command, source: Path, tmp_path: Path) -> None:
    data("dickens", "--from", source, "--books", "580,730")
    (tmp_path / "cache" / "dickens" / "730.txt").write_text("tampered")
    status, out, _ = data("list", "--json")
    listed = {row["file"]: row["intact"] for row in json.loads(out)["files"]}
    assert status == 0
    assert listed == {"": True, "580.txt": True, "730.txt": False, "dickens.txt": True}
    assert "damaged" in data("list")[1]


def test_list_of_an_empty_cache_shows_the_embedded_corpus(data: Command) -> None:
    status, out, _ = data("list")
    assert status == 0
    assert "embedded" in out


def test_bad_input_is_one_line_and_status_2(data: Command, source: Path, tmp_path: Path) -> None:
    for arguments in (
        ["dickens", "--from", source],
        ["dickens", "--from", tmp_path / "absent"],
        ["dickens", "--from", source, "--books", "581"],
        ["dickens", "--from", source, "--books", "Oliver"],
        ["dickens", "--from", source, "--books", ","],
        ["dickens", "--from", source, "--books", "580", "--cache", source / "580.txt"],
    ):
        status, out, error = data(*arguments)
        assert (status, out) == (2, "")
        assert error.startswith("error: ")
        assert error.count("\n") == 1
