"""The cache folder: where it is, that changes of what it holds are seen."""

from pathlib import Path

import pytest

from nadaraya.data.cache import read_manifest, store, stored_text
from nadaraya.errors import InputError
from nadaraya.files import cache_folder


def test_own_variable_wins_over_xdg_and_xdg_over_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/somebody")
    monkeypatch.delenv("NADARAYA_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert cache_folder() == Path("/home/somebody/.cache/nadaraya")
    monkeypatch.setenv("XDG_CACHE_HOME", "/caches")
    assert cache_folder() == Path("/caches/nadaraya")
    monkeypatch.setenv("NADARAYA_CACHE", "~/mine")
    assert cache_folder() == Path("/home/somebody/mine")


def test_stored_file_is_intact_until_one_byte_changes(tmp_path: Path) -> None:
    store(tmp_path, "a.txt", "some text", title="A")
    assert stored_text(tmp_path, "a.txt") == "some text"
    assert read_manifest(tmp_path)["a.txt"].title == "A"
    (tmp_path / "a.txt").write_bytes(b"some tex.")
    assert stored_text(tmp_path, "a.txt") is None


def test_file_without_a_record_is_not_trusted(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"some text")
    assert stored_text(tmp_path, "a.txt") is None


@pytest.mark.parametrize("content", ["", "[]", '{"files": {"a.txt": {}}}', '{"files": 3}'])
def test_damaged_manifest_is_bad_input_and_names_itself(tmp_path: Path, content: str) -> None:
    (tmp_path / "manifest.json").write_text(content)
    with pytest.raises(InputError, match=r"manifest\.json cannot be read as the manifest of a corpus"):
        read_manifest(tmp_path)


def test_folder_that_cannot_be_made_is_bad_input_and_holds_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(InputError, match=r"cannot write .*a\.txt: .*Not a directory"):
        store(tmp_path / "file" / "sub", "a.txt", "text")
    assert read_manifest(tmp_path / "file" / "sub") == {}
