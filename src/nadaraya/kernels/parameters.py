"""Positive parameters: stored as logs, checked, read and set in natural units."""

from functools import reduce
from numbers import Integral
from typing import Any

import torch
from torch import Tensor, nn

from nadaraya.errors import must_be


class Positive:
    """A positive parameter of a kernel in natural units, stored by the kernel as `log_<name>`.

    Reading gives its exponential, float32 at least, with the stored shape; assigning a number or a tensor
    that broadcasts to that shape stores its log.

    >>> from nadaraya.kernels import Gaussian
    >>> kernel = Gaussian(2.0)
    >>> kernel.bandwidth = 3.0
    >>> kernel.log_bandwidth.exp()
    tensor(3..., grad_fn=<ExpBackward0>)
    """

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, kernel: nn.Module | None, owner: type | None = None) -> Any:
        return self if kernel is None else natural(getattr(kernel, f"log_{self.name}"))

    def __set__(self, kernel: nn.Module, value: float | Tensor) -> None:
        parameter: Tensor = getattr(kernel, f"log_{self.name}")
        with torch.no_grad():
            parameter.copy_(positive(self.name, torch.as_tensor(value, device=parameter.device)).log())


def natural(logarithm: Tensor) -> Tensor:
    """exp of a stored log, float32 at least."""
    return logarithm.to(at_least_float32(logarithm)).exp()


def at_least_float32(*tensors: Tensor) -> torch.dtype:
    """The dtype these tensors are computed with together: float32, or float64 if one of them is."""
    return reduce(torch.promote_types, (tensor.dtype for tensor in tensors), torch.float32)


def log_of_positive(name: str, value: float | Tensor) -> Tensor:
    """The log of a parameter that is one number, () or (H,), float32 or, for a float64 tensor, float64.

    It has a gradient where the value has one.
    """
    try:
        tensor = torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise must_be(name, "a positive finite number, or one per head", value) from error
    if tensor.is_complex():
        raise must_be(name, "real", value)
    if tensor.ndim > 1 or tensor.numel() == 0:
        raise must_be(name, "a number or of shape (heads,)", tuple(tensor.shape))
    return positive(name, tensor).log()


def positive(name: str, value: Tensor) -> Tensor:
    """The values, float32 at least; refuses others than positive finite ones, where they can be looked at."""
    # A tensor on the meta device has no values to check; reading those of a graph would stall a GPU.
    # What torch.func maps over has none of one number.
    unread = value.is_meta or (value.requires_grad and (value.is_cuda or torch.compiler.is_compiling()))
    unread = unread or torch._C._are_functorch_transforms_active()
    if not unread and not bool(((value > 0) & torch.isfinite(value)).all()):
        raise must_be(name, "positive and finite", value.tolist())
    return value.to(at_least_float32(value))


def is_transformed() -> bool:
    """Return whether a call is compiled or within `torch.func`: then no value of a tensor is looked at."""
    return torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active()


def count(name: str, value: int, least: int = 1) -> int:
    """The value as an int, if it is a whole number of at least `least`; `name` is for the message."""
    if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
        raise must_be(name, f"a whole number of at least {least}", value)
    return int(value)


def describe(value: Tensor) -> str:
    """A parameter as text: the number, a short list, or the range of a long one."""
    if value.is_meta:
        return f"<{tuple(value.shape)} on meta>"
    numbers = value.detach().flatten().tolist()
    if value.ndim == 0:
        return f"{numbers[0]:.4g}"
    if len(numbers) <= 8:
        return f"[{', '.join(f'{number:.4g}' for number in numbers)}]"
    return f"{tuple(value.shape)} from {min(numbers):.4g} to {max(numbers):.4g}"
