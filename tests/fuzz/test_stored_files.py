"""Damaged files of studies, searches and runs: what they hold, or one line that says what is wrong."""

import json
import os
import random
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from fuzz.damage import CONTENTS, DAMAGE

from nadaraya.errors import InputError
from nadaraya.study import Study, summarise
from nadaraya.study.plan import Measurements
from nadaraya.study.results import read_results, read_run_file
from nadaraya.study.runs import StudyRuns
from nadaraya.study.search import summarise_search
from nadaraya.training import Recipe, Run, load_recipe
from nadaraya.training.checkpoint import find_checkpoint
from nadaraya.training.metrics import read_metrics
from nadaraya.training.text import keep_windows

pytestmark = pytest.mark.slow
RESULTS = Path(__file__).parents[2] / "experiments" / "results"
# More of them: NADARAYA_FUZZ=20 pytest …
TIMES = int(os.environ.get("NADARAYA_FUZZ", "1"))


def _study(folder: Path) -> None:
    kept = json.loads((RESULTS / "wrapped" / "results.json").read_text())
    study = Study(**kept["study"])
    results = read_results(folder)
    summarise(study, results, folder).markdown()
    json.dumps(StudyRuns(study, [], folder).rows())


def _figures(folder: Path) -> None:
    json.dumps(read_run_file(folder / "runs/u1/rope/lr0.001-seed0.json"))


def _search(folder: Path) -> None:
    summarise_search(folder)


def _measured(folder: Path) -> None:
    known = Measurements(folder / "measured.json")
    known.tokens(Recipe())


def _run(folder: Path) -> None:
    run = Run(folder)
    json.dumps([run.metrics, run.measured_on, run.steps, run.on_shards])


def _metrics(folder: Path) -> None:
    json.dumps(read_metrics(folder / "metrics.jsonl"))


def _windows(folder: Path) -> None:
    keep_windows(folder / "windows.jsonl", 2)


def _state(folder: Path) -> None:
    checkpoint = find_checkpoint(folder)
    assert checkpoint is None or checkpoint.step >= 0


def _files(folder: Path) -> dict[str, tuple[Callable[[Path], None], str]]:
    """A sound file of each kind: what reads it, and its content."""
    study = (RESULTS / "wrapped" / "results.json").read_text()
    row = next(row for row in json.loads(study)["runs"])
    recipe = Recipe().to_mapping()
    final = {"kind": "final", "step": 3, "loss": 2.0, "step_seconds": 0.1, "parameters": 3,
             "kernel_parameters": 0, "corpus_sha256": "ab", "sha256": {"config.yaml": "cd"}}  # fmt: skip
    train = {"kind": "train", "step": 2, "loss": 2.5, "learning_rate": 0.1, "tokens": 64, "seconds": 0.4}
    lines = [train, {"kind": "validation", "step": 2, "loss": 2.4}, final]
    state = {
        "step": 2,
        "seconds": 0.5,
        "losses": [2.5],
        "metrics_sha256": "ab",
        "sha256": {"state.json": "x"},
    }
    update = {"update": 1, "windows": [1, 2]}
    figures = {key: row[key] for key in row if key not in ("size", "variant", "learning_rate", "seed")}
    return {
        "results.json": (_study, study),
        "runs/u1/rope/lr0.001-seed0.json": (_figures, json.dumps({"recipe": recipe, **figures})),
        "search/results.json": (_search, (RESULTS / "search" / "results.json").read_text()),
        "measured.json": (
            _measured,
            json.dumps({"tokens": {json.dumps(Recipe().data.model_dump(), sort_keys=True): 5},
                        "step_seconds": {"a": 0.1}}),
        ),
        "run/text.json": (_run, json.dumps({"name": "a", "sha256": "ab", "training_tokens": 5})),
        "metrics.jsonl": (_metrics, "".join(json.dumps(line) + "\n" for line in lines)),
        "windows.jsonl": (_windows, json.dumps(update) + "\n" + json.dumps({**update, "update": 2}) + "\n"),
        "step-00000002/state.json": (_state, json.dumps(state)),
    }  # fmt: skip


KINDS = ("results.json", "runs/u1/rope/lr0.001-seed0.json", "search/results.json", "measured.json",
         "run/text.json", "metrics.jsonl", "windows.jsonl", "step-00000002/state.json")  # fmt: skip


@pytest.mark.parametrize("name", KINDS)
def test_a_damaged_file_is_one_line_or_harmless(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nadaraya.study.search.write_summary", lambda *given: None)
    monkeypatch.setattr(Measurements, "_task", _no_task)
    made, draw, counts = _files(tmp_path), random.Random(name), Counter[str]()
    use, content = made[name]
    path = tmp_path / name
    for number in range(60 * TIMES):
        for each, (_, sound) in made.items():
            if each in (name, "results.json") and (each == name or name.startswith("runs/")):
                (tmp_path / each).parent.mkdir(parents=True, exist_ok=True)
                (tmp_path / each).write_text(sound)
        if name.startswith("run/"):
            (path.parent / "config.yaml").write_text(Recipe().to_yaml())
            (path.parent / "tokenizer.json").write_text("{}")
        damage = DAMAGE[number % len(DAMAGE)]
        damage(path, draw)
        given = path.read_bytes()[:300]
        folder = path.parent if name.startswith(("search/", "run/")) else tmp_path
        counts[_outcome(partial(use, folder), f"{name}, {damage.__name__}: {given!r}")] += 1
    path.write_text(content)
    print(name, dict(counts))
    assert counts["refused"] > 10 * TIMES


def _no_task(*given: Any) -> Any:
    raise InputError("not measured here")


def _outcome(use: Callable[[], None], case: str) -> str:
    """How a use ends; fails for an exception, and an error not told in a line."""
    try:
        use()
    except InputError as refused:
        line = str(refused)
    except Exception as fault:
        raise AssertionError(f"{case}: {type(fault).__name__}: {fault}"[:2000]) from fault
    else:
        return "harmless"
    assert line, case
    assert "\n" not in line, case
    assert len(line) < 1200, case
    return "refused"


def test_what_is_no_recipe_is_not_shown(tmp_path: Path) -> None:
    for number, content in enumerate(
        (*CONTENTS, b"secret words\n", b"- secret\n", b"secret: [\n", b"%secret\n")
    ):
        path = tmp_path / f"{number}.yaml"
        path.write_bytes(content)
        said = ""
        try:
            load_recipe(path)
        except InputError as refused:
            said = str(refused)
        assert not any(shown in said for shown in ("secret words", "root:x", "\n"))
    other = tmp_path / "passwd"
    other.write_text("root:x:0:0:secret\n")
    with pytest.raises(
        InputError, match=r"is no recipe, whose name ends in .yaml: to train on a text"
    ) as said:
        load_recipe(other)
    assert "secret" not in str(said.value)


def test_recipes_that_extend_many_others_are_one_line(tmp_path: Path) -> None:
    for number in range(1200):
        (tmp_path / f"{number}.yaml").write_text(f"extends: {number + 1}.yaml\n")
    (tmp_path / "1200.yaml").write_text("extends: demo\n")
    with pytest.raises(InputError, match="extends more than 20 others"):
        load_recipe(tmp_path / "0.yaml")
    assert load_recipe(tmp_path / "1185.yaml").task == "text"
