"""The loop: runs are exact functions of their recipe, wherever they are stopped; folders are never harmed."""

import errno
import json
import os
import shutil
import signal
import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import yaml
from forked import Forked
from safetensors.torch import load_file

from nadaraya.data import train_byte_pair_tokenizer
from nadaraya.errors import InputError
from nadaraya.files import WriteFailed
from nadaraya.training import Recipe, Run, TrainingDiverged, metrics, text, train
from nadaraya.training import checkpoint as checkpoints

Make = Callable[..., Recipe]
AtUpdate = Callable[[int, Callable[[], object]], None]


def _losses(folder: Path) -> list[tuple[str, int, float]]:
    return [(record["kind"], record["step"], record["loss"]) for record in Run(folder).metrics]


def _content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def uninterrupted(finished_text_run: Path, tmp_path: Path) -> Path:
    return shutil.copytree(finished_text_run, tmp_path / "uninterrupted")


def test_a_run_leaves_what_its_readers_expect(uninterrupted: Path) -> None:
    run = Run(uninterrupted)
    kinds = [(record["kind"], record["step"]) for record in run.metrics]
    log = [("train", 2), ("train", 4), ("validation", 4), ("train", 6), ("train", 8), ("validation", 8)]
    assert kinds == [*log, ("final", 8)]
    for record in run.series("train"):
        assert set(record) == {"kind", "step", "loss", "learning_rate", "tokens", "seconds", "gradient_norm"}
        assert record["tokens"] == record["step"] * 4 * 16
    assert run.final is not None
    model = run.load_model()
    assert run.final["parameters"] == model.num_parameters()
    assert run.final["kernel_parameters"] == sum(p.numel() for _, p in model.kernel_parameters()) > 0
    assert run.sample is not None
    assert len(run.sample) > 10
    files = {path.name for path in uninterrupted.iterdir()}
    assert files >= {
        "config.yaml",
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        "initial_kernels.safetensors",
    }
    assert [name for name in files if name.startswith(".")] == [".lock"]
    state = uninterrupted / "training_state"
    assert sorted(path.name for path in state.iterdir()) == ["step-00000006", "step-00000008"]


def test_learning_lowers_the_loss(tiny_recipe: Make, tmp_path: Path) -> None:
    recipe = tiny_recipe(training__steps=60, training__learning_rate=1e-2, model__dropout=0.0)
    losses = [
        record["loss"] for record in train(recipe, tmp_path / "run", progress=False).series("validation")
    ]
    assert losses[-1] < 0.7 * losses[0]


def test_the_same_recipe_gives_the_same_run(tiny_recipe: Make, tmp_path: Path, uninterrupted: Path) -> None:
    torch.rand(5)
    assert _losses(train(tiny_recipe(), tmp_path / "again", progress=False).path) == _losses(uninterrupted)


def test_accumulation_changes_memory_and_not_the_update(tiny_recipe: Make, tmp_path: Path) -> None:
    one, two, same = (
        train(tiny_recipe(model__dropout=0.0, **changes), tmp_path / str(number), progress=False)
        for number, changes in enumerate(
            ({}, {"training__gradient_accumulation": 2}, {"training__micro_batch_size": 2})
        )
    )
    assert _losses(same.path) == _losses(two.path)
    for ours, theirs in zip(one.series("train"), two.series("train"), strict=True):
        assert ours["loss"] == pytest.approx(theirs["loss"], rel=1e-4)
        assert ours["gradient_norm"] == pytest.approx(theirs["gradient_norm"], rel=1e-3)


@pytest.mark.parametrize("step", [1, 5, 8])
def test_ctrl_c_saves_and_resuming_is_exact(
    tiny_recipe: Make, tmp_path: Path, uninterrupted: Path, at_update: AtUpdate, step: int
) -> None:
    folder = tmp_path / "stopped"
    before = signal.getsignal(signal.SIGINT)
    at_update(step, lambda: os.kill(os.getpid(), signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        train(tiny_recipe(), folder, progress=False)
    assert signal.getsignal(signal.SIGINT) is before
    assert (folder / f"training_state/step-{step:08d}/state.json").is_file()
    train(tiny_recipe(), folder, progress=False)
    assert _losses(folder) == _losses(uninterrupted)
    ours, theirs = (load_file(path / "model.safetensors") for path in (folder, uninterrupted))
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_a_run_with_muon_resumes_bit_for_bit(tiny_recipe: Make, tmp_path: Path, at_update: AtUpdate) -> None:
    recipe = tiny_recipe(training__optimizer="muon")
    whole = train(recipe, tmp_path / "whole", progress=False)
    at_update(5, lambda: os.kill(os.getpid(), signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        train(recipe, tmp_path / "stopped", progress=False)
    state = load_file(tmp_path / "stopped/training_state/step-00000005/optimizer.safetensors")
    assert {name.partition("/")[0] for name in state} == {"momentum_buffer", "exp_avg", "exp_avg_sq", "step"}
    train(recipe, tmp_path / "stopped", progress=False)
    assert _losses(tmp_path / "stopped") == _losses(whole.path)
    ours, theirs = (load_file(tmp_path / name / "model.safetensors") for name in ("stopped", "whole"))
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_resuming_after_a_damaged_checkpoint_uses_the_one_before(
    tiny_recipe: Make, tmp_path: Path, uninterrupted: Path, at_update: AtUpdate
) -> None:
    folder = tmp_path / "stopped"
    at_update(7, lambda: os.kill(os.getpid(), signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        train(tiny_recipe(), folder, progress=False)
    damaged = folder / "training_state/step-00000007/model.safetensors"
    damaged.write_bytes(damaged.read_bytes()[:-10])
    train(tiny_recipe(), folder, progress=False)
    assert _losses(folder) == _losses(uninterrupted)


_KILLABLE = """
import os, signal
from torch.optim import AdamW
from nadaraya import files
from nadaraya.cli import main

seen, step, sync = [], AdamW.step, files.sync
def count(limit):
    seen.append(None)
    if len(seen) == limit:
        os.kill(os.getpid(), signal.SIGKILL)
def killing_step(self, *a, **k):
    count(5)
    return step(self, *a, **k)
def killing_sync(path):
    if "step-00000006" in str(path):
        count(2)
    sync(path)
if os.environ["WHERE"] == "update":
    AdamW.step = killing_step
else:
    files.sync = killing_sync
main()
"""


@pytest.mark.parametrize("where", ["checkpoint", pytest.param("update", marks=pytest.mark.slow)])
def test_a_killed_run_resumes_bit_for_bit(
    tiny_recipe: Make, tmp_path: Path, uninterrupted: Path, where: str
) -> None:
    recipe, folder = tmp_path / "recipe.yaml", tmp_path / "killed"
    recipe.write_text(tiny_recipe().to_yaml())
    killed = Forked(_KILLABLE, "train", recipe, "--run", folder, WHERE=where).end()
    assert killed.status == -signal.SIGKILL
    assert Run(folder).final is None
    with (folder / "metrics.jsonl").open("a") as stream:
        stream.write('{"kind": "train", "step": 5')  # a line that the kill cut off
    train(tiny_recipe(), folder, progress=False)
    assert _losses(folder) == _losses(uninterrupted)
    assert not list((folder / "training_state").glob(".partial-*"))


def test_a_loss_that_is_no_number_stops_with_the_step_and_the_last_checkpoint(
    tiny_recipe: Make, tmp_path: Path
) -> None:
    recipe = tiny_recipe(
        training__learning_rate=1e30,
        training__warmup_steps=0,
        training__clip=None,
        training__checkpoint_every=1,
    )
    folder = tmp_path / "run"
    with pytest.raises(
        TrainingDiverged, match=r"became (nan|inf) at step \d; the last good checkpoint is .*step-"
    ):
        train(recipe, folder, progress=False)
    for path in (folder / "training_state").glob("step-*/model.safetensors"):
        assert all(torch.isfinite(tensor).all() for tensor in load_file(path).values())


def test_a_disk_that_fills_up_keeps_the_last_checkpoint_and_the_run_can_go_on(
    tiny_recipe: Make, tmp_path: Path, uninterrupted: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "full"
    saved = checkpoints.save_file

    def full(tensors: Any, path: Path) -> None:
        if "step-00000006" in str(path):
            raise OSError(errno.ENOSPC, "No space left on device")
        saved(tensors, path)

    with monkeypatch.context() as patched:
        patched.setattr(checkpoints, "save_file", full)
        with pytest.raises(WriteFailed, match="the disk is full"):
            train(tiny_recipe(), folder, progress=False)
    assert [path.name for path in (folder / "training_state").iterdir()] == ["step-00000003"]
    train(tiny_recipe(), folder, progress=False)
    assert _losses(folder) == _losses(uninterrupted)


def test_a_run_killed_while_finishing_finishes(
    tiny_recipe: Make, tmp_path: Path, uninterrupted: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(text, "sample_text", killed)
        with pytest.raises(KeyboardInterrupt):
            train(tiny_recipe(), tmp_path / "run", progress=False)
    run = train(tiny_recipe(), tmp_path / "run", progress=False)
    assert _losses(run.path) == _losses(uninterrupted)
    assert run.sample == Run(uninterrupted).sample


def test_a_finished_run_is_left_alone(
    tiny_recipe: Make, uninterrupted: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = _content(uninterrupted)
    train(tiny_recipe(), uninterrupted)
    assert "finished already" in capsys.readouterr().err
    assert _content(uninterrupted) == before


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"training__learning_rate": 0.5}, "training.learning_rate = 0.002, not 0.5"),
        ({"seed": 1, "training__steps": 9}, "seed = 0, not 1"),
    ],
)
def test_a_folder_with_another_recipe_is_refused_and_unharmed(
    tiny_recipe: Make, uninterrupted: Path, changes: dict[str, Any], message: str
) -> None:
    before = _content(uninterrupted)
    with pytest.raises(InputError) as refused:
        train(tiny_recipe(**changes), uninterrupted, progress=False)
    assert message in str(refused.value)
    assert _content(uninterrupted) == before


def test_folders_that_are_no_runs_and_runs_not_to_be_resumed_are_refused(
    tiny_recipe: Make, tmp_path: Path, uninterrupted: Path
) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    for folder in (tmp_path / "mine", tmp_path / "mine" / "thesis.txt"):
        with pytest.raises(InputError, match="not a"):
            train(tiny_recipe(), folder, progress=False)
    with pytest.raises(InputError, match="resuming was not wanted"):
        train(tiny_recipe(), uninterrupted, progress=False, resume=False)


@pytest.mark.parametrize("tokenizer", ["bytes", "bpe"])
def test_runs_on_bytes_and_byte_pairs_learn_and_resume_exactly(
    tiny_recipe: Make, tmp_path: Path, at_update: AtUpdate, tokenizer: str
) -> None:
    recipe = tiny_recipe(data__tokenizer=tokenizer, data__vocabulary=280 if tokenizer == "bpe" else None)
    whole = train(recipe, tmp_path / "whole", progress=False)
    at_update(5, lambda: os.kill(os.getpid(), signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        train(recipe, tmp_path / "stopped", progress=False)
    train(recipe, tmp_path / "stopped", progress=False)
    assert _losses(tmp_path / "stopped") == _losses(tmp_path / "whole")
    assert whole.load_model().config.vocab_size == {"bytes": 256, "bpe": 280}[tokenizer]


def test_byte_pairs_are_found_in_the_training_part_alone(tiny_recipe: Make, tmp_path: Path) -> None:
    corpus = tmp_path / "text.txt"
    corpus.write_text("the cat sat. " * 90 + "zigzag " * 15)
    recipe = tiny_recipe(data__corpus=str(corpus), data__tokenizer="bpe", data__vocabulary=300)
    vocabulary = train(recipe, tmp_path / "run", progress=False).tokenizer().get_vocab()
    assert "Ġcat" in vocabulary
    assert not any("zig" in token for token in vocabulary)


def test_byte_pairs_that_changed_under_a_run_are_noticed(
    tiny_recipe: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_update: AtUpdate
) -> None:
    recipe = tiny_recipe(data__tokenizer="bpe", data__vocabulary=280)
    at_update(5, lambda: os.kill(os.getpid(), signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        train(recipe, tmp_path / "run", progress=False)
    before, other = _content(tmp_path / "run"), train_byte_pair_tokenizer("another library " * 9, 280)
    monkeypatch.setattr(text, "train_byte_pair_tokenizer", lambda *_, **options: other)
    with pytest.raises(
        InputError, match=r"the corpus or its byte pairs are not those that .*run was started"
    ):
        train(recipe, tmp_path / "run", progress=False)
    assert _content(tmp_path / "run") == before


def test_a_text_that_changed_under_a_run_is_noticed(
    tiny_recipe: Make, tmp_path: Path, tiny_text: Path, at_update: AtUpdate
) -> None:
    folder, corpus = tmp_path / "run", Path(shutil.copy(tiny_text, tmp_path))
    recipe = tiny_recipe(data__corpus=str(corpus))
    at_update(5, lambda: os.kill(os.getpid(), signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        train(recipe, folder, progress=False)
    before = _content(folder)
    corpus.write_text(corpus.read_text().replace("the", "her"))
    with pytest.raises(InputError, match="the corpus is not the text"):
        train(recipe, folder, progress=False)
    assert _content(folder) == before


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"data__context": 500}, r"validation text has \d+ tokens.*context = 500"),
        ({"data__limit": 20, "data__validation_fraction": 0.5}, "training text has 10 tokens.*context = 16"),
        ({"data__corpus": "embeded"}, "embedded"),
        ({"model__variant": "ropes"}, "did you mean 'rope'"),
    ],
)
def test_bad_input_leaves_no_folder(
    tiny_recipe: Make, tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        train(tiny_recipe(**changes), tmp_path / "run", progress=False)
    assert not (tmp_path / "run").exists()


def test_bfloat16_trains_and_stays_close(tiny_recipe: Make, tmp_path: Path, uninterrupted: Path) -> None:
    run = train(tiny_recipe(training__precision="bfloat16"), tmp_path / "bf16", progress=False)
    assert run.final is not None
    assert run.final["loss"] == pytest.approx(Run(uninterrupted).final["loss"], rel=0.02)  # type: ignore[index]
    assert run.final["loss"] != Run(uninterrupted).final["loss"]  # type: ignore[index]
    assert _losses(run.path)[0] != _losses(uninterrupted)[0]
    assert {tensor.dtype for tensor in load_file(run.path / "model.safetensors").values()} == {torch.float32}


def test_a_tracker_gets_every_record_once_though_the_run_was_stopped(
    tiny_recipe: Make, tmp_path: Path, at_update: AtUpdate
) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    recipe, folder = tiny_recipe(training__tracker="tensorboard"), tmp_path / "run"
    at_update(5, lambda: (_ for _ in ()).throw(InputError("killed after the records of update 4")))
    with pytest.raises(InputError, match="killed"):
        train(recipe, folder, progress=False)
    run = train(recipe, folder, progress=False)  # from the checkpoint of update 3
    events = EventAccumulator(str(folder / "tensorboard"))
    events.Reload()
    for kind in ("train", "validation"):
        written = [(event.step, event.value) for event in events.Scalars(f"{kind}/loss")]
        assert written == [(r["step"], pytest.approx(r["loss"])) for r in run.series(kind)]


class _FakeTrackio(ModuleType):
    """Stands for the package `trackio`: notes what it is called with."""

    def __init__(self) -> None:
        super().__init__("trackio")
        self.__spec__ = ModuleSpec("trackio", None)
        self.started: list[dict[str, Any]] = []
        self.logged: list[tuple[int, dict[str, float]]] = []

    def init(self, **options: Any) -> "_FakeTrackio":
        self.started.append(options)
        return self

    def log(self, values: dict[str, float], step: int) -> None:
        self.logged.append((step, values))

    def finish(self) -> None:
        self.logged.append((-1, {}))


def test_a_resumed_run_goes_on_under_its_name_in_the_tracker(
    tiny_recipe: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_update: AtUpdate
) -> None:
    fake = _FakeTrackio()
    monkeypatch.setitem(sys.modules, "trackio", fake)
    recipe = tiny_recipe(training__tracker="trackio")
    at_update(5, lambda: os.kill(os.getpid(), signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        train(recipe, tmp_path / "run", progress=False)
    train(recipe, tmp_path / "run", progress=False)
    first, second = fake.started
    assert first == second
    assert (first["project"], first["resume"]) == ("nadaraya", "allow")
    assert first["name"].startswith("tiny-")
    assert [step for step, _ in fake.logged] == [2, 4, 4, -1, 6, 8, 8, -1]
    assert set(fake.logged[2][1]) == {"validation/loss"}
    train(recipe, tmp_path / "other", progress=False)
    assert fake.started[2]["name"] != first["name"]


def test_a_tracker_that_cannot_be_used_is_one_line(
    tiny_recipe: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = _FakeTrackio()
    monkeypatch.setitem(sys.modules, "trackio", fake)
    monkeypatch.setattr(fake, "init", lambda **_: (_ for _ in ()).throw(RuntimeError("log in first\nplease")))
    recipe = tiny_recipe(training__tracker="trackio")
    with pytest.raises(InputError, match=r"^training\.tracker trackio cannot be started: log in first$"):
        train(recipe, tmp_path / "run", progress=False)
    monkeypatch.setattr(metrics, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"needs its package: pip install trackio"):
        train(recipe, tmp_path / "other", progress=False)
    assert not (tmp_path / "other").exists()


def test_plain_progress_shows_step_losses_speed_and_time_left(
    tiny_recipe: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train(tiny_recipe(), tmp_path / "run")
    captured = capsys.readouterr()
    assert captured.out == ""
    lines = captured.err.splitlines()
    steps = [line.split()[1] for line in lines if line.startswith("step")]
    assert steps == ["2/8", "4/8", "4/8", "6/8", "8/8", "8/8"]
    assert all(word in lines[3] for word in ("loss", "validation", "tokens/s", "left"))


def test_hybrids_and_recipes_are_written_out(tiny_recipe: Make, tmp_path: Path) -> None:
    recipe = tiny_recipe(model__variant=["rope", "gpa-mul"], training__steps=2, training__sample_characters=0)
    run = train(recipe, tmp_path / "run", progress=False)
    assert Recipe.from_mapping(yaml.safe_load((run.path / "config.yaml").read_text())) == recipe
    assert json.loads((run.path / "config.json").read_text())["variant"] == ["rope", "gpa-mul"]
    assert run.sample is None
