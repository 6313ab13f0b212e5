"""`nadaraya search`: the cost, a whole search in small, errors in one line."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from nadaraya.study import worker
from nadaraya.study.queue import Ended, Job
from nadaraya.study.search import search_recipe

TINY = (
    "demo", "model.hidden_size=16", "model.num_hidden_layers=1", "model.num_attention_heads=2",
    "data.context=16", "data.limit=9000", "training.steps=2", "training.batch_size=2",
    "training.warmup_steps=0", "training.validation_batches=1", "training.sample_characters=0",
)  # fmt: skip


def test_a_dry_run_counts_runs_and_trains_nothing(nadaraya: Any, tmp_path: Path) -> None:
    out = tmp_path / "out"
    arguments = ("search", *TINY, "--out", out, "--dry-run", "--rounds", "1", "--speed", "1e9")
    cost = json.loads(nadaraya(*arguments, "--json").out)
    assert cost["runs_now"] == 6
    assert cost["runs_at_most"] > 8
    assert cost["hours"] == pytest.approx(cost["flops"] / 1e9 / 3600)
    assert "6 runs now, up to about" in nadaraya(*arguments).out
    assert not (out / "runs").exists()


def in_this_process(pending: Callable[[], Sequence[Job]], **options: Any) -> Ended:
    """The queue without processes, which take longer to start than these runs take."""
    ended = Ended(stopped="limit" if options["seconds"] else None)
    while ended.stopped is None and (jobs := pending()):
        for job in jobs:
            assert worker.main(job.command[-2], Path(job.command[-1])) == 0
            ended.finished.append(job.name)
    return ended


def test_a_search_is_trained_and_goes_on(
    nadaraya: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nadaraya.study.queue.run_queue", in_this_process)
    out = tmp_path / "out"
    arguments = ("search", *TINY, "--out", out, "--bases", "rq,8*exponential*periodic", "--rounds", "0")
    stopped = nadaraya(*arguments, "--hours", "1e-9")
    assert (stopped.status, stopped.out.splitlines()[0]) == (0, "No expression is confirmed yet.")
    done = nadaraya(*arguments, "--workers", "2", "--json")
    assert done.status == 0, done.err
    results = json.loads(done.out)
    assert results["ended"] == "after 0 rounds"
    assert [len(each["losses"]) for each in results["candidates"] if each["kept"]] == [3]
    again = nadaraya(*arguments)
    assert again.err == ""  # nothing was started
    assert again.out.startswith("Best of 2 expressions: `")
    assert {path.name for path in out.glob("*.*")} >= {"results.json", "summary.md", "path.png"}


def test_a_summary_comes_from_the_results_alone(nadaraya: Any, tmp_path: Path) -> None:
    nadaraya("search", "demo", "--summarise", "--out", tmp_path).refuses("has no results of a search")
    recipe = search_recipe("demo", ["model.hidden_size=8"]).to_mapping()
    losses = {"0": 2.0, "1": 2.25, "2": 2.75}
    found = {
        "search": {"bases": ["rq"], "rounds": 0},
        "recipe": recipe,
        "candidates": [{"expression": "rq", "losses": losses}],
    }
    (tmp_path / "results.json").write_text(json.dumps(found))
    done = nadaraya("search", "demo", "--summarise", "--out", tmp_path)
    assert done.status == 0, done.err
    assert done.out.startswith("Best of 1 expressions: `rq`, 2.5000 ± 0.3536 nats/token")
    assert done.out.splitlines()[0] in (tmp_path / "summary.md").read_text()
    assert (tmp_path / "path.png").is_file()
    found["search"]["bases"] = ["perodic"]
    (tmp_path / "results.json").write_text(json.dumps(found))
    nadaraya("search", "demo", "--summarise", "--out", tmp_path).refuses("did you mean 'periodic'")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--bases", "rq,perodic"], ["did you mean 'periodic'"]),
        (["--hours", "0"], ["--hours must be a positive finite number"]),
        (["model.varaint=gka"], ["did you mean 'model.variant'"]),
        (["model.variant_options.how=added"], ["how must be one of 'add', 'mix', 'multiply'"]),
    ],
)
def test_what_cannot_be_is_one_line(
    nadaraya: Any, tmp_path: Path, arguments: list[str], words: list[str]
) -> None:
    nadaraya("search", *TINY, *arguments, "--out", tmp_path / "out").refuses(*words)
    assert not (tmp_path / "out" / "runs").exists()
