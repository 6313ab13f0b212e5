"""`nadaraya banks`: bumps of a run and its null, worth of terms, and one line for what cannot be done."""

import json
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from nadaraya.interpret import bump_figures, term_report
from nadaraya.interpret.windows import validation_windows
from nadaraya.training import Run, load_recipe, train


@pytest.fixture(scope="module")
def null_run(tiny: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run of the fixture `trained_run` on shuffled words."""
    source, *overrides = tiny
    recipe = load_recipe(source, [*overrides, "model.variant=gpa-mul", "data.shuffle=words"])
    return train(recipe, tmp_path_factory.mktemp("null") / "null", progress=False).path


def test_json_has_the_figures_of_the_library(nadaraya: Any, finished_run: Path, null_run: Path) -> None:
    line = ("banks", finished_run, "--null", null_run, "--minimum", 0, "--tolerance", 1)
    figures = json.loads(nadaraya(*line, "--terms", "--top", 3, "--windows", 2, "--json").out)
    run, null = Run(finished_run), Run(null_run)
    assert (figures["run"], figures["null"]) == (str(finished_run), str(null_run))
    expected = bump_figures(run, null, minimum=0, tolerance=1)
    assert {key: figures[key] for key in expected} == expected
    report = term_report(run.load_model(), validation_windows(run, 2), top=3)
    assert figures["terms"] == json.loads(json.dumps(asdict(report)))
    assert json.loads(nadaraya("banks", finished_run, "--json").out)["terms"] is None


def test_tables_name_bumps_and_terms(nadaraya: Any, finished_run: Path, null_run: Path) -> None:
    shown = nadaraya("banks", finished_run, "--null", null_run, "--minimum", 0, "--terms", "--top", 2)
    for words in (
        "bumps of at least 0 nats over 16 lags",
        "trained: ",
        "before training: ",
        "the null: ",
        "without oscillation",
        "layer.head.term",
    ):
        assert words in shown.out
    assert len([line for line in shown.out.splitlines() if line.strip().startswith(("0.", "1."))]) >= 2
    assert "as high in null" not in nadaraya("banks", finished_run, "--minimum", 0).out


def test_the_figure_is_written_once(nadaraya: Any, finished_run: Path, tmp_path: Path) -> None:
    plot = tmp_path / "banks.svg"
    assert nadaraya("banks", finished_run, "--plot", plot).status == 0
    assert "κ(lag)" in plot.read_text()
    nadaraya("banks", finished_run, "--plot", plot).refuses("--force")
    assert nadaraya("banks", finished_run, "--plot", plot, "--force").status == 0


def test_bad_input_is_one_line(
    nadaraya: Any, finished_run: Path, tiny: tuple[str, ...], tmp_path: Path
) -> None:
    source, *overrides = tiny
    rope = train(load_recipe(source, overrides), tmp_path / "rope", progress=False).path
    nadaraya("banks", rope).refuses("must be a run with a lag kernel, got the variant rope")
    nadaraya("banks", finished_run, "--null", rope).refuses("lag kernel")
    nadaraya("banks", tmp_path).refuses("is not a run folder")
    nadaraya("banks", finished_run, "--tolerance", -1).refuses("--tolerance must be from 0")
    nadaraya("banks", finished_run, "--minimum", "nan").refuses("--minimum must be from 0")
    nadaraya("banks", finished_run, "--terms", "--windows", 0).refuses("windows must be 1 or more")
    for option in ("--top", "--windows"):
        nadaraya("banks", finished_run, option, 0).refuses(f"{option} must be given with --terms, got 0")
    nadaraya("banks", finished_run, "--plot", tmp_path / "banks.docx").refuses(".png or .svg")
    damaged = Path(shutil.copytree(finished_run, tmp_path / "damaged"))
    (damaged / "model.safetensors").unlink()
    nadaraya("banks", damaged).refuses("no trained model yet")
