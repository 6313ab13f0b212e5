"""Files and folders that are complete or absent, whatever happens while they are written."""

import errno
import os
from pathlib import Path

import pytest
from safetensors import SafetensorError

from nadaraya import files
from nadaraya.errors import InputError
from nadaraya.files import (
    PARTIAL,
    WriteFailed,
    reading,
    remove_folder,
    remove_partial,
    write_file,
    write_into,
    writing,
)


def _names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def _full(*_: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "folder" / "file.txt"
    write_file(path, "old\r\n")
    assert path.read_bytes() == b"old\r\n"
    with monkeypatch.context() as patched:
        patched.setattr(files, "sync", _full)
        with pytest.raises(
            WriteFailed, match=r"file\.txt: the disk is full; what was saved before is intact"
        ):
            write_file(path, "new")
    assert path.read_bytes() == b"old\r\n"
    write_file(path, b"new")
    assert path.read_bytes() == b"new"
    assert _names(path.parent) == ["file.txt"]


def test_nothing_has_its_name_before_it_is_complete_and_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    before: list[list[str]] = []

    def noting(path: Path) -> None:
        synced.append(path.name)
        before.append([name for name in _names(tmp_path) if not name.startswith(PARTIAL)])

    monkeypatch.setattr(files, "sync", noting)
    with write_into(tmp_path) as scratch:
        (scratch / "a").write_text("1")
        (scratch / "b").mkdir()
        (scratch / "b" / "part").write_text("2")
        assert _names(tmp_path) == [scratch.name]
        assert scratch.name.startswith(PARTIAL)
    assert synced == ["a", "part", "b", tmp_path.name]
    assert before == [[], ["a"], ["a"], ["a", "b"]]


def test_folders_replace_folders(tmp_path: Path) -> None:
    for content in ("first", "second"):
        with write_into(tmp_path) as scratch:
            (scratch / "part").mkdir()
            (scratch / "part" / content).write_text(content)
    assert _names(tmp_path) == ["part"]
    assert _names(tmp_path / "part") == ["second"]


def test_what_fails_leaves_nothing_behind(tmp_path: Path) -> None:
    def failing(error: BaseException) -> None:
        with write_into(tmp_path) as scratch:
            (scratch / "part").write_text("1")
            raise error

    for error in (RuntimeError("other"), KeyboardInterrupt()):
        with pytest.raises(type(error)):
            failing(error)
        assert _names(tmp_path) == []


def test_a_full_disk_is_recognised_in_the_form_that_safetensors_gives_it(tmp_path: Path) -> None:
    message = "Error while serializing: I/O error: No space left on device (os error 28)"
    with pytest.raises(WriteFailed, match="the disk is full"), writing(tmp_path):
        raise SafetensorError(message)


def test_other_reasons_are_told_as_they_are(tmp_path: Path) -> None:
    with (
        pytest.raises(WriteFailed, match=r"cannot write .*here: .*Permission denied"),
        writing(tmp_path / "here"),
    ):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


def test_leftovers_of_killed_writers_are_removed_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / f"{PARTIAL}abc" / "part").mkdir(parents=True)
    (tmp_path / "mine").mkdir()
    remove_partial(tmp_path)
    assert _names(tmp_path) == ["mine"]
    remove_folder(tmp_path / "mine")
    remove_folder(tmp_path / "absent")
    assert _names(tmp_path) == []


@pytest.mark.parametrize(
    "error", [ValueError("a\nb"), KeyError("a"), SafetensorError("a"), RuntimeError("a")]
)
def test_what_a_damaged_file_raises_is_one_line_that_names_it(error: Exception, tmp_path: Path) -> None:
    message = r"x\.json cannot be read as a recipe: '?a'?$"
    with pytest.raises(InputError, match=message), reading(tmp_path / "x.json", "a recipe"):
        raise error
    with pytest.raises(InputError, match=r"^said already$"), reading(tmp_path):
        raise InputError("said already")


def test_a_link_stays_and_what_is_no_file_is_left_alone(tmp_path: Path) -> None:
    target, link, pipe = tmp_path / "target", tmp_path / "link", tmp_path / "pipe"
    target.write_text("old")
    link.symlink_to(target)
    files.write_file(link, "new")
    assert link.is_symlink()
    assert target.read_text() == "new"
    os.mkfifo(pipe)
    with pytest.raises(InputError, match=r"cannot write .*pipe: it is no file"):
        files.write_file(pipe, "new")
    assert pipe.is_fifo()


def test_advice_is_given_where_it_helps(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(files.WriteFailed) as failed:
        files.write_file(tmp_path / "file" / "inside", "new")
    assert str(failed.value).endswith("is intact")
    assert "Errno" not in str(failed.value)
