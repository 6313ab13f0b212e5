"""The table of figures that several verbs print, and the console for it."""

import os
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions
    from rich.table import Table


def wide_console() -> "Console":
    """A console for tables, which shows text as it is; in a file or another program COLUMNS wide, or 120."""
    from rich.console import Console

    console = Console(highlight=False, markup=False, emoji=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = 120
    return console


def cell(value: float | None, style: str, factor: float = 1) -> str:
    """A figure, times a factor, in a format; a dash for None."""
    return "–" if value is None else format(value * factor, style)


class FigureTable:
    """Rows of names and figures, readable at every width of a console.

    Columns of figures that do not fit beside the names follow below, with the names again. Figures stay on
    one line; names fold where they would take more than half of the width.
    """

    def __init__(self, names: Iterable[str], figures: Iterable[str]) -> None:
        self._names, self._figures = list(names), list(figures)
        self._rows: list[tuple[str, ...]] = []
        self._sections: set[int] = set()

    def add_row(self, *cells: str) -> None:
        """A row: its names, then its figures; those left out at the end are empty."""
        self._rows.append(cells)

    def add_section(self) -> None:
        """A gap between the rows so far and the next ones."""
        self._sections.add(len(self._rows))

    def __rich_console__(self, console: "Console", options: "ConsoleOptions") -> "Iterator[Table]":
        width, first = options.max_width, 0
        endless = options.update(max_width=10_000)
        for last in range(1, len(self._figures) + 1):
            more = self._part(first, last + 1, width)
            if last == len(self._figures) or console.measure(more, options=endless).maximum > width:
                yield self._part(first, last, width)
                first = last

    def _part(self, first: int, last: int, width: int) -> "Table":
        """The table with the columns of some figures alone."""
        from rich import box
        from rich.table import Table

        table = Table(box=box.SIMPLE, padding=(0, 1, 0, 0))
        names = len(self._names)
        for heading in self._names:
            table.add_column(heading, overflow="fold", max_width=width // (2 * names))
        for heading in self._figures[first:last]:
            table.add_column(heading, justify="right", no_wrap=True)
        for number, row in enumerate(self._rows):
            if number in self._sections:
                table.add_section()
            table.add_row(*row[:names], *row[names:][first:last])
        return table
