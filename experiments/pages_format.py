"""The committed results, and Markdown tables of them; see write_pages.py."""

import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from nadaraya.study.statistics import Estimate

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "experiments" / "results"
STUDIES = RESULTS / "studies"
# One machine each, two cores: an AMD EPYC (Zen 4), an older one (Zen 3, no AVX-512), an Intel Xeon.
EPYC = ROOT / "benchmarks" / "results" / "cpu-epyc-2"
ZEN3 = ROOT / "benchmarks" / "results" / "cpu-epyc-zen3-2"
XEON = ROOT / "benchmarks" / "results" / "cpu-xeon-2"

Tables = dict[str, Callable[[], str]]


def read(path: Path) -> Any:
    """The content of a JSON file."""
    return json.loads(path.read_text(encoding="utf-8"))


def table(header: Sequence[str], rows: Iterable[Sequence[str]], left: int = 1) -> str:
    """A Markdown table; the first `left` columns are text, the others stand at the right."""
    rule = ["---" if place < left else "---:" for place in range(len(header))]
    rows = list(rows)
    if wrong := [row for row in rows if len(row) != len(header)]:
        raise ValueError(f"rows must have {len(header)} cells, got {wrong[0]}")
    return "\n".join(
        f"|{'|'.join(f' {cell} ' if cell else ' ' for cell in row)}|" for row in [header, rule, *rows]
    )


def code(name: str) -> str:
    """A name of the library."""
    return f"`{name}`"


def difference(estimate: Estimate, digits: int = 3) -> str:
    """A difference and its interval of 95 %, with signs."""
    ends = [] if estimate.interval is None else [sign(end, digits) for end in estimate.interval]
    return sign(estimate.value, digits) + (f" ({' to '.join(ends)})" if ends else "")


def sign(value: float, digits: int = 3) -> str:
    """A number with its sign; one that rounds to zero has none."""
    shown = f"{value:+.{digits}f}".replace("-", "−")
    return shown[1:] if not float(f"{value:.{digits}f}") else shown


def spread(values: Sequence[float], digits: int = 3) -> str:
    """Mean and standard deviation."""
    shown = f"{mean(values):.{digits}f}"
    return shown + (f" ± {stdev(values):.{digits}f}" if len(values) > 1 else "")


def share(estimate: Estimate | None) -> str:
    """A share of compute and its interval, bold where the interval is below 1."""
    if estimate is None:
        return ""
    return f"**{estimate.text(2)}**" if estimate.side_of(1.0) < 0 else estimate.text(2)
