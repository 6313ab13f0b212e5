"""Results of the GPU benchmarks as Markdown tables."""

from typing import Any

import rivals

_PASS_NAMES = {"forward": "forward", "forward_backward": "forward + backward"}


def markdown(header: list[str], rows: list[list[str]]) -> str:
    """A Markdown table with its columns lined up; the first is text, the others stand at the right."""
    columns = list(zip(header, *rows, strict=True))
    widths = [max(map(len, column)) for column in columns]

    def line(cells: list[str]) -> str:
        first, *others = (
            cell.rjust(width) if place else cell.ljust(width)
            for place, (cell, width) in enumerate(zip(cells, widths, strict=True))
        )
        return "| " + " | ".join([first, *others]) + " |"

    rule = [f":{'-' * (widths[0] - 1)}", *(f"{'-' * (width - 1)}:" for width in widths[1:])]
    return "\n".join([line(header), line(rule), *map(line, rows)])


def case_text(name: str, case: dict[str, Any]) -> str:
    """One case: a table per pass, each contender against the best stock attention, then those that failed."""
    if "failed" in case:
        return f"### {name}\n\nfailed: {case['failed']}"
    shape = case["shape"]
    sizes = f"B {shape['batch']}, H {shape['heads']}, Nq {shape['queries']}, Nk {shape['keys']}"
    kind = "causal" if case["causal"] else "both directions"
    parts = [f"### {name}\n\n{sizes}, d {shape['width']}, {case['dtype']}, {kind}"]
    failures = []
    for which, title in _PASS_NAMES.items():
        rows = {name: passes[which] for name, passes in case["contenders"].items() if which in passes}
        failures += [f"- {name}: {row['failed']}" for name, row in rows.items() if "failed" in row]
        ran = {name: row for name, row in rows.items() if "median" in row}
        best = min((row["median"] for name, row in ran.items() if name in rivals.STOCK), default=None)
        header = [title, "median ms", "quartiles", "host ms", "TFLOP/s", "MiB beyond", "speed"]
        if ran:
            parts.append(markdown(header, [[name, *_cells(row, best)] for name, row in ran.items()]))
    return "\n\n".join([*parts, *dict.fromkeys(failures)])


def _cells(row: dict[str, Any], best: float | None) -> list[str]:
    return [
        f"{row['median']:.3f}",
        f"{row['low']:.3f}–{row['high']:.3f}",
        f"{row['host']:.3f}",
        f"{row['tflops']:.1f}",
        "" if row["memory_mib"] is None else f"{row['memory_mib']:.1f}",
        "" if best is None else f"{best / row['median']:.2f}×",
    ]


def check_text(title: str, parts: dict[str, dict[str, Any]]) -> str:
    """Figures of a check, one line per part and contender."""
    lines = [
        f"- {part}, {contender}: "
        + ", ".join(
            f"{name} {value if isinstance(value, (bool, str)) else f'{value:.2e}'}"
            for name, value in row.items()
        )
        for part, contenders in parts.items()
        for contender, row in contenders.items()
    ]
    return "\n".join([f"### {title}\n", *lines])
