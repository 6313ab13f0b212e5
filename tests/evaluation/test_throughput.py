"""Throughput of image models at tiny sizes: every path runs; nothing counts as a measurement."""

import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("timm")

from nadaraya.errors import InputError
from nadaraya.evaluation import throughput, vision_steps
from nadaraya.evaluation.throughput import Grid, deit_and_gka, measure, ratios
from nadaraya.evaluation.vision_steps import Case, make_step, process_peak

DEIT, GKA = deit_and_gka("tiny")
TINY: dict[str, Any] = {"image_size": 16, "options": {"depth": 1, "patch_size": 8, "num_classes": 5}}


def grid(**changes: Any) -> Grid:
    small = {"batch_sizes": (1, 2), "train_batch_sizes": (2,), "rounds": 2, "warmup": 0, "memory": False}
    return Grid(**{"models": (DEIT, GKA), **small, **TINY, **changes})


def test_every_cell_has_both_models_and_ratios_are_those_of_the_rows() -> None:
    saved: list[int] = []
    lines: list[str] = []
    results = measure(grid(), lines.append, lambda part: saved.append(len(part["inference"])))
    assert saved == [0, 1, 2]  # training comes first
    assert len(lines) == 3
    assert list(results["inference"]) == ["1", "2"]
    assert list(results["training"]) == ["2"]
    for mode in ("inference", "training"):
        for batch, cell in results[mode].items():
            assert list(cell) == [DEIT, GKA]
            for row in cell.values():
                assert 0 < row["low"] <= row["images_per_second"] <= row["high"]
                assert row["images_per_second"] == pytest.approx(1e3 * int(batch) / row["median_ms"])
            speed = cell[GKA]["images_per_second"] / cell[DEIT]["images_per_second"]
            assert results["ratios"][mode][batch] == {GKA: {"speed": pytest.approx(speed)}}
    best = max(cell[GKA]["images_per_second"] for cell in results["inference"].values())
    assert results["peak"][GKA]["images_per_second"] == best


def test_an_update_trains_and_a_forward_pass_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[torch.nn.Module] = []
    create = vision_steps.create_image_model

    def keep(*args: Any, **kwargs: Any) -> torch.nn.Module:
        made.append(create(*args, **kwargs))
        return made[-1]

    monkeypatch.setattr(vision_steps, "create_image_model", keep)
    for mode, changes in (("inference", False), ("training", True)):
        step = make_step(Case(GKA, mode, 2, **TINY))
        before = {name: tensor.clone() for name, tensor in made[-1].named_parameters()}
        step()
        for name, tensor in made[-1].named_parameters():
            assert torch.equal(tensor, before[name]) != changes, name


def test_bfloat16_inference_keeps_kernels_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[torch.nn.Module] = []
    create = vision_steps.create_image_model
    monkeypatch.setattr(
        vision_steps, "create_image_model", lambda *a, **k: made.append(create(*a, **k)) or made[-1]
    )
    make_step(Case(GKA, "inference", 1, precision="bfloat16", **TINY))()
    kinds = {name.split(".")[-1]: tensor.dtype for name, tensor in made[0].named_parameters()}
    assert kinds["log_bandwidth"] == torch.float32
    assert kinds["weight"] == torch.bfloat16


def test_what_runs_out_of_memory_is_an_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    make = throughput.make_step

    def too_large(case: Case) -> Any:
        if case.batch > 1 and case.model == GKA:
            raise torch.OutOfMemoryError("tried to allocate too much\nand more")
        return make(case)

    monkeypatch.setattr(throughput, "make_step", too_large)
    results = measure(grid())
    for mode in ("inference", "training"):
        assert results[mode]["2"][GKA] == {"failed": "OutOfMemoryError: tried to allocate too much"}
        assert "images_per_second" in results[mode]["2"][DEIT]
        assert results["ratios"][mode]["2"] == {GKA: {}}
    assert results["peak"][GKA]["batch"] == 1


def test_memory_is_compared_at_one_batch_size_only() -> None:
    fast, small = (
        {"images_per_second": 20.0, "memory_mib": 4.0},
        {"images_per_second": 10.0, "memory_mib": 1.0},
    )
    results = {
        "settings": {"models": (DEIT, GKA)},
        "inference": {"8": {DEIT: fast, GKA: small}},
        "training": {},
        "peak": {DEIT: {"batch": 8, **fast}, GKA: {"batch": 4, **small}},
    }
    found = ratios(results)["inference"]
    assert found["8"] == {GKA: {"speed": 0.5, "memory": 0.25}}
    assert found["peak"] == {GKA: {"speed": 0.5}}


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="peaks are read from Linux's /proc")
@pytest.mark.slow
def test_the_peak_of_a_process_grows_with_the_batch() -> None:
    size: dict[str, Any] = {"image_size": 64, "options": {"depth": 1}}
    few, many = (process_peak(Case(DEIT, "inference", batch, **size))["memory_mib"] for batch in (1, 256))
    pixels = 255 * 3 * 64**2 * 4 / 2**20
    assert many - few > pixels


def test_a_process_that_is_ended_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = subprocess.CompletedProcess([], -9, "", "")
    monkeypatch.setattr(vision_steps.subprocess, "run", lambda *args, **kwargs: ended)
    assert process_peak(Case(DEIT, "inference", 1)) == {"memory_failed": "exit status -9"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"models": ()}, "at least one model"),
        ({"models": (DEIT, DEIT)}, "named twice"),
        ({"device": "tpu"}, "unknown device 'tpu'"),
        ({"precision": "float23"}, "did you mean 'float32'"),
        ({"batch_sizes": (0,)}, "at least 1, got 0"),
        ({"rounds": 0}, "rounds must be at least 1"),
    ],
)
def test_a_grid_that_cannot_be_measured(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        grid(**changes)


def test_a_misspelt_model_ends_the_run() -> None:
    with pytest.raises(InputError, match="did you mean 'gka_tiny_patch16_224'"):
        measure(grid(models=(DEIT, "gka_tinny_patch16_224")))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu() -> None:
    with pytest.raises(InputError, match="no CUDA device"):
        grid(device="cuda")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_peak_memory_on_the_gpu_is_that_of_one_model() -> None:
    """Beside another model or alone, in any order: the peak is the same but for the allocator's rounding."""
    settings: dict[str, Any] = {
        "device": "cuda",
        "memory": True,
        "batch_sizes": (),
        "train_batch_sizes": (8,),
    }
    alone = measure(grid(models=(GKA,), **settings))["training"]["8"][GKA]["memory_mib"]
    beside = measure(grid(models=(GKA, DEIT), **settings))["training"]["8"][GKA]["memory_mib"]
    assert beside == pytest.approx(alone, rel=0.05, abs=0.5)
