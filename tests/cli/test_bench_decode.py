"""`nadaraya bench decode` through the command line, at tiny sizes."""

import json
from pathlib import Path
from typing import Any

import pytest

TINY = (
    "--preset", "demo", "--option", "num_hidden_layers=1", "--option", "hidden_size=32", "--device", "cpu",
    "--batch", "2", "--prompt", "6", "--tokens", "3", "--rounds", "1",
)  # fmt: skip


def test_a_line_for_one_tensor_and_one_for_two_and_a_file(nadaraya: Any, tmp_path: Path) -> None:
    path = tmp_path / "decode.json"
    outcome = nadaraya("bench", "decode", "gka-bank", "rope", *TINY, "--padded", "--out", path)
    assert outcome.status == 0
    lines = [line.split() for line in outcome.out.splitlines() if "dynamic" in line or "static" in line]
    assert [(line[0], line[1], line[2]) for line in lines] == [
        ("gka-bank", "dynamic", "two"), ("gka-bank", "dynamic", "one"),
        ("gka-bank", "static", "two"), ("gka-bank", "static", "one"),
        ("rope", "dynamic", "two"), ("rope", "static", "two"),
    ]  # fmt: skip
    assert max(map(len, outcome.out.splitlines())) <= 80
    written = json.loads(path.read_text())
    assert written["settings"]["padded"] is True
    assert written["settings"]["options"] == {"num_hidden_layers": 1, "hidden_size": 32}
    assert [row["cache_ratio"] for row in written["rows"]] == [None, 0.5, None, 0.5, None, None]
    assert "transformers" in written["environment"]


def test_json_of_a_preset_with_windows(nadaraya: Any) -> None:
    shape = (
        "--option",
        "hidden_size=32",
        "--option",
        "num_attention_heads=2",
        "--option",
        "sliding_window=4",
    )
    sizes = ("--vocabulary", "20", "--device", "cpu", "--batch", "1", "--prompt", "8", "--tokens", "2")
    outcome = nadaraya(
        "bench",
        "decode",
        "nano-d2-gka-bank",
        *shape,
        *sizes,
        "--caches",
        "dynamic",
        "--rounds",
        "1",
        "--json",
    )
    two, one = json.loads(outcome.out)["rows"]
    assert two["cache_bytes"] == 2 * one["cache_bytes"] == 2 * 4 * 32 * (10 + 4)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["gka-bnk"], "did you mean 'gka-bank'"),
        (["nano-d0"], "the depth of preset nano-dN must be a whole number from 1 to 999"),
        (["--caches", "statik"], "did you mean 'static'"),
        (["--precision", "fp8"], "precision must be one of 'bfloat16', 'float32', got 'fp8'"),
        (["--option", "window_patern=SL"], "did you mean 'window_pattern'"),
        (["--option", "window_pattern=3"], "window_pattern must be text, got 3"),
        (["--batch", 10**9], "reduce --batch, --prompt or the model"),
    ],
)
def test_bad_input_is_one_line_and_status_2(nadaraya: Any, arguments: list[Any], message: str) -> None:
    nadaraya("bench", "decode", "--device", "cpu", *arguments).refuses(message)
