"""Timing side by side: turns, quartiles, and results that are whole."""

import itertools
import json
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(autouse=True)
def _scripts_import_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))


def _clock(monkeypatch: pytest.MonkeyPatch, durations: list[float]) -> None:
    """Make the calls take these seconds."""
    import timing

    pairs = [(0.0, seconds) for seconds in durations]
    monkeypatch.setattr(timing.time, "perf_counter", itertools.chain(*pairs).__next__)


def test_cases_take_turns_and_warm_up_is_not_counted() -> None:
    from timing import alternate

    calls: list[str] = []
    timings = alternate({"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, runs=3, warmup=2)
    assert calls == ["a", "b"] * 5
    assert [timing.runs for timing in timings.values()] == [3, 3]


def test_milliseconds_are_median_and_quartiles_of_the_counted_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    from timing import Timing, alternate

    _clock(monkeypatch, [9.0, 0.005, 0.001, 0.002, 0.004, 0.003])
    timing = alternate({"a": lambda: None}, runs=5, warmup=1)["a"]
    assert timing == Timing(pytest.approx(3.0), pytest.approx(2.0), pytest.approx(4.0), 5, pytest.approx(3.0))
    _clock(monkeypatch, [0.002])
    once = alternate({"once": lambda: None}, runs=1, warmup=0)["once"]
    assert once.low == once.median == once.high == pytest.approx(2.0)


def test_the_table_gives_ratios_to_the_base_where_that_ran() -> None:
    from timing import Timing, as_table

    timings = {name: Timing(median, median, median, 1, median) for name, median in (("a", 2.0), ("b", 5.0))}
    *_, last = as_table(timings, "a").splitlines()
    assert last.split()[-1] == "2.50×"
    assert "×" not in as_table(timings, "absent")


def test_a_failure_is_one_line() -> None:
    from timing import why_it_fails

    def fails() -> None:
        raise RuntimeError("first\nsecond")

    assert why_it_fails(fails) == "RuntimeError: first"
    assert why_it_fails(lambda: None) is None


def test_results_files_are_whole_and_plain(tmp_path: Path) -> None:
    from timing import alternate, as_json, environment, write_json

    path = tmp_path / "new" / "results.json"
    timings = alternate({"a": lambda: None}, runs=2)
    write_json(path, {"environment": environment(), "time_ms": as_json(timings)})
    read = json.loads(path.read_text())
    assert list(path.parent.iterdir()) == [path]
    assert read["time_ms"]["a"]["median"] == timings["a"].median
    assert {"processor", "threads", "torch", "device", "commit"} <= set(read["environment"])
