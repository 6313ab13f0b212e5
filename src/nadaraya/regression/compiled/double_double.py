"""Double-double arithmetic: a number is the unevaluated sum high + low of two float64, about 106 bits.

Dekker (1971) and Knuth (The Art of Computer Programming 2, 4.2.2) have the error-free transformations; Ogita,
Rump and Oishi (2005) the accumulation that leaves its two parts apart until the end. Nothing here may be
compiled with `fastmath`, which would simplify the rounding errors to zero.
"""

from typing import Any

from numba import types
from numba.extending import intrinsic

from nadaraya.regression.compiled.jit import compiled


def _fused_multiply_add(typing_context: Any, a: Any, b: Any, c: Any) -> Any:
    """a b + c of three float64 with one rounding."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.fma(*arguments)

    return types.float64(types.float64, types.float64, types.float64), generate


fused_multiply_add: Any = intrinsic(_fused_multiply_add)


@compiled()
def two_sum(a: float, b: float) -> tuple[float, float]:
    """a + b exactly: the rounded sum and its rounding error."""
    total = a + b
    of_b = total - a
    return total, (a - (total - of_b)) + (b - of_b)


@compiled()
def normalized(high: float, low: float) -> tuple[float, float]:
    """The same number with |low| at most half a unit in the last place of high; needs |high| ≥ |low|."""
    total = high + low
    return total, low - (total - high)


@compiled()
def multiply(a: float, a_low: float, b: float, b_low: float) -> tuple[float, float]:
    """The product of two double-doubles."""
    product = a * b
    error = fused_multiply_add(a, b, -product)
    return normalized(product, fused_multiply_add(a, b_low, fused_multiply_add(a_low, b, error)))


@compiled()
def add_product(
    high: float, low: float, a: float, a_low: float, b: float, b_low: float
) -> tuple[float, float]:
    """high + low + a b, not normalized: sums of products in double-double cost 12 operations a term."""
    product = a * b
    error = fused_multiply_add(a, b, -product)
    error = fused_multiply_add(a, b_low, fused_multiply_add(a_low, b, error))
    total, carried = two_sum(high, product)
    return total, low + (carried + error)
