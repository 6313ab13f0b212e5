"""Losses beyond the length of training come back as they were written, or are refused in one line."""

from pathlib import Path

import pytest

from nadaraya.errors import InputError
from nadaraya.stored import read_stored
from nadaraya.training.lengths import LengthTable, write_length_file

ROWS = [{"length": 1024, "full": 2.5, "window": 1.75}, {"length": 256, "full": 1.5}]


def test_what_was_written_is_read_shortest_length_first(tmp_path: Path) -> None:
    path = write_length_file(tmp_path, ROWS, context=256, window=128)
    table = read_stored(path, LengthTable, "losses by length")
    assert (table.context, table.window) == (256, 128)
    assert [(row.length, row.full, row.window) for row in table.rows] == [
        (256, 1.5, None),
        (1024, 2.5, 1.75),
    ]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], "rows must be"),
        ([{"full": 1.0}], "rows.0.length must be there"),
        ([{"length": 0}], "rows.0.length must be greater than 0, got 0"),
        ([{"length": 8, "full": float("nan")}], "rows.0.full must be"),
        ([{"length": 8, "window": "low"}], "rows.0.window must be a number, got 'low'"),
    ],
)
def test_other_rows_are_refused_and_the_file_stays(
    tmp_path: Path, rows: list[dict[str, float]], message: str
) -> None:
    before = write_length_file(tmp_path, ROWS, 256, 128).read_bytes()
    with pytest.raises(InputError, match=message) as refused:
        write_length_file(tmp_path, rows, 256, 128)
    assert "\n" not in str(refused.value)
    assert (tmp_path / "lengths.json").read_bytes() == before
