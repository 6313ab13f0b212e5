"""Killed at any act on its folder or at any time, a run resumes to the very numbers of one that was not."""

import json
import os
import random
import shutil
import signal
import time
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from forked import context
from fuzz import killed

from nadaraya.errors import InputError
from nadaraya.training import Run, load_recipe
from nadaraya.training.folder import FolderLock

pytestmark = pytest.mark.slow


def _recipe(folder: Path, name: str, task: str, length: int, **training: Any) -> Path:
    every = {"log_every": 2, "checkpoint_every": 2, "checkpoints_kept": 1, "keep_best": True, **training}
    if task == "text":
        mapping = {
            "name": "tiny",
            "model": {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2,
                      "variant": "gpa-mul"},
            "data": {"corpus": str(folder / "text.txt"), "context": 8},
            "training": {"steps": length, "batch_size": 2, "warmup_steps": 1, "evaluate_every": 2,
                         "validation_batches": 1, "sample_characters": 8, **every},
        }  # fmt: skip
    else:
        mapping = {
            "name": "tiny",
            "task": "image",
            "model": {"image_size": 8, "drop_path": 0.2,
                      "options": {"patch_size": 4, "embed_dim": 8, "depth": 1, "num_heads": 2}},
            "data": {"source": str(folder / "images.npz"), "padding_crop": 1},
            "training": {"epochs": length, "batch_size": 4, "warmup_epochs": 0, "ema_decay": 0.9, **every},
        }  # fmt: skip
    path = folder / f"{name}.yaml"
    path.write_text(json.dumps(mapping))
    return path


class Scenario(NamedTuple):
    """A recipe, the folder that it begins with and the one it ends with, and the acts between them."""

    recipe: Path
    start: Path | None
    finished: Path
    acts: int
    seconds: float


def _start(recipe: Path, folder: Path, last: int = 0) -> BaseProcess:
    process = context.Process(
        target=killed.run, args=(recipe, folder, last, folder.with_suffix(".acts")), daemon=True
    )
    process.start()
    return process


def _end(process: BaseProcess) -> int | None:
    process.join(60)
    return process.exitcode


@pytest.fixture(scope="module")
def scenarios(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Scenario]:
    folder = tmp_path_factory.mktemp("scenarios")
    (folder / "text.txt").write_text(
        "".join(f"{'abcdefgh'[i % 8] * (i % 5 + 1)} the {i % 7} of\n" for i in range(60))
    )
    draw = np.random.default_rng(0)
    arrays = {
        f"{split}_{kind}": draw.integers(0, top, (8, *shape)).astype(dtype)
        for split in ("train", "val")
        for kind, top, shape, dtype in (("images", 256, (8, 8, 3), np.uint8), ("labels", 2, (), np.int64))
    }
    np.savez(folder / "images.npz", **arrays)
    imports = context.Process(target=int)  # the first one waits for them: not part of a run's time
    imports.start()
    _end(imports)
    made: dict[str, Scenario] = {}
    for name, task, length, begins, training in (
        ("text", "text", 5, None, {}),
        ("text without checkpoints", "text", 3, None, {"drop_checkpoints": True}),
        ("text extended", "text", 8, "text", {}),
        ("images", "image", 2, None, {}),
        ("images extended", "image", 3, "images", {}),
    ):
        recipe = _recipe(folder, name, task, length, **training)
        start = made[begins].finished if begins else None
        run = folder / name
        if start:
            shutil.copytree(start, run)
        began = time.monotonic()
        assert _end(_start(recipe, run)) == 0
        acts = int(run.with_suffix(".acts").read_text())
        made[name] = Scenario(recipe, start, run, acts, time.monotonic() - began)
    return made


def _content(folder: Path) -> dict[str, Any]:
    """All that a run left, times apart."""
    found: dict[str, Any] = {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.name not in ("metrics.jsonl", ".lock", "state.json")
    }
    apart = ("seconds", "step_seconds", "images_per_second", "sha256")
    for record in Run(folder).metrics:
        found[f"{record['kind']} {record['step']}"] = {k: v for k, v in record.items() if k not in apart}
    return found


def _check_resumes(scenario: Scenario, folder: Path, case: str) -> None:
    """A run that was stopped is finished only if nothing lacks; it resumes to what was never stopped."""
    expected = _content(scenario.finished)
    try:
        run = Run(folder)
        finished = run.final is not None and run.recipe == load_recipe(scenario.recipe)
    except InputError:
        finished = False
    if finished:
        found = _content(folder)
        assert {key: found.get(key) for key in expected if "training_state" not in key} == {
            key: value for key, value in expected.items() if "training_state" not in key
        }, case
        Run(folder).load_model()
    assert _end(_start(scenario.recipe, folder)) == 0, case
    found = _content(folder)
    assert found.keys() == expected.keys(), case
    assert [key for key in expected if found[key] != expected[key]] == [], case
    assert not list(folder.rglob(".partial-*")), case
    with FolderLock(folder) as lock:
        lock.take()


def _begin(scenario: Scenario, folder: Path) -> Path:
    return shutil.copytree(scenario.start, folder) if scenario.start else folder


@pytest.mark.parametrize(
    ("name", "kills"),
    [
        ("text", 18),
        ("text without checkpoints", 10),
        ("text extended", 10),
        ("images", 10),
        ("images extended", 8),
    ],
)
def test_killed_before_an_act_on_its_folder(
    name: str, kills: int, scenarios: dict[str, Scenario], tmp_path: Path
) -> None:
    scenario = scenarios[name]
    draw = random.Random(name)
    first = range(1, scenario.acts + 1)
    chosen = {first[0], first[-1], first[-2], *draw.sample(first, kills - 3)}
    for act in sorted(chosen):
        folder = _begin(scenario, tmp_path / str(act))
        assert _end(_start(scenario.recipe, folder, act)) == -signal.SIGKILL
        if act % 4 == 0:  # and once more while it resumes
            _end(_start(scenario.recipe, folder, draw.randrange(1, scenario.acts)))
        _check_resumes(scenario, folder, f"{name}, killed before act {act} of {scenario.acts}")
        shutil.rmtree(folder)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
@pytest.mark.parametrize("name", ["text", "images"])
def test_stopped_at_any_time(
    name: str, number: signal.Signals, scenarios: dict[str, Scenario], tmp_path: Path
) -> None:
    scenario = scenarios[name]
    draw = random.Random(f"{name} {number.name}")
    for attempt in range(2):
        folder = _begin(scenario, tmp_path / str(attempt))
        process = _start(scenario.recipe, folder)
        time.sleep(draw.uniform(0, 1.1 * scenario.seconds))
        if process.is_alive() and process.pid:
            os.kill(process.pid, number)
        assert _end(process) in (0, 1, 130, -number)
        _check_resumes(scenario, folder, f"{name}, {number.name} {attempt}")
