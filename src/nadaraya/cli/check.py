"""`nadaraya check`: is every backend right on this machine, and which way is fastest."""

from itertools import groupby
from typing import TYPE_CHECKING, Annotated

import typer

from nadaraya.cli.bench import OutOption
from nadaraya.cli.options import DeviceOption, ForceOption, chosen_device, progress_bar, whole_numbers
from nadaraya.cli.results import Result
from nadaraya.cli.tables import FigureTable
from nadaraya.errors import must_be

if TYPE_CHECKING:
    from nadaraya.checking.grid import Check, Shape, Time


def check(
    device: DeviceOption = "",
    quick: Annotated[
        bool, typer.Option("--quick", help="Check fewer calls, time one shape and write no table.")
    ] = False,
    shapes: Annotated[
        list[str] | None,
        typer.Option(
            "--shape",
            metavar="BATCH,HEADS,TOKENS,WIDTH",
            help="Time calls of this shape too, such as your model's; may be given several times.",
        ),
    ] = None,
    out: OutOption = None,
    force: ForceOption = False,
) -> Result:
    """Compare every backend with the definition, time every way, and write the table that `auto` reads.

    Exit status 1: a backend is wrong. The table, of this device and these versions, lies in the cache folder;
    on a CPU it serves the shapes that were timed alone.
    """
    import torch

    from nadaraya.attention import measured
    from nadaraya.checking import grid
    from nadaraya.device import reuse_freed_memory
    from nadaraya.files import check_new_file, write_file

    check_new_file(out, force, "--out")
    reuse_freed_memory()  # as training does
    name = chosen_device(device)
    if name not in grid.SHAPES:
        raise must_be("--device", "cpu or cuda", name)
    where = torch.device(name)
    more = [_shape(each) for each in shapes or ()]
    kinds, cells = list(grid.kinds(quick)), list(grid.cells(where, quick, more))
    calls, rows, failed = list[grid.Call](), list[grid.Time](), dict[str, str]()
    with progress_bar() as bar:
        line = bar.add_task("calls", total=len(kinds) + len(cells))
        for kind in kinds:
            calls += grid.check(*kind, where)
            bar.advance(line)
        wrong = {(call.backend, call.kind) for call in calls if not call.right}
        for cell in cells:
            timed, reasons = grid.time_ways(*cell, where, wrong)
            rows, failed = rows + timed, failed | reasons
            bar.advance(line)
    found = grid.Check(identity=measured.identity(where), calls=tuple(calls), rows=tuple(rows), failed=failed)
    path = None if quick else measured.table_path(where)
    for file in filter(None, (out, path)):
        write_file(file, found.model_dump_json(indent=1) + "\n")
    last = f"dispatch table: {path}" if path else "no dispatch table is written by --quick"
    shown = [_times(found), *verdict(found), last]
    return Result(found.model_dump(mode="json"), shown, status=int(bool(wrong)))


def _shape(text: str) -> "Shape":
    accepted = "four numbers from 1 on, such as 16,4,256,32"
    match whole_numbers(text, "--shape", accepted):
        case [batch, heads, tokens, width] if min(batch, heads, tokens, width) >= 1:
            return batch, heads, tokens, width
    raise must_be("--shape", accepted, text)


def _cells(found: "Check") -> "list[list[Time]]":
    """The rows of each call."""
    return [list(rows) for _, rows in groupby(found.rows, lambda row: row.model_dump(exclude={"way", "ms"}))]


def _times(found: "Check") -> FigureTable:
    ways = list(dict.fromkeys(row.way for row in found.rows))
    table, shape = FigureTable(["ms", "pass"], ways), ""
    for cell in _cells(found):
        kind, passes, of_cell = _said(cell[0])
        if of_cell != shape:
            shape = of_cell
            table.add_section()
            table.add_row(shape)
        by_way = {row.way: f"{row.ms:.3g}" for row in cell}
        table.add_row(kind, passes, *(by_way.get(way, "") for way in ways))
    return table


def _said(row: "Time") -> tuple[str, str, str]:
    """Kind, pass and shape of a call."""
    shape = f"{row.batch} × {row.heads} × {row.keys} × {row.width}, {row.dtype}"
    return row.kind, "forward + backward" if row.gradients else "forward", shape


def verdict(found: "Check") -> list[str]:
    """At most nine lines."""
    from nadaraya.attention.measured import BACKENDS

    lines = [", ".join(f"{name} {value}" for name, value in found.identity.items())]
    if wrong := [call for call in found.calls if not call.right]:
        lines.append(f"{len(wrong)} of {len(found.calls)} calls wrong")
    else:
        share = max(call.error / call.tolerance for call in found.calls if call.error is not None)
        lines.append(f"all {len(found.calls)} calls right, errors at most {share:.0%} of what is accepted")
    for call in wrong[:3]:
        what = call.failed or f"error {call.error}, accepted {call.tolerance:.1e}"
        lines.append(f"wrong: {call.backend}, {call.feature}, {call.dtype}, width {call.width}: {what}")
    ratios = []
    for cell in _cells(found):
        if ours := [row for row in cell if row.way in BACKENDS]:
            auto, best = (min(rows, key=lambda row: row.ms) for rows in (ours, cell))
            ratios.append((auto.ms / best.ms, auto, best))
    if ratios:
        ratio, auto, best = max(ratios, key=lambda each: each[0])
        lines.append(f"auto is at most {ratio:.2f} × the fastest known way, at worst, in ms:")
        lines.append(f"  {', '.join(_said(auto))}: {auto.ms:.3g}, {best.way} {best.ms:.3g}")
    return lines + [f"not run here: {way}: {reason}" for way, reason in list(found.failed.items())[:2]]
