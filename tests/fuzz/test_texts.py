# ruff: noqa: E501  (tables)
"""Odd texts and sources of text: one line that says what is wrong, or tokens from which the text comes back."""

import json
import os
import random
import shutil
import socket
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from nadaraya.cli import main
from nadaraya.data import (
    Corpus,
    TokenShards,
    byte_tokenizer,
    check_shards,
    load_corpus,
    tokenize_corpus,
    train_byte_pair_tokenizer,
    train_character_tokenizer,
)
from nadaraya.data.cache import store
from nadaraya.data.corpus import PART_SEPARATOR
from nadaraya.data.documents import open_documents
from nadaraya.data.gutenberg import read_dickens
from nadaraya.data.tokenizer import encode_text
from nadaraya.errors import InputError
from nadaraya.evaluation import evaluate_string
from nadaraya.evaluation.core import evaluate_core, read_core
from nadaraya.evaluation.language import evaluate_shards
from nadaraya.models import KernelGPTConfig, KernelGPTForCausalLM
from nadaraya.training import Recipe, open_causal_model, train

pytestmark = pytest.mark.slow

_BASES = {
    "ascii": "the cat sat on it",
    "accents": "Äpfel, naïve, e\u0301a\u0308\u0323",
    "cjk": "日本語の文章",
    "astral": "🙂𝔸👩\u200d👩\u200d👧🏽",
    "hebrew": "שלום \u202eabc\u202c",
    "blanks": "a\u00a0b\u2009c\u3000d  e\t",
}
_LINE_ENDS = ("", "\n", "\r", "\r\n", "\n\r", "\r\r\n", "\v", "\f", "\x1c", "\x85", "\u2028", "\u2029")
_NOT_UTF8 = {
    "continuation alone": b"\x80", "two continuations": b"\xbf\xbf", "start alone": b"\xc3",
    "cut 3-byte": b"\xe6\x97", "cut 4-byte": b"\xf0\x9f\x99", "overlong slash": b"\xc0\xaf",
    "overlong 3-byte": b"\xe0\x80\xaf", "overlong NUL": b"\xc0\x80", "overlong 4-byte": b"\xf0\x82\x82\xac",
    "high surrogate": b"\xed\xa0\x80", "low surrogate": b"\xed\xbf\xbf", "pair": b"\xed\xa0\xbd\xed\xb8\x80",
    "beyond Unicode": b"\xf4\x90\x80\x80", "5 bytes": b"\xf8\x88\x80\x80\x80", "0xFE": b"\xfe", "0xFF": b"\xff",
}  # fmt: skip
_CHARACTERS = (
    *map(chr, (*range(0x20), *range(0x7F, 0xA1))),
    *"\u00ad\u034f\u061c\u115f\u180e\u200b\u200c\u200d\u200e\u202e\u2060\u2066\u3164\ufe0f\ufeff\uffa0\ufffc\ufffd",
    *map(
        chr, (0xFDD0, 0xFFFE, 0xFFFF, 0x1FFFE, 0x10FFFF, 0xE000, 0xF8FF, 0xF0000, 0xE0001, 0xE0100, 0x1D173)
    ),
)
_WORDS = (
    "<pad>",
    "ÿ",
    "Ġ",
    "Ċ",
    "Ã",
    "[UNK]",
    "<|endoftext|>",
    "</s>",
    "##a",
    "▁a",
    "'s don't",
    "{0}",
    "%s",
    "\\n",
)


def _texts() -> Iterator[tuple[str, bytes]]:
    """Contents of text files, each with what is odd about it."""
    draw = random.Random(0)
    for name, base in _BASES.items():
        for end in _LINE_ENDS:
            text = end.join(base for _ in range(9)) + end
            yield f"{name}, line end {end!a}", text.encode()
            yield f"{name}, line end {end!a}, byte order mark", text.encode("utf-8-sig")
        for encoding in ("utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-be", "latin-1", "utf-7"):
            yield f"{name} in {encoding}", (base * 3).encode(encoding, "replace")
        encoded = (base * 3).encode()
        yield from ((f"{name} cut at {cut}", encoded[:cut]) for cut in range(len(encoded) - 4, len(encoded)))
    for name, wrong in _NOT_UTF8.items():
        for place, data in (
            ("start", wrong + b"abc"),
            ("middle", b"ab" + wrong + b"cd"),
            ("end", b"abc" + wrong),
        ):
            yield f"{name} at the {place}", data
    for character in _CHARACTERS:
        yield f"U+{ord(character):04X} alone", character.encode()
        yield f"U+{ord(character):04X} among others", f"ab{character}cd{character}\n".encode() * 4
    for word in _WORDS:
        yield f"the word {word}", f"{word} {word}{word}\n{word}".encode()
    for blank in (
        "",
        " ",
        "\n",
        "\n" * 5000,
        "\r\n" * 9,
        " \t\n\v\f\r\x85\xa0\u2003\u2028\u3000",
        "\ufeff" * 2,
    ):
        yield f"only {blank[:8]!a}", blank.encode()
    yield from ((f"{length} characters", b"abcdefgh"[:length]) for length in range(1, 8))
    yield "a long line", b"word " * 60_000
    yield "a long word", b"ab" * 50_000
    yield "combining marks without end", ("a" + "\u0301" * 20_000).encode()
    points = [*range(0x20, 0xD800), *range(0xE000, 0x10000)]
    yield "60,000 different characters", "".join(map(chr, points[:60_000])).encode()
    for number in range(20):
        yield f"random characters {number}", "".join(chr(draw.choice(points)) for _ in range(300)).encode()
        yield f"random bytes {number}", draw.randbytes(300)


def _expected(data: bytes) -> str | None:
    """What the file says, by Python's own strict decoder; None where it is not plain text."""
    try:
        encoding = "utf-16" if data[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
        text = data.decode(encoding).replace("\r\n", "\n")
    except UnicodeDecodeError:
        return None
    return text if text.strip() and "\0" not in text else None


def _shown(name: str) -> str:
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in name)


def _check_line(error: InputError, named: str) -> None:
    line = str(error)
    assert len(line.splitlines()) == 1
    assert line.isprintable()
    assert len(line) <= 600
    assert _shown(named)[:100] in line


def _check_round_trips(corpus: Corpus) -> None:
    text = corpus.text
    tokenizers = [train_character_tokenizer(text), byte_tokenizer()]
    if len(set(text)) < 10_000:
        tokenizers.append(train_byte_pair_tokenizer(text, 300))
    for tokenizer in tokenizers:
        ids = encode_text(tokenizer, text)
        assert tokenizer.decode(ids) == text
        assert int(ids.max()) < tokenizer.vocab_size
    assert len(encode_text(tokenizers[0], text)) == len(text)
    assert len(encode_text(tokenizers[1], text)) == corpus.num_bytes
    for fraction in (0.1, 0.5):
        try:
            training, validation = corpus.split(fraction)
        except InputError as error:
            _check_line(error, repr(corpus.name)[1:-1])
            assert len(text) <= 5
        else:
            assert training + validation == text
            assert len(validation) == round(len(text) * fraction)


def test_a_text_is_refused_in_one_line_or_comes_back_from_its_tokens(tmp_path: Path) -> None:
    outcomes: Counter[bool] = Counter()
    for number, (case, data) in enumerate(_texts()):
        path = tmp_path / f"{number}.txt"
        path.write_bytes(data)
        expected = _expected(data)
        outcomes[expected is None] += 1
        try:
            corpus = load_corpus(path)
        except InputError as error:
            assert expected is None, case
            _check_line(error, path.name)
        else:
            assert corpus.text == expected, case
            _check_round_trips(corpus)
    assert outcomes.total() >= 220
    assert min(outcomes.values()) >= 80
    print(f"{outcomes.total()} texts: {outcomes[True]} refused, {outcomes[False]} come back")


def _file(path: Path, data: bytes = b"text\n") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def _link(path: Path, target: str | Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(target)
    return path


def _deep(root: Path) -> Path:
    _file(root / "/".join("d" * 60) / "a.txt")
    return root


def _socket(path: Path) -> Path:
    there = Path.cwd()
    path.parent.mkdir(parents=True, exist_ok=True)
    os.chdir(path.parent)  # the whole path may be too long for the name of a socket
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(path.name)
    finally:
        os.chdir(there)
    return path


def _pipe(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    os.mkfifo(path)
    return path


def _folder(*made: Path) -> Path:
    return made[0].parent


_ODD_NAMES = ("two\nlines", "cr\rname", "bell\x07", "\x1b[31mred", "byte\udcff", "line\u2028end", "\u202eright", " ", "-h", "~", "*", "$HOME",
              "a'b\"c", "é", "e\u0301", "x" * 240, "%s{0}", "#?&", "\\n")  # fmt: skip
# What is made below a folder, the text that it gives (None: it is refused), and a name in the message.
_SOURCES: dict[str, tuple[Callable[[Path], object], str | None, str]] = {
    "absent file": (lambda t: t / "absent.txt", None, "absent.txt"),
    "absent folder": (lambda t: t / "absent" / "a", None, "absent"),
    "empty folder": (lambda t: t, None, ""),
    "folders alone": (lambda t: _folder(*[(t / n).mkdir() or t / n for n in "ab"]), None, ""),  # type: ignore[func-returns-value]
    "no .txt": (lambda t: _folder(_file(t / "a.md"), _file(t / "b.TXT"), _file(t / "txt")), None, ""),
    "one empty file": (lambda t: _folder(_file(t / "a.txt", b"")), None, ""),
    "blank files": (lambda t: _folder(_file(t / "a.txt", b"\n"), _file(t / "b.txt", b" ")), None, ""),
    "one of two empty": (lambda t: _folder(_file(t / "a.txt", b""), _file(t / "b.txt")), PART_SEPARATOR + "text\n", ""),
    "nested deep": (_deep, "text\n", ""),
    "hidden file": (lambda t: _folder(_file(t / ".txt"), _file(t / ".a.txt")), f"text{PART_SEPARATOR}text\n", ""),
    "file named like a folder": (lambda t: _file(t / "folder"), "text\n", ""),
    "folder named like a file": (lambda t: _file(t / "f.txt" / "a.txt").parent, "text\n", ""),
    "folder named like a file, below": (lambda t: _file(t / "f.txt" / "a.txt").parent.parent, "text\n", ""),
    "file as a folder": (lambda t: _file(t / "a.txt") / "b.txt", None, "b.txt"),
    "trailing slash": (lambda t: f"{_file(t / 'a.txt')}/", "text\n", ""),
    "link to a file": (lambda t: _link(t / "b", _file(t / "a.txt")), "text\n", ""),
    "file twice by a link": (lambda t: _folder(_link(t / "b.txt", _file(t / "a.txt"))), f"text{PART_SEPARATOR}text\n", ""),
    "link to itself": (lambda t: _link(t / "a.txt", "a.txt"), None, "a.txt"),
    "link to itself, below": (lambda t: _folder(_link(t / "a.txt", "a.txt")), None, "a.txt"),
    "two links to each other": (lambda t: _folder(_link(t / "a.txt", "b.txt"), _link(t / "b.txt", "a.txt")), None, "a.txt"),
    "dangling link": (lambda t: _link(t / "a.txt", "gone"), None, "a.txt"),
    "dangling link, below": (lambda t: _folder(_file(t / "b.txt"), _link(t / "a.txt", "gone")), None, "a.txt"),
    "link to the folder above": (lambda t: _folder(_file(t / "a.txt"), _link(t / "up", "."), ), None, "up"),
    "loop of folders": (lambda t: _folder(_file(t / "a" / "a.txt"), _link(t / "a" / "b", "../c"), _link(t / "c" / "d", "../a")).parent, None, "a"),
    "folder twice by a link": (lambda t: _folder(_link(t / "b", _folder(_file(t / "a" / "a.txt")))), None, "b"),
    "pipe": (lambda t: _pipe(t / "p.txt"), None, "p.txt"),
    "pipe, below": (lambda t: _folder(_pipe(t / "p.txt"), _file(t / "a.txt")), None, "p.txt"),
    "socket": (lambda t: _socket(t / "s.txt"), None, "s.txt"),
    "socket, below": (lambda t: _folder(_socket(t / "s.txt")), None, "s.txt"),
    "endless device": (lambda t: "/dev/zero", None, "/dev/zero"),
    "link to a device": (lambda t: _link(t / "n.txt", "/dev/zero"), None, "n.txt"),
    "link to nothing": (lambda t: _folder(_link(t / "n.txt", "/dev/null")), None, "n.txt"),
    "memory of the process": (lambda t: "/proc/self/mem", None, "/proc/self/mem"),
    "no name": (lambda t: "", None, ""),
    "a name with NUL": (lambda t: "a\0b", None, "a\0b"),
    "a long name": (lambda t: "a" * 5000, None, "a"),
    "a long name with an ending": (lambda t: "a" * 5000 + ".txt", None, "a"),
    "a long path": (lambda t: "a/" * 3000 + "b.txt", None, "a/"),
    "a surrogate": (lambda t: "\ud800", None, "\ud800"),
    "nearly a name": (lambda t: "Embedded", None, "Embedded"),
    **{f"bad bytes in {n[:20]!a}": (lambda t, n=n: _file(t / n, b"\xff"), None, n[:100]) for n in _ODD_NAMES},
    **{f"bad bytes in {n[:20]!a}, below": (lambda t, n=n: _folder(_file(t / f"{n}.txt", b"\xff")), None, n[:100]) for n in _ODD_NAMES},
    **{f"a folder {n[:20]!a} without text": (lambda t, n=n: _folder(_file(t / n / "a.md")), None, n[:100]) for n in _ODD_NAMES},
    **{f"text in {n[:20]!a}": (lambda t, n=n: _file(t / n), "text\n", "") for n in _ODD_NAMES},
    **{f"text in a folder {n[:20]!a}": (lambda t, n=n: _folder(_file(t / n / f"{n}.txt")), "text\n", "") for n in _ODD_NAMES},
}  # fmt: skip


@pytest.mark.parametrize("case", _SOURCES)
def test_a_source_is_refused_in_one_line_or_read(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    make, expected, named = _SOURCES[case]
    root = tmp_path / "t"
    root.mkdir()
    source = make(root)
    if expected is None:
        with pytest.raises(InputError) as refused:
            load_corpus(source)  # type: ignore[arg-type]
        _check_line(refused.value, named)
    else:
        corpus = load_corpus(source)  # type: ignore[arg-type]
        assert corpus.text == expected
        _check_round_trips(corpus)


@pytest.mark.parametrize("below", [False, True])
@pytest.mark.parametrize("number", [1, 5, 13, 23, 24])
def test_a_file_that_the_system_refuses_is_named(
    below: bool, number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = _file(tmp_path / "closed\n.txt")

    def refuse(self: Path) -> bytes:
        raise OSError(number, os.strerror(number), str(self))

    monkeypatch.setattr(Path, "read_bytes", refuse)
    with pytest.raises(InputError, match=os.strerror(number)) as refused:
        load_corpus(tmp_path if below else path)
    _check_line(refused.value, path.name)


_TRAINED = {
    "letters": "abc def\n" * 90,
    "one character": "a" * 9000,
    "newlines": "\n" * 200 + "a\n" * 60,
    "carriage returns": "ab\rc\r" * 80,
    "line separators": "ab\u2028c\x85" * 80,
    "padding": "<pad>ÿ " * 60,
    "astral": "🙂👩\u200d👧 " * 90,
    "marks": "a\u0301\u0323" * 120,
    "controls": "".join(map(chr, range(1, 32))) * 20,
    "right to left": "שלום\u202eabc\u202c " * 40,
    "a new character at the end": "ab " * 150 + "é",
    "non-characters": "\ufffe\uffff\ue000\U0010ffff" * 90,
}


@pytest.mark.parametrize("tokenizer", ["characters", "bytes", "bpe"])
@pytest.mark.parametrize("name", _TRAINED)
def test_an_odd_text_trains_and_is_evaluated(name: str, tokenizer: str, tmp_path: Path) -> None:
    torch.set_num_threads(1)
    path = _file(tmp_path / "text.txt", _TRAINED[name].encode())
    recipe = Recipe.from_mapping(
        {
            "model": {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2},
            "data": {"corpus": str(path), "context": 4, "tokenizer": tokenizer}
            | ({"vocabulary": 260} if tokenizer == "bpe" else {}),
            "training": {"steps": 1, "batch_size": 2, "warmup_steps": 0, "validation_batches": 1,
                         "sample_characters": 8},
        }
    )  # fmt: skip
    run = train(recipe, tmp_path / "run", progress=False)
    validation = load_corpus(path).split(recipe.data.validation_fraction)[1]
    result = evaluate_string(run.load_model(), run.tokenizer(), validation, context=4)
    assert run.final is not None
    assert result.cross_entropy == pytest.approx(run.final["loss"], rel=1e-5)
    assert run.sample is not None


@pytest.mark.parametrize("separator", ["\\n", "a", "\u2028", "🙂", "\u0301", "<pad>"])
@pytest.mark.parametrize("name", _TRAINED)
def test_lags_of_an_odd_text_are_counted_or_refused_in_one_line(
    name: str,
    separator: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path, text = _file(tmp_path / "text.txt", _TRAINED[name].encode()), _TRAINED[name]
    monkeypatch.setattr(sys, "argv", ["nadaraya", "lags", str(path), "--separator", separator, "--json"])
    with pytest.raises(SystemExit) as ended:
        main()
    printed = capsys.readouterr()
    found = text.count(separator.replace("\\n", "\n"))
    if ended.value.code:
        assert ended.value.code == 2
        assert len(printed.err.splitlines()) == 1
        assert found < 2 or len(separator) > 2
    else:
        assert json.loads(printed.out)
        assert found >= 2


def _shards_folder(root: Path) -> Path:
    """Token shards of a few documents, with the tokenizer that made them."""
    source = _file(root / "a.txt", b"one text<|endoftext|>another text<|endoftext|>a third")
    tokenize_corpus(source, root / "shards", vocabulary=257, validation_documents=1)
    return root / "shards"


def _read_shards(folder: Path) -> None:
    check_shards(folder)
    for part in ("train", "validation"):
        shards = TokenShards(folder, part, verify=False)
        assert len(encode_text(shards.tokenizer, "any text <|endoftext|>"))
        evaluate_shards(_model(), shards, context=4)


def _again(folder: Path) -> None:
    tokenize_corpus(folder.parent / "a.txt", folder, vocabulary=257, validation_documents=1)
    _read_shards(folder)


def _core_bundle(root: Path) -> Path:
    rows = {
        "piqa": ("multiple_choice", [{"query": "it", "choices": ["is", "was"], "gold": i % 2} for i in range(3)]),
        "winograd": ("schema", [{"context_options": ["a cat", "a dog"], "continuation": "ran", "gold": 0}] * 3),
        "squad": ("language_modeling", [{"context": "1 + 1 =", "continuation": "2"}] * 3),
    }  # fmt: skip
    listed, baselines = ["icl_tasks:"], ["Eval Task,Random baseline"]
    for label, (kind, examples) in rows.items():
        _file(root / "eval_data" / f"{label}.jsonl", "\n".join(map(json.dumps, examples)).encode())
        listed += [f"- label: {label}", f"  dataset_uri: {label}.jsonl", "  num_fewshot: [1]", f"  icl_task_type: {kind}"]  # fmt: skip
        baselines.append(f"{label},50")
    _file(root / "core.yaml", "\n".join(listed).encode())
    _file(root / "eval_meta_data.csv", "\n".join(baselines).encode())
    return root


def _read_core(folder: Path) -> None:
    evaluate_core(_model(), byte_tokenizer(), read_core(folder), context=64)


def _model_folder(root: Path) -> Path:
    _model().save_pretrained(root)
    train_byte_pair_tokenizer("the cat sat on the mat " * 9, 260).save_pretrained(root)
    return root


def _read_model(folder: Path) -> None:
    causal = open_causal_model(folder)
    evaluate_string(causal.model, causal.tokenizer, "a text, and <pad>", context=8)


def _corpus_folder(root: Path) -> Path:
    store(root / "dickens", "dickens.txt", "some text", title="the corpus", books=())
    return root


def _tables(root: Path) -> Path:
    """A table of each kind that documents are read from, one of them compressed."""
    texts = [f"text {i}" for i in range(40)]
    pq.write_table(pa.table({"text": texts}), root / "a.parquet", row_group_size=7)
    pq.write_table(
        pa.table({"text": pa.array(texts).dictionary_encode()}), root / "b.parquet", compression="zstd"
    )
    _file(root / "c.jsonl", "\n".join(json.dumps({"text": text}) for text in texts).encode())
    _file(root / "d.txt", "<|endoftext|>".join(texts).encode("utf-16"))
    return root


def _read_tables(folder: Path) -> None:
    for path in sorted(folder.iterdir()):
        list(open_documents(path).read())


_VALUES = (None, True, 0, -1, 3.5, 1e300, 2**63, 10**400, "", "a", "../a", "\ud800", [], [[]], {}, {"a": 1}, [None] * 3)  # fmt: skip


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every container in a value of JSON, with each of its keys."""
    for key in value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield value, key
        yield from _places(value[key])


def _changed(draw: random.Random, data: bytes) -> bytes:
    """Other values where the data is JSON, or other bytes."""
    try:
        value = json.loads(data)
    except ValueError:
        value = None
    if (places := list(_places(value))) and draw.random() < 0.7:
        container, key = draw.choice(places)
        if draw.random() < 0.2:
            del container[key]
        else:
            container[key] = draw.choice(_VALUES)
        return json.dumps(value).encode()
    found = bytearray(data)
    if draw.random() < 0.3:
        del found[draw.randrange(len(found)) :]
    for _ in range(draw.randint(1, 8)):
        if found:
            found[draw.randrange(len(found))] ^= 1 << draw.randrange(8)
    return bytes(found)


@lru_cache
def _model() -> KernelGPTForCausalLM:
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    return KernelGPTForCausalLM(KernelGPTConfig(**sizes, vocab_size=260, max_position_embeddings=64)).eval()


_STORED: dict[str, tuple[Callable[[Path], Path], Callable[[Path], object]]] = {
    "token shards": (_shards_folder, _read_shards),
    "token shards gone on with": (_shards_folder, _again),
    "CORE bundle": (_core_bundle, _read_core),
    "model of transformers": (_model_folder, _read_model),
    "corpus": (_corpus_folder, read_dickens),
    "tables": (_tables, _read_tables),
}


@pytest.mark.parametrize("kind", _STORED)
def test_stored_files_that_were_changed_never_trace_back(kind: str, tmp_path: Path) -> None:
    """Bytes that are others, and values of JSON that are others, in any one file of a folder."""
    make, read = _STORED[kind]
    (tmp_path / "made").mkdir()
    made = make(tmp_path / "made")
    read(made)
    draw, outcomes = random.Random(kind), Counter[bool]()
    for number in range(int(os.environ.get("CALLS", "40"))):
        root = tmp_path / str(number)
        shutil.copytree(tmp_path / "made", root)
        folder = root / made.relative_to(tmp_path / "made")
        path = draw.choice(
            sorted(path for path in folder.rglob("*") if path.is_file() and path.stat().st_size)
        )
        path.write_bytes(_changed(draw, path.read_bytes()))
        try:
            read(folder)
        except InputError as error:
            _check_line(error, "")
            outcomes[True] += 1
        else:
            outcomes[False] += 1
        shutil.rmtree(root)
    assert outcomes[True] > outcomes.total() // 10
    print(f"{kind}: {outcomes[True]} refused, {outcomes[False]} read")
