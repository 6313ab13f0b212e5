"""`nadaraya lags`: figures that parse, peaks by name, plots that overwrite nothing."""

import errno
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nadaraya.cli import main
from nadaraya.data.corpus import embedded_corpus
from nadaraya.data.tokenizer import encode_text
from nadaraya.evaluation import sample_text
from nadaraya.interpret import lag_histogram
from nadaraya.training import Run, load_recipe, train

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


def test_separators_have_names_and_patterns(lags: Command, tmp_path: Path) -> None:
    (tmp_path / "story.txt").write_text("One two. Three four.\nFive six.\n\n" * 30)
    for option, value, count in (
        ("--separator", "newline", 89),
        ("--separator", "paragraph", 29),
        ("--separator", "sentence", 89),
        ("--separator", "word", 179),
        ("--regex", "[aeiou]", 9 * 30 - 1),
        ("--regex", r"(?m)^Five", 29),
    ):
        figures = json.loads(lags(tmp_path / "story.txt", option, value, "--json")[1])
        assert figures["separations"] == count, value
    status, out, _ = lags(tmp_path / "story.txt", "--separator", "paragraph")
    assert status == 0
    assert "29 separations by paragraph" in out
    assert "autocorrelation peaks at 32" in out
    status, out, _ = lags(tmp_path / "story.txt", "--regex", "[aeiou]", "--plot", tmp_path / "vowels.png")
    assert status == 0
    assert "by /[aeiou]/" in out


def test_a_run_is_measured_by_its_corpus_and_by_what_it_writes(
    lags: Command, finished_run: Path, tiny_text: Path
) -> None:
    options = ("--characters", 150, "--temperature", 0.5, "--max-lag", 40)
    status, out, error = lags(finished_run, *options, "--plot", tiny_text.with_name("both.svg"), "--json")
    assert status == 0, error
    figures = json.loads(out)
    expected = lag_histogram(tiny_text.read_text(), 40)
    assert figures["corpus"]["counts"] == expected.counts.tolist()
    generated = figures["generated"]
    run = Run(finished_run)
    written = sample_text(run.load_model(), run.tokenizer(), 150, temperature=0.5)
    assert generated["counts"] == lag_histogram(written, 40).counts.tolist()
    assert (generated["characters"], generated["temperature"], generated["seed"]) == (len(written), 0.5, 0)
    assert "written by demo-gpa-mul" in tiny_text.with_name("both.svg").read_text()
    other = lags(finished_run, *options, "--seed", 1)[1]
    assert "written by demo-gpa-mul: " in other


def test_characters_become_tokens_as_many_as_they_are_in_the_corpus(
    lags: Command, tiny: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, *overrides = tiny
    pairs = ["data.tokenizer=bpe", "data.vocabulary=300"]
    run = train(load_recipe(source, [*overrides, *pairs]), tmp_path / "run", progress=False)
    asked = []

    def sample(model: Any, tokenizer: Any, tokens: int, *seed: int, **options: Any) -> str:
        asked.append(tokens)
        return "a\n"

    monkeypatch.setattr("nadaraya.evaluation.sample_text", sample)
    text = run.corpus().text
    assert lags(run.path, "--characters", len(text))[0] == 0
    assert asked == [len(encode_text(run.tokenizer(), text))]


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


def test_bad_input_is_one_line_and_status_2(lags: Command, finished_run: Path, tmp_path: Path) -> None:
    (tmp_path / "binary.txt").write_bytes(b"\0\1")
    (tmp_path / "plain.txt").write_text("one line only")
    for arguments in (
        ["embeded"],
        [tmp_path / "absent.txt"],
        [tmp_path / "binary.txt"],
        [tmp_path / "plain.txt"],
        ["embedded", "--max-lag", 0],
        ["embedded", "--regex", "("],
        ["embedded", "--regex", "a*"],
        ["embedded", "--regex", r"\b"],
        ["embedded", "--regex", "a", "--separator", "word"],
        ["embedded", "--characters", 100],
        [finished_run, "--characters", 0],
        [finished_run, "--temperature", 0],
        [finished_run, "--seed", -1],
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
