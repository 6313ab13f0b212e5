"""exp(x) for x ≤ 0 in a form that a compiler turns into vector instructions.

exp(x) = 2^k exp(r) with k = round(x / log 2) and |r| ≤ log(2) / 2; exp(r) is a polynomial, and 2^k is written
straight into the bits of the exponent. The polynomials interpolate exp at Chebyshev nodes: error 3e-18 at
degree 11 for float64, 2e-9 at degree 6 for float32, below the rounding of the type.
"""

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic, overload

from nadaraya.compiled.jit import compiled

# Below these the result is 0.
SMALLEST64 = -708.0
SMALLEST32 = np.float32(-87.0)

_P64 = (
    1.0,
    1.0,
    0.5000000000000019,
    0.1666666666666668,
    0.0416666666664881,
    0.008333333333319601,
    0.0013888888952314775,
    0.00019841269890047113,
    2.4801485482328494e-05,
    2.755724091857897e-06,
    2.763263963904103e-07,
    2.5110037605963777e-08,
)
_P32 = tuple(np.float32(c) for c in (1.0, 1.0, 0.5, 0.16666415, 0.04166635, 0.008375126, 0.0013941108))
# log 2 in two parts, the first short enough for k · high to be exact (Cody and Waite 1980).
_LOG2_HIGH64, _LOG2_LOW64 = 6.93147180369123816490e-01, 1.90821492927058770002e-10
_LOG2_HIGH32, _LOG2_LOW32 = np.float32(0.693359375), np.float32(-2.12194440e-4)
_PER_LOG2_64 = 1.4426950408889634
_PER_LOG2_32 = np.float32(_PER_LOG2_64)


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


@compiled(inline="always", fastmath=True)
def exp64(x: Any) -> Any:
    """exp(x), float64, x ≤ 0; 0 below exp(−708)."""
    y = max(x, SMALLEST64)
    k = np.rint(y * _PER_LOG2_64)
    r = (y - k * _LOG2_HIGH64) - k * _LOG2_LOW64
    c0, c1, c2, c3, c4, c5, c6, c7, c8, c9, c10, c11 = _P64
    p = c6 + r * (c7 + r * (c8 + r * (c9 + r * (c10 + r * c11))))
    p = c0 + r * (c1 + r * (c2 + r * (c3 + r * (c4 + r * (c5 + r * p)))))
    return p * _power_of_two(k) * np.float64(x >= SMALLEST64)


@compiled(inline="always", fastmath=True)
def exp32(x: Any) -> Any:
    """exp(x), float32, x ≤ 0; 0 below exp(−87)."""
    y = max(x, SMALLEST32)
    k = np.rint(y * _PER_LOG2_32)
    r = (y - k * _LOG2_HIGH32) - k * _LOG2_LOW32
    c0, c1, c2, c3, c4, c5, c6 = _P32
    p = c0 + r * (c1 + r * (c2 + r * (c3 + r * (c4 + r * (c5 + r * c6)))))
    return p * _power_of_two(k) * np.float32(x >= SMALLEST32)


def exp_nonpositive(x: float) -> float:
    """exp(x) for x ≤ 0 in the type of x, for compiled callers; see exp64 and exp32."""
    return float(np.exp(x))


@overload(exp_nonpositive, inline="always", jit_options={"fastmath": True})
def _exp_nonpositive(x: Any) -> Any:
    def single(x: Any) -> Any:
        return exp32(x)

    def double(x: Any) -> Any:
        return exp64(x)

    return single if x == types.float32 else double
