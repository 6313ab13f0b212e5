"""The benchmark of image models at tiny sizes."""

import json
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

pytest.importorskip("timm")

from nadaraya.evaluation.throughput import Throughput

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(autouse=True)
def _scripts_import_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))


def test_rows_and_failures_are_in_the_table() -> None:
    from vit import rows_text

    rows = [
        Throughput("deit", "training", 64, 9.0, 8.0, 10.0, 4.0, 1.0, 1.0),
        Throughput("vlt", "training", 64, 12.6, 11.0, 13.0, 3.0, 1.4, 0.75),
        Throughput("gka", "training", 64, failed="OutOfMemoryError: too large"),
    ]
    text = rows_text([asdict(row) for row in rows])
    assert "- gka, training, batch 64: OutOfMemoryError: too large" in text
    cells = next(line for line in text.splitlines() if line.startswith("| vlt")).split("|")
    expected = ["vlt", "training", "64", "12.6", "11.0–13.0", "1.40×", "3", "0.75×"]
    assert [cell.strip() for cell in cells[1:-1]] == expected


@pytest.mark.slow
def test_tiny_sizes_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import vit

    path = tmp_path / "vit.json"
    command = ["vit.py", "--quick", "--sizes", "tiny", "--no-memory", "--json", str(path)]
    monkeypatch.setattr(sys, "argv", command)
    vit.main()
    rows = json.loads(path.read_text())["rows"]
    models = ["deit_tiny_patch16_224", "gka_tiny_patch16_224"]
    for mode, batch in (("training", 2), ("inference", 2), ("inference", 4)):
        assert [row["model"] for row in rows if (row["mode"], row["batch"]) == (mode, batch)] == models
    assert [row["model"] for row in rows if row["mode"] == "peak"] == models
    assert all(row["images_per_second"] > 0 for row in rows)
    assert "| gka_tiny_patch16_224" in capsys.readouterr().out
