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
_LOG_ALPHA = math.log(0.7)
_Ends = tuple[float, float]
# The logs of τ, σ and l.
_Logs = tuple[Tensor, Tensor, Tensor]


def initializer_of(
    init: Initializer, names: Sequence[str], num_heads: int, num_terms: int
) -> dict[str, Tensor]:
    """The start of every number of a bank by name: logs of positive numbers, and amplitudes as they are.

    They broadcast to (H, M), H being 1 for a bank that all heads share. An InputError for an unknown start,
    or one that does not give every number of every term.
    """
    if isinstance(init, Mapping):
        return _given(init, names, num_heads, num_terms)
    if not isinstance(init, str) or init not in _NAMED:
        raise unknown_name("init", init, _NAMED)
    tau, sigma, length = _NAMED[init](num_heads, num_terms)
    alpha = torch.full((num_terms,), 0.0 if init == "paper" else _LOG_ALPHA)
    logs = {"alpha": alpha, "tau": tau, "sigma": sigma, "length": length}
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
        try:
            numbers = np.asarray(init[name], dtype=np.float64)
        except (TypeError, ValueError):
            numbers = np.array(np.nan)
        kind = "finite" if name == "amplitude" else "positive finite"
        if not np.isfinite(numbers).all() or (name != "amplitude" and (numbers <= 0).any()):
            raise must_be(f"init of {name}", f"{kind} numbers", init[name])
        if numbers.shape not in {(num_terms,), (num_heads, num_terms)}:
            accepted = f"of shape ({num_terms},), a number for each term, or {(num_heads, num_terms)}"
            raise must_be(f"init of {name}", accepted, numbers.shape)
        found[name] = torch.tensor((numbers if name == "amplitude" else np.log(numbers)).tolist())
    if "period" in found:
        found["tau"] = found.pop("period") - math.log(math.pi)
    return found


def _geometric(ends_tau: _Ends, log_sigma: float, ends_length: _Ends, _: int, num_terms: int) -> _Logs:
    """τ and l in equal ratios between their ends, log σ from log_sigma down to −log_sigma."""
    sigma = _evenly(log_sigma, -log_sigma, num_terms)
    return _in_equal_ratios(ends_tau, num_terms), sigma, _in_equal_ratios(ends_length, num_terms)


def _paper(num_heads: int, num_terms: int) -> _Logs:
    length = torch.full((num_terms,), math.log(150))
    return _evenly(4, 192, num_terms).log(), torch.zeros(num_terms), length


def _random(num_heads: int, num_terms: int) -> _Logs:
    """Log-uniform in the ranges of the geometric start, by PyTorch's global generator."""

    def between(first: float, last: float) -> Tensor:
        return first + (last - first) * torch.rand(num_heads, num_terms)

    return between(*map(math.log, _TAUS)), between(-2.0, 2.0), between(*map(math.log, _LENGTHS))


def _spread(num_heads: int, num_terms: int) -> _Logs:
    """τ and l of all terms of all heads in equal ratios; each head has as many of them in a row as terms."""
    tau, length = (
        _in_equal_ratios(ends, num_heads * num_terms).view(num_heads, num_terms) for ends in (_TAUS, _LENGTHS)
    )
    return tau, torch.zeros(num_terms), length


def _unit(num_heads: int, num_terms: int) -> _Logs:
    """The terms of the geometric start, of equal strengths that add up to 1."""
    tau, _, length = _NAMED["geometric"](num_heads, num_terms)
    return tau, torch.full((num_terms,), -0.5 * math.log(num_terms)), length


def _in_equal_ratios(ends: _Ends, num: int) -> Tensor:
    return _evenly(math.log(ends[0]), math.log(ends[1]), num)


def _evenly(first: float, last: float, num: int) -> Tensor:
    return torch.linspace(first, last, num) if num > 1 else torch.tensor([(first + last) / 2])


_NAMED: dict[str, Callable[[int, int], _Logs]] = {
    "geometric": partial(_geometric, _TAUS, 2, _LENGTHS),
    "grid": partial(_geometric, (2, 16), 1, (1, 32)),
    "paper": _paper,
    "random": _random,
    "spread": _spread,
    "unit": _unit,
}
