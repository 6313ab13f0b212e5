"""The benchmark of image models at tiny sizes, its targets and its part of the GPU run's summary."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("timm")

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(autouse=True)
def _scripts_import_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))


def results(device: str, speed: float, memory: float) -> dict[str, Any]:
    ratio = {"gka_tiny_patch16_224": {"speed": speed, "memory": memory}}
    sizes = {"tiny": {"ratios": {"inference": {"peak": ratio}, "training": {"64": ratio, "128": ratio}}}}
    return {"settings": {"device": device, "counts": True}, "sizes": sizes}


@pytest.mark.parametrize(
    ("device", "speed", "memory", "met"),
    [("cuda", 1.3, 0.8, 5), ("cuda", 1.17, 0.8, 4), ("cuda", 1.0, 0.9, 0), ("cpu", 1.1, 2.0, 3)],
)
def test_targets_of_the_device_and_size_are_judged_by_the_ratios(
    device: str, speed: float, memory: float, met: int
) -> None:
    from vit_targets import judge

    rows = judge(results(device, speed, memory))
    tiny = [row["status"] for row in rows if row["target"].startswith("tiny")]
    assert tiny.count("met") == met
    assert tiny.count("missed") == len(tiny) - met
    assert {row["status"] for row in rows if not row["target"].startswith("tiny")} == {"not measured"}


def test_what_failed_is_in_the_summary_with_its_reason(tmp_path: Path) -> None:
    from summary import summary_text

    row = {"images_per_second": 9.0, "low": 8.0, "high": 10.0, "host_ms": 1.0, "memory_failed": "no /proc"}
    part = {
        "settings": {"device": "cuda", "precision": "bfloat16", "compiled": True},
        "training": {"64": {"deit": row, "gka": {"failed": "OutOfMemoryError: too large"}}},
        "inference": {},
        "ratios": {"training": {"64": {"gka": {}}}, "inference": {}},
    }
    (tmp_path / "vit.json").write_text(json.dumps({"sizes": {"tiny": part}, "targets": []}))
    steps = [{"name": "vit", "status": "cut after 1 s", "seconds": 1.0}]
    text = summary_text(tmp_path, steps, {"device": "a GPU"}, quick=False)
    assert "- training at 64, gka: OutOfMemoryError: too large" in text
    assert "- memory of training at 64, deit: no /proc" in text
    assert "| deit" in text


@pytest.mark.slow
def test_tiny_sizes_run_and_measure_no_target(tmp_path: Path) -> None:
    path = tmp_path / "vit.json"
    command = [sys.executable, str(BENCHMARKS / "vit.py"), "--quick", "--sizes", "tiny", "--no-memory"]
    done = subprocess.run([*command, "--json", str(path)], check=True, capture_output=True, text=True)
    written = json.loads(path.read_text())
    assert written["targets"]
    assert all(row["status"] == "not measured" for row in written["targets"])
    models = ["deit_tiny_patch16_224", "gka_tiny_patch16_224"]
    for mode in ("inference", "training"):
        for cell in written["sizes"]["tiny"][mode].values():
            assert list(cell) == models
            assert all(row["images_per_second"] > 0 for row in cell.values())
    assert "peak (" in done.stdout
