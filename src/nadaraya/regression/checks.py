"""Checks of what users pass to the estimators, and the names they may use; every message is one line."""

import copy
import textwrap
from numbers import Integral, Real
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from nadaraya.errors import InputError, unknown_name
from nadaraya.kernels import (
    Boxcar,
    Epanechnikov,
    ExponentialDecay,
    Gaussian,
    Kernel,
    Matern,
    Tricube,
)

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
    """A float64 copy of the kernel on the CPU, without gradients.

    Raises:
        InputError: the name is unknown, or it is no symmetric kernel of one head.
    """
    if isinstance(kernel, str):
        if kernel not in KERNELS:
            raise unknown_name("kernel", kernel, KERNELS)
        kernel = KERNELS[kernel]()
    if not isinstance(kernel, Kernel):
        raise InputError(
            f"kernel is {_shown(kernel)}: accepted are {', '.join(sorted(KERNELS))}, "
            "or a kernel of nadaraya.kernels"
        )
    if not kernel.symmetric or kernel.batch_shape:
        raise InputError(
            f"kernel is {_shown(kernel)}: accepted are symmetric kernels without heads of their own"
        )
    return copy.deepcopy(kernel).to("cpu", torch.float64).requires_grad_(False)


def given_bandwidth(bandwidth: Any, num_features: int) -> NDArray[np.float64]:
    """A bandwidth given in numbers, as (d,).

    Raises:
        InputError: not a positive finite number, nor one of them a feature.
    """
    array = number_array("bandwidth", bandwidth)
    if array.shape not in ((), (1,), (num_features,)):
        raise InputError(
            f"bandwidth has shape {array.shape}: accepted are a number, or ({num_features},), one a feature"
        )
    if not ((array > 0) & np.isfinite(array)).all():
        raise InputError(f"bandwidth is {_shown(array.tolist())}: accepted are positive finite numbers")
    return np.broadcast_to(array, (num_features,)).copy()


def weights_of(sample_weight: ArrayLike | None, n: int) -> NDArray[np.float64]:
    """Sample weights as (n,), ones for None.

    Raises:
        InputError: they have another shape, are negative or not finite, or all are zero.
    """
    if sample_weight is None:
        return np.ones(n)
    weight = number_array("sample_weight", sample_weight).copy()
    if weight.shape == ():
        weight = np.full(n, float(weight))
    if weight.shape != (n,):
        raise InputError(f"sample_weight has shape {weight.shape}: accepted is ({n},), one number a point")
    if not ((weight >= 0) & np.isfinite(weight)).all():
        raise InputError(
            "sample_weight has an entry that is negative or not finite: accepted are numbers from 0"
        )
    if not weight.any():
        raise InputError("sample_weight is zero everywhere: at least one point must count")
    return weight


def whole_number(name: str, value: Any, least: int = 1, most: int | None = None) -> int:
    """The value, if it is a whole number from `least` to `most`.

    Raises:
        InputError: otherwise.
    """
    whole = isinstance(value, Integral) and not isinstance(value, bool)
    if not whole or value < least or (most is not None and value > most):
        upper = "" if most is None else f" to {most}"
        raise InputError(f"{name} is {_shown(value)}: accepted are whole numbers from {least}{upper}")
    return int(value)


def fraction(name: str, value: Any) -> float:
    """The value, if it is a number strictly between 0 and 1.

    Raises:
        InputError: otherwise.
    """
    if isinstance(value, bool) or not isinstance(value, Real) or not 0 < float(value) < 1:
        raise InputError(f"{name} is {_shown(value)}: accepted are numbers between 0 and 1")
    return float(value)


def torch_device(device: str | torch.device | None) -> torch.device | None:
    """The device where PyTorch computes; None leaves the choice of the CPU's fastest way.

    Raises:
        InputError: PyTorch has no such device here.
    """
    if device is None:
        return None
    try:
        chosen = torch.device(device)
        torch.zeros(1, device=chosen).item()
    except (RuntimeError, AssertionError, TypeError, NotImplementedError) as error:
        raise InputError(
            f"device is {device!r}: accepted are the devices PyTorch has here, such as 'cpu' or 'cuda'"
        ) from error
    return chosen


def number_array(name: str, value: ArrayLike) -> NDArray[np.float64]:
    """Numbers as a float64 array.

    Raises:
        InputError: they are no numbers.
    """
    try:
        return np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"{name} is {_shown(value)}: accepted are numbers") from error


def _shown(value: Any) -> str:
    """What was given, on one line of at most 200 characters."""
    return textwrap.shorten(repr(value), 200, placeholder=" …")
