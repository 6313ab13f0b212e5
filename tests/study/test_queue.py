"""The queue: order, failures, work that results bring, and stopping."""

import os
import signal
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from nadaraya.errors import InputError
from nadaraya.study import queue
from nadaraya.study.queue import Job, run_queue


def shell(name: str, script: str, folder: Path, cost: float = 0.0) -> Job:
    return Job(name, ["sh", "-c", script], folder / f"{name}.log", cost)


def test_the_cheapest_starts_first_and_a_failure_is_named_and_stops_nobody(tmp_path: Path) -> None:
    jobs = [
        shell("dear", "true", tmp_path, 3.0),
        shell("broken", "echo why; exit 2", tmp_path, 2.0),
        shell("cheap", "true", tmp_path, 1.0),
    ]
    said: list[str] = []
    ended = run_queue(lambda: jobs, say=said.append)
    assert ended.finished == ["cheap", "dear"]
    assert ended.failed == {"broken": f"status 2: see {tmp_path / 'broken.log'}"}
    assert (tmp_path / "broken.log").read_text() == "why\n"
    assert ended.stopped is None
    assert [line.split(":")[0] for line in said if line.endswith("started")] == ["cheap", "broken", "dear"]


def test_what_a_result_brings_is_run_too_and_nothing_twice(tmp_path: Path) -> None:
    first = shell("first", f"touch {tmp_path / 'found'}; echo once", tmp_path)
    second = shell("second", "true", tmp_path)
    ended = run_queue(lambda: [first, second] if (tmp_path / "found").exists() else [first])
    assert ended.finished == ["first", "second"]
    assert (tmp_path / "first.log").read_text() == "once\n"


def test_workers_run_at_the_same_time_and_share_the_threads_of_this_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # torch counts the cores that the process may use, not those of the machine.
    monkeypatch.setattr(torch, "get_num_threads", lambda: 7)
    # Each waits for the other: one at a time they would never end.
    scripts = {
        name: f"touch {tmp_path / name}; while [ ! -e {tmp_path / other} ]; do sleep 0.01; done; "
        "echo $OMP_NUM_THREADS"
        for name, other in (("a", "b"), ("b", "a"))
    }
    ended = run_queue(lambda: [shell(name, script, tmp_path) for name, script in scripts.items()], workers=2)
    assert sorted(ended.finished) == ["a", "b"]
    assert [(tmp_path / f"{name}.log").read_text() for name in scripts] == ["3\n", "3\n"]


def test_at_the_time_limit_jobs_are_asked_to_save_and_none_is_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ready = tmp_path / "ready"
    clock = SimpleNamespace(monotonic=lambda: 100.0 if ready.exists() else 0.0, sleep=time.sleep)
    monkeypatch.setattr(queue, "time", clock)
    script = f"trap 'echo saved; exit 143' TERM; touch {ready}; sleep 60 & wait"
    jobs = [shell("long", script, tmp_path), shell("later", "true", tmp_path, 1.0)]
    ended = run_queue(lambda: jobs, seconds=50)
    assert (ended.stopped, ended.finished, ended.failed) == ("limit", [], {})
    assert (tmp_path / "long.log").read_text() == "saved\n"
    assert not (tmp_path / "later.log").exists()


def test_a_signal_reaches_the_jobs_and_is_told(tmp_path: Path) -> None:
    script = "trap 'echo saved; exit 143' TERM; kill -TERM $PPID; sleep 60 & wait"
    ended = run_queue(lambda: [shell("long", script, tmp_path), shell("later", "true", tmp_path, 1.0)])
    assert (ended.stopped, ended.finished, ended.failed) == (signal.SIGTERM, [], {})
    assert (tmp_path / "long.log").read_text() == "saved\n"


def test_a_second_signal_ends_jobs_that_do_not_heed_the_first(tmp_path: Path) -> None:
    script = "trap 'kill -TERM $PPID' TERM; kill -TERM $PPID; while true; do sleep 0.1; done"
    jobs: list[Job] = [shell("deaf", f"echo $$; {script}", tmp_path)]
    with pytest.raises(KeyboardInterrupt):
        run_queue(lambda: jobs)
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "deaf.log").read_text().split()[0]), 0)


def test_no_workers_are_refused() -> None:
    with pytest.raises(InputError, match="workers must be a positive integer, got 0"):
        run_queue(lambda: [], workers=0)
