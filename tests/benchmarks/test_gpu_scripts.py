"""The GPU benchmarks' scripts at work on the CPU: every path runs, nothing counts as a measurement."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(autouse=True)
def _scripts_import_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))


def command(script: str, *arguments: object) -> list[str]:
    return [sys.executable, str(BENCHMARKS / script), *map(str, arguments)]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    path = tmp_path_factory.mktemp("attention") / "results.json"
    arguments = command("attention.py", "--device", "cpu", "--quick", "--json", path)
    subprocess.run(arguments, check=True, capture_output=True)
    return json.loads(path.read_text())


@pytest.mark.slow
def test_every_case_has_ours_and_stock_with_ordered_positive_times(results: dict[str, Any]) -> None:
    from cases import all_cases

    assert list(results["cases"]) == [case.name for case in all_cases(quick=False)]
    for case in all_cases(quick=True):
        contenders = results["cases"][case.name]["contenders"]
        for name in ("nadaraya", "SDPA flash"):
            assert set(contenders[name]) == set(case.passes), case.name
            for row in contenders[name].values():
                assert 0 < row["low"] <= row["median"] <= row["high"], case.name
                assert row["tflops"] > 0


@pytest.mark.slow
def test_what_cannot_run_is_recorded_with_a_one_line_reason(results: dict[str, Any]) -> None:
    rows = results["cases"]["gpa-d64"]["contenders"]
    for name in ("SDPA cuDNN", "flash-attn 3", "FlexAttention, table with gradient"):
        for row in rows[name].values():
            assert set(row) == {"failed"}
            assert row["failed"].strip()
            assert "\n" not in row["failed"]


@pytest.mark.slow
def test_our_errors_are_those_of_rounding_and_gradients_repeat(results: dict[str, Any]) -> None:
    for part, names in {"dot": "qkv", "gpa": "qkv", "gka": "x"}.items():
        errors = results["accuracy"][part]["nadaraya"]
        assert {"output", *names} <= set(errors)
        assert all(error < 2**-7 for error in errors.values()), part  # bfloat16 keeps 8 bits
    assert all(row == {"identical": True} for row in results["determinism"].values())


@pytest.mark.slow
def test_tiny_shapes_measure_no_target(results: dict[str, Any]) -> None:
    assert results["targets"]
    assert all(row["status"] == "not measured" for row in results["targets"])
    assert all(row["measured"] is None for row in results["targets"])


@pytest.mark.parametrize(("ours", "status"), [(10.0, "met"), (20.0, "missed")])
def test_a_target_compares_with_the_fastest_stock_attention_of_its_case(ours: float, status: str) -> None:
    from targets import judge

    contenders = {
        "nadaraya": {"forward": {"median": ours}},
        "SDPA flash": {"forward": {"median": 30.0}},
        "SDPA cuDNN": {"forward": {"median": 12.0}},
        "SDPA efficient": {"forward": {"failed": "no such kernel"}},
        "flash-attn 3": {"forward": {"median": 1.0}},
    }
    run = {"settings": {"counts": True}, "cases": {"gka-d64": {"contenders": contenders}}}
    measured = [row for row in judge(run) if row["status"] != "not measured"]
    assert [(row["measured"], row["status"]) for row in measured] == [(12.0 / ours, status)]
    run["settings"] = {"counts": False}
    assert all(row["status"] == "not measured" for row in judge(run))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU to run on")
@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "options"),
    [("gpu.py", ["--out", "."]), ("attention.py", []), ("vit.py", ["--device", "cuda"])],
)
def test_without_a_gpu_one_line_and_status_2(script: str, options: list[str], tmp_path: Path) -> None:
    result = subprocess.run(command(script, *options), cwd=tmp_path, capture_output=True, text=True)
    assert result.returncode == 2
    assert result.stderr.count("\n") == 1
    assert "no CUDA device" in result.stderr
    assert not list(tmp_path.iterdir())


def test_a_run_measures_image_models_compiled_and_not(tmp_path: Path) -> None:
    from gpu import plan

    pytest.importorskip("timm")
    steps = {step.name: step for step in plan(tmp_path, tmp_path, quick=False, dickens=None)}
    assert list(steps).index("vit") < list(steps).index("attention-rest")
    for name, compiled in (("vit", True), ("vit-eager", False)):
        assert steps[name].skip is None
        assert ("--compile" in steps[name].command) == compiled
        assert str(tmp_path / f"{name}.json") in steps[name].command
    assert steps["vision"].skip == "no --images SOURCE"


@pytest.mark.slow
def test_the_study_of_images_is_asked_for_what_it_takes(tmp_path: Path) -> None:
    from gpu import plan

    steps = plan(tmp_path, tmp_path, quick=False, dickens=None, images="cifar10.npz")
    study = next(step for step in steps if step.name == "vision")
    assert study.skip is None
    script, recipe, *_ = study.command
    assert Path(recipe).is_file()
    help_text = subprocess.run([sys.executable, script, "--help"], check=True, capture_output=True, text=True)
    for word in study.command:
        if word.startswith("--"):
            assert word in help_text.stdout
    assert study.command[study.command.index("--source") + 1] == "cifar10.npz"


@pytest.mark.slow
def test_out_of_time_each_step_is_cut_or_skipped_and_the_summary_says_so(tmp_path: Path) -> None:
    options = ["--out", tmp_path, "--quick", "--minutes", "0.01"]
    result = subprocess.run(command("gpu.py", *options), capture_output=True, text=True)
    assert result.returncode == 1
    summary = (tmp_path / "summary.md").read_text()
    assert "cut after" in summary
    assert "no --dickens FOLDER" in summary
    assert "waiting" not in summary


@pytest.mark.slow
def test_a_terminated_run_keeps_what_was_done(tmp_path: Path) -> None:
    summary = tmp_path / "summary.md"
    process = subprocess.Popen(
        command("gpu.py", "--out", tmp_path, "--quick"),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    try:
        give_up = time.monotonic() + 400
        while not (tmp_path / "tests.json").exists() or "running" not in summary.read_text():
            assert process.poll() is None
            assert time.monotonic() < give_up
            time.sleep(0.1)
        process.send_signal(signal.SIGTERM)
        assert process.wait(120) == 130
    finally:
        process.kill()
    assert "interrupted" in summary.read_text()
    assert json.loads((tmp_path / "tests.json").read_text())["failed"] == []
    assert len(list(tmp_path.iterdir())) <= 8
