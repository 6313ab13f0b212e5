"""Tokenising: the same bytes for any number of processes and stops; nothing complete is lost."""

import errno
import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from filelock import FileLock
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from nadaraya.data import (
    TokenShards,
    byte_tokenizer,
    check_shards,
    encoding,
    tokenize_corpus,
    tokenizing,
    train_byte_pair_tokenizer,
)
from nadaraya.data.shards import Manifest
from nadaraya.data.tokenizer import encode_text, token_num_bytes
from nadaraya.errors import InputError
from nadaraya.files import WriteFailed, sha256

OPTIONS: dict[str, Any] = {"vocabulary": 300, "shard_tokens": 250, "validation_fraction": 0.2}


@pytest.fixture(scope="module")
def documents() -> list[str]:
    """60 texts, of which one is longer than a shard and one looks like a border."""
    texts = [
        f"The {number} cats sat on {number % 7} mats.\n\n{'So it goes. ' * (number % 5)}é"
        for number in range(60)
    ]
    texts[20] = "<pad> a long tale " * 100
    texts[31] = "ends with <|endoftext" + "|>"[:1]
    return texts


@pytest.fixture(scope="module")
def source(documents: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("source") / "texts.txt"
    path.write_text("\n<|endoftext|>\n".join(documents))
    return path


@pytest.fixture(scope="module")
def whole(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The shards of an uninterrupted call."""
    return tokenize_corpus(source, tmp_path_factory.mktemp("whole") / "shards", **OPTIONS).folder


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several batches per shard."""
    monkeypatch.setattr(encoding, "_BATCH", 200)


def content(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != ".lock")
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def texts_of(shards: TokenShards) -> list[str]:
    numbers = shards.tokens([0], len(shards))[0].numpy()
    begins = np.flatnonzero(numbers == shards.document_token)
    assert begins[0] == 0
    return [shards.tokenizer.decode(part[1:]) for part in np.split(numbers, begins[1:])]


def test_every_document_is_in_one_part_once_in_order(whole: Path, documents: list[str]) -> None:
    train, validation = TokenShards(whole), TokenShards(whole, "validation")
    kept, held_out = texts_of(train), texts_of(validation)
    assert sorted(kept + held_out) == sorted(text.strip("\n") for text in documents)
    assert kept == [text for text in documents if text in kept]
    assert held_out == [text for text in documents if text in held_out]
    assert len(kept) == train.num_documents
    assert 3 < validation.num_documents == len(held_out) < 25


def test_a_shard_has_whole_documents_and_at_most_the_tokens_asked_for_but_for_a_long_one(
    whole: Path,
) -> None:
    shards = Manifest.read(whole).shards
    assert len(shards) > 4
    assert any(file.tokens > 250 for shard in shards for file in shard.files.values())
    for shard in shards:
        for file in shard.files.values():
            assert file.tokens <= 250 or file.documents == 1
    for name, file in Manifest.read(whole).files("train", "validation"):
        numbers = np.fromfile(whole / name, "<u2")
        assert (len(numbers), (numbers == 0).sum(), numbers[0]) == (file.tokens, file.documents, 0)


def test_equal_documents_are_on_the_same_side(tmp_path: Path) -> None:
    path = tmp_path / "twice.txt"
    path.write_text("<|endoftext|>".join([f"number {number}" for number in range(40)] * 2))
    train = tokenize_corpus(path, tmp_path / "shards", vocabulary=257, validation_fraction=0.3)
    kept, held_out = texts_of(train), texts_of(TokenShards(tmp_path / "shards", "validation"))
    assert not set(kept) & set(held_out)
    assert len(kept) + len(held_out) == 80


def test_the_first_documents_validate_when_their_number_is_given(
    source: Path, documents: list[str], tmp_path: Path
) -> None:
    options = {**OPTIONS, "validation_documents": 5}
    tokenize_corpus(source, tmp_path / "shards", **options)
    assert texts_of(TokenShards(tmp_path / "shards", "validation")) == documents[:5]


def test_no_text_is_read_as_the_border_of_documents(tmp_path: Path) -> None:
    texts = ["one <|endoftext|> text", "another<|endoftext|>", "<|endoftext|>", "and a last one"]
    path = tmp_path / "texts.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    train = tokenize_corpus(path, tmp_path / "shards", vocabulary=257, validation_documents=1)
    assert texts_of(train) == texts[1:]


def test_byte_pairs_are_found_in_training_documents_alone(tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    path.write_text("zigzag " * 50 + "<|endoftext|>" + "the cat sat. " * 50)
    train = tokenize_corpus(path, tmp_path / "shards", vocabulary=300, validation_documents=1)
    vocabulary = train.tokenizer.get_vocab()
    assert "Ġcat" in vocabulary
    assert not any("zig" in token for token in vocabulary)


def test_a_tokenizer_of_ones_own_makes_the_tokens(source: Path, documents: list[str], tmp_path: Path) -> None:
    own = train_byte_pair_tokenizer(documents[:30], 280, document_token="<begin>")
    own.save_pretrained(tmp_path / "own")
    own.backend_tokenizer.enable_truncation(5)
    own.save_pretrained(tmp_path / "cut")  # as those of models are, which encode a context at most
    for name in ("own", "cut"):
        shards = tokenize_corpus(source, tmp_path / name / "shards", tokenizer=tmp_path / name)
        assert token_num_bytes(shards.tokenizer, shards.document_token) == 0
        part = texts_of(shards)
        tokens = [[own.bos_token_id, *encode_text(shards.tokenizer, text).tolist()] for text in part]
        assert shards.tokens([0], len(shards))[0].tolist() == list(chain(*tokens))
    byte_tokenizer().save_pretrained(tmp_path / "bytes")
    with pytest.raises(InputError, match="must have an end-of-document token"):
        tokenize_corpus(source, tmp_path / "other", tokenizer=tmp_path / "bytes")


def test_documents_begin_with_the_token_that_texts_are_generated_after(source: Path, tmp_path: Path) -> None:
    own = train_byte_pair_tokenizer("the cat sat", 280, document_token="<end>")
    own.add_special_tokens({"bos_token": "<begin>"})
    own.save_pretrained(tmp_path / "own")
    shards = tokenize_corpus(source, tmp_path / "shards", tokenizer=tmp_path / "own")
    assert shards.document_token == own.eos_token_id != own.bos_token_id
    assert shards.tokenizer.bos_token_id == shards.tokenizer.eos_token_id == shards.document_token


def test_a_tokenizer_whose_tokens_have_no_bytes_is_refused_at_once(source: Path, tmp_path: Path) -> None:
    own = Tokenizer(models.BPE())
    own.pre_tokenizer, own.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    own.train_from_iterator(["the cat sat"], trainers.BpeTrainer(special_tokens=["</s>"]))
    PreTrainedTokenizerFast(tokenizer_object=own, eos_token="</s>").save_pretrained(tmp_path / "own")
    with pytest.raises(InputError, match=r"must be one of characters or bytes, .* got 'Metaspace'"):
        tokenize_corpus(source, tmp_path / "shards", tokenizer=tmp_path / "own")
    assert not (tmp_path / "shards").exists()


def test_a_call_that_was_stopped_before_its_tokenizer_was_in_place_goes_on(
    whole: Path, source: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "begun"
    folder.mkdir()
    manifest = json.loads((whole / "shards.json").read_text())
    (folder / "shards.json").write_text(json.dumps({**manifest, "shards": [], "complete": False}))
    tokenize_corpus(source, folder, **OPTIONS)
    assert content(folder) == content(whole)


class Stopped(Exception):
    pass


@pytest.fixture
def at_shard(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, Callable[[], object]], None]:
    """Do something when a shard was written aside and before it is moved into place."""

    def plan(number: int, act: Callable[[], object]) -> None:
        original = tokenizing._make_shard

        def make(stream: Any, folder: Path, shard: int, manifest: Manifest) -> Any:
            if shard == number:
                next(stream)
                act()
            return original(stream, folder, shard, manifest)

        monkeypatch.setattr(tokenizing, "_make_shard", make)

    return plan


def test_a_stopped_call_goes_on_after_its_last_shard(
    whole: Path, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    at_shard: Callable[[int, Callable[[], object]], None],
) -> None:  # fmt: skip
    def stop() -> None:
        raise Stopped

    folder = tmp_path / "shards"
    with monkeypatch.context():
        at_shard(3, stop)
        with pytest.raises(Stopped):
            tokenize_corpus(source, folder, **OPTIONS)
    monkeypatch.undo()
    kept = {name: (folder / name).stat().st_mtime_ns for name, _ in Manifest.read(folder).files("train")}
    assert len(kept) == 3
    with pytest.raises(InputError, match=r"is not complete \(3 shards so far\): run the same"):
        TokenShards(folder)
    tokenize_corpus(source, folder, **OPTIONS)
    assert content(folder) == content(whole)
    assert all((folder / name).stat().st_mtime_ns == made for name, made in kept.items())


def test_a_finished_folder_is_left_as_it_is(whole: Path, source: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in whole.iterdir()}
    tokenize_corpus(source, whole, **OPTIONS)
    assert {path: path.stat().st_mtime_ns for path in whole.iterdir() if path.name != ".lock"} == {
        path: made for path, made in before.items() if path.name != ".lock"
    }


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-2])


def edit(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-2] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("harm", [truncate, edit, Path.unlink])
@pytest.mark.parametrize("name", ["train-00002.bin", "tokenizer.json"])
def test_what_is_damaged_is_named_and_made_anew(
    whole: Path, source: Path, tmp_path: Path, harm: Callable[[Path], None], name: str,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    folder = Path(shutil.copytree(whole, tmp_path / "shards"))
    harm(folder / name)
    (folder / "train-00003.bin").unlink()
    assert set(check_shards(folder)) == {name, "train-00003.bin"}
    with pytest.raises(InputError, match="and 1 other file: " if "train" in name else "00003.bin is damaged"):
        TokenShards(folder)
    tokenize_corpus(source, folder, progress=True, **OPTIONS)
    assert "train-00003.bin is damaged (missing): it is made anew" in capsys.readouterr().err
    assert content(folder) == content(whole)


def test_an_edit_that_keeps_the_size_is_found_by_its_digest(whole: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(whole, tmp_path / "shards"))
    edit(folder / "train-00001.bin")
    with pytest.raises(InputError, match=r"train-00001.bin is damaged \(edited\)"):
        TokenShards(folder)
    TokenShards(folder, verify=False)
    TokenShards(folder, "validation")
    edit(folder / "tokenizer.json")
    with pytest.raises(InputError, match=r"tokenizer.json is not the tokenizer that made the shards"):
        _ = TokenShards(folder, "validation").tokenizer


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"vocabulary": 301}, "was begun with vocabulary = 300, not 301: choose another folder"),
        ({"validation_documents": 2}, "was begun with validation_documents = None, not 2"),
        ({"shard_tokens": 401}, "was begun with shard_tokens = 250, not 401"),
        ({"separator": "|"}, r"was begun with separator = '<\|endoftext\|>', not '\|'"),
    ],
)
def test_a_folder_of_other_options_is_refused_and_unharmed(
    whole: Path, source: Path, changes: dict[str, Any], message: str
) -> None:
    before = content(whole)
    with pytest.raises(InputError, match=message):
        tokenize_corpus(source, whole, **{**OPTIONS, **changes})
    assert content(whole) == before


def test_a_folder_of_another_source_is_refused_and_unharmed(
    whole: Path, source: Path, tmp_path: Path
) -> None:
    before, edited = content(whole), tmp_path / "texts.txt"
    edited.write_bytes(source.read_bytes().replace(b"cats", b"dogs"))
    with pytest.raises(InputError, match=r"begun from another source \(texts.txt was edited\)"):
        tokenize_corpus(edited, whole, **OPTIONS)
    with pytest.raises(InputError, match=r"begun from another source \(texts.txt was added or removed\)"):
        tokenize_corpus(edited.rename(tmp_path / "other.txt"), whole, **OPTIONS)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    with pytest.raises(InputError, match="is not a folder of token shards: choose another one"):
        tokenize_corpus(source, tmp_path / "mine", **OPTIONS)
    assert content(whole) == before


def test_a_folder_that_another_process_writes_is_refused(whole: Path, source: Path) -> None:
    with FileLock(whole / ".lock"), pytest.raises(InputError, match="is being written by another process"):
        tokenize_corpus(source, whole, **OPTIONS)


def test_a_full_disk_keeps_what_is_complete(
    whole: Path, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "shards"

    def full(path: Path) -> str:
        if "train-00002" in path.name:
            raise OSError(errno.ENOSPC, "No space left on device")
        return sha256(path)

    with monkeypatch.context() as patched:
        patched.setattr(tokenizing, "sha256", full)
        with pytest.raises(WriteFailed, match=r"cannot write .*train-00002.bin: the disk is full"):
            tokenize_corpus(source, folder, **OPTIONS)
    assert check_shards(folder) == {}
    assert len(Manifest.read(folder).shards) == 2
    tokenize_corpus(source, folder, **OPTIONS)
    assert content(folder) == content(whole)


def test_a_source_without_a_document_for_each_part_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "one.txt"
    path.write_text("a single text")
    with pytest.raises(InputError, match=r"one\.txt has no document for the part 'validation': say how many"):
        tokenize_corpus(path, tmp_path / "a", vocabulary=257, validation_fraction=1e-9)
    with pytest.raises(InputError, match=r"one\.txt has no document for the part 'train'"):
        tokenize_corpus(path, tmp_path / "a", vocabulary=257, validation_documents=1)
    assert not (tmp_path / "a").exists()  # so that the repaired command makes the same folder
    path.write_text("a single text<|endoftext|>and another")
    tokenize_corpus(path, tmp_path / "a", vocabulary=257, validation_documents=1)
    assert check_shards(tmp_path / "a") == {}
    wrong = {"workers": 0, "shard_tokens": -1, "validation_documents": 0, "validation_fraction": 1.0}
    for name, value in wrong.items():
        with pytest.raises(InputError, match=f"{name} must be "):
            tokenize_corpus(path, tmp_path / "c", **{name: value})


_KILLED = """
import multiprocessing, os, signal, sys
from pathlib import Path
from nadaraya.data import encoding, tokenize_corpus, tokenizing

if __name__ == "__main__":
    encoding._BATCH, make = 200, tokenizing._make_shard
    def killing(stream, folder, number, manifest):
        if number == 3:
            (folder / ".partial-left").mkdir()  # what a kill leaves behind while it is written
            children = multiprocessing.active_children()
            Path(sys.argv[3]).write_text(" ".join(str(child.pid) for child in children))
            os.kill(os.getpid(), signal.SIGKILL)
        return make(stream, folder, number, manifest)
    tokenizing._make_shard = killing
    options = {"vocabulary": 300, "shard_tokens": 250, "validation_fraction": 0.2}
    tokenize_corpus(sys.argv[1], sys.argv[2], workers=2, **options)
"""


@pytest.mark.slow
def test_a_killed_command_takes_its_processes_along_and_goes_on(
    whole: Path, source: Path, tmp_path: Path
) -> None:
    folder, children, script = tmp_path / "shards", tmp_path / "children", tmp_path / "killed.py"
    script.write_text(_KILLED)
    command = [sys.executable, script, source, folder, children]
    killed = subprocess.run(command, timeout=120, check=False, capture_output=True)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    waiting = [int(pid) for pid in children.read_text().split()]
    assert len(waiting) == 2
    until = time.monotonic() + 60
    while any(Path(f"/proc/{pid}").exists() for pid in waiting):
        assert time.monotonic() < until, "a process of a killed command waits for ever"
        time.sleep(0.05)
    assert len(Manifest.read(folder).shards) == 3
    tokenize_corpus(source, folder, **OPTIONS)
    assert content(folder) == content(whole)


@pytest.mark.slow
def test_several_processes_make_the_bytes_of_one_and_one_that_is_killed_is_one_line(
    whole: Path, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, make = tmp_path / "shards", tokenizing._make_shard

    def killing(stream: Any, folder: Path, number: int, manifest: Manifest) -> Any:
        if number == 2:
            for child in multiprocessing.active_children():
                os.kill(child.pid or 0, signal.SIGKILL)
        return make(stream, folder, number, manifest)

    with monkeypatch.context() as patched:
        patched.setattr(tokenizing, "_make_shard", killing)
        with pytest.raises(
            InputError, match=r"a process that tokenises was killed.*run the same command again"
        ):
            tokenize_corpus(source, folder, workers=2, **OPTIONS)
    assert check_shards(folder) == {}
    tokenize_corpus(source, folder, workers=2, **OPTIONS)
    assert content(folder) == content(whole)


def test_a_text_that_becomes_the_border_of_documents_is_refused(source: Path, tmp_path: Path) -> None:
    own = train_byte_pair_tokenizer(["the cat sat"], 270, document_token="<begin>")
    own.eos_token = "a"
    own.save_pretrained(tmp_path / "own")
    with pytest.raises(InputError, match="reads a part of a document as the token that begins documents"):
        tokenize_corpus(source, tmp_path / "shards", tokenizer=tmp_path / "own")
