"""Dickens: what surrounds a book goes, what was stored is checked, what is missing is named."""

import json
import socket
from pathlib import Path
from typing import Any

import pytest

from nadaraya import files
from nadaraya.data import fetch_dickens, gutenberg, load_corpus
from nadaraya.data.gutenberg import DICKENS, read_dickens, strip_boilerplate
from nadaraya.errors import InputError

SHARED = Path(__file__).parents[3] / "shared" / "data" / "dickens"
BODY = "CHAPTER I.\n\nIt was a day.\n* * *\nThe end of the Project was near.\n"


def edition(body: str, end: str = "\n") -> str:
    return (
        f"\ufeffThe Project Gutenberg eBook of A Book\n\n"
        f"*** START OF THE PROJECT GUTENBERG EBOOK A BOOK ***\n\n\n"
        f"{body}\n\n*** END OF THE PROJECT GUTENBERG EBOOK A BOOK ***\nLicence.\n"
    ).replace("\n", end)


@pytest.fixture
def library(server: Any) -> Any:
    for ebook in (580, 730, 46):
        server.files[f"/{ebook}/pg{ebook}.txt"] = edition(f"Book {ebook}.\n", "\r\n").encode()
    return server


def fetch(library: Any, cache: Path, **options: Any) -> Path:
    return fetch_dickens(cache, **{"mirrors": [library.base], "pause": 0.0, "books": [46, 580], **options})


@pytest.mark.parametrize(
    ("start", "end"),
    [
        (
            "*** START OF THE PROJECT GUTENBERG EBOOK A BOOK ***",
            "*** END OF THE PROJECT GUTENBERG EBOOK A BOOK ***",
        ),
        (
            "*** START OF THIS PROJECT GUTENBERG EBOOK A BOOK ***",
            "*** END OF THIS PROJECT GUTENBERG EBOOK A BOOK ***",
        ),
        (
            "***START OF THE PROJECT GUTENBERG EBOOK A BOOK***",
            "***END OF THE PROJECT GUTENBERG EBOOK A BOOK***",
        ),
        (
            "*** START OF THE PROJECT GUTENBERG EBOOK A\nLONG TITLE ***",
            "*** END OF THE PROJECT GUTENBERG EBOOK A\nLONG",
        ),
        (
            "*** START OF THE PROJECT GUTENBERG E-TEXT A ***",
            "End of the Project Gutenberg EBook of A Book, by X\n",
        ),
        (
            "*END*THE SMALL PRINT! FOR PUBLIC DOMAIN ETEXTS*Ver.04.29.93*END*",
            "End of Project Gutenberg's A Book",
        ),
        (
            "*** START OF THE PROJECT GUTENBERG EBOOK A ***\n\n\nProduced by Somebody\nand Another\n\n",
            "End of this Project Gutenberg Etext of A\n\n*** END OF THIS PROJECT GUTENBERG EBOOK A ***",
        ),
    ],
)
def test_header_footer_and_credits_go_and_the_book_stays(start: str, end: str) -> None:
    assert strip_boilerplate(f"Preamble\n\n{start}\n\n\n{BODY}\n\n\n{end}\nLicence\n", "a.txt") == BODY


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (BODY, "a.txt has no Project Gutenberg header"),
        (edition(BODY).split("*** END")[0], "a.txt has no Project Gutenberg footer"),
        (edition(""), "nothing between"),
    ],
)
def test_text_without_its_frame_is_bad_input(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        strip_boilerplate(text, "a.txt")


def test_table_names_25_different_works() -> None:
    assert len(DICKENS) == len(set(DICKENS.values())) == 25


def test_books_are_fetched_stripped_and_joined_in_the_tables_order(library: Any, tmp_path: Path) -> None:
    path = fetch(library, tmp_path)
    assert path.read_text() == "Book 580.\n\n\nBook 46.\n"
    assert read_dickens(tmp_path) == path.read_text()
    assert all(agent.startswith("nadaraya/") for agent in library.agents)
    assert {file.name for file in path.parent.iterdir()} == {
        "580.txt",
        "46.txt",
        "dickens.txt",
        "manifest.json",
    }


def test_second_call_asks_only_for_what_is_missing_or_changed(library: Any, tmp_path: Path) -> None:
    folder = fetch(library, tmp_path).parent
    (folder / "46.txt").write_text("tampered")
    library.requests.clear()
    fetch(library, tmp_path, books=[46, 580, 730])
    assert library.requests == ["/730/pg730.txt", "/46/pg46.txt"]
    assert read_dickens(tmp_path) == "Book 580.\n\n\nBook 730.\n\n\nBook 46.\n"


def test_interrupted_fetch_keeps_what_it_has_and_goes_on(library: Any, tmp_path: Path) -> None:
    library.faults = ["", "404", "503"]
    with pytest.raises(
        InputError, match=r"A Christmas Carol .*503.*; the books before it are in the cache: run it again"
    ):
        fetch(library, tmp_path)
    library.requests.clear()
    fetch(library, tmp_path)
    assert library.requests == ["/46/pg46.txt"]


@pytest.mark.parametrize("fault", ["cut", "500", "429"])
def test_broken_transfer_is_repeated_and_leaves_nothing(library: Any, tmp_path: Path, fault: str) -> None:
    library.faults = [fault]
    path = fetch(library, tmp_path, books=[580])
    assert path.read_text() == "Book 580.\n"
    assert library.requests == 2 * ["/580/pg580.txt"]


def test_transfer_that_stays_broken_is_told_in_one_line(library: Any, tmp_path: Path) -> None:
    library.faults = ["cut", "cut"]
    with pytest.raises(InputError, match=r"The Pickwick Papers .*bytes read.* more expected") as caught:
        fetch(library, tmp_path)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "dickens").exists()


def test_progress_is_a_bar_with_the_title(
    library: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fetch(library, tmp_path, books=[46])
    assert capsys.readouterr().err == ""
    fetch(library, tmp_path, books=[580], progress=True)
    shown = capsys.readouterr().err
    assert "The Pickwick Papers: 100%" in shown
    assert shown.count("\n") == 1


def test_there_is_a_pause_between_requests_and_none_before_cached_books(
    library: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(gutenberg.time, "sleep", pauses.append)
    fetch(library, tmp_path, books=[580, 730, 46], pause=2.0)
    assert pauses == [0.0, 2.0, 2.0]
    fetch(library, tmp_path, books=[580, 730, 46], pause=2.0)
    assert pauses == [0.0, 2.0, 2.0]
    assert gutenberg.PAUSE_SECONDS >= 2.0


def test_second_mirror_is_asked_when_the_first_refuses(library: Any, tmp_path: Path) -> None:
    fetch(library, tmp_path, mirrors=[f"{library.base}/absent", library.base])
    assert read_dickens(tmp_path) == "Book 580.\n\n\nBook 46.\n"


def test_page_that_is_no_book_is_refused_and_not_kept(library: Any, tmp_path: Path) -> None:
    library.files["/580/pg580.txt"] = b"<html>Are you a robot?</html>"
    with pytest.raises(InputError, match=r"pg580\.txt has no Project Gutenberg header"):
        fetch(library, tmp_path)
    assert not (tmp_path / "dickens").exists()


def test_offline_is_one_line_that_names_the_way_out(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        base = f"http://127.0.0.1:{taken.getsockname()[1]}"
    with pytest.raises(InputError, match=r"127\.0\.0\.1: .*refused.*--from FOLDER") as caught:
        fetch_dickens(tmp_path, mirrors=[base], pause=0.0)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("file", "title"), [("580.txt", "The Pickwick Papers"), ("dickens.txt", "the corpus")]
)
def test_changed_file_is_named_when_the_corpus_is_read(
    library: Any, tmp_path: Path, file: str, title: str
) -> None:
    folder = fetch(library, tmp_path).parent
    (folder / file).write_text("tampered")
    with pytest.raises(InputError, match=rf"{file} \({title}\) .* does not match its digest"):
        read_dickens(tmp_path)


@pytest.mark.parametrize("name", ["580.txt", "580-0.txt", "pg580.txt", "pg580.txt.utf8", "sub/580.txt"])
def test_files_already_there_are_found_by_ebook_number(tmp_path: Path, name: str) -> None:
    path = tmp_path / "source" / name
    path.parent.mkdir(parents=True)
    path.write_text(edition("Pickwick.\n"))
    (tmp_path / "source" / "1580.txt").write_text("another book")
    fetch_dickens(tmp_path / "cache", source_folder=tmp_path / "source", books=[580], mirrors=[])
    assert read_dickens(tmp_path / "cache") == "Pickwick.\n"


def test_books_a_folder_lacks_are_named(tmp_path: Path) -> None:
    (tmp_path / "580.txt").write_text(edition("Pickwick.\n"))
    with pytest.raises(InputError, match=r"lacks 1 of 2 books: 730 \(Oliver Twist\)"):
        fetch_dickens(tmp_path / "cache", source_folder=tmp_path, books=[580, 730])
    with pytest.raises(InputError, match="no such folder"):
        fetch_dickens(tmp_path / "cache", source_folder=tmp_path / "absent")


def test_prepared_file_is_taken_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "dickens.txt").write_bytes(b"Prepared\r\ntext.\n")
    fetch_dickens(tmp_path / "cache", source_folder=tmp_path)
    monkeypatch.setenv("NADARAYA_CACHE", str(tmp_path / "cache"))
    assert load_corpus("dickens").text == "Prepared\ntext.\n"


def test_full_disk_is_one_line_and_keeps_the_corpus(
    library: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetch(library, tmp_path)

    def fail(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files.os, "fsync", fail)
    with pytest.raises(InputError, match=r"cannot write .*730\.txt: the disk is full"):
        fetch(library, tmp_path, books=[730])
    assert read_dickens(tmp_path) == "Book 580.\n\n\nBook 46.\n"


@pytest.mark.parametrize("books", [[581], []])
def test_unknown_or_no_ebook_is_bad_input(tmp_path: Path, books: list[int]) -> None:
    with pytest.raises(InputError, match="580"):
        fetch_dickens(tmp_path, books=books, mirrors=[])


@pytest.mark.skipif(not SHARED.is_dir(), reason="the Dickens texts are not here")
def test_table_agrees_with_the_real_collection() -> None:
    manifest = json.loads((SHARED / "manifest.json").read_text())
    assert [(book["ebook"], book["title"]) for book in manifest] == list(DICKENS.items())
