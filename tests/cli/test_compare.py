"""`nadaraya compare`: best run first, unfinished ones last, as a table, as JSON and as curves."""

import errno
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from nadaraya.training import Run


@pytest.fixture
def runs(nadaraya: Any, tiny: tuple[str, ...], finished_run: Path, tmp_path: Path) -> list[Path]:
    """A poor run, the finished one, and one stopped in the middle that looked best."""
    poor, stopped = tmp_path / "poor", tmp_path / "stopped"
    nadaraya("train", *tiny, "training.learning_rate=1e-6", "name=poor", "--run", poor, "--quiet")
    shutil.copytree(finished_run, stopped)
    lines = (stopped / "metrics.jsonl").read_text().splitlines()
    record = {**json.loads(lines[0]), "loss": 0.01}
    (stopped / "metrics.jsonl").write_text(json.dumps(record) + "\n")
    return [stopped, poor, finished_run]


def test_rows_are_sorted_and_hold_the_figures_of_the_runs(nadaraya: Any, runs: list[Path]) -> None:
    rows = json.loads(nadaraya("compare", *runs, "--json").out)
    assert [Path(row["run"]).name for row in rows] == ["finished", "poor", "stopped"]
    final = Run(runs[2]).final
    assert final is not None
    for key in ("loss", "bits_per_byte", "parameters", "kernel_parameters", "step_seconds"):
        assert rows[0][key] == final[key]
    assert (rows[0]["variant"], rows[0]["finished"], rows[2]["finished"]) == ("gpa-mul", True, False)


def test_the_table_shows_them(nadaraya: Any, runs: list[Path]) -> None:
    out = nadaraya("compare", *runs).out
    final = Run(runs[2]).final
    assert final is not None
    assert out.index("finished") < out.index("poor")  # two runs have one name: their folders stand for it
    for shown in (f"{final['loss']:.4f}", f"{final['bits_per_byte']:.4f}", f"{final['parameters']:,}"):
        assert shown in out


def test_curves_are_drawn_and_files_are_not_overwritten(
    nadaraya: Any, runs: list[Path], tmp_path: Path
) -> None:
    plot = tmp_path / "curves.png"
    assert nadaraya("compare", *runs, "--plot", plot).status == 0
    assert plot.read_bytes().startswith(b"\x89PNG")
    plot.write_text("mine")
    nadaraya("compare", *runs, "--plot", plot).refuses("exists already", "--force")
    assert plot.read_text() == "mine"
    assert nadaraya("compare", *runs, "--plot", plot, "--force").status == 0
    nadaraya("compare", *runs, "--plot", tmp_path / "curves.doc").refuses("must be a file that ends in .png")
    absent = tmp_path / "absent" / "a.png"
    nadaraya("compare", *runs, "--plot", absent).refuses("--plot must be a file in a folder that exists")


def test_runs_whose_figures_do_not_compare_are_told(
    nadaraya: Any, tiny: tuple[str, ...], finished_run: Path, tiny_text: Path, tmp_path: Path
) -> None:
    assert nadaraya("compare", finished_run, finished_run).err == ""
    other = tmp_path / "other.txt"
    other.write_text(tiny_text.read_text().upper())
    changes = {
        "text and tokenizer": [f"data.corpus={other}"],
        "context": ["data.context=8"],
        "text": ["data.limit=2400"],
    }
    for number, (what, change) in enumerate(changes.items()):
        run = tmp_path / str(number)
        nadaraya("train", *tiny, *change, "--run", run, "--quiet")
        told = nadaraya("compare", finished_run, run)
        assert told.status == 0
        assert told.err.splitlines() == [
            f"warning: {run} and {finished_run} differ in {what}: their validation losses do not compare"
        ]


def test_a_plot_on_a_full_disk_is_one_line_and_no_part_of_a_file(
    nadaraya: Any, finished_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: Path, data: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    plot = tmp_path / "curves.png"
    plot.write_text("mine")
    monkeypatch.setattr(Path, "write_bytes", full)
    nadaraya("compare", finished_run, "--plot", plot, "--force").refuses("curves.png", "the disk is full")
    assert plot.read_text() == "mine"
    assert not list(tmp_path.glob(".partial-*"))


def test_runs_of_different_tokenizers_are_ranked_by_bits_per_byte(
    nadaraya: Any, tiny: tuple[str, ...], finished_run: Path, tmp_path: Path
) -> None:
    pairs, stopped = tmp_path / "pairs", tmp_path / "stopped"
    learned = ("training.learning_rate=0.005", "training.steps=15")
    words = ("data.tokenizer=bpe", "data.vocabulary=280")
    assert nadaraya("train", *tiny, *words, *learned, "--run", pairs, "--quiet").status == 0
    shutil.copytree(finished_run, stopped)
    lines = (stopped / "metrics.jsonl").read_text().splitlines()
    (stopped / "metrics.jsonl").write_text(lines[0] + "\n")
    told = nadaraya("compare", stopped, finished_run, pairs, "--json")
    best, second, last = json.loads(told.out)
    # The tokens of the best are longer: each costs more nats, the text fewer bits.
    assert [row["run"] for row in (best, second, last)] == [str(pairs), str(finished_run), str(stopped)]
    assert best["bits_per_byte"] < second["bits_per_byte"]
    assert best["loss"] > second["loss"]
    assert last["bits_per_byte"] is None
    assert told.err.splitlines() == [
        f"warning: {pairs} and {stopped} differ in tokenizer: a token is not the same in both, "
        "compare bits/byte"
    ]


def test_runs_of_one_name_are_told_apart_by_their_folders(
    nadaraya: Any, finished_run: Path, tmp_path: Path
) -> None:
    twin = shutil.copytree(finished_run, tmp_path / "twin")
    out = nadaraya("compare", finished_run, twin).out
    assert "finished" in out
    assert "twin" in out
    assert "demo-gpa-mul" in nadaraya("compare", finished_run).out


def test_what_is_no_run_is_refused(nadaraya: Any, tmp_path: Path) -> None:
    nadaraya("compare", tmp_path).refuses("is not a run folder")
    nadaraya("compare", tmp_path / "absent").refuses("is not a run folder")
