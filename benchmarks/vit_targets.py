"""What GKA's speed in images is judged by: each target against DeiT, and whether it is met."""

from collections.abc import Callable
from typing import Any

from targets import Target

Results = dict[str, Any]


def judge(results: Results) -> list[dict[str, Any]]:
    """The targets of the device against the results of a run.

    Args:
        results: what `vit.py` writes. `settings.counts` says whether the sizes are those of the targets.

    Returns:
        One row a target: target, required, measured (None where it was not) and status.
    """
    rows = GPU if results["settings"]["device"] == "cuda" else CPU
    return [target.judge(results) for target in rows]


def _ratio(size: str, mode: str, batch: str, which: str) -> Callable[[Results], float | None]:
    """GKA's figure over DeiT's."""

    def measure(results: Results) -> float | None:
        ratios = results["sizes"].get(size, {}).get("ratios", {}).get(mode, {}).get(batch, {})
        figure = ratios.get(f"gka_{size}_patch16_224", {}).get(which)
        return None if figure is None else float(figure)

    return measure


def _gpu() -> list[Target]:
    targets = []
    for size in ("tiny", "small", "base"):
        peak = _ratio(size, "inference", "peak", "speed")
        targets.append(Target(f"{size}: peak inference images/s of DeiT's", 1.2, True, peak))
        for batch in ("64", "128"):
            text = f"{size}: training at {batch} a step"
            speed, memory = (_ratio(size, "training", batch, which) for which in ("speed", "memory"))
            targets.append(Target(f"{text}, images/s of DeiT's", 1.15, True, speed))
            targets.append(Target(f"{text}, peak memory of DeiT's", 0.85, False, memory))
    return targets


def _cpu() -> list[Target]:
    targets = []
    for size in ("tiny", "small"):
        peak = _ratio(size, "inference", "peak", "speed")
        targets.append(Target(f"{size}: peak inference images/s of DeiT's", 1.0, True, peak))
        for batch in ("64", "128"):
            speed = _ratio(size, "training", batch, "speed")
            targets.append(
                Target(f"{size}: training at {batch} a step, images/s of DeiT's", 1.0, True, speed)
            )
    return targets


GPU, CPU = _gpu(), _cpu()
