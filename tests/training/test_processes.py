"""Several processes: the losses of one, every image validated once, one line when they must stop."""

import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from forked import Ended, killing, side_by_side
from PIL import Image

from nadaraya.errors import InputError
from nadaraya.training import ImageRecipe, Recipe, Run, train
from nadaraya.training.loop import step_seed
from nadaraya.training.processes import Processes


def test_one_process_is_all_of_them() -> None:
    processes = Processes()
    assert (processes.rank, processes.count, processes.is_main_process) == (0, 1, True)
    assert processes.main_process_first(lambda: 3) == 3
    assert processes.total(0.1) == 0.1
    assert (processes.greatest(1), processes.greatest(0)) == (1, 0)
    with pytest.raises(InputError, match="reason"), processes.barrier():
        raise InputError("reason")


def test_an_engine_that_the_launcher_was_configured_for_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    with pytest.raises(InputError, match=r"configured for FSDP: .* training\.parallel=fsdp"):
        Processes()


def test_processes_draw_dropout_of_their_own_and_the_first_that_of_one() -> None:
    assert step_seed(3, 5, 0) == step_seed(3, 5)
    assert len({step_seed(3, 5, rank) for rank in range(8)}) == 8


def _launched(recipe: Recipe, folder: Path) -> Ended:
    """`nadaraya train` by two processes of torchrun."""
    path = folder.with_suffix(".yaml")
    path.write_text(recipe.to_yaml())
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command += ["-m", "nadaraya.cli", "--", "train", str(path), "--run", str(folder), "--json"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    return Ended(done.returncode, done.stdout, done.stderr)


def _told(*processes: Ended) -> str:
    """The one line of all processes, none of which did its work."""
    assert all(each.status and not each.out for each in processes)
    err = "".join(each.err for each in processes)
    told = [line for line in err.splitlines() if line.startswith("error: ")]
    assert len(told) == 1, err
    assert "Traceback" not in err
    return told[0]


def _recipe(
    task: str, text: Callable[..., Recipe], images: Callable[..., ImageRecipe], **changes: Any
) -> Any:
    """A recipe in which nothing depends on how the batch is shared out."""
    if task == "text":
        return text(model__dropout=0.0, training__gradient_accumulation=2, **changes)
    fixed = {"model__drop_path": 0.0, "data__mixup": 0.0, "data__cutmix": 0.0, "data__workers": 1}
    return images(training__gradient_accumulation=3, **fixed, **changes)


@pytest.mark.parametrize("task", ["text", pytest.param("image", marks=pytest.mark.slow)])
def test_two_processes_train_as_one(
    task: str,
    tiny_recipe: Callable[..., Recipe],
    image_recipe: Callable[..., ImageRecipe],
    tmp_path: Path,
) -> None:
    recipe = _recipe(task, tiny_recipe, image_recipe)
    folder = tmp_path / "two"
    ended = [_launched(recipe, folder)] if task == "text" else side_by_side(recipe, folder)
    assert not any(each.status for each in ended), ended
    two, one = Run(folder), train(recipe, tmp_path / "one", progress=False)
    (printed,) = "".join(each.out for each in ended).splitlines()
    assert json.loads(printed)["loss"] == (two.final or {})["loss"]
    apart = {"kind", "seconds", "step_seconds", "images_per_second", "sha256"}
    kinds = [[(record["kind"], record["step"]) for record in run.metrics] for run in (one, two)]
    assert kinds[0] == kinds[1]
    for ours, theirs in zip(two.metrics, one.metrics, strict=True):
        assert ours.keys() == theirs.keys()
        for key in ours.keys() - apart:
            expected = theirs[key]
            assert ours[key] == (
                expected if isinstance(expected, str) else pytest.approx(expected, rel=1e-4)
            ), key
    # Top-1 counts images: it is the same fraction of all 21 only if each was seen once.
    if task == "image":
        assert two.final is not None
        assert two.final["top1"] * 21 == pytest.approx(round(two.final["top1"] * 21), abs=1e-9)


_TRAINED_AND_LOADED_IN_PARTS = """
import sys
import torch
from transformers.distributed import DistributedConfig
from nadaraya.cli import main
from nadaraya.models import KernelGPTForCausalLM

folder = sys.argv[sys.argv.index("--run") + 1]
try:
    main()
except SystemExit as ended:
    assert not ended.code, ended.code
torch.distributed.barrier()
whole = KernelGPTForCausalLM.from_pretrained(folder)
parts = KernelGPTForCausalLM.from_pretrained(folder, distributed_config=DistributedConfig(tp_size=2))
assert parts.model.blocks[0].mlp.up_proj.weight.to_local().shape == (64, 32)
assert parts.model.blocks[1].mlp.down_proj.weight.to_local().shape == (32, 64)
tokens, gradients = torch.arange(12)[None], []
for model in (whole.eval(), parts.eval()):
    output = model(tokens, labels=tokens)
    output.loss.backward()
    gradients.append((output.logits.detach(), model.model.blocks[0].mlp_norm.weight.grad))
for expected, given in zip(*gradients):
    torch.testing.assert_close(given, expected)
"""


@pytest.mark.slow
def test_processes_that_share_the_weights_out_go_on_for_one_and_one_for_them(
    tiny_recipe: Callable[..., Recipe],
    at_update: Callable[[int, Callable[[], object]], None],
    tmp_path: Path,
) -> None:
    recipe = tiny_recipe(
        model__dropout=0.0,
        model__extra={"tie_word_embeddings": True},
        training__optimizer="muon",
        training__parallel="fsdp",
        training__micro_batch_size=1,
        training__activation_checkpointing=True,
        training__keep_best=True,
    )
    one, folder = train(recipe, tmp_path / "one", progress=False), tmp_path / "two"
    at_update(2, lambda: os.kill(os.getpid(), signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        train(recipe, folder, progress=False)
    ended = side_by_side(recipe, folder, _TRAINED_AND_LOADED_IN_PARTS)
    assert not any(each.status for each in ended), ended
    names = {path.name for path in (folder / "training_state/step-00000006").iterdir()}
    assert {name.partition("-")[0] for name in names} == {"shard", "state.json"}
    assert len(names) == 3
    assert not list(folder.rglob(".partial-*"))
    two = tmp_path / "one-again"
    shutil.copytree(folder, two)
    shutil.rmtree(two / "training_state/step-00000008")
    records = (two / "metrics.jsonl").read_text().splitlines(keepends=True)
    (two / "metrics.jsonl").write_text("".join(records[:-1]))  # not finished any more
    train(recipe, two, progress=False)
    for run in (Run(folder), Run(two)):  # Muon computes in bfloat16, which makes more of a last digit
        for kind in ("train", "validation", "final"):
            for ours, theirs in zip(run.series(kind), one.series(kind), strict=True):
                assert ours["step"] == theirs["step"]
                assert ours["loss"] == pytest.approx(theirs["loss"], rel=1e-4)
        for weights in ("trained", "best"):
            model, expected = (each.load_model(weights=weights).state_dict() for each in (run, one))
            for name, tensor in expected.items():
                torch.testing.assert_close(model[name], tensor, rtol=1e-3, atol=5e-3)


@pytest.mark.slow
def test_when_a_process_is_killed_the_other_says_so_and_the_run_goes_on(
    tiny_recipe: Callable[..., Recipe], tmp_path: Path
) -> None:
    recipe = tiny_recipe(model__dropout=0.0, training__parallel="fsdp")
    killed, survivor = side_by_side(recipe, tmp_path / "two", killing(rank=0))
    assert killed.status == -signal.SIGKILL
    assert re.search(r"process 1 of 2 cannot reach another one.* run the same command again", _told(survivor))
    states = [path.name for path in (tmp_path / "two/training_state").glob("step-*")]
    assert states == ["step-00000003"]
    two, one = (train(recipe, tmp_path / name, progress=False) for name in ("two", "one"))
    for kind in ("train", "validation", "final"):
        for ours, theirs in zip(two.series(kind), one.series(kind), strict=True):
            assert (ours["step"], ours["loss"]) == (theirs["step"], pytest.approx(theirs["loss"], rel=1e-5))


@pytest.fixture
def one_broken_image(tmp_path: Path) -> Path:
    """24 and 4 image files in an .npz, of which one cannot be decoded: one process alone will meet it."""
    arrays: dict[str, Any] = {}
    for part, count in (("train", 24), ("test", 4)):
        encoded = []
        for _ in range(count):
            file = io.BytesIO()
            Image.new("RGB", (16, 16)).save(file, "PNG")
            encoded.append(file.getvalue())
        if part == "train":
            encoded[7] = b"broken"
        arrays[f"{part}_jpeg"] = np.frombuffer(b"".join(encoded), np.uint8)
        arrays[f"{part}_offsets"] = np.cumsum([0, *map(len, encoded)])
        arrays[f"{part}_labels"] = np.arange(count) % 4
    np.savez(tmp_path / "broken.npz", **arrays)
    return tmp_path / "broken.npz"


@pytest.mark.slow
def test_an_error_of_one_process_ends_all_with_one_line(
    image_recipe: Callable[..., ImageRecipe], tmp_path: Path, one_broken_image: Path
) -> None:
    recipe = image_recipe(data__source=str(one_broken_image))
    assert "image 7" in _told(*side_by_side(recipe, tmp_path / "run"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"training__batch_size": 15}, "a multiple of 2 processes"),
        ({"training__kernel_learning_rate": 3e2, "training__warmup_epochs": 0}, "the bandwidth of"),
    ],
)
def test_an_error_of_all_is_told_once(
    image_recipe: Callable[..., ImageRecipe], tmp_path: Path, changes: dict[str, Any], words: str
) -> None:
    assert words in _told(*side_by_side(image_recipe(**changes), tmp_path / "run"))
