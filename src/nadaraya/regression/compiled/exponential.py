"""exp(x) for x ≤ 0 in a form that a compiler turns into vector instructions.

exp(x) = 2^k exp(r) with k = round(x / log 2) and |r| ≤ log(2) / 2; exp(r) is a polynomial, and 2^k is written
straight into the bits of the exponent. The polynomials interpolate exp at Chebyshev nodes: error 3e-18 at
degree 11 for float64, 2e-9 at degree 6 for float32, below the rounding of the type.
"""

from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic, overload


class _Constants(NamedTuple):
    """Below `least` the result is 0; log 2 is in two parts, the first short enough for k · high to be exact.

    Cody and Waite (1980).
    """

    least: float
    log2_high: float
    log2_low: float
    coefficients: tuple[float, ...]


_DOUBLE = _Constants(
    -708.0,
    6.93147180369123816490e-01,
    1.90821492927058770002e-10,
    (
        *(1.0, 1.0, 0.5000000000000019, 0.1666666666666668, 0.0416666666664881, 0.008333333333319601),
        *(0.0013888888952314775, 0.00019841269890047113, 2.4801485482328494e-05, 2.755724091857897e-06),
        *(2.763263963904103e-07, 2.5110037605963777e-08),
    ),
)
_SINGLE = _Constants(
    -87.0,
    0.693359375,
    -2.12194440e-4,
    (1.0, 1.0, 0.5, 0.16666415, 0.04166635, 0.008375126, 0.0013941108),
)


def _power_of_two_code(typing_context: Any, k: Any) -> Any:
    """2^k for a whole number k held in a floating-point type."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        if signature.return_type == types.float64:
            real, whole, shift, bias, magic = ir.DoubleType(), ir.IntType(64), 52, 1023, 1.5 * 2.0**52
        else:
            real, whole, shift, bias, magic = ir.FloatType(), ir.IntType(32), 23, 127, 1.5 * 2.0**23
        # Adding the magic number leaves k in the low bits; AVX2 has no conversion to 64-bit integers.
        # Emitted here without fast-math flags, so that the compiler may not cancel the addition.
        bits = builder.bitcast(builder.fadd(arguments[0], ir.Constant(real, magic)), whole)
        exponent = builder.add(bits, ir.Constant(whole, bias))
        return builder.bitcast(builder.shl(exponent, ir.Constant(whole, shift)), real)

    return k(k), codegen


_power_of_two: Any = intrinsic(_power_of_two_code)


def exp_nonpositive(x: float) -> float:
    """exp(x) for x ≤ 0 in the type of x, for compiled callers; 0 below exp(−708), or exp(−87) in float32."""
    return float(np.exp(x))


@overload(exp_nonpositive, inline="always", jit_options={"fastmath": True})
def _exp_nonpositive(x: Any) -> Any:
    kind, constants = (np.float32, _SINGLE) if x == types.float32 else (np.float64, _DOUBLE)
    least, high, low = map(kind, constants[:3])
    per_log2 = kind(1.4426950408889634)
    coefficients = tuple(map(kind, reversed(constants.coefficients)))

    def exponential(x: Any) -> Any:
        y = max(x, least)
        k = np.rint(y * per_log2)
        r = (y - k * high) - k * low
        p = coefficients[0]
        for c in coefficients[1:]:
            p = c + r * p
        return p * _power_of_two(k) * kind(x >= least)

    return exponential
