"""`nadaraya study`: the plan, a whole study in small, errors in one line."""

import json
from pathlib import Path
from typing import Any

import pytest

KEYS: dict[str, Any] = {
    "recipe": "recipe.yaml",
    "baseline": "rope",
    "variants": {"rope": {}, "gka": {"model.variant": "gka-loo-bank"}},
    "sizes": {"small": {"training.steps": 6}, "large": {"training.steps": 8, "model.hidden_size": 32}},
    "seeds": [0],
    "learning_rates": [0.01],
}
RECIPE = {
    "model": {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2},
    "data": {"context": 16, "limit": 9000},
    "training": {
        "batch_size": 2, "warmup_steps": 0, "evaluate_every": 3, "validation_batches": 1,
        "sample_characters": 0,
    },
}  # fmt: skip


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "recipe.yaml").write_text(json.dumps(RECIPE))
    path = tmp_path / "study.yaml"
    path.write_text(json.dumps(KEYS))
    return path


def test_a_dry_run_shows_what_would_be_trained_and_trains_nothing(
    nadaraya: Any, file: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    plan = json.loads(nadaraya("study", file, "--out", out, "--dry-run", "--json").out)
    rope, gka, *_ = plan["cells"]
    assert [(cell["size"], cell["variant"], cell["runs_left"]) for cell in plan["cells"]] == [
        (size, variant, 1) for size in ("small", "large") for variant in ("rope", "gka")
    ]
    assert gka["steps"] > rope["steps"] == 6
    assert gka["parameters"] < rope["parameters"]
    assert plan["hours"] > 0
    assert plan["hours"] == pytest.approx(sum(cell["hours"] for cell in plan["cells"]))
    assert not (out / "runs").exists()
    shown = nadaraya("study", file, "--out", out, "--dry-run", "--only", "gka", "--speed", "1e6").out
    assert "rope" not in shown
    assert "2 runs are left" in shown


@pytest.mark.slow
def test_a_study_is_trained_goes_on_and_is_summarised(nadaraya: Any, file: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    none = nadaraya("study", file, "--out", out, "--hours", "1e-9")
    assert none.status == 0
    assert "4 runs are left: the same command goes on" in none.err
    part = nadaraya("study", file, "--out", out, "--only", "rope", "--workers", "2")
    assert part.status == 0
    done = (out / "runs/small/rope/lr0.01-seed0.json").stat().st_mtime_ns
    broken = out / "runs/large/gka/lr0.01-seed0"
    broken.mkdir(parents=True)
    (broken / "mine.txt").write_text("not a run folder")
    failed = nadaraya("study", file, "--out", out, "--workers", "2")
    assert failed.status == 1
    assert "error: large/gka/lr0.01-seed0 failed with status 2: see " in failed.err
    assert "`gka` is not told apart from `rope` (1 size, 1 seed" in failed.out
    (broken / "mine.txt").unlink()
    whole = nadaraya("study", file, "--out", out, "--json")
    assert whole.status == 0
    assert (out / "runs/small/rope/lr0.01-seed0.json").stat().st_mtime_ns == done
    assert {name: len(cells) for name, cells in json.loads(whole.out)["cells"].items()} == {
        "rope": 2, "gka": 2,
    }  # fmt: skip
    again = nadaraya("study", file, "--out", out, "--summarise")
    assert again.out.splitlines()[-1] == f"summary: {out / 'summary.md'}"
    assert "with" in again.out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["absent.yaml"], ["absent.yaml"]),
        (["--only", "gkaa"], ["--only must be one of", "did you mean 'gka'"]),
        (["--hours", "0"], ["--hours must be a positive finite number"]),
        (["--summarise"], ["has no results of a study"]),
        (["model.varaint=gka"], ["did you mean 'model.variant'"]),
    ],
)
def test_what_cannot_be_is_one_line(
    nadaraya: Any, file: Path, tmp_path: Path, arguments: list[str], words: list[str]
) -> None:
    given = arguments if arguments[0].endswith(".yaml") else [str(file), *arguments]
    nadaraya("study", *given, "--out", tmp_path / "out").refuses(*words)
    assert not (tmp_path / "out" / "runs").exists()
