"""numba's compiler with its cache on disk where there is a place for one."""

from collections.abc import Callable
from typing import Any

from numba import njit


def compiled(**options: Any) -> Callable[[Callable[..., Any]], Any]:
    """A decorator: `numba.njit` with these options, kept on disk between processes.

    Where neither the package's folder nor the user's cache folder can be written numba refuses to cache; the
    function is then compiled anew by each process.
    """

    def decorate(function: Callable[..., Any]) -> Any:
        try:
            return njit(cache=True, **options)(function)
        except RuntimeError:
            return njit(**options)(function)

    return decorate
