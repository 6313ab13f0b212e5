"""`nadaraya report`: run folders in, one file out, nothing overwritten, one line for what cannot be done."""

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from nadaraya.cli import main
from nadaraya.report import read_run
from nadaraya.training import Run
from nadaraya.training.loop import train
from nadaraya.training.recipe import load_recipe

Command = Callable[..., tuple[int, str, str]]

TINY = (
    "model.hidden_size=16",
    "model.num_hidden_layers=2",
    "model.num_attention_heads=2",
    "data.context=16",
    "data.limit=6000",
    "training.steps=3",
    "training.batch_size=2",
    "training.warmup_steps=1",
    "training.log_every=1",
    "training.evaluate_every=1",
    "training.sample_characters=20",
)


@pytest.fixture
def report(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    def run(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["nadaraya", "report", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        captured = capsys.readouterr()
        return int(ended.value.code or 0), captured.out, captured.err

    return run


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "gpa-mul"
    train(load_recipe("demo", [*TINY, "model.variant=gpa-mul"]), folder, progress=False)
    return folder


def test_a_trained_run_becomes_a_page(report: Command, run_folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "page.html"
    status, said, _ = report(run_folder, "--out", out)
    assert status == 0
    assert said.startswith(f"report: {out}")
    page = out.read_text(encoding="utf-8")
    assert page.count("<svg") == 5  # two loss panels, two layers, the corpus's lags
    assert "generated characters hold" in page
    assert "variant: gpa-mul" in page


def test_what_a_page_shows_of_a_run_is_what_the_run_says(run_folder: Path) -> None:
    run = Run(run_folder)
    data = read_run(run)
    assert (data.name, data.folder, data.variant) == (run.name, "gpa-mul", "gpa-mul")
    assert (data.finished, data.step, data.loss) == (True, 3, run.final["loss"])
    assert data.train[:, :2].tolist() == [[r["step"], r["loss"]] for r in run.series("train")]
    assert data.validation[:, 1].tolist() == [r["loss"] for r in run.series("validation")]
    assert data.corpus == (run.corpus().name, run.corpus().text)
    assert (data.context, data.sample) == (16, run.sample)
    assert data.setup.startswith("2 layers, 2 heads, width 16, context 16; 3 steps of 2 windows; corpus: ")
    assert [shape.trained.shape for shape in data.banks] == [(2, 16)] * 2
    assert not np.array_equal(data.banks[0].initial, data.banks[0].trained)


def test_an_existing_file_needs_force(report: Command, run_folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "page.html"
    out.write_text("mine")
    status, said, error = report(run_folder, "--out", out)
    assert (status, said) == (2, "")
    assert error.count("\n") == 1
    assert "--force" in error
    assert out.read_text() == "mine"
    assert report(run_folder, "--out", out, "--force")[0] == 0
    assert out.read_text(encoding="utf-8") != "mine"


def test_a_folder_that_is_no_run_is_one_line(report: Command, tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "nothing"):
        status, _, error = report(folder, "--out", tmp_path / "page.html")
        assert status == 2
        assert error.count("\n") == 1
        assert str(folder) in error
    assert not (tmp_path / "page.html").exists()


def test_a_damaged_model_is_one_line(report: Command, run_folder: Path, tmp_path: Path) -> None:
    model = run_folder / "model.safetensors"
    whole = model.read_bytes()
    model.write_bytes(whole[: len(whole) // 2])
    try:
        status, _, error = report(run_folder, "--out", tmp_path / "page.html")
    finally:
        model.write_bytes(whole)
    assert status == 2
    assert error.count("\n") == 1
    assert "model.safetensors" in error
