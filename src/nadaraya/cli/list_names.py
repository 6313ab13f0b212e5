"""`nadaraya list`: the names that other verbs take, with a line on each, and the runs in a folder."""

import inspect
import re
from collections.abc import Iterator
from importlib.resources import files
from itertools import takewhile
from pathlib import Path
from typing import Annotated, Any

import typer

from nadaraya.cli.compare import run_row
from nadaraya.cli.results import Result
from nadaraya.cli.tables import FigureTable, cell
from nadaraya.errors import InputError, must_be, unknown_name
from nadaraya.names import built_in_recipes

_KINDS = ("variants", "recipes", "kernels", "runs")
_RUNS = Path("runs")


def list_names(
    kind: Annotated[
        str | None,
        typer.Argument(help=f"{', '.join(_KINDS[:-1])} or {_KINDS[-1]}.", show_default="all, names alone"),
    ] = None,
    folder: Annotated[Path, typer.Argument(help="Folder of the runs, searched to any depth.")] = _RUNS,
) -> Result:
    """List variants, recipes, kernels or the runs in a folder, with a line on each."""
    if kind is not None and kind not in _KINDS:
        raise unknown_name("list", kind, _KINDS)
    if folder != _RUNS and not folder.is_dir():
        raise must_be("folder", "a folder of runs", str(folder))
    if kind is not None:
        rows = _rows(kind, folder)
        return Result(rows, [_described(rows) if kind != "runs" else _runs(rows, folder)])
    found = {each: _rows(each, folder) for each in _KINDS}
    return Result(found, _summary(found, folder))


def _rows(kind: str, folder: Path) -> list[dict[str, Any]]:
    if kind == "runs":
        from nadaraya.training.folder import RECIPE_FILE

        return [_run(path.parent) for path in sorted(folder.rglob(RECIPE_FILE))]
    described = {"variants": _variants, "recipes": _recipes, "kernels": _kernels}[kind]()
    return [{"name": name, "description": " ".join(text.split())} for name, text in described.items()]


def _variants() -> dict[str, str]:
    from nadaraya import variants

    return {name: variants.describe(name) for name in [*variants.names(), *variants.hybrids()]}


def _recipes() -> dict[str, str]:
    """The first sentence of the comment that each file opens with."""
    found = {}
    for name in built_in_recipes():
        text = (files("nadaraya") / "training" / "recipes" / f"{name}.yaml").read_text("utf-8")
        comment = " ".join(line[1:] for line in takewhile(lambda line: line[0] == "#", text.splitlines()))
        found[name] = re.split(r"(?<=\.)\s+(?=[A-Za-z])", comment)[0]
    return found


def _kernels() -> dict[str, str]:
    from torch import nn

    from nadaraya import kernels

    named = ((name, getattr(kernels, name)) for name in sorted(kernels.__all__, key=str.lower))
    return {
        name: (inspect.getdoc(each) or "").split("\n\n")[0]
        for name, each in named
        if name != "Kernel" and isinstance(each, type) and issubclass(each, nn.Module)
    }


def _run(folder: Path) -> dict[str, Any]:
    """One run; of one that cannot be read, why not."""
    from nadaraya.training import Run

    try:
        return run_row(Run(folder))
    except InputError as error:
        return {"run": str(folder), "problem": str(error)}


def _described(rows: list[dict[str, Any]]) -> Any:
    from rich.table import Table

    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    for row in rows:
        table.add_row(row["name"], row["description"].replace("`", ""))
    return table


def _runs(rows: list[dict[str, Any]], folder: Path) -> "FigureTable | str":
    if not rows:
        return f"none in {folder}: nadaraya train makes them"
    table = FigureTable(["run", "variant"], ["steps", "loss"])
    for row in rows:
        if "problem" in row:
            table.add_row(row["run"], "cannot be read")
            continue
        steps = f"{row['step']:,}" if row["finished"] else f"{row['step']:,}/{row['steps']:,}"
        table.add_row(row["run"], row["variant"], steps, cell(row["loss"], ".4f"))
    return table


def _summary(found: dict[str, list[dict[str, Any]]], folder: Path) -> Iterator[Any]:
    from rich.padding import Padding

    for kind in _KINDS[:-1]:
        yield f"{kind} (nadaraya list {kind} describes them)"
        yield Padding(", ".join(row["name"] for row in found[kind]), (0, 0, 1, 2))
    yield "runs"
    yield _runs(found["runs"], folder)
