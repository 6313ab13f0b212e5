"""`nadaraya reproduce`: the list, the costs, a figure at its smallest scale, all of it anew from JSON."""

import json
from pathlib import Path
from typing import Any

import pytest

from nadaraya.reproduce import costs
from nadaraya.reproduce.catalogue import load_experiment
from nadaraya.study import worker
from nadaraya.study.queue import Ended

TINY = [
    "model.num_hidden_layers=1", "model.hidden_size=16", "data.context=32", "training.sample_characters=100",
]  # fmt: skip


@pytest.fixture
def in_process(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Workers are called in this process; the names of the runs that were started."""
    started: list[str] = []

    def run_queue(pending: Any, **options: Any) -> Ended:
        ended = Ended()
        while jobs := [job for job in pending() if job.name not in ended.finished]:
            for job in jobs:
                started.append(job.name)
                recipe, folder, *names = job.command[3:]
                assert worker.main(recipe, Path(folder), names) == 0
                ended.finished.append(job.name)
        return ended

    monkeypatch.setattr("nadaraya.study.queue.run_queue", run_queue)
    return started


def test_without_a_name_all_figures_are_listed(nadaraya: Any) -> None:
    listed = nadaraya("reproduce").out
    assert "gpa-losses: Gaussian Process Attention (anonymous), figure 2" in listed
    figures = {figure["name"]: figure for figure in json.loads(nadaraya("reproduce", "--json").out)}
    assert figures["kernel-bank-losses"]["document"] == "Bunks et al. (2025)"
    assert all(figure["claims"] or figure["name"] == "kernel-bank-shapes" for figure in figures.values())


def test_a_dry_run_at_the_papers_scale_needs_no_text(nadaraya: Any, tmp_path: Path) -> None:
    command = ["reproduce", "gpa-losses", "--scale", "paper", "--dry-run", "--out", tmp_path / "out"]
    plan = json.loads(nadaraya(*command, "--json", "--speed", "A100=1e14", "--seeds", "0,1").out)
    last = plan["cells"][-1]
    assert (last["size"], last["steps"], last["runs_left"]) == ("u200000", 200_000, 2)
    assert plan["flops"] == sum(cell["flops"] for cell in plan["cells"])
    assert plan["hours"]["A100"] == pytest.approx(plan["flops"] / 1e14 / 3600)
    gpa, rope = (
        next(c for c in plan["cells"] if c["variant"] == variant) for variant in ("gpa-rope", "rope")
    )
    assert gpa["parameters"] - rope["parameters"] == 4096
    # 6 P + 12 D N L per token, with the weights of linear maps P: 12 D² per block, and D times 93 tokens.
    per_token = 6 * (4 * 12 * 512**2 + 93 * 512) + 12 * 512 * 256 * 4
    assert last["flops"] == 2 * 200_000 * 256 * 256 * per_token
    assert last["memory_bytes"] > 16 * last["parameters"]
    assert not (tmp_path / "out").exists()


def test_a_horizon_of_some_variants_costs_what_they_cost() -> None:
    found = costs(load_experiment("papers", "cpu"), Path("absent"), only=["decay", "learned-rope"])
    runs = {(cost.cell.size, cost.cell.variant): cost.runs for cost in found}
    assert runs["u10000", "decay"] == 1
    assert ("u10000", "learned-rope") not in runs
    assert (runs["u300", "decay"], runs["u1000", "decay"]) == (3, 3 + 2)


@pytest.mark.slow
def test_a_figure_is_trained_drawn_compared_and_made_anew(
    nadaraya: Any, in_process: list[str], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    command = ["reproduce", "gpa-newlines", *TINY, "--out", out]
    first = nadaraya(*command, "--seeds", "0")
    assert first.status == 0, first.err
    cells = [f"{size}/{variant}" for size in ("u4", "u8") for variant in ("gpa-rope-paper", "gpa")]
    assert in_process == [f"{cell}/lr0.01-seed0" for cell in cells]
    # The seeds that are left stay those of the study.
    assert json.loads((out / "results.json").read_text())["study"]["seeds"] == [0, 1]
    # A context of 32 tokens says nothing of lag 70.
    assert first.out.count("not measured: ") == 2
    assert first.out.splitlines()[-1] == f"comparison: {out / 'comparison.md'}"
    assert nadaraya(*command).status == 0
    assert in_process[4:] == [f"{cell}/lr0.01-seed1" for cell in cells]
    rows = json.loads((out / "results.json").read_text())["runs"]
    probes = ["banks", "bumps", "newlines", "heads", "lengths", "implied"]
    assert [list(row.get("probes", ())) for row in rows] == [[]] * 4 + [probes] * 4
    text = (out / "comparison.md").read_text()
    # The other figures of the study that have runs are drawn and compared too.
    assert "## gpa-newlines: Gaussian Process Attention (anonymous), figure 5" in text
    assert "## gpa-banks" in text
    assert "kernel-bank" not in text
    made = sorted(path.name for path in out.glob("gpa-*.png"))
    assert made == [
        "gpa-banks-gpa-rope-paper.png",
        "gpa-losses.png",
        "gpa-newlines-gpa-rope-paper.png",
        "gpa-newlines-gpa.png",
    ]
    for path in (*out.glob("*.png"), out / "comparison.md"):
        path.unlink()
    again = json.loads(nadaraya("reproduce", "gpa-newlines", "--out", out, "--summarise", "--json").out)
    measured = [claim["agrees"] != "not measured" for claim in again["claims"]]
    assert measured == [True, True, True, False, True, False]
    assert (out / "comparison.md").read_text() == text
    assert sorted(path.name for path in out.glob("gpa-*.png")) == made


def test_the_control_trains_on_lines_of_another_length(
    nadaraya: Any, in_process: list[str], tmp_path: Path
) -> None:
    done = nadaraya("reproduce", "bump-control", *TINY, "--out", tmp_path / "out")
    assert done.status == 0, done.err
    rows = json.loads((tmp_path / "out/results.json").read_text())["runs"]
    peaks = rows[0]["probes"]["newlines"]["corpus"]["peaks"]
    assert max(peak["lag"] for peak in peaks) <= 51


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["gpa-loss"], ["figure must be one of", "did you mean 'gpa-losses'"]),
        (["gpa-losses", "--scale", "huge"], ["--scale must be one of 'cpu', 'gpu', 'paper', 'smoke'"]),
        (["gpa-losses", "--seeds", "0,0"], ["--seeds must be different whole numbers"]),
        (["gpa-losses", "--seeds", "a"], ["--seeds must be whole numbers"]),
        (["gpa-losses", "--hours", "0"], ["--hours must be a positive finite number"]),
        (["gpa-losses", "--dry-run", "--speed", "fast"], ["--speed must be DEVICE=FLOP/S"]),
        (["gpa-losses", "--summarise"], ["has no results of a study"]),
        (["gpa-losses", "model.varaint=gka"], ["did you mean 'model.variant'"]),
    ],
)
def test_what_cannot_be_is_one_line(
    nadaraya: Any, tmp_path: Path, arguments: list[str], words: list[str]
) -> None:
    nadaraya("reproduce", *arguments, "--out", tmp_path / "out").refuses(*words)
    assert not (tmp_path / "out" / "runs").exists()
