"""Throughput of image models at tiny sizes: every path runs; nothing counts as a measurement."""

from typing import Any

import pytest
import torch

pytest.importorskip("timm")

from nadaraya.errors import InputError
from nadaraya.evaluation import throughput
from nadaraya.evaluation.throughput import Settings, Throughput, deit_and_gka, make_step, measure, peaks
from nadaraya.models import vit
from nadaraya.models.vit import create_image_model

DEIT, GKA = deit_and_gka("tiny")


def tiny(**changes: Any) -> Settings:
    small: dict[str, Any] = {
        "image_size": 16,
        "options": {"depth": 1, "patch_size": 8, "num_classes": 5},
        "rounds": 2,
        "seconds": 1e-3,
        "memory": False,
    }
    return Settings(**{**small, **changes})


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[torch.nn.Module]:
    """The models that are built."""
    models: list[torch.nn.Module] = []

    def keep(*args: Any, **kwargs: Any) -> torch.nn.Module:
        models.append(create_image_model(*args, **kwargs))
        return models[-1]

    monkeypatch.setattr(vit, "create_image_model", keep)
    return models


@pytest.mark.parametrize("mode", ["inference", "training"])
def test_every_model_has_a_row_and_the_first_is_the_base(mode: str) -> None:
    rows = measure([DEIT, GKA], mode, 2, tiny(memory=True))
    assert [(row.model, row.mode, row.batch) for row in rows] == [(DEIT, mode, 2), (GKA, mode, 2)]
    for row in rows:
        assert row.failed is None
        assert row.speed_ratio == row.images_per_second / rows[0].images_per_second
        assert row.memory_ratio == row.memory_mib / rows[0].memory_mib
        assert 0 < row.low <= row.images_per_second <= row.high


def test_images_per_second_are_the_batch_over_the_quartiles_of_the_seconds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seconds = {DEIT: [0.1, 0.2, 0.3, 0.4, 0.5], GKA: [0.1]}
    monkeypatch.setattr(throughput, "alternate", lambda steps, _: {name: [seconds[name]] for name in steps})
    deit, gka = measure([DEIT, GKA], "inference", 3, tiny())
    assert (deit.low, deit.images_per_second, deit.high) == pytest.approx((3 / 0.4, 10.0, 15.0))
    assert (gka.low, gka.images_per_second, gka.high) == pytest.approx((30.0, 30.0, 30.0))
    assert (deit.speed_ratio, gka.speed_ratio) == pytest.approx((1.0, 3.0))


def test_models_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []

    def step(row: Throughput, settings: Settings) -> Any:
        return lambda: calls.append(row.model)

    monkeypatch.setattr(throughput, "make_step", step)
    measure([DEIT, GKA], "inference", 1, tiny(rounds=3))
    turns = [name for place, name in enumerate(calls) if place == 0 or calls[place - 1] != name]
    assert turns == [DEIT, GKA] * 4  # the first time to see that it runs


def test_memory_is_that_of_the_tensors_of_one_call() -> None:
    """Weights, images and activations; in training gradients and two moments per weight too."""

    def bytes_of(mode: str, batch: int) -> float:
        return measure([GKA], mode, batch, tiny(memory=True))[0].memory_mib * 2**20

    model = create_image_model(GKA, image_size=16, options=tiny().options)
    parameters = sum(p.numel() for p in model.parameters())
    batch = 3 * 16 * 16 * 4
    inference = bytes_of("inference", 8)
    assert inference > 4 * parameters + 8 * batch
    assert bytes_of("inference", 16) - inference > 8 * batch
    assert bytes_of("training", 8) > inference + 3 * 4 * parameters
    assert bytes_of("inference", 8) == inference


def test_an_update_trains_and_a_forward_pass_does_not(made: list[torch.nn.Module]) -> None:
    for mode, changes in (("inference", False), ("training", True)):
        step = make_step(Throughput(GKA, mode, 2), tiny())
        before = {name: tensor.clone() for name, tensor in made[-1].named_parameters()}
        step()
        for name, tensor in made[-1].named_parameters():
            assert torch.equal(tensor, before[name]) != changes, name


def test_bfloat16_inference_keeps_kernels_in_float32(made: list[torch.nn.Module]) -> None:
    make_step(Throughput(GKA, "inference", 1), tiny(precision="bfloat16"))()
    kinds = {name.split(".")[-1]: tensor.dtype for name, tensor in made[0].named_parameters()}
    assert kinds["log_bandwidth"] == torch.float32
    assert kinds["weight"] == torch.bfloat16


def test_what_runs_out_of_memory_is_a_row_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    make = throughput.make_step

    def too_large(row: Throughput, settings: Settings) -> Any:
        if row.model == GKA:
            raise torch.OutOfMemoryError("tried to allocate too much\nand more")
        return make(row, settings)

    monkeypatch.setattr(throughput, "make_step", too_large)
    deit, gka = measure([DEIT, GKA], "training", 2, tiny())
    assert deit.failed is None
    assert deit.images_per_second
    assert gka == Throughput(GKA, "training", 2, failed="OutOfMemoryError: tried to allocate too much")


def test_peaks_are_the_best_inference_and_memory_is_compared_at_one_batch_size_only() -> None:
    rows = [
        Throughput(DEIT, "training", 8, 99.0, memory_mib=9.0),
        Throughput(DEIT, "inference", 4, 15.0, memory_mib=3.0),
        Throughput(DEIT, "inference", 8, 20.0, memory_mib=4.0),
        Throughput(GKA, "inference", 4, 10.0, memory_mib=1.0),
        Throughput(GKA, "inference", 8, failed="OutOfMemoryError"),
    ]
    deit, gka = peaks(rows)
    assert (deit.mode, deit.batch, deit.speed_ratio, deit.memory_ratio) == ("peak", 8, 1.0, 1.0)
    assert (gka.mode, gka.batch, gka.speed_ratio, gka.memory_ratio) == ("peak", 4, 0.5, None)
    _, gka = peaks([*rows, Throughput(GKA, "inference", 8, 30.0, memory_mib=2.0)])
    assert (gka.batch, gka.speed_ratio, gka.memory_ratio) == (8, 1.5, 0.5)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"device": "tpu"}, "device must be one of 'cpu', 'cuda', got 'tpu'"),
        ({"precision": "float23"}, "did you mean 'float32'"),
        ({"rounds": 0}, "rounds must be a positive integer, got 0"),
    ],
)
def test_settings_that_are_not_accepted(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        tiny(**changes)


@pytest.mark.parametrize(
    ("models", "mode", "batch", "message"),
    [
        ([], "training", 1, "models must be at least one name"),
        ([DEIT, DEIT], "training", 1, "each given once"),
        ([DEIT], "traning", 1, "did you mean 'training'"),
        ([DEIT], "training", 0, "batch size must be a positive integer, got 0"),
        ([DEIT, "gka_tinny_patch16_224"], "inference", 1, "did you mean 'gka_tiny_patch16_224'"),
    ],
)
def test_what_cannot_be_measured(models: list[str], mode: str, batch: int, message: str) -> None:
    with pytest.raises(InputError, match=message):
        measure(models, mode, batch, tiny())


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu() -> None:
    with pytest.raises(InputError, match="no CUDA device"):
        tiny(device="cuda")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_peak_memory_on_the_gpu_is_that_of_one_model() -> None:
    """Beside another model or alone, in any order: the peak is the same but for the allocator's rounding."""
    settings = tiny(device="cuda", memory=True)
    alone = measure([GKA], "training", 8, settings)[0].memory_mib
    beside = measure([DEIT, GKA], "training", 8, settings)[1].memory_mib
    assert beside == pytest.approx(alone, rel=0.05, abs=0.5)
