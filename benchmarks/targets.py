"""What the GPU kernels are judged by: each target, what was measured, and whether it is met."""

import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import rivals

MET, MISSED, NOT_MEASURED = "met", "missed", "not measured"
Results = dict[str, Any]


@dataclass(frozen=True)
class Target:
    """A bound on one figure of the results; `at_least` says on which side it must be."""

    text: str
    bound: float
    at_least: bool
    measure: Callable[[Results], float | None]

    def judge(self, results: Results) -> dict[str, Any]:
        """The target as a row of results; figures that the run does not have are not measured."""
        measured = self.measure(results) if results["settings"]["counts"] else None
        if measured is None:
            status = NOT_MEASURED
        else:
            compare = operator.ge if self.at_least else operator.le
            status = MET if compare(measured, self.bound) else MISSED
        required = f"{'≥' if self.at_least else '≤'} {self.bound:.2f}"
        return {"target": self.text, "required": required, "measured": measured, "status": status}


def judge(results: Results) -> list[dict[str, Any]]:
    """Every target against the results of a run, in the order of the table.

    Args:
        results: what `attention.py` writes. `settings.counts` says whether the figures are those of the
            targets' shapes on a GPU; otherwise nothing counts as measured.

    Returns:
        One row a target: target, required, measured (None where it was not) and status.
    """
    return [target.judge(results) for target in TARGETS]


def _figure(results: Results, case: str, contender: str, which: str, key: str) -> float | None:
    passes = results["cases"].get(case, {}).get("contenders", {}).get(contender, {})
    figure = passes.get(which, {}).get(key)
    return None if figure is None else float(figure)


def _speed(case: str, which: str, others: tuple[str, ...]) -> Callable[[Results], float | None]:
    """Time of the fastest of the others over ours."""

    def measure(results: Results) -> float | None:
        ours = _figure(results, case, rivals.OURS, which, "median")
        times = [_figure(results, case, other, which, "median") for other in others]
        ran = [time for time in times if time is not None]
        return min(ran) / ours if ours is not None and ran else None

    return measure


def _memory(case: str) -> Callable[[Results], float | None]:
    """Our peak beyond inputs and outputs over that of stock flash attention."""

    def measure(results: Results) -> float | None:
        ours, flash = (
            _figure(results, case, name, "forward_backward", "memory_mib")
            for name in (rivals.OURS, "SDPA flash")
        )
        return ours / flash if ours is not None and flash else None

    return measure


def _accuracy(part: str) -> Callable[[Results], float | None]:
    """Our error over that of stock flash attention's dot product, the worst of output and gradients.

    The gradient of x, queries, keys and values at once, is held against the worst of the three. Gradients of
    the table and of the bandwidths have no counterpart in stock attention and are left out. The ratio is
    rounded to hundredths: below that it is the luck of the last bit.
    """

    def measure(results: Results) -> float | None:
        errors = results.get("accuracy", {})
        ours = errors.get(part, {}).get(rivals.OURS, {})
        flash = errors.get("dot", {}).get("SDPA flash", {})
        if "output" not in ours or "output" not in flash:
            return None
        others = {**flash, "x": max(flash[name] for name in ("q", "k", "v"))}
        return round(max(ours[name] / others[name] for name in ours if name in others), 2)

    return measure


def _identical(results: Results) -> float | None:
    runs = results.get("determinism")
    if not runs or any("failed" in run for run in runs.values()):
        return None
    return sum(run["identical"] for run in runs.values()) / len(runs)


def _table() -> list[Target]:
    stock, flex = tuple(rivals.STOCK), (rivals.FLEX_GRADIENT,)
    both = "forward_backward"
    targets = []

    def add(
        text: str, bound: float, measure: Callable[[Results], float | None], at_least: bool = True
    ) -> None:
        targets.append(Target(text, bound, at_least, measure))

    for width in (64, 128):
        case = f"gpa-d{width}"
        name = f"GPA with table gradient, causal 8×16×4096×{width}"
        add(
            f"{name}: forward, speed of the best stock SDPA without bias", 0.9, _speed(case, "forward", stock)
        )
        add(f"{name}: forward + backward, the same", 0.75, _speed(case, both, stock))
        add(f"{name}: forward + backward, speed of FlexAttention", 4.0, _speed(case, both, flex))
        add(f"{name}: memory of stock flash", 1.1, _memory(case), at_least=False)
    gaussian = [(f"gka-d{width}", f"GKA, causal 8×16×4096×{width}") for width in (64, 128)]
    gaussian += [(f"gka-both-h{heads}", f"GKA, both directions 256×{heads}×197×64") for heads in (3, 6, 12)]
    for case, name in gaussian:
        add(f"{name}: forward, speed of the best stock SDPA", 1.0, _speed(case, "forward", stock))
        add(f"{name}: forward + backward, the same", 1.25, _speed(case, both, stock))
    for case, name in gaussian[:2]:
        add(f"{name}: memory of stock flash", 0.6, _memory(case), at_least=False)
    for length in ("8k", "32k"):
        for width in (64, 128):
            for kind, bound in (("gka", 1.7), ("gpa", 0.95)):
                case = f"decode-{kind}-{length}-d{width}"
                text = f"{kind.upper()}, decoding 64×16×{length}×{width}: speed of the best stock SDPA"
                add(text, bound, _speed(case, "forward", stock))
    add("Gradients bit-identical in three runs: share of the cases", 1.0, _identical)
    for part in ("dot", "gpa", "gka"):
        text = f"Error against float64, {part}: worst ratio to stock flash's dot product"
        add(text, 1.0, _accuracy(part), at_least=False)
    return targets


TARGETS = _table()
