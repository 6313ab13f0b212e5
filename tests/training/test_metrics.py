"""metrics.jsonl survives being cut off; the meter names the step at which a loss stopped being a number."""

import json
import math
from pathlib import Path

import pytest
import torch

from nadaraya.errors import InputError
from nadaraya.training.metrics import Meter, Records, TrainingDiverged, read_metrics
from nadaraya.training.progress import TrainingProgress


def test_what_came_after_the_checkpoint_and_a_torn_line_are_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "metrics.jsonl"
    lines = [
        json.dumps({"kind": "train", "step": step, "loss": 1.0, "seconds": 0.1}) + "\n"
        for step in (1, 2, 3, 4)
    ]
    path.write_text("".join(lines) + '{"kind": "train", "st')
    assert [record["step"] for record in read_metrics(path)] == [1, 2, 3, 4]
    shown = TrainingProgress(False)
    monkeypatch.setattr(shown, "add", lambda *_: None)
    Records(tmp_path, 2, None, shown).add("validation", 3, {"loss": 0.1})
    assert read_metrics(path) == [*map(json.loads, lines[:2]), {"kind": "validation", "step": 3, "loss": 0.1}]


@pytest.mark.parametrize(
    "line",
    [
        '{"ste',
        "3",
        "[1, 2]",
        "[" * 9999,
        '{"kind": "validation", "step": 2}',
        '{"kind": "validation", "step": "2", "loss": 1.0}',
        '{"kind": "validation", "step": 2.5, "loss": 1.0}',
        '{"kind": "validation", "step": 2, "loss": null}',
        '{"kind": ["validation"], "step": 2, "loss": 1.0}',
        '{"kind": "test", "step": 2, "loss": 1.0}',
        '{"kind": "validation", "step": 0, "loss": 1.0}',
    ],
)
def test_a_line_that_is_no_record_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "metrics.jsonl"
    sound = '{"kind": "validation", "step": 1, "loss": 1.0}\n'
    path.write_text(f"{sound}{line}\n")
    with pytest.raises(InputError, match=r"metrics\.jsonl, line 2"):
        read_metrics(path)


def test_absent_metrics_are_none(tmp_path: Path) -> None:
    assert read_metrics(tmp_path / "metrics.jsonl") == []


def test_the_meter_gives_the_mean_since_the_last_record() -> None:
    meter = Meter([1.0], seconds=5.0)
    meter.add(torch.tensor(2.0), torch.tensor(7.0))
    meter.collect(step=2)
    meter.add(torch.tensor(6.0), torch.tensor(8.0))
    meter.collect(step=3)
    assert (meter.take(), meter.gradient_norm, meter.losses) == (3.0, 8.0, [])
    assert meter.seconds > 5.0


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("which", ["loss", "gradient norm"])
def test_the_first_bad_step_is_named(bad: float, which: str) -> None:
    meter = Meter([], seconds=0.0)
    good, wrong = torch.tensor(1.0), torch.tensor(bad)
    for pair in [(good, good), (wrong, good) if which == "loss" else (good, wrong), (wrong, wrong)]:
        meter.add(*pair)
    with pytest.raises(TrainingDiverged, match=f"the {which} became {bad} at step 11"):
        meter.collect(step=12)
