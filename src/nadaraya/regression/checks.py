"""Checks of what users pass to the estimators, and the names they may use."""

import copy
import math
import sys
from collections.abc import Iterable
from numbers import Integral, Real
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.utils import check_random_state

from nadaraya.errors import must_be, unknown_name
from nadaraya.kernels import Boxcar, Epanechnikov, ExponentialDecay, Gaussian, Kernel, Matern, Tricube

KERNELS = {
    "gaussian": lambda: Gaussian(1.0),
    "exponential": lambda: ExponentialDecay(1.0),
    "matern32": lambda: Matern(1.0, 1.5),
    "matern52": lambda: Matern(1.0, 2.5),
    "epanechnikov": lambda: Epanechnikov(1.0),
    "tricube": lambda: Tricube(1.0),
    "boxcar": lambda: Boxcar(1.0),
}


def fixed_kernel(kernel: str | Kernel) -> Kernel:
    """A float64 copy of the kernel on the CPU, without gradients."""
    if isinstance(kernel, str):
        kernel = KERNELS[one_of("kernel", kernel, KERNELS)]()
    if not isinstance(kernel, Kernel):
        raise must_be(
            "kernel", f"one of {', '.join(sorted(KERNELS))} or a kernel of nadaraya.kernels", kernel
        )
    if not kernel.symmetric or kernel.batch_shape:
        raise must_be("kernel", "symmetric and without heads of its own", kernel)
    return copy.deepcopy(kernel).to("cpu", torch.float64).requires_grad_(False)


def given_bandwidth(bandwidth: Any, num_features: int) -> NDArray[np.float64]:
    """A bandwidth given in numbers, as (d,)."""
    array = positive_numbers("bandwidth", bandwidth)
    if array.shape not in ((), (1,), (num_features,)):
        raise must_be("shape of bandwidth", f"() or ({num_features},), one per feature", array.shape)
    return np.broadcast_to(array, (num_features,)).copy()


def weights_of(sample_weight: ArrayLike | None, n: int) -> NDArray[np.float64]:
    """Sample weights as (n,), ones for None."""
    if sample_weight is None:
        return np.ones(n)
    if isinstance(sample_weight, np.ndarray) and sample_weight.dtype.kind == "b":  # which rows to take
        sample_weight = sample_weight.astype(np.float64)
    weight = numbers("sample_weight", sample_weight)
    if weight.shape == ():
        weight = np.full(n, float(weight))
    if weight.shape != (n,):
        raise must_be("shape of sample_weight", f"({n},), one number per point", weight.shape)
    wrong = weight[~((weight >= 0) & np.isfinite(weight))]
    if len(wrong):
        raise must_be("sample_weight", "finite numbers of at least 0", float(wrong[0]))
    if not weight.any():
        raise must_be("sample_weight", "above zero for at least one point", 0.0)
    # So that no sum overflows and no quotient loses digits; up to one observation their scale has no effect.
    largest = math.frexp(float(weight.max()))[1]
    return np.ldexp(weight, np.clip(largest, -300, 300) - largest)


def whole_number(name: str, value: Any, least: int = 1, most: int | None = None) -> int:
    """The value, if it is a whole number from `least` to `most`; an InputError otherwise."""
    whole = isinstance(value, Integral) and is_number(value)
    if not whole or value < least or (most is not None and value > most):
        bounds = f"of at least {least}" if most is None else f"from {least} to {most}"
        raise must_be(name, f"a whole number {bounds}", value)
    return int(value)


def one_of(name: str, value: Any, accepted: Iterable[str]) -> str:
    """The value, if it is one of these names; an InputError otherwise."""
    if not isinstance(value, str) or value not in accepted:
        raise unknown_name(name, value, accepted)
    return value


def generator_of(random_state: Any) -> np.random.RandomState:
    """scikit-learn's generator of a `random_state`; an InputError if it is none."""
    try:
        return check_random_state(random_state)
    except Exception as error:
        accepted = "None, a whole number from 0 to 2**32 - 1 or a numpy.random.RandomState"
        raise must_be("random_state", accepted, random_state) from error


def truth_value(name: str, value: Any) -> bool:
    """The value, if it is True or False; an InputError otherwise."""
    if not isinstance(value, bool | np.bool_):
        raise must_be(name, "True or False", value)
    return bool(value)


def verbosity(value: Any) -> int:
    """The value of `verbose`, a whole number of at least 0; an InputError otherwise."""
    return int(value) if isinstance(value, bool) else whole_number("verbose", value, 0)


def real_number(name: str, value: Any, accepted: str, least: float, most: float) -> float:
    """The value, if it is a number strictly between `least` and `most`; an InputError otherwise."""
    try:
        if is_number(value) and least < float(value) < most:
            return float(value)
    except OverflowError:
        pass
    raise must_be(name, accepted, value)


def numbers(name: str, value: ArrayLike) -> NDArray[np.float64]:
    """Real numbers, no truth values nor texts, as a float64 array; an InputError if they are none."""
    if np.ma.is_masked(value):
        raise must_be(name, "without masked values", value)
    try:
        array = np.asarray(value)
        is_real = array.dtype.kind in "iuf" or (array.dtype == object and all(map(is_number, array.flat)))
        with np.errstate(over="ignore"):  # of longer types: infinite, which the caller refuses
            result = array.astype(np.float64) if is_real else None
    except (TypeError, ValueError, OverflowError, RuntimeError) as error:
        raise must_be(name, "numbers", value) from error
    if result is None:
        raise must_be(name, "numbers", value)
    return result


def is_number(value: Any) -> bool:
    """Return whether it is a real number: no truth value, nor a duration (an integer for NumPy)."""
    return isinstance(value, Real) and not isinstance(value, bool | np.timedelta64)


def refuse_other_than_numbers(name: str, value: Any) -> None:
    """An InputError for what scikit-learn would take for numbers: masked values, texts, dates."""
    if np.ma.is_masked(value):
        raise must_be(name, "without masked values", value)
    try:
        array = value if hasattr(value, "dtype") else np.asarray(value)
    except ValueError:
        return  # ragged, which scikit-learn refuses
    kind = getattr(getattr(array, "dtype", None), "kind", "")
    if isinstance(array, np.ndarray) and kind == "O":
        if any(isinstance(entry, str | bytes) for entry in array.flat):
            kind = "U"
        if any(isinstance(entry, Integral) and abs(int(entry)) > sys.float_info.max for entry in array.flat):
            raise must_be(name, "numbers within float64", value)
    if kind in ("U", "S", "T", "M", "m", "V"):
        raise must_be(name, "numbers", value)


def positive_numbers(name: str, value: ArrayLike) -> NDArray[np.float64]:
    """Positive finite numbers as a float64 array; an InputError if they are not."""
    array = numbers(name, value)
    if not ((array > 0) & np.isfinite(array)).all():
        raise must_be(name, "positive and finite", array.tolist())
    return array


def probabilities(name: str, value: ArrayLike) -> NDArray[np.float64]:
    """One or a list of numbers strictly between 0 and 1, as () or (k,); an InputError if they are not."""
    array = numbers(name, value)
    if array.ndim > 1 or not ((array > 0) & (array < 1)).all():
        raise must_be(name, "one or a list of numbers between 0 and 1", value)
    return array


def torch_device(device: str | torch.device | None) -> torch.device | None:
    """The device where PyTorch computes; None leaves the choice of the CPU's fastest way."""
    if device is None:
        return None
    try:
        chosen = torch.device(device)
        torch.zeros(1, device=chosen).item()
    except (RuntimeError, AssertionError, TypeError, ValueError, NotImplementedError) as error:
        raise must_be("device", "one that PyTorch has here, such as 'cpu' or 'cuda'", device) from error
    return chosen
