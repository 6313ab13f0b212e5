"""`nadaraya check`: its words, its JSON, its exit status, and the table that it writes."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from nadaraya.attention import measured, sdpa
from nadaraya.attention.arguments import AttentionArguments
from nadaraya.attention.kinds import arguments, drawn
from nadaraya.attention.reference import attention
from nadaraya.checking import grid, ways
from nadaraya.stored import read_stored

DEVICE = torch.device("cpu")


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Three features, one shape, a cache folder of the test."""
    monkeypatch.setattr(
        grid, "FEATURES", {name: grid.FEATURES[name] for name in ("bank", "Gaussian", "padding")}
    )
    monkeypatch.setattr(grid, "_TIMED", ("bank",))
    monkeypatch.setattr(grid, "_QUICK_SHAPES", ((1, 2, 32, 16),))
    monkeypatch.setitem(grid.SHAPES, "cpu", ((1, 2, 32, 16), (1, 2, 64, 16)))
    monkeypatch.setenv("NADARAYA_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)  # where tests of its kernels run beside


def test_quick_says_in_ten_lines_what_was_found_and_writes_no_table(nadaraya: Any, tmp_path: Path) -> None:
    outcome = nadaraya("check", "--device", "cpu", "--quick", "--out", tmp_path / "check.json")
    assert outcome.status == 0
    table, verdict = outcome.out.split("\ndevice ")
    assert "bank" in table
    assert len(verdict.splitlines()) < 10
    assert "\nall 12 calls right, errors at most " in verdict
    assert " × the fastest known way" in verdict
    assert not measured.table_path(DEVICE).exists()
    found = read_stored(tmp_path / "check.json", grid.Check, "a check")
    assert {call.backend for call in found.calls} == {"dense", "sdpa"}
    assert {call.dtype for call in found.calls} == {"float32", "bfloat16"}
    assert {row.way for row in found.rows} == {"dense", "sdpa", "PyTorch, N × N bias", "plain formula"}
    assert all(row.ms > 0 for row in found.rows)


def test_shapes_that_are_named_are_timed_in_both_dtypes(nadaraya: Any, tmp_path: Path) -> None:
    outcome = nadaraya("check", "--device", "cpu", "--quick", "--shape", "1,2,16,8", "--json")
    timed = {(row["keys"], row["width"], row["dtype"]) for row in json.loads(outcome.out)["rows"]}
    assert timed == {(32, 16, "float32"), (16, 8, "float32"), (16, 8, "bfloat16")}
    nadaraya("check", "--shape", "1,2,16").refuses("--shape must be four numbers from 1 on")
    nadaraya("check", "--shape", "1,2,0,8").refuses("--shape must be four numbers from 1 on")


def test_the_whole_check_writes_the_table_that_auto_reads(
    nadaraya: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcome = nadaraya("check", "--device", "cpu", "--json")
    assert outcome.status == 0
    path = measured.table_path(DEVICE)
    assert json.loads(path.read_text()) == json.loads(outcome.out)
    times, wrong = measured._read(path, measured.identity(DEVICE))
    assert {kind: set(sizes) for kind, sizes in times.items()} == {
        ("table", False, "float32"): {(2, 32, 16), (2, 64, 16)},
        ("bank", True, "float32"): {(2, 32, 16), (2, 64, 16)},
    }
    assert not wrong
    dtypes = {call["dtype"] for call in json.loads(outcome.out)["calls"]}
    assert dtypes == {"float32", "bfloat16", "float16"}


@pytest.mark.parametrize("broken", ["wrong", "raises", "nan"])
def test_a_wrong_backend_is_named_ends_with_status_1_and_is_not_in_the_table(
    broken: str, nadaraya: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = sdpa.attention

    def wrong(
        args: AttentionArguments, with_lse: bool = False, keep: bool = False
    ) -> tuple[Tensor, Tensor | None]:
        out, lse = right(args, with_lse, keep)
        if args.bandwidth is not None or args.lag_logits is None:
            return out, lse
        if broken == "raises":
            raise RuntimeError("no kernel image\nis available")
        return (out * 1.05 if broken == "wrong" else out * torch.nan), lse

    monkeypatch.setattr(sdpa, "attention", wrong)
    outcome = nadaraya("check", "--device", "cpu")
    assert outcome.status == 1
    words = {"wrong": "error 0.0", "raises": "RuntimeError: no kernel image", "nan": "error None"}[broken]
    assert "\n24 of 72 calls wrong\nwrong: dense, bank, float32, width 64: " + words in outcome.out
    rows = json.loads(measured.table_path(DEVICE).read_text())["rows"]
    assert {row["way"] for row in rows} == {"PyTorch, N × N bias", "plain formula"}
    _, wrong = measured._read(measured.table_path(DEVICE), measured.identity(DEVICE))
    assert wrong == {("dense", "table"), ("sdpa", "table")}


def test_what_was_found_is_kept_where_the_table_cannot_be_written(
    nadaraya: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("NADARAYA_CACHE", str(tmp_path / "file"))
    outcome = nadaraya("check", "--device", "cpu", "--out", str(tmp_path / "found.json"))
    assert outcome.status == 2
    assert json.loads((tmp_path / "found.json").read_text())["rows"]


def test_a_device_without_a_check_is_refused(nadaraya: Any) -> None:
    nadaraya("check", "--device", "tpu").refuses("--device must be one of")


def test_other_ways_are_the_definition(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    seen = set()
    for feature in grid._TIMED:
        for gradients in (False, True):
            kind = grid.kind_of(feature, torch.float32, 16, gradients)
            args = arguments(kind, drawn(kind, 2, 2, 32))
            for name, way in ways.others(args).items():
                torch.testing.assert_close(
                    way(), attention(args).out, rtol=1e-5, atol=1e-5, msg=f"{feature}: {name}"
                )
                seen.add((kind.name, name))
    assert len(seen) == 2 * 9 + 1


@pytest.mark.slow
def test_flex_attention_is_the_definition(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    for feature in ("dot product", "bank", "excluded self", "window"):
        kind = grid.kind_of(feature, torch.float32, 16, gradients=False)
        args = arguments(kind, drawn(kind, 2, 2, 64))
        (way,) = ways.flex(args).values()
        with torch.no_grad():
            torch.testing.assert_close(way(), attention(args).out, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_ways_that_are_compiled_take_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    for gradients in (False, True):
        kind = grid.kind_of("bank", torch.float32, 16, gradients)
        rows, failed = grid.time_ways(kind, (1, 2, 16), DEVICE, set(), compiled=True)
        timed = {row.way for row in rows}
        assert {f"{name}, compiled" for name in ("dense", "sdpa", ways.PLAIN)} <= timed
        assert (ways.FLEX in timed) == (not gradients)
        assert set(failed) == {ways.FLEX} - timed


@pytest.mark.slow
def test_every_feature_of_the_quick_check_is_right_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    calls = [call for kind in grid.kinds(quick=True) for call in grid.check(*kind, DEVICE)]
    assert {call.feature for call in calls} == set(grid.FEATURES)
    assert {"sdpa", "sum", "chunks", "fft"} <= {call.backend for call in calls}
    assert [call for call in calls if not call.right] == []
