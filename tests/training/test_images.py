"""The loop on images: exact resuming, the average of the weights, figures; bad input is refused."""

import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from safetensors.torch import load_file
from torch.optim import AdamW

from nadaraya.data.images.transforms import evaluation_transform
from nadaraya.errors import InputError
from nadaraya.training import ImageRecipe, Recipe, Run, TrainingDiverged, train
from nadaraya.training.images import ImageTask
from nadaraya.training.optimizer import make_optimizer
from nadaraya.training.processes import Processes

Make = Callable[..., ImageRecipe]
AtUpdate = Callable[[int, Callable[[], object]], None]
FIGURES = {"loss", "top1", "top5", "ema_loss", "ema_top1", "ema_top5"}


def _figures(folder: Path) -> list[tuple[Any, ...]]:
    keys = ("kind", "step", *sorted(FIGURES))
    return [tuple(record.get(key) for key in keys) for record in Run(folder).metrics]


@pytest.fixture
def uninterrupted(finished_image_run: Path, tmp_path: Path) -> Path:
    return shutil.copytree(finished_image_run, tmp_path / "uninterrupted")


def test_a_run_leaves_what_its_readers_expect(uninterrupted: Path) -> None:
    run = Run(uninterrupted)
    log = [("train", 2), ("train", 4), ("validation", 4), ("train", 6), ("train", 8), ("validation", 8)]
    assert [(record["kind"], record["step"]) for record in run.metrics] == [*log, ("final", 8)]
    assert [record["images"] for record in run.series("train")] == [24, 48, 72, 96]
    final, validation = run.final, run.series("validation")[-1]
    assert final is not None
    assert {key: final[key] for key in FIGURES} == {key: validation[key] for key in FIGURES}
    assert all(0 <= final[key] <= 1 for key in FIGURES if "top" in key)
    assert final["images_per_second"] == pytest.approx(12 / final["step_seconds"])
    model = run.load_model()
    assert final["parameters"] == sum(parameter.numel() for parameter in model.parameters())
    assert final["kernel_parameters"] == sum(p.numel() for _, p in model.kernel_parameters()) == 4
    assert run.classes == ("0", "1", "2", "3")
    assert (run.steps, model.num_classes, model.training) == (8, 4, False)
    files = {path.name for path in uninterrupted.iterdir()}
    assert files == {
        *(".lock", "config.yaml", "metrics.jsonl", "training_state", "images.json"),
        *("config.json", "model.safetensors", "ema.safetensors", "initial_kernels.safetensors"),
    }
    states = {path.name for path in (uninterrupted / "training_state").glob("step-00000008/*")}
    assert states == {"model.safetensors", "ema.safetensors", "optimizer.safetensors", "state.json"}


def test_the_final_figures_are_those_of_the_models_that_are_kept(uninterrupted: Path) -> None:
    from nadaraya.data.images import evaluation_batches
    from nadaraya.evaluation.classification import evaluate_images

    run = Run(uninterrupted)
    assert run.final is not None
    batches = evaluation_batches(run.images(), run.image_recipe().augmentation(), batch_size=5)
    for ema, prefix in ((False, ""), (True, "ema_")):
        result = evaluate_images(run.load_model(weights="averaged" if ema else "trained"), batches)
        assert result.images == 21
        assert result.loss == pytest.approx(run.final[f"{prefix}loss"], rel=1e-5)
        assert (result.top1, result.top5) == (run.final[f"{prefix}top1"], 1.0)


def test_initial_puts_back_the_kernels(uninterrupted: Path) -> None:
    run = Run(uninterrupted)
    start = load_file(uninterrupted / "initial_kernels.safetensors")
    trained, initial = (dict(run.load_model(initial=flag).kernel_parameters()) for flag in (False, True))
    assert set(start) == set(initial)
    for name, value in start.items():
        assert torch.equal(initial[name], value)
        assert not torch.equal(trained[name], value)


@pytest.mark.parametrize("name", ["gka_tiny_patch16_224", "vit_tiny_patch16_224"])
def test_learning_finds_the_classes(image_recipe: Make, tmp_path: Path, name: str) -> None:
    plain = {"padding_crop": None, "crop_scale": [1, 1], "rand_augment": None, "random_erasing": 0}
    recipe = image_recipe(
        model__name=name,
        model__drop_path=0.0,
        training__epochs=25,
        training__weight_decay=0.0,
        training__evaluate_every_epochs=25,
        training__ema_warmup=True,
        **{f"data__{key}": value for key, value in {**plain, "mixup": 0, "cutmix": 0}.items()},
    )
    final = train(recipe, tmp_path / "run", progress=False).final
    assert final is not None
    assert min(final["top1"], final["ema_top1"]) > 0.45  # chance: 0.25


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("step", [1, 6])
def test_resuming_is_exact(
    image_recipe: Make,
    tmp_path: Path,
    uninterrupted: Path,
    at_update: AtUpdate,
    step: int,
    workers: int,
) -> None:
    recipe, folder = image_recipe(data__workers=workers), tmp_path / "stopped"
    at_update(step, lambda: os.kill(os.getpid(), signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        train(recipe, folder, progress=False)
    assert (folder / f"training_state/step-{step:08d}/ema.safetensors").is_file()
    train(recipe, folder, progress=False)
    assert _figures(folder) == _figures(uninterrupted)
    for file in ("model.safetensors", "ema.safetensors"):
        ours, theirs = load_file(folder / file), load_file(uninterrupted / file)
        assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_accumulation_changes_memory_and_not_the_update(image_recipe: Make, tmp_path: Path) -> None:
    one, three = (
        train(
            image_recipe(training__gradient_accumulation=pieces, model__drop_path=0.0),
            tmp_path / str(pieces),
            progress=False,
        )
        for pieces in (1, 3)
    )
    for ours, theirs in zip(one.series("train"), three.series("train"), strict=True):
        assert ours["loss"] == pytest.approx(theirs["loss"], rel=1e-4)
        assert ours["gradient_norm"] == pytest.approx(theirs["gradient_norm"], rel=1e-3)


def test_an_average_that_forgets_at_once_is_the_model_and_none_leaves_none(
    image_recipe: Make, tmp_path: Path
) -> None:
    forgetful = train(image_recipe(training__ema_decay=0.0), tmp_path / "forgetful", progress=False)
    ours, theirs = (load_file(forgetful.path / f"{name}.safetensors") for name in ("model", "ema"))
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    without = train(image_recipe(training__ema_decay=None), tmp_path / "without", progress=False)
    assert not (without.path / "ema.safetensors").exists()
    assert without.final is not None
    assert forgetful.final is not None
    assert not [key for key in without.final if key.startswith("ema")]
    assert without.final["loss"] == forgetful.final["loss"] == forgetful.final["ema_loss"]
    assert all(torch.equal(p, ours[name]) for name, p in without.load_model().state_dict().items())


def test_the_average_follows_its_recursion(
    image_recipe: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights: list[torch.Tensor] = []
    original = AdamW.step

    def noting(self: AdamW, *arguments: Any, **options: Any) -> Any:
        result = original(self, *arguments, **options)
        weights.append(self.param_groups[-1]["params"][0].detach().clone())
        return result

    monkeypatch.setattr(AdamW, "step", noting)
    run = train(image_recipe(), tmp_path / "run", progress=False)
    expected = weights[0]
    for value in weights[1:]:
        expected = 0.9 * expected + 0.1 * value
    name = next(iter(run.load_model().kernel_parameters()))[0]
    torch.testing.assert_close(load_file(run.path / "ema.safetensors")[name], expected)


def test_one_random_batch_again_and_again(image_recipe: Make, tmp_path: Path) -> None:
    recipe = image_recipe(data__synthetic=True, training__epochs=8, model__drop_path=0.0)
    losses = [record["loss"] for record in train(recipe, tmp_path / "run", progress=False).series("train")]
    assert losses[-1] < losses[0]


def test_a_limit_leaves_the_same_images_whatever_the_seed(image_recipe: Make) -> None:
    from nadaraya.training.images import open_recipe_images

    whole = open_recipe_images(image_recipe())
    some = [open_recipe_images(image_recipe(data__limit=10, seed=seed)) for seed in (0, 1)]
    assert len(some[0].train) == 10
    assert some[0].sha256 == some[1].sha256 != whole.sha256
    known = {np.asarray(whole.train.read(i)).tobytes(): whole.train.labels[i] for i in range(48)}
    drawn = {np.asarray(some[0].train.read(i)).tobytes(): some[0].train.labels[i] for i in range(10)}
    assert len(drawn) == 10
    assert drawn.items() <= known.items()
    assert len(open_recipe_images(image_recipe(data__limit=1000)).train) == 48


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model__image_size": 20}, ("image_size must be a multiple", "8 pixels", "got 20")),
        (
            {"model__name": "gka_tinny_patch16_224"},
            ("'gka_tinny_patch16_224'", "did you mean 'gka_tiny_patch16_224'"),
        ),
        ({"model__name": "hf-hub:timm/vit"}, ("model must be a name", "hf-hub:timm/vit")),
        ({"model__options": {"embed_dims": 16}}, ("'embed_dims'", "did you mean 'embed_dim'")),
        ({"model__options": {"embed_dim": 16, "num_heads": 3}}, ("16", "3")),
        ({"model__options": {"num_classes": 7}}, ("model.options.num_classes", "the images")),
        ({"model__options": {"pretrained": True}}, ("pretrained", "fresh weights")),
        ({"model__options": {"variant": "gkaa"}}, ("'gkaa'", "'gka'")),
        ({"model__name": "vgg11", "model__options": {}}, ("drop_path_rate must be 0 for vgg11", "got 0.2")),
        ({"data__source": None}, ("data.source must be a folder", "torchvision:CIFAR10")),
        ({"data__source": "absent.npz"}, ("absent.npz",)),
        ({"data__rand_augment": "nonsense"}, ("rand_augment", "nonsense")),
        ({"data__corrupt": "ignore"}, ("ignore", "skip")),
        ({"data__limit": 5}, ("5 training images", "12")),
        ({"training__batch_size": 9}, ("must be even",)),
        ({"training__batch_size": 50}, ("48 training images", "50")),
    ],
)
def test_bad_input_is_one_line_and_leaves_no_folder(
    image_recipe: Make, tmp_path: Path, changes: dict[str, Any], words: tuple[str, ...]
) -> None:
    with pytest.raises(InputError) as refused:
        train(image_recipe(**changes), tmp_path / "run", progress=False)
    for word in words:
        assert word in str(refused.value)
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "run").exists()


def test_images_that_changed_under_a_run_are_noticed(
    image_recipe: Make, tmp_path: Path, tiny_images: Path, at_update: AtUpdate
) -> None:
    source = shutil.copy(tiny_images, tmp_path)
    recipe = image_recipe(data__source=str(source))
    at_update(5, lambda: os.kill(os.getpid(), signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        train(recipe, tmp_path / "run", progress=False)
    arrays = dict(np.load(tiny_images))
    arrays["train_images"][0, 0, 0, 0] ^= 1
    np.savez(source, **arrays)
    with pytest.raises(InputError, match="the images are not those"):
        train(recipe, tmp_path / "run", progress=False)


def test_other_images_must_have_the_classes_of_the_run(uninterrupted: Path, tmp_path: Path) -> None:
    arrays = dict(np.load(Run(uninterrupted).image_recipe().data.source))  # type: ignore[arg-type]
    np.savez(tmp_path / "names.npz", **arrays, class_names=np.array(list("abcd")))
    with pytest.raises(InputError, match=r"4 classes \(a, b, c, …\).*4 classes \(0, 1, 2, …\)"):
        Run(uninterrupted).images(str(tmp_path / "names.npz"))


def test_a_folder_of_another_model_or_task_is_refused(
    image_recipe: Make, tiny_recipe: Callable[..., Recipe], uninterrupted: Path
) -> None:
    with pytest.raises(InputError, match=r"model\.name = 'gka_tiny_patch16_224', not 'vlt_"):
        train(image_recipe(model__name="vlt_tiny_patch16_224"), uninterrupted, progress=False)
    with pytest.raises(InputError, match="task = 'image', not 'text'"):
        train(tiny_recipe(), uninterrupted, progress=False)


@pytest.mark.parametrize("file", ["model.safetensors", "ema.safetensors", "images.json"])
def test_a_damaged_run_is_named(uninterrupted: Path, file: str) -> None:
    path = uninterrupted / file
    path.write_bytes(path.read_bytes()[:-40])
    run = Run(uninterrupted)
    with pytest.raises(InputError, match=file) as refused:
        run.load_model(weights="trained" if file == "model.safetensors" else None)
    assert "\n" not in str(refused.value)


def test_a_damaged_average_in_a_checkpoint_is_named_and_the_one_before_is_used(
    image_recipe: Make, uninterrupted: Path, caplog: pytest.LogCaptureFixture
) -> None:
    before = _figures(uninterrupted)
    metrics = uninterrupted / "metrics.jsonl"
    metrics.write_text("".join(line for line in metrics.open() if '"final"' not in line))
    path = uninterrupted / "training_state/step-00000008/ema.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    train(image_recipe(), uninterrupted, progress=False)
    assert str(path) in caplog.text
    assert _figures(uninterrupted) == before


def test_what_belongs_to_the_other_task_is_refused(uninterrupted: Path) -> None:
    run = Run(uninterrupted)
    for asked in (run.tokenizer, run.corpus, run.text_recipe):
        with pytest.raises(InputError, match="must be a run on text, got one on images"):
            asked()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {
                "training__learning_rate": 1e30,
                "training__clip": None,
                "model__name": "vit_tiny_patch16_224",
            },
            r"became (nan|inf) at step \d",
        ),
        (
            {"training__kernel_learning_rate": 3e2, "training__checkpoint_every": 1},
            r"bandwidth of blocks\.\d\.attn\.content\.kernel\.log_bandwidth, head \d, is .* after step \d",
        ),
    ],
)
def test_divergence_stops_the_run(
    image_recipe: Make, tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(TrainingDiverged, match=message):
        train(image_recipe(**changes, training__warmup_epochs=0), tmp_path / "run", progress=False)


def test_progress_shows_top_1_and_images_a_second(
    image_recipe: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train(image_recipe(), tmp_path / "run")
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("step")]
    assert all(word in lines[3] for word in ("loss", "top-1", "EMA", "images/s", "left"))


@pytest.mark.parametrize("channels", [1, 3])
def test_timm_loads_a_run_by_its_own_configuration(
    image_recipe: Callable[..., ImageRecipe], tiny_images: Path, tmp_path: Path, channels: int
) -> None:
    arrays = dict(np.load(tiny_images))
    if channels == 1:
        arrays = {name: array[..., 0] if "images" in name else array for name, array in arrays.items()}
    np.savez(tmp_path / "images.npz", **arrays)
    options = {"patch_size": 8, "embed_dim": 16, "depth": 2, "num_heads": 2, "variant": "gka-loo"}
    recipe = image_recipe(data__source=str(tmp_path / "images.npz"), model__options=options)
    run = train(recipe, tmp_path / "run", progress=False)
    loaded = timm.create_model(f"local-dir:{run.path}", pretrained=True).eval()
    own = run.load_model(weights="trained")
    assert loaded.pretrained_cfg["label_names"] == list(run.classes)
    transform = timm.data.create_transform(**timm.data.resolve_model_data_config(loaded))
    ours = evaluation_transform(recipe.augmentation(), channels)
    image = Image.fromarray(arrays["test_images"][0]).resize((40, 40))
    torch.testing.assert_close(transform(image), ours(image))
    with torch.no_grad():
        torch.testing.assert_close(loaded(transform(image)[None]), own(ours(image)[None]))


def test_muon_trains_images_by_the_schedule_of_all(image_recipe: Make, tmp_path: Path) -> None:
    recipe = image_recipe(training__optimizer="muon", training__epochs=1, training__warmup_epochs=0)
    processes = Processes()
    task = ImageTask(recipe, processes)
    optimizer = make_optimizer(task.model, recipe.training)
    advance = task.schedule(optimizer, 0)
    for step in range(1, 4):
        rates = {group["name"]: group["lr"] for group in optimizer.param_groups}
        assert rates["hidden"] / rates["plain"] == pytest.approx(0.02 / 3e-3)
        optimizer.step()
        advance(step)
    run = train(recipe, tmp_path / "run", progress=False)
    state = load_file(tmp_path / "run/training_state/step-00000004/optimizer.safetensors")
    moved = {name for name in state if name.startswith("momentum_buffer/")}
    assert moved
    assert all(name.startswith("momentum_buffer/blocks.") for name in moved)
    run.load_model()
