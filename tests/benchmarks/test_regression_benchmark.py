"""The regression benchmark at tiny sizes: every path runs and agrees; nothing counts as a measurement."""

import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from scripts import run_script

pytest.importorskip("numba")

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
SCRIPT = BENCHMARKS / "regression.py"


def load_script() -> ModuleType:
    """The script as a module under a name of its own: other folders have a regression.py too."""
    specification = importlib.util.spec_from_file_location("regression_benchmark", SCRIPT)
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    path = tmp_path_factory.mktemp("regression") / "results.json"
    # Memory, which starts a process a case, has a test of its own.
    parts = ["--only", "selection", "prediction", "line"]
    run_script(SCRIPT, "--quick", "--runs", "1", "--json", path, *parts)
    return json.loads(path.read_text())


@pytest.mark.slow
def test_all_contenders_predict_what_brute_force_does(results: dict[str, Any]) -> None:
    for title, case in results["prediction"].items():
        bound = 1e-4 if "float32" in title else 1e-12
        assert {"nadaraya", "PyTorch, matrix products", "PyTorch, cdist"} <= set(case["agreement"])
        for name, row in case["agreement"].items():
            assert row["error"] < bound, (title, name)
            assert row["difference"] < bound, (title, name)
        assert set(case["failed"]) <= {"KeOps"}
    assert max(results["line"]["error"].values()) < 1e-9


@pytest.mark.slow
def test_both_selections_reach_the_same_minimum(results: dict[str, Any]) -> None:
    minimum = results["selection"]["minimum"]
    if "statsmodels KernelReg, cv_ls" not in minimum:
        pytest.skip(results["selection"]["failed"]["statsmodels KernelReg, cv_ls"])
    scores = [row["leave_one_out"] for row in minimum.values()]
    assert max(scores) < min(scores) * (1 + 1e-5)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU to run on")
@pytest.mark.slow
def test_without_a_gpu_one_line_and_status_2(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        run_script(SCRIPT, "--device", "cuda")
    assert ended.value.code == 2
    shown = capsys.readouterr().err
    assert shown.count("\n") == 1
    assert "no CUDA device" in shown


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peaks are read from Linux's /proc")
@pytest.mark.slow
def test_the_peak_of_a_process_is_no_less_than_what_its_imports_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import regression_cases

    peaks = load_script().memory(regression_cases.QUICK, 1, only=("selection",))
    assert list(peaks) == ["selection"]
    assert 0 < peaks["selection"]["imported"] <= peaks["selection"]["peak"] < 4096
