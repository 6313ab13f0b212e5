"""Corpora: the split loses nothing, files are read strictly, bad sources get one clear line."""

import hashlib
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nadaraya.data import Corpus, load_corpus
from nadaraya.data.corpus import embedded_corpus
from nadaraya.errors import InputError


@given(st.text("ab\n", min_size=10, max_size=200), st.floats(0.1, 0.9))
def test_split_is_contiguous_and_complete(text: str, fraction: float) -> None:
    train, validation = Corpus("any", text).split(fraction)
    assert train + validation == text
    assert abs(len(validation) - fraction * len(text)) <= 0.5


def test_last_tenth_validates_by_default() -> None:
    assert Corpus("digits", "0123456789").split() == ("012345678", "9")


@pytest.mark.parametrize("fraction", [0.0, 1.0, -0.1, float("nan")])
def test_share_outside_zero_to_one_is_bad_input(fraction: float) -> None:
    with pytest.raises(InputError, match="validation_fraction must be more than 0 and less than 1, got"):
        Corpus("digits", "0123456789").split(fraction)


def test_text_too_short_to_split_is_bad_input() -> None:
    with pytest.raises(InputError, match="too few"):
        Corpus("short", "ab").split(0.1)


def test_bytes_and_digest_are_those_of_utf8() -> None:
    corpus = Corpus("accents", "é😀\n")
    assert corpus.num_bytes == 7
    assert corpus.sha256 == hashlib.sha256("é😀\n".encode()).hexdigest()


def test_representation_leaves_the_text_out() -> None:
    assert len(repr(embedded_corpus())) < 100


def test_embedded_corpus_is_large_wrapped_and_the_same_each_time() -> None:
    corpus = embedded_corpus()
    assert 350_000 < len(corpus.text) < 700_000
    assert corpus.sha256 == load_corpus("embedded").sha256
    assert "\r" not in corpus.text
    assert corpus.text.endswith("\n")


def test_limit_keeps_the_beginning() -> None:
    assert load_corpus("embedded", limit=1000).text == embedded_corpus().text[:1000]
    with pytest.raises(InputError, match="limit must be at least 1 character, got 0"):
        load_corpus("embedded", limit=0)


def test_file_loses_byte_order_mark_and_carriage_returns(tmp_path: Path) -> None:
    (tmp_path / "story.txt").write_bytes(b"\xef\xbb\xbfone\r\ntwo\n")
    corpus = load_corpus(tmp_path / "story.txt")
    assert (corpus.name, corpus.text) == ("story", "one\ntwo\n")


def test_folder_joins_every_text_file_in_sorted_order(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "a.txt").write_text("second\n")
    (tmp_path / "b.txt").write_text("first\n")
    (tmp_path / "notes.md").write_text("left out")
    corpus = load_corpus(tmp_path)
    assert (corpus.name, corpus.text) == (tmp_path.name, "first\n\n\nsecond\n")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "holds no text"),
        (b" \n\n", "holds no text"),
        (
            b"abc\0def",
            "bad.txt must be plain text in UTF-8, or in UTF-16 with a byte-order mark, got a NUL, as binary",
        ),
        (b"caf\xe9\n", "UTF-16 with a byte-order mark, got byte 0xe9 at offset 3"),
        (b"\xef\xbb\xbfcaf\xe9\n", "UTF-16 with a byte-order mark, got byte 0xe9 at offset 6"),
    ],
)
def test_bad_file_is_named_with_the_place(tmp_path: Path, data: bytes, message: str) -> None:
    (tmp_path / "bad.txt").write_bytes(data)
    with pytest.raises(InputError, match=message):
        load_corpus(str(tmp_path / "bad.txt"))


def test_bad_file_inside_a_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "good.txt").write_text("fine")
    (tmp_path / "bad.txt").write_bytes(b"\0")
    with pytest.raises(InputError, match=r"bad\.txt must be plain text"):
        load_corpus(tmp_path)


def test_linked_folders_are_read_and_unreadable_texts_are_named(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "a.txt").write_text("linked\n")
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    (corpus / "b").symlink_to(tmp_path / "elsewhere")
    assert load_corpus(corpus).text == "linked\n"
    (corpus / "b.txt").symlink_to(tmp_path / "absent")
    with pytest.raises(InputError, match=r"cannot read .*b\.txt: No such file"):
        load_corpus(corpus)


def test_links_that_lead_to_a_folder_twice_are_named(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "a.txt").write_text("text")
    (tmp_path / "sub" / "up").symlink_to(tmp_path)
    with pytest.raises(InputError, match=r"sub/up links to .*, whose files would count twice"):
        load_corpus(tmp_path)


def test_folder_that_cannot_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "closed").mkdir()
    (tmp_path / "a.txt").write_text("text")
    scandir = os.scandir

    def closed(path: str) -> Any:
        if str(path).endswith("closed"):  # permissions do not stop the administrator, who may run the tests
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", closed)
    with pytest.raises(InputError, match=r"cannot read .*closed: Permission denied"):
        load_corpus(tmp_path)


def test_devices_and_pipes_are_refused_unread(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.txt")
    message = "must be a regular file, got a folder, device, pipe or socket"
    for source in ("/dev/zero", "/dev/urandom", tmp_path / "pipe.txt", tmp_path):
        with pytest.raises(InputError, match=message):
            load_corpus(source)


def test_names_longer_than_the_system_allows_are_refused() -> None:
    with pytest.raises(InputError, match=r"^'a+ … is no path: File name too long$"):
        load_corpus("a" * 5000 + ".txt")
    with pytest.raises(InputError, match=r"no such file or folder: a\\x00b\.txt"):
        load_corpus("a\0b.txt")


def test_a_name_of_several_lines_is_told_in_one(tmp_path: Path) -> None:
    (tmp_path / "two\nlines\x1b\udcff.txt").write_bytes(b"\0")
    with pytest.raises(InputError, match=r"two\\nlines\\x1b\\udcff\.txt must be plain text"):
        load_corpus(tmp_path)


def test_missing_sources_say_what_is_accepted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NADARAYA_CACHE", str(tmp_path / "cache"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match=r"holds no \.txt file"):
        load_corpus(tmp_path / "empty")
    with pytest.raises(InputError, match="no such file or folder"):
        load_corpus(tmp_path / "absent.txt")
    with pytest.raises(InputError, match="did you mean 'embedded'"):
        load_corpus("embeded")
    with pytest.raises(InputError, match=r"nadaraya data dickens --from FOLDER"):
        load_corpus("dickens")
