"""numba's compiler with its cache on disk where there is a place for one."""

from collections.abc import Callable
from typing import Any

from numba import njit


def compiled(**options: Any) -> Callable[[Callable[..., Any]], Any]:
    """`numba.njit`, kept on disk between processes if there is a folder where that can be written."""

    def decorate(function: Callable[..., Any]) -> Any:
        try:
            return njit(cache=True, **options)(function)
        except RuntimeError:
            return njit(**options)(function)

    return decorate


def compiled_types(function: Any) -> list[str]:
    """The types of arguments for which a function need not be compiled: loaded, or in the cache on disk."""
    known = list(function.signatures)
    try:  # numba has no public way to look into its cache
        processor = function.targetctx.codegen().magic_tuple()
        index = function._cache._cache_file._load_index()
        known += [key[0] for key in index if key[1] == processor]
    except (AttributeError, OSError, IndexError, TypeError):
        pass  # taken as empty: something is compiled later or sooner than it could be
    return [str(types) for types in known]
