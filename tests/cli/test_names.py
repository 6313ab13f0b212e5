"""A name means the same whatever lies in the current folder; a path is written as one."""

import json
from pathlib import Path
from typing import Any

import pytest

from nadaraya import variants
from nadaraya.data import load_corpus
from nadaraya.models.presets import PRESETS
from nadaraya.training import Run, built_in_recipes, load_recipe


@pytest.fixture
def misleading(nadaraya: Any) -> Path:
    """The current folder, with a file or a folder of every name."""
    from typer.main import get_command

    from nadaraya.cli.app import app

    verbs = list(get_command(app).commands)  # type: ignore[attr-defined]
    names = [*built_in_recipes(), *PRESETS, "nano-d1-gka", *variants.names(), *variants.hybrids(), *verbs]
    for number, name in enumerate(dict.fromkeys([*names, "embedded", "gka_tiny_patch16_224"])):
        if number % 2 and name not in PRESETS:
            Path(name).write_text("no such thing")
        else:
            Path(name).mkdir()
            (Path(name) / "config.yaml").write_text("no: recipe\n")
            (Path(name) / "shards.json").write_text("{}")
    return Path.cwd()


def test_every_recipe_preset_and_variant_means_its_name(nadaraya: Any, misleading: Path) -> None:
    for name in built_in_recipes():
        assert load_recipe(name).name.startswith(name)
    names = [*PRESETS, "nano-d1-gka", "rope", "gpa-mul-gate", "gpa-hybrid"]
    counted = json.loads(nadaraya("count", *names, "--json").out)
    assert [row["model"] for row in counted] == names
    assert nadaraya("train", "demo", "--print-config").status == 0
    assert nadaraya("search", "demo", "--dry-run", "--speed", "1e9", "data.limit=9000").status == 0
    assert len(load_corpus("embedded").text) > 9000
    assert nadaraya("lags", "embedded", "--json").status == 0
    Path("study.yaml").write_text(
        "{recipe: demo, baseline: rope, learning_rates: [1e-3], variants: {rope: {data.limit: 9000}}}"
    )
    assert nadaraya("study", "study.yaml", "--dry-run", "--speed", "1e9").status == 0
    for verb in misleading.iterdir():
        if verb.name in ("train", "count", "compare"):
            assert nadaraya(verb.name, "--help").status == 0


@pytest.mark.parametrize("path", ["./demo", "demo/", "./rope"])
def test_a_path_is_a_path(nadaraya: Any, misleading: Path, path: str) -> None:
    for verb in ("count", "train"):
        nadaraya(verb, path).refuses()


def test_models_of_images_mean_their_names(nadaraya: Any, misleading: Path) -> None:
    pytest.importorskip("timm")
    name = "gka_tiny_patch16_224"
    assert json.loads(nadaraya("count", name, "--json").out)[0]["model"] == name
    nadaraya("maps", name, "--out", "drawn").refuses("needs its weights")


def test_a_run_that_is_called_as_a_name_is_reached_as_a_path(
    nadaraya: Any, finished_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = finished_run.rename(finished_run.with_name("demo"))
    monkeypatch.chdir(run.parent)
    assert load_recipe("./demo") == load_recipe(Path("demo")) == Run("demo").recipe != load_recipe("demo")
    named, reached = (json.loads(nadaraya("count", given, "--json").out)[0] for given in ("demo", "demo/"))
    assert named["parameters"] != reached["parameters"]


@pytest.mark.parametrize("verb", ["train", "count", "search", "evaluate", "lags", "maps", "bench decode"])
def test_the_help_says_so(nadaraya: Any, verb: str) -> None:
    words = " ".join(nadaraya(*verb.split(), "--help").out.replace("│", " ").split())
    assert "A name wins over a file or folder of that name" in words
