"""Thousands of command lines that nobody should write: the result, or one line that says why not."""

import os
import shutil
import sys
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fuzz.hostile import NUMBERS, TEXTS
from typer.main import get_command

import nadaraya.training
from nadaraya.checking import grid
from nadaraya.cli import main
from nadaraya.cli.app import app
from nadaraya.evaluation import generation
from nadaraya.training import Recipe, Run, load_recipe, train

pytestmark = pytest.mark.slow
TINY = (
    "model.hidden_size=16", "model.num_hidden_layers=1", "model.num_attention_heads=2", "data.context=16",
    "training.steps=2", "training.warmup_steps=0", "training.batch_size=2", "training.validation_batches=1",
    "training.sample_characters=0", "model.variant=gpa-mul",
)  # fmt: skip
VALUES = (*(value for value in NUMBERS if len(value) < 6000), *(text for text in TEXTS if "\0" not in text))


def _verbs() -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every verb with its words."""
    for name, command in get_command(app).commands.items():  # type: ignore[attr-defined]
        for inner, verb in getattr(command, "commands", {"": command}).items():
            yield ((name, inner) if inner else (name,)), verb


VERBS = list(_verbs())


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """A finished run, a text, and things in the file system that are neither."""
    folder = tmp_path_factory.mktemp("fuzz")
    (folder / "text.txt").write_text("a line of text\n" * 40)
    (folder / "study.yaml").write_text(
        "{recipe: demo, baseline: rope, learning_rates: [1e-3], variants: {rope: {model.hidden_size: 16}}}"
    )
    run = train(
        load_recipe("demo", [f"data.corpus={folder / 'text.txt'}", *TINY]), folder / "run", progress=False
    )
    (folder / "empty").mkdir()
    (folder / "binary").write_bytes(bytes(range(256)))
    os.mkfifo(folder / "pipe.txt")
    (folder / "loop").symlink_to(folder / "loop")
    broken = Path(shutil.copytree(run.path, folder / "broken"))
    (broken / "config.yaml").write_text("model: [")
    names = ("empty", "binary", "pipe.txt", "loop", "broken", "absent", "absent/below", "text.txt", "run")
    return SimpleNamespace(folder=folder, run=run.path, odd=[str(folder / name) for name in names])


@pytest.fixture(autouse=True)
def training_ends_where_it_would_begin(monkeypatch: pytest.MonkeyPatch, places: SimpleNamespace) -> None:
    """A checked recipe is not trained, but a small model of it is built; long texts and checks end early."""

    def stub(recipe: Any, folder: Path, **options: Any) -> Run:
        if isinstance(recipe, Recipe):
            recipe.build_model(40)
        return Run(places.run)

    def begun(model: Any, ids: Any, tokens: int, *others: Any) -> Any:
        return continued(model, ids, min(tokens, 3), *others)

    continued = generation._continue
    monkeypatch.setattr(generation, "_continue", begun)
    monkeypatch.setattr(nadaraya.training, "train", stub)
    monkeypatch.setattr(grid, "FEATURES", {"bank": grid.FEATURES["bank"]})
    monkeypatch.setattr(grid, "_TIMED", ())
    monkeypatch.setattr("nadaraya.device.machine_memory", lambda device="cpu": 200_000_000)


def _bases(places: SimpleNamespace, tmp_path: Path) -> dict[tuple[str, ...], list[str]]:
    """Arguments with which each verb works, or nearly."""
    text, run = str(places.folder / "text.txt"), str(places.run)
    out = ["--out", str(tmp_path / "out")]
    return {
        ("demo",): [*out, "--steps", "1"],
        ("train",): ["demo", "model.hidden_size=16", "--run", str(tmp_path / "run"), "--quiet"],
        ("compare",): [run],
        ("generate",): [run, "--tokens", "2"],
        ("evaluate",): [run, "--text", text],
        ("report",): [str(places.folder / "absent"), *out],
        ("list",): ["variants"],
        ("lags",): [text],
        ("banks",): [run, "--windows", "1", "--top", "1"],
        ("count",): ["gpa", "--preset", "demo"],
        ("maps",): [run, "--text", str(places.folder / "absent"), *out],
        ("study",): [str(places.folder / "study.yaml"), *out, "--dry-run", "--speed", "1e9"],
        ("search",): ["demo", "model.hidden_size=16", *out, "--dry-run", "--speed", "1e9", "--rounds", "1"],
        ("implied",): [run, "--windows", "1", "--terms", "0"],
        ("reproduce",): ["gpa-banks", *out, "--dry-run", "--speed", "a=1e9"],
        ("heads",): [run, "--windows", "1"],
        ("prune",): [run, "--out", str(tmp_path / "pruned"), "--heads", "0.0", "--windows", "1"],
        ("convert",): [str(places.folder / "absent"), "--text", text, *out],
        ("check",): ["--device", "absent", "--quick"],
        ("data", "tokenize"): [text, str(tmp_path / "shards"), "--vocabulary", "257", "--workers", "1"],
        ("data", "check"): [str(places.folder / "empty")],
        ("bench", "decode"): ["gka-absent", "--device", "cpu", "--prompt", "4", "--tokens", "2"],
        ("data", "dickens"): ["--from", str(places.folder / "empty"), "--cache", str(tmp_path / "cache")],
        ("data", "list"): ["--cache", str(tmp_path / "cache")],
        ("bench", "vit"): ["gka_absent", "--device", "cpu", "--batch-sizes", "1", "--train-batch-sizes", ""],
    }


@pytest.mark.parametrize("place", range(len(VERBS)), ids=[" ".join(words) for words, _ in VERBS])
def test_every_option_and_argument_of_a_verb_with_hostile_values(
    place: int,
    places: SimpleNamespace,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """One value at a time in the place of each argument and after each option, a fifth of them for each."""
    monkeypatch.chdir(tmp_path)
    words, verb = VERBS[place]
    base = _bases(places, tmp_path)[words]
    lines = []
    for number, parameter in enumerate(verb.params, start=place):
        name = parameter.opts[-1]
        flag = getattr(parameter, "is_flag", False)
        for value in [None, "x"] if flag else [*VALUES[number % 5 :: 5], *places.odd]:
            if parameter.param_type_name == "argument":
                lines += [[str(value), *base[1:]], [*base, str(value)]]
            else:
                lines.append([*base, name] if value is None else [*base, name, str(value)])
    counts = Counter(_status([*words, *line], monkeypatch, capfd) for line in lines)
    print(dict(counts))
    assert set(counts) <= {0, 2}
    assert counts[2] > 0


@pytest.mark.parametrize(
    "words", [(), ("absent",), ("--absent",), ("bench",), ("data", "x"), ("train",), ("",)]
)
def test_lines_without_a_verb_or_with_half_of_one(
    words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    assert _status(list(words), monkeypatch, capfd) in (0, 2)


def _status(line: list[str], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> int:
    """The exit status of a command line; fails for an exception, and an error not told in a line."""
    # As ASCII: names that are no Unicode cannot be reported from one process to another.
    shown = " ".join(ascii(part if len(part) < 100 else f"{part[:100]}…") for part in line)
    monkeypatch.setattr(sys, "argv", ["nadaraya", *line])
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            main()
    except SystemExit as ended:
        status = int(ended.code or 0)
    except BaseException as fault:
        raise AssertionError(f"nadaraya {shown}: {type(fault).__name__}: {fault!a}"[:2000]) from None
    captured = capfd.readouterr()
    error = captured.err
    assert "Traceback" not in error, shown
    assert status in (0, 2), shown
    if status == 2 and "Usage:" not in captured.out + error and "─ Error ─" not in error:
        # Beside it stand the progress of `bench` and `demo`, and warnings of torch.
        beside = ("inference", "training", "Three", "W", "[W")
        told = [row for row in error.splitlines() if not row.startswith(beside)]
        assert len(told) == 1, f"{shown}: {error[:1000]}"
        assert told[0].startswith("error: "), f"{shown}: {error[:1000]}"
    return status
