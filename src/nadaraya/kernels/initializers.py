"""Initial values of the terms of a kernel bank: named ones, and those given number by number."""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nadaraya.errors import check_name, must_be, unknown_name

Initializer = str | Mapping[str, Any]

_LENGTHS, _TAUS = (1.5, 200.0), (2.0, 64.0)  # tokens; for text
MIDDLE_LENGTH = math.prod(_LENGTHS) ** 0.5
_ALPHA = 0.7


def initializer_of(
    init: Initializer, names: Sequence[str], num_heads: int, num_terms: int
) -> dict[str, Tensor]:
    """The start of every number of a bank.

    Args:
        init: see `KernelBank`.
        names: of the bank's numbers: of "alpha", "tau", "sigma", "length" and "amplitude".
        num_heads: H, 1 for a bank that all heads share.
        num_terms: M.

    Returns:
        By name the logs of positive numbers, and amplitudes as they are; of shapes that broadcast to (H, M).

    Raises:
        InputError: an unknown start, or one that does not give every number of every term.
    """
    if isinstance(init, Mapping):
        return _given(init, names, num_heads, num_terms)
    if not isinstance(init, str) or init not in _NAMED:
        raise unknown_name("init", init, _NAMED)
    logs = _NAMED[init](num_heads, num_terms)
    return {name: (2 * logs["sigma"]).exp() if name == "amplitude" else logs[name] for name in names}


def _given(
    init: Mapping[str, Any], names: Sequence[str], num_heads: int, num_terms: int
) -> dict[str, Tensor]:
    names = ["period" if name == "tau" and "period" in init else name for name in names]
    if {"period", "tau"} <= init.keys():
        raise must_be("init", "a start of period or of tau, not of both", sorted(init))
    for name in init:
        check_name("key of init", name, names)
    found = {}
    for name in names:
        if name not in init:
            raise must_be("init", f"a start of each of {', '.join(names)}", sorted(init))
        numbers, shapes = _numbers(init[name]), {(num_terms,), (num_heads, num_terms)}
        kind = "finite" if name == "amplitude" else "positive finite"
        finite = numbers is not None and bool(np.isfinite(numbers).all())
        if numbers is None or not finite or (name != "amplitude" and not bool((numbers > 0).all())):
            raise must_be(f"init of {name}", f"{kind} numbers", init[name])
        if numbers.shape not in shapes:
            accepted = f"of shape ({num_terms},), a number for each term, or {(num_heads, num_terms)}"
            raise must_be(f"init of {name}", accepted, numbers.shape)
        found[name] = torch.tensor((numbers if name == "amplitude" else np.log(numbers)).tolist())
    if "period" in found:
        found["tau"] = found.pop("period") - math.log(math.pi)
    return found


def _numbers(value: Any) -> np.ndarray | None:
    """An array of float64; None where the value is none."""
    try:
        return np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError):
        return None


def _geometric(
    num_heads: int,
    num_terms: int,
    tau: tuple[float, float],
    log_sigma: float,
    length: tuple[float, float],
) -> dict[str, Tensor]:
    """τ and l in equal ratios between their ends, log σ from log_sigma down to −log_sigma, α = 0.7."""
    return {
        "alpha": torch.full((num_terms,), math.log(_ALPHA)),
        "tau": _in_equal_ratios(tau, num_terms),
        "sigma": _evenly(log_sigma, -log_sigma, num_terms),
        "length": _in_equal_ratios(length, num_terms),
    }


def _paper(num_heads: int, num_terms: int) -> dict[str, Tensor]:
    return {
        "alpha": torch.zeros(num_terms),
        "tau": _evenly(4, 192, num_terms).log(),
        "sigma": torch.zeros(num_terms),
        "length": torch.full((num_terms,), math.log(150)),
    }


def _random(num_heads: int, num_terms: int) -> dict[str, Tensor]:
    """Log-uniform in the ranges of the geometric start, by PyTorch's global generator."""

    def between(first: float, last: float) -> Tensor:
        return first + (last - first) * torch.rand(num_heads, num_terms)

    return {
        "alpha": torch.full((num_terms,), math.log(_ALPHA)),
        "tau": between(*map(math.log, _TAUS)),
        "sigma": between(-2.0, 2.0),
        "length": between(*map(math.log, _LENGTHS)),
    }


def _spread(num_heads: int, num_terms: int) -> dict[str, Tensor]:
    """τ and l of all terms of all heads in equal ratios; each head has as many of them in a row as terms."""
    shape, every = (num_heads, num_terms), num_heads * num_terms
    return {
        "alpha": torch.full((num_terms,), math.log(_ALPHA)),
        "tau": _in_equal_ratios(_TAUS, every).view(shape),
        "sigma": torch.zeros(num_terms),
        "length": _in_equal_ratios(_LENGTHS, every).view(shape),
    }


def _unit(num_heads: int, num_terms: int) -> dict[str, Tensor]:
    """The terms of the geometric start, of equal strengths that add up to 1."""
    geometric = _NAMED["geometric"](num_heads, num_terms)
    return geometric | {"sigma": torch.full((num_terms,), -0.5 * math.log(num_terms))}


def _in_equal_ratios(ends: tuple[float, float], num: int) -> Tensor:
    return _evenly(math.log(ends[0]), math.log(ends[1]), num)


def _evenly(first: float, last: float, num: int) -> Tensor:
    return torch.linspace(first, last, num) if num > 1 else torch.tensor([(first + last) / 2])


_NAMED: dict[str, Callable[[int, int], dict[str, Tensor]]] = {
    "geometric": partial(_geometric, tau=_TAUS, log_sigma=2, length=_LENGTHS),
    "grid": partial(_geometric, tau=(2, 16), log_sigma=1, length=(1, 32)),
    "paper": _paper,
    "random": _random,
    "spread": _spread,
    "unit": _unit,
}
