"""Results of the GPU benchmarks as Markdown tables, for the terminal and for summaries."""

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
    """One case: a table a pass, each contender against the best stock attention, then those that failed."""
    if "failed" in case:
        return f"### {name}\n\nfailed: {case['failed']}"
    shape = case["shape"]
    sizes = f"B {shape['batch']}, H {shape['heads']}, Nq {shape['queries']}, Nk {shape['keys']}"
    kind = "causal" if case["causal"] else "both directions"
    parts = [f"### {name}\n\n{sizes}, d {shape['width']}, {case['dtype']}, {kind}"]
    for which, title in _PASS_NAMES.items():
        figures = {
            contender: passes[which] for contender, passes in case["contenders"].items() if which in passes
        }
        ran = {contender: row for contender, row in figures.items() if "median" in row}
        if not figures:
            continue
        best = min((row["median"] for other, row in ran.items() if other in rivals.STOCK), default=None)
        rows = [[contender, *_cells(row, best)] for contender, row in ran.items()]
        header = [title, "median ms", "quartiles", "host ms", "TFLOP/s", "MiB beyond", "speed"]
        parts.append(markdown(header, rows))
    failures = {
        f"{contender}: {row['failed']}": None
        for contender, passes in case["contenders"].items()
        for row in passes.values()
        if "failed" in row
    }
    if failures:
        parts.append("\n".join(f"- {failure}" for failure in failures))
    return "\n\n".join(parts)


def _cells(row: dict[str, Any], best: float | None) -> list[str]:
    memory = row["memory_mib"]
    return [
        f"{row['median']:.3f}",
        f"{row['low']:.3f}–{row['high']:.3f}",
        f"{row['host']:.3f}",
        f"{row['tflops']:.1f}",
        "" if memory is None else f"{memory:.1f}",
        "" if best is None else f"{best / row['median']:.2f}×",
    ]


def accuracy_text(accuracy: dict[str, Any]) -> str:
    """Relative errors against float64, a table a part."""
    parts = ["### accuracy: relative root mean square error against float64"]
    for part, contenders in accuracy.items():
        names = list(dict.fromkeys(name for row in contenders.values() for name in row if name != "failed"))
        rows = [
            [contender, *(f"{row[name]:.2e}" if name in row else "" for name in names)]
            for contender, row in contenders.items()
            if "failed" not in row
        ]
        if rows:
            parts.append(markdown([part, *names], rows))
        parts += [f"{name}: {row['failed']}" for name, row in contenders.items() if "failed" in row]
    return "\n\n".join(parts)


def determinism_text(determinism: dict[str, Any]) -> str:
    """Which cases gave the same bits in every run."""
    rows = [
        [case, row.get("failed") or ("yes" if row["identical"] else "NO")]
        for case, row in determinism.items()
    ]
    return "### outputs and gradients bit-identical in three runs\n\n" + markdown(["case", "identical"], rows)


def targets_text(targets: list[dict[str, Any]]) -> str:
    """Every target, what was measured, and whether it is met."""
    rows = [
        [
            row["target"],
            row["required"],
            "" if row["measured"] is None else f"{row['measured']:.3f}",
            row["status"],
        ]
        for row in targets
    ]
    return "### targets\n\n" + markdown(["target", "required", "measured", "status"], rows)


def results_text(results: dict[str, Any]) -> str:
    """Everything in a results file of `attention.py`, the targets excepted."""
    parts = [case_text(name, case) for name, case in results["cases"].items()]
    if "accuracy" in results:
        parts.append(accuracy_text(results["accuracy"]))
    if "determinism" in results:
        parts.append(determinism_text(results["determinism"]))
    return "\n\n".join(parts)
