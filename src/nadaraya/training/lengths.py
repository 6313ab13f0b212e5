"""Losses beyond the length of training, full and with a sliding window: lengths.json of a run folder."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from nadaraya.files import write_file
from nadaraya.stored import Stored, checked
from nadaraya.training.folder import LENGTHS_FILE
from nadaraya.training.schema import PositiveInt

_Loss = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class LengthRow(Stored):
    """Losses of the same tokens at one length, in nats/token; None where it was not measured."""

    length: PositiveInt
    full: _Loss | None = None
    window: _Loss | None = None


class LengthTable(Stored):
    """Losses by length, of a model trained at `context` tokens, and with a window of `window` tokens."""

    context: PositiveInt
    window: PositiveInt
    rows: tuple[LengthRow, ...] = Field(min_length=1)

    def losses(self, kind: str) -> dict[int, float]:
        """The measured losses of a kind, "full" or "window", by length."""
        found = {row.length: getattr(row, kind) for row in self.rows}
        return {length: loss for length, loss in found.items() if loss is not None}


def write_length_file(folder: Path, rows: Sequence[Mapping[str, Any]], context: int, window: int) -> Path:
    """Write lengths.json, which `nadaraya report` shows, into a run folder; one that is there is replaced.

    Rows are {"length": 512, "full": 1.9, "window": 1.8}: losses in nats/token of full attention and of a
    sliding window, in any order; either loss may be left out. Returns the path of the file.
    """
    ordered = sorted((dict(row) for row in rows), key=lambda row: row.get("length", 0))
    given = {"context": context, "window": window, "rows": ordered}
    table = checked(given, LengthTable, "the losses by length cannot be written")
    path = Path(folder) / LENGTHS_FILE
    write_file(path, table.model_dump_json(indent=1) + "\n")
    return path
