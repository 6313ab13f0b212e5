"""`nadaraya demo`: the whole main job in small, and what happens when it is run again."""

from pathlib import Path
from typing import Any

import pytest

from nadaraya.training import load_recipe


@pytest.mark.slow
def test_demo_trains_compares_and_reports(
    nadaraya: Any, tiny: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def small(source: str, overrides: list[str]) -> Any:
        return load_recipe(source, [*tiny[1:], *overrides])

    monkeypatch.setattr("nadaraya.training.load_recipe", small)
    out = tmp_path / "demo"
    first = nadaraya("demo", "--steps", "2", "--out", out)
    assert first.status == 0
    for variant in ("rope", "gpa-rope", "gpa-spread"):
        assert variant in first.out
        assert (out / variant / "model.safetensors").exists()
    page = (out / "report.html").read_text(encoding="utf-8")
    assert "Lag kernels" in page
    models = {path: path.stat().st_mtime_ns for path in out.glob("*/model.safetensors")}
    again = nadaraya("demo", "--steps", "2", "--out", out)
    assert again.status == 0
    assert "finished already" in again.err
    assert {path: path.stat().st_mtime_ns for path in out.glob("*/model.safetensors")} == models


def test_another_configuration_in_the_folder_is_refused(nadaraya: Any, tmp_path: Path) -> None:
    (tmp_path / "demo" / "rope").mkdir(parents=True)
    (tmp_path / "demo" / "rope" / "config.yaml").write_text("seed: 7\n")
    outcome = nadaraya("demo", "--steps", "2", "--out", tmp_path / "demo")
    assert outcome.status == 2
    assert outcome.err.startswith("error: ")
    assert outcome.err.count("\n") == 1
    assert "rope has a run with name = 'run', not 'demo-rope'" in outcome.err
