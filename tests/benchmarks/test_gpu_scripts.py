"""The GPU benchmarks' scripts at work on the CPU: every path runs, nothing counts as a measurement."""

import json
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from scripts import run_script

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(autouse=True)
def _scripts_import_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))


def run_attention(results: Path) -> str:
    return run_script(BENCHMARKS / "attention.py", "--device", "cpu", "--quick", "--json", results)


@pytest.fixture(scope="module")
def results_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("attention") / "results.json"
    run_attention(path)
    return path


@pytest.fixture
def results(results_file: Path) -> dict[str, Any]:
    return json.loads(results_file.read_text())


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
        errors = results["checks"]["accuracy"][part]["nadaraya"]
        assert {"output", *names} <= set(errors)
        assert all(error < 2**-7 for error in errors.values()), part  # bfloat16 keeps 8 bits
    repeats = results["checks"]["determinism"].values()
    assert all(row == {"nadaraya": {"identical": True}} for row in repeats)


@pytest.mark.slow
def test_a_run_that_was_stopped_goes_on_where_it_was(results_file: Path, results: dict[str, Any]) -> None:
    last = list(results["cases"])[-1]
    partial = {**results, "cases": {name: row for name, row in results["cases"].items() if name != last}}
    results_file.write_text(json.dumps(partial))
    assert run_attention(results_file).count("###") == 1
    again = json.loads(results_file.read_text())
    assert set(again["cases"]) == set(results["cases"])
    del again["cases"][last]
    assert again == partial


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU to run on")
@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "options"),
    [("gpu.py", ["--out", "."]), ("attention.py", []), ("vit.py", ["--device", "cuda"])],
)
def test_without_a_gpu_one_line_and_status_2(
    script: str,
    options: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        run_script(BENCHMARKS / script, *options)
    assert ended.value.code == 2
    assert "no CUDA device" in capsys.readouterr().err.splitlines()[-1]
    assert not list(tmp_path.iterdir())


def test_every_step_writes_its_own_result_and_only_what_has_its_data_is_planned(tmp_path: Path) -> None:
    from gpu import plan

    without = plan(tmp_path, quick=False)
    everything = plan(tmp_path, quick=False, images="cifar10.npz", dickens=tmp_path)
    extra = set(everything) - set(without)
    assert {name.split("-")[0] for name in extra} == {"loading", "vision", "dickens"}
    assert list(without)[:3] == ["check", "tests", "attention-main"]
    for name, arguments in everything.items():
        if name not in ("tests", "vision"):
            assert str(tmp_path / f"{name}.json") in arguments
    assert "--compile" in everything["vit-base"]
    assert "--compile" not in everything["vit-eager-base"]


@pytest.mark.parametrize("quick", [True, False])
def test_every_step_is_asked_for_what_its_script_takes(quick: bool, tmp_path: Path) -> None:
    from gpu import plan

    steps = plan(tmp_path, quick=quick, images="cifar10.npz", dickens=tmp_path)
    del steps["check"], steps["tests"]
    for script, *arguments in steps.values():
        source = Path(script).read_text()
        options = [word for word in arguments if word.startswith("--")]
        assert [option for option in options if f'"{option}"' not in source] == [], script


# Stops the program that started it, the first time that it runs.
STOPPING = """
import os, pathlib, signal, time
try:
    pathlib.Path({file!r}).touch(exist_ok=False)
except FileExistsError:
    raise SystemExit
os.kill(os.getppid(), signal.SIGTERM)
time.sleep(600)
"""


@pytest.mark.slow
def test_a_stopped_run_keeps_what_was_done_and_the_next_call_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import gpu

    steps = {
        "tests": gpu.plan(tmp_path, quick=True)["tests"],
        "stopping": ["-c", STOPPING.format(file=str(tmp_path / "stopped"))],
        "last": ["-c", ""],
    }
    monkeypatch.setattr(gpu, "plan", lambda *_, **__: steps)

    def call(*options: str) -> tuple[Any, dict[str, Any]]:
        monkeypatch.setattr(sys, "argv", ["gpu.py", "--out", str(tmp_path), "--quick", *options])
        before = signal.getsignal(signal.SIGTERM)
        try:
            with pytest.raises(SystemExit) as ended:
                gpu.main()
        finally:
            signal.signal(signal.SIGTERM, before)
        return ended.value.code, json.loads((tmp_path / "steps.json").read_text())["steps"]

    status, stopped = call()
    assert status == 128 + signal.SIGTERM
    assert [step["status"] for step in stopped.values()] == ["done", "interrupted", "waiting"]
    # In a call without time nothing is started, and that is no failure.
    assert call("--minutes", "0") == (3, stopped)
    capsys.readouterr()
    status, done = call()
    assert status == 0
    assert [line.split(":")[0] for line in capsys.readouterr().out.splitlines()[:-1]] == ["last", "stopping"]
    assert {name: step["attempts"] for name, step in done.items()} == {"tests": 1, "stopping": 2, "last": 1}
