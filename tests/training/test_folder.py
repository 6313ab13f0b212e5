"""Run folders: one writer at a time, saved whenever training may end, read only as training left them."""

import json
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from forked import Forked, command
from safetensors.torch import load_file, save_file

from nadaraya.errors import InputError
from nadaraya.training import ImageRecipe, Recipe, Run, images, loop, text, train
from nadaraya.training.folder import FolderLock
from nadaraya.training.text import TextTask

Make = Callable[..., Any]
AtUpdate = Callable[[int, Callable[[], object]], None]


@pytest.fixture
def finished(finished_text_run: Path, tmp_path: Path) -> Path:
    return shutil.copytree(finished_text_run, tmp_path / "finished")


def _losses(folder: Path) -> list[tuple[str, int, float]]:
    return [(record["kind"], record["step"], record["loss"]) for record in Run(folder).metrics]


@pytest.mark.parametrize(
    ("seed", "reason"), [(0, "is being trained by another process"), (1, "seed = 0, not 1")]
)
def test_a_second_training_into_a_folder_is_refused_and_harms_nothing(
    tiny_recipe: Make,
    finished: Path,
    tmp_path: Path,
    at_update: AtUpdate,
    seed: int,
    reason: str,
) -> None:
    recipe, folder = tmp_path / "recipe.yaml", tmp_path / "run"
    recipe.write_text(tiny_recipe(seed=seed).to_yaml())
    told = []
    at_update(5, lambda: told.append(command("train", recipe, "--run", folder)))
    train(tiny_recipe(), folder, progress=False)
    assert (told[0].status, told[0].err.count("\n")) == (2, 1)
    assert reason in told[0].err
    assert _losses(folder) == _losses(finished)


def test_the_lock_of_a_killed_process_is_free(tmp_path: Path) -> None:
    program = f"""
import os, signal
from pathlib import Path
from nadaraya.training.folder import FolderLock
FolderLock(Path({str(tmp_path)!r})).take()
os.kill(os.getpid(), signal.SIGKILL)
"""
    assert Forked(program).end().status == -signal.SIGKILL
    with FolderLock(tmp_path) as lock:
        lock.take()
        with pytest.raises(InputError, match="another process"):
            FolderLock(tmp_path).take()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signals_that_end_programs_save_first(
    tiny_recipe: Make, finished: Path, tmp_path: Path, at_update: AtUpdate, number: int
) -> None:
    before = signal.getsignal(number)
    at_update(5, lambda: os.kill(os.getpid(), number))
    with pytest.raises(KeyboardInterrupt) as stopped:
        train(tiny_recipe(), tmp_path / "run", progress=False)
    assert stopped.value.args == (number,)
    assert signal.getsignal(number) == before
    assert (tmp_path / "run" / "training_state" / "step-00000005").is_dir()
    train(tiny_recipe(), tmp_path / "run", progress=False)
    assert _losses(tmp_path / "run") == _losses(finished)


def test_a_signal_that_was_ignored_stays_ignored(
    tiny_recipe: Make, tmp_path: Path, at_update: AtUpdate
) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
    try:
        at_update(5, lambda: os.kill(os.getpid(), signal.SIGHUP))
        assert train(tiny_recipe(), tmp_path / "run", progress=False).final
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_checkpoint_is_saved_by_the_clock_too(
    tiny_recipe: Make,
    finished: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    at_update: AtUpdate,
) -> None:
    now = [0.0]
    monkeypatch.setattr(loop.time, "monotonic", lambda: now[0])
    at_update(2, lambda: now.__setitem__(0, 601.0))
    saved = []
    save = loop._save

    def note(folder: Path, learner: Any, step: int, meter: Any) -> None:
        saved.append(step)
        save(folder, learner, step, meter)

    monkeypatch.setattr(loop, "_save", note)
    train(tiny_recipe(training__checkpoint_every=1000), tmp_path / "run", progress=False)
    assert saved == [2, 8]
    assert _losses(tmp_path / "run") == _losses(finished)


def test_files_have_ordinary_permissions(finished: Path, tmp_path: Path) -> None:
    (tmp_path / "ordinary").touch()
    ordinary = (tmp_path / "ordinary").stat().st_mode
    assert {path.stat().st_mode for path in finished.rglob("*") if path.is_file()} == {ordinary}


def _edit_config(path: Path) -> None:
    config = json.loads(path.read_text())
    path.write_text(json.dumps({**config, "num_hidden_layers": 1}))


def _edit_weights(path: Path) -> None:
    save_file({name: tensor.bfloat16() for name, tensor in load_file(path).items()}, path)


def _spoil_weights(path: Path) -> None:
    tensors = load_file(path)
    next(iter(tensors.values())).fill_(torch.nan)
    save_file(tensors, path)


def _replace(old: str, new: str) -> Callable[[Path], None]:
    def edit(path: Path) -> None:
        assert old in path.read_text()
        path.write_text(path.read_text().replace(old, new))

    return edit


@pytest.mark.parametrize(
    ("file", "edit"),
    [
        ("config.json", _edit_config),
        ("config.json", _replace('"gpa-mul"', '"decay"')),
        ("config.yaml", _replace("context: 16", "context: 8")),
        ("model.safetensors", _edit_weights),
        ("model.safetensors", _spoil_weights),
        ("tokenizer.json", _replace('"a"', '"z"')),
        ("metrics.jsonl", _replace('"step": 8', '"step": 9')),
        ("metrics.jsonl", _replace('"final", "step": 8, "loss": ', '"final", "step": 8, "loss": 1')),
        ("initial_kernels.safetensors", lambda path: path.unlink()),
    ],
)  # fmt: skip
def test_an_edited_file_of_a_finished_run_is_refused(
    finished: Path, file: str, edit: Callable[[Path], None]
) -> None:
    edit(finished / file)

    def read() -> None:
        run = Run(finished)
        run.tokenizer()
        run.load_model()

    with pytest.raises(InputError, match=file):
        read()


@pytest.mark.parametrize("content", ["", '{"kind": "validation", "step": 4, "loss": 1.0}\n'])
def test_a_run_whose_records_were_lost_does_not_go_on(
    tiny_recipe: Make, tmp_path: Path, at_update: AtUpdate, content: str
) -> None:
    at_update(5, lambda: os.kill(os.getpid(), signal.SIGTERM))
    with pytest.raises(KeyboardInterrupt):
        train(tiny_recipe(), tmp_path / "run", progress=False)
    (tmp_path / "run" / "metrics.jsonl").write_text(content)
    with pytest.raises(InputError, match=r"metrics\.jsonl is damaged"):
        train(tiny_recipe(), tmp_path / "run", progress=False)


@pytest.mark.parametrize("key", ["step", "seconds", "corpus_sha256"])
def test_an_edited_state_is_a_damaged_checkpoint(
    tiny_recipe: Make, finished: Path, caplog: pytest.LogCaptureFixture, key: str
) -> None:
    states = sorted((finished / "training_state").glob("*/state.json"))
    content = json.loads(states[-1].read_text())
    content[key] = content[key][::-1] if isinstance(content[key], str) else content[key] + 1
    states[-1].write_text(json.dumps(content))
    (finished / "metrics.jsonl").write_text(
        "".join((finished / "metrics.jsonl").read_text().splitlines(keepends=True)[:-1])
    )
    train(tiny_recipe(), finished, progress=False)
    assert f"{states[-1]} is damaged" in caplog.text
    assert Run(finished).final is not None


def test_what_does_not_alter_the_result_may_change_when_a_run_goes_on(
    tiny_recipe: Make, finished: Path, tmp_path: Path, at_update: AtUpdate
) -> None:
    at_update(5, lambda: os.kill(os.getpid(), signal.SIGTERM))
    with pytest.raises(KeyboardInterrupt):
        train(tiny_recipe(), tmp_path / "run", progress=False)
    run = train(tiny_recipe(training__log_every=1), tmp_path / "run", progress=False)
    assert run.recipe.training.log_every == 1
    assert [record["step"] for record in run.series("train")] == [2, 4, 6, 7, 8]
    assert (run.final or {})["loss"] == (Run(finished).final or {})["loss"]


def test_a_run_from_before_there_were_optimizers_and_schedules_to_choose_goes_on(
    tiny_recipe: Make, finished: Path, tmp_path: Path, at_update: AtUpdate
) -> None:
    at_update(5, lambda: os.kill(os.getpid(), signal.SIGTERM))
    with pytest.raises(KeyboardInterrupt):
        train(tiny_recipe(), tmp_path / "run", progress=False)
    config = tmp_path / "run/config.yaml"
    mapping = yaml.safe_load(config.read_text())
    for key in (
        "optimizer",
        "matrix_learning_rate",
        "schedule",
        "decay_fraction",
        "batch_tokens",
        "parallel",
    ):
        del mapping["training"][key]
    config.write_text(yaml.safe_dump(mapping))
    run = train(tiny_recipe(), tmp_path / "run", progress=False)
    assert (run.final or {})["loss"] == (Run(finished).final or {})["loss"]


@pytest.mark.parametrize("task", ["text", "image"])
def test_a_finished_run_is_extended(
    tiny_recipe: Callable[..., Recipe], image_recipe: Callable[..., ImageRecipe], tmp_path: Path, task: str
) -> None:
    def recipe(length: int) -> Recipe | ImageRecipe:
        if task == "text":
            return tiny_recipe(training__steps=4 * length)
        return image_recipe(training__epochs=length)

    run = train(recipe(2), tmp_path / "run", progress=False)
    assert (run.steps, (run.final or {})["step"]) == (8, 8)
    before = run.metrics[:-1]
    longer = train(recipe(3), tmp_path / "run", progress=False)
    assert (longer.steps, (longer.final or {})["step"]) == (12, 12)
    assert longer.metrics[: len(before)] == before
    assert [record["kind"] for record in longer.metrics].count("final") == 1
    longer.load_model()
    with pytest.raises(InputError, match="choose another folder"):
        train(recipe(2), tmp_path / "run", progress=False)


@pytest.mark.parametrize("sign", [1, -1])  # of the loss: the best weights are the last ones, or the first
def test_a_run_with_a_stable_rate_is_extended_as_if_it_had_been_longer_from_the_start(
    tiny_recipe: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sign: int
) -> None:
    monkeypatch.setattr(TextTask, "score", lambda self, validation: sign * validation["loss"])

    def recipe(steps: int) -> Recipe:
        wsd = {"training__schedule": "wsd", "training__decay_fraction": 0.5}
        return tiny_recipe(training__steps=steps, training__keep_best=True, **wsd)

    short = train(recipe(8), tmp_path / "run", progress=False)
    state = tmp_path / "run/training_state"
    # 4: where the learning rate begins to fall
    kept = ["best.safetensors", *(f"step-{step:08d}" for step in (4, 6, 8))]
    assert sorted(path.name for path in state.iterdir()) == kept
    shutil.copytree(short.path, tmp_path / "without")
    longer, whole = (train(recipe(12), tmp_path / name, progress=False) for name in ("run", "whole"))
    for kind in ("train", "validation"):
        ours, theirs = (
            [{key: value for key, value in record.items() if key != "seconds"} for record in run.series(kind)]
            for run in (longer, whole)
        )
        assert ours == theirs
    for name in ("model.safetensors", "best.safetensors"):
        assert (longer.path / name).read_bytes() == (whole.path / name).read_bytes()
    shutil.rmtree(tmp_path / "without/training_state/step-00000004")
    before = (tmp_path / "without/metrics.jsonl").read_bytes()
    with pytest.raises(InputError, match="no checkpoint from before update 4"):
        train(recipe(12), tmp_path / "without", progress=False)
    assert (tmp_path / "without/metrics.jsonl").read_bytes() == before
    train(recipe(8), tmp_path / "without", progress=False).load_model()


@pytest.mark.parametrize("task", ["text", "image"])
def test_the_weights_of_the_best_validation_are_kept(
    tiny_recipe: Make, image_recipe: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, task: str
) -> None:
    make, kind = (tiny_recipe, text.TextTask) if task == "text" else (image_recipe, images.ImageTask)
    scores = iter([0.1, 0.9, 0.9])  # of the validations after updates 4 and 8
    monkeypatch.setattr(kind, "score", lambda *_: next(scores))
    run = train(
        make(training__keep_best=True, training__checkpoint_every=4), tmp_path / "run", progress=False
    )
    state = tmp_path / "run" / "training_state" / "step-00000004"
    want = load_file(state / ("model.safetensors" if task == "text" else "ema.safetensors"))
    best, last = (run.load_model(weights=which).state_dict() for which in ("best", None))
    assert all(torch.equal(best[name], tensor) for name, tensor in want.items())
    assert not all(torch.equal(last[name], tensor) for name, tensor in want.items())


def test_weights_that_a_run_does_not_have_are_refused(finished: Path) -> None:
    for weights in ("averaged", "best", "ema"):
        with pytest.raises(InputError, match=f"must be 'trained', got '{weights}'"):
            Run(finished).load_model(weights=weights)


def test_checkpoints_are_kept_as_the_recipe_says(tiny_recipe: Make, tmp_path: Path) -> None:
    three = tiny_recipe(training__checkpoint_every=2, training__checkpoints_kept=3)
    train(three, tmp_path / "three", progress=False)
    names = sorted(path.name for path in (tmp_path / "three" / "training_state").iterdir())
    assert names == ["step-00000004", "step-00000006", "step-00000008"]
    none = train(tiny_recipe(training__drop_checkpoints=True), tmp_path / "none", progress=False)
    assert not (tmp_path / "none" / "training_state").exists()
    none.load_model()
    with pytest.raises(InputError, match="no checkpoint"):
        train(
            tiny_recipe(training__steps=9, training__drop_checkpoints=True), tmp_path / "none", progress=False
        )


def test_what_a_killed_run_was_about_to_remove_is_removed(tiny_recipe: Make, tmp_path: Path) -> None:
    recipe = tiny_recipe(training__drop_checkpoints=True)
    folder = train(recipe, tmp_path / "run", progress=False).path
    for leftover in (
        ".partial-a/training_state",
        "training_state/step-00000008",
        "training_state/.partial-b",
    ):
        (folder / leftover).mkdir(parents=True)
    train(recipe, folder, progress=False)
    assert not (folder / "training_state").exists()
    assert not list(folder.glob(".partial-*"))


def test_a_checkpoint_too_many_goes_when_its_run_goes_on(
    tiny_recipe: Make, finished: Path, tmp_path: Path
) -> None:
    folder = shutil.copytree(finished, tmp_path / "run")
    lines = (folder / "metrics.jsonl").read_text().splitlines(keepends=True)
    (folder / "metrics.jsonl").write_text("".join(lines[:-1]))  # killed before the final record
    assert len(list((folder / "training_state").iterdir())) == 2
    train(tiny_recipe(training__checkpoints_kept=1), folder, progress=False)
    assert [path.name for path in (folder / "training_state").iterdir()] == ["step-00000008"]


def test_folders_that_utf_8_cannot_name_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="the path of a run folder must be text that UTF-8 can hold"):
        FolderLock(tmp_path / "byte\udcff").take()
    assert not list(tmp_path.iterdir())


def test_a_text_that_is_not_there_is_told_before_the_folder_of_another_run(
    finished_text_run: Path, tiny_recipe: Callable[..., Recipe]
) -> None:
    for corpus, words in (("absent.txt", "no such file or folder: absent.txt"), ("embedded", r"\(--run\)")):
        with pytest.raises(InputError, match=words):
            train(tiny_recipe(data__corpus=corpus), finished_text_run, progress=False)
