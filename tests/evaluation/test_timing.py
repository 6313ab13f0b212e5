"""Timing side by side: turns, quartiles, and results that are whole."""

import json
import math
import time
from pathlib import Path

import pytest

from nadaraya.evaluation.timing import alternate, as_json, as_table, environment, why_it_fails, write_json


def test_cases_take_turns_and_warm_up_is_not_counted() -> None:
    calls: list[str] = []
    timings = alternate({"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, runs=3, warmup=2)
    assert calls == ["a", "b"] * 5
    assert [timing.runs for timing in timings.values()] == [3, 3]


def test_milliseconds_between_the_quartiles_of_a_known_wait() -> None:
    timing = alternate({"wait": lambda: time.sleep(0.02)}, runs=3, warmup=0)["wait"]
    assert 20 <= timing.low <= timing.median <= timing.high
    assert timing.host == pytest.approx(timing.median)


def test_a_single_run_is_its_own_quartiles() -> None:
    timing = alternate({"once": lambda: None}, runs=1, warmup=0)["once"]
    assert timing.low == timing.median == timing.high


def test_the_table_gives_ratios_to_the_base_where_that_ran() -> None:
    timings = alternate({"slow": lambda: time.sleep(0.02), "slower": lambda: time.sleep(0.06)}, 3, 0)
    *_, last = as_table(timings, "slow").splitlines()
    assert float(last.split()[-1].rstrip("×")) == pytest.approx(
        timings["slower"].median / timings["slow"].median, abs=0.01
    )
    assert "×" not in as_table(timings, "absent")


def test_a_failure_is_one_line() -> None:
    def fails() -> None:
        raise RuntimeError("first\nsecond")

    assert why_it_fails(fails) == "RuntimeError: first"
    assert why_it_fails(lambda: None) is None


def test_results_files_are_whole_and_plain(tmp_path: Path) -> None:
    path = tmp_path / "new" / "results.json"
    timings = alternate({"a": lambda: None}, runs=2)
    write_json(path, {"environment": environment(), "time_ms": as_json(timings)})
    read = json.loads(path.read_text())
    assert list(path.parent.iterdir()) == [path]
    assert math.isclose(read["time_ms"]["a"]["median"], timings["a"].median)
    assert {"processor", "threads", "torch", "device", "commit"} <= set(read["environment"])
