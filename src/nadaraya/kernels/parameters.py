"""Positive parameters: stored as logs, checked, read and set in natural units."""

from functools import reduce
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
        value = torch.as_tensor(value, device=parameter.device).detach()
        check_positive(self.name, value)
        with torch.no_grad():
            parameter.copy_(value.to(at_least_float32(value)).log())


def natural(logarithm: Tensor) -> Tensor:
    """exp of a stored log, float32 at least."""
    return logarithm.to(at_least_float32(logarithm)).exp()


def at_least_float32(*tensors: Tensor) -> torch.dtype:
    """The dtype these tensors are computed with together: float32, or float64 if one of them is."""
    return reduce(torch.promote_types, (tensor.dtype for tensor in tensors), torch.float32)


def log_of_positive(name: str, value: float | Tensor) -> Tensor:
    """The log of a parameter that is one number, or one per head.

    Args:
        name: the parameter, for the message.
        value: a number, or (H,).

    Returns:
        () or (H,), float64 if a float64 tensor is given, otherwise float32.

    Raises:
        InputError: the value is no number, has another shape, or is not positive and finite.
    """
    try:
        tensor = torch.as_tensor(value).detach()
    except (TypeError, ValueError, RuntimeError) as error:
        raise must_be(name, "a positive finite number, or one per head", value) from error
    if tensor.ndim > 1 or tensor.numel() == 0:
        raise must_be(name, "a number or of shape (heads,)", tuple(tensor.shape))
    check_positive(name, tensor)
    return tensor.to(at_least_float32(tensor)).log()


def check_positive(name: str, value: Tensor) -> None:
    """Raises InputError unless every entry is positive and finite.

    Args:
        name: the parameter, for the message.
        value: any shape; a tensor on the meta device has no values and passes.
    """
    if value.is_meta:
        return
    if not bool(((value > 0) & torch.isfinite(value)).all()):
        given = value.item() if value.numel() == 1 else value.tolist()
        raise must_be(name, "positive and finite", given)


def count(name: str, value: int, least: int = 1) -> int:
    """The value, if it is a whole number that is large enough.

    Args:
        name: what is counted, for the message.
        value: the number given.
        least: the smallest accepted; default 1.

    Returns:
        The value, unchanged.

    Raises:
        InputError: it is not an int, or below `least`.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise must_be(name, f"a whole number of at least {least}", value)
    return value


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
