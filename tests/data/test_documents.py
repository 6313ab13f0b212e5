"""Documents of every kind of source: the same texts, from any place on; one line for what cannot be read."""

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nadaraya.data import documents as module
from nadaraya.data.documents import END, open_documents
from nadaraya.errors import InputError

TEXTS = ["One\n\nof two\r paragraphs.", "Zwei – «größer».", "three <|end|>", "vier 😀", "five"]


def write_plain(folder: Path) -> Path:
    path = folder / "texts.txt"
    path.write_bytes("\n<|endoftext|>\n".join([*TEXTS[:3], " \n", *TEXTS[3:]]).encode())
    return path


def write_utf16(folder: Path) -> Path:
    path = folder / "texts.txt"
    text = "\r\n<|endoftext|>\r\n".join([*TEXTS[:3], " \n", *TEXTS[3:]])
    path.write_bytes(b"\xfe\xff" + text.encode("utf-16-be"))
    return path


def write_marked(folder: Path) -> Path:
    path = write_plain(folder)
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    return path


def write_json(folder: Path) -> Path:
    path = folder / "texts.jsonl"
    records = [*TEXTS[:3], None, "", *TEXTS[3:]]
    path.write_text("".join(json.dumps({"id": 1, "text": text}) + "\n" for text in records) + "\n")
    return path


def write_parquet(folder: Path) -> Path:
    path = folder / "texts.parquet"
    table = pa.table({"id": range(7), "text": [*TEXTS[:3], None, " ", *TEXTS[3:]]})
    pq.write_table(table, path, row_group_size=2)
    return path


def write_dictionary(folder: Path) -> Path:
    path = folder / "texts.parquet"
    texts = pa.array([*TEXTS[:3], None, " ", *TEXTS[3:]], pa.large_string()).dictionary_encode()
    pq.write_table(pa.table({"text": texts}), path, row_group_size=2)
    return path


WRITERS = [write_plain, write_utf16, write_marked, write_json, write_parquet, write_dictionary]


def write_hub(folder: Path) -> str:
    (folder / "set").mkdir()
    write_parquet(folder / "set")
    return f"hub:{folder / 'set'}"


def write_folder(folder: Path) -> Path:
    (folder / "deep").mkdir()
    (folder / "a.txt").write_text("\n<|endoftext|>".join(TEXTS[:2]), newline="")
    pq.write_table(pa.table({"text": TEXTS[2:4]}), folder / "deep" / "b.parquet")
    (folder / "deep" / "c.jsonl").write_text(json.dumps({"text": TEXTS[4]}))
    (folder / "readme.md").write_text("not a text of the corpus")
    return folder


@pytest.mark.parametrize("write", [*WRITERS, write_hub, write_folder])
def test_a_source_gives_its_documents_from_any_place_on(
    write: Callable[[Path], Path | str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_CHUNK", 7)  # borders of chunks fall everywhere
    source = write(tmp_path)
    documents = open_documents(source)
    found = list(documents.read())
    assert [text for _, text in found] == TEXTS
    places = [place for place, _ in found]
    assert places == sorted(set(places))
    for number, place in enumerate(places):
        assert list(documents.read(place)) == found[number:]
    assert list(documents.read(END)) == []
    fractions = [documents.part_read(place) for place in (*places, END)]
    if isinstance(source, str):
        assert fractions == [None] * 6
    else:
        assert fractions == sorted(fractions)
        assert fractions[-1] == 1.0


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
def test_a_separator_with_newlines_is_found_in_files_of_any_system(
    encoding: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_CHUNK", 5)
    lines = "one\ntwo\n\nthree\n.\nfour\n\nfive"
    (tmp_path / "a.txt").write_bytes(lines.encode(encoding))
    (tmp_path / "b.txt").write_bytes(lines.replace("\n", "\r\n").encode(encoding))
    for separator, texts in (
        ("\n\n", ["one\ntwo", "three\n.\nfour", "five"]),
        ("\n.\n", lines.split("\n.\n")),
    ):
        found = [text for _, text in open_documents(tmp_path, separator=separator).read()]
        assert found == 2 * texts


@pytest.mark.parametrize("write", [write_plain, write_json, write_parquet, write_folder])
def test_what_describes_a_source_changes_with_its_content_alone(
    write: Callable[[Path], Path], tmp_path: Path
) -> None:
    for name in ("one", "two"):
        (tmp_path / name / "same").mkdir(parents=True)
        write(tmp_path / name / "same")
    sources = [next((tmp_path / name / "same").rglob("*")) for name in ("one", "two")]
    if write is write_folder:
        sources = [tmp_path / name / "same" for name in ("one", "two")]
    described = [open_documents(source).describe() for source in sources]
    assert described[0] == described[1]
    edited = next(path for path in sorted((tmp_path / "two").rglob("*.*")))
    edited.write_bytes(edited.read_bytes().replace(b"w", b"v"))
    assert open_documents(sources[1]).describe() != described[0]


def test_a_sample_is_taken_from_every_file(tmp_path: Path) -> None:
    for name in "abc":
        (tmp_path / f"{name}.txt").write_text(
            "<|endoftext|>".join(f"{name}{number}" * 5 for number in range(9))
        )
    sample = list(open_documents(tmp_path).spread(46, lambda place, text: "0" not in text))
    assert sample == ["a1" * 5, "a2a2a2", "b1" * 5, "b2b2b", "c1" * 5, "c2c2c"]
    assert list(open_documents(tmp_path).spread(2, lambda place, text: True)) == ["a", "b"]


def test_a_data_set_is_streamed_at_the_commit_at_which_it_was_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import datasets
    import huggingface_hub

    seen: list[str | None] = []
    monkeypatch.setattr(huggingface_hub, "dataset_info", lambda name: SimpleNamespace(sha="new"))
    monkeypatch.setattr(datasets, "load_dataset", lambda *_, revision, **__: seen.append(revision))
    begun = {"name": "some/set", "configuration": None, "split": "train", "revision": "old"}
    for source in ("hub:some/set", "hub:some/set::test"):
        documents = open_documents(source, described=begun)
        assert documents.describe()["revision"] == seen[-1]
    open_documents("hub:some/set")
    assert seen == ["old", "new", "new"]


def test_a_source_whose_name_is_not_utf_8_is_refused(tmp_path: Path) -> None:
    (tmp_path / "caf\udce9.txt").write_text("some text")
    with pytest.raises(InputError, match="the path of a source must be text that UTF-8 can hold"):
        open_documents(tmp_path)


def test_a_text_without_separators_is_one_document_unless_it_is_too_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "novel.txt"
    path.write_text("It was the best of times.\n" * 40)
    assert len(list(open_documents(path).read())) == 1
    assert len(list(open_documents(path, separator=".\n").read())) == 40
    monkeypatch.setattr(module, "_LONGEST", 1000)
    with pytest.raises(InputError, match=r"novel.txt has a document of more than 1,000 bytes.*--separator"):
        list(open_documents(path).read())


def cut(path: Path) -> Path:
    path.write_bytes(path.read_bytes()[:-9])
    return path


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda folder: folder / "absent",
            "no such file or folder: .*absent; a data set .* is hub:NAME",
        ),
        (lambda folder: folder, r"holds no .txt or .jsonl or .parquet file"),
        (lambda folder: f"hub:{folder / 'absent'}", "hub:.*absent cannot be read: "),
        (
            lambda folder: "hub:a:b:c:d",
            r"source must be hub:NAME\[.*\], got 'hub:a:b:c:d'",
        ),
        (lambda folder: cut(write_parquet(folder)), r"texts.parquet cannot be read as Parquet: "),
        (lambda folder: cut(write_json(folder)), r"the line at byte \d+ of .*texts.jsonl is not JSON"),
    ],
)
def test_a_source_that_cannot_be_read_is_named_in_one_line(
    make: Callable[[Path], Path | str], message: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=message) as refused:
        list(open_documents(make(tmp_path)).read())
    assert "\n" not in str(refused.value)


def test_a_column_that_is_absent_or_no_text_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"column of .*texts.parquet must be one of .* did you mean 'text'"):
        list(open_documents(write_parquet(tmp_path), column="txet").read())
    with pytest.raises(InputError, match=r"column 'id' of .*texts.parquet must be text, got 'int64'"):
        list(open_documents(write_parquet(tmp_path), column="id").read())
    with pytest.raises(InputError, match=r"byte 0 of .*texts.jsonl must have the key 'body', got"):
        list(open_documents(write_json(tmp_path), column="body").read())
    with pytest.raises(InputError, match=r"'id' in the line at byte 0 of .*texts.jsonl must be text, got 1"):
        list(open_documents(write_json(tmp_path), column="id").read())


def test_a_byte_that_is_no_text_is_named_with_its_document(tmp_path: Path) -> None:
    path = tmp_path / "bad.txt"
    path.write_bytes(b"good<|endoftext|>ba\xffd")
    with pytest.raises(InputError, match=r"bad.txt, in the document from byte 17 on, .*0xff at offset 2"):
        list(open_documents(path).read())
    path = tmp_path / "bad.jsonl"
    path.write_text('{"text": "a\\ud800"}')
    with pytest.raises(InputError, match="must be text that UTF-8 can hold"):
        list(open_documents(path).read())
