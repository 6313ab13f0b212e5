"""Queries in Dask collections: methods that answer them lazily, one block of rows at a time."""

import functools
import warnings
from collections.abc import Callable
from typing import Any, TypeVar, cast

import numpy as np
from sklearn.utils.validation import check_is_fitted

from nadaraya.errors import InputError

Method = TypeVar("Method", bound=Callable[..., Any])


def over_blocks(method: Method) -> Method:
    """Lets a method of queries (m, d) take a Dask array or DataFrame, and answer with a Dask array.

    Nothing is computed before the answer is; Dask is never imported but by those who use it.
    """

    @functools.wraps(method)
    def answer(self: Any, X: Any, *args: Any, **options: Any) -> Any:
        if not hasattr(X, "__dask_graph__"):
            return method(self, X, *args, **options)
        check_is_fitted(self)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="X does not have valid feature names")
            example = method(self, self.X_[:1], *args, **options)
        if not isinstance(example, np.ndarray):
            raise InputError(
                f"{method.__name__} of a Dask collection gives one array: ask for one without further "
                "arguments, or map it over the blocks"
            )
        # By name: a method that is wrapped cannot be sent to other processes as it is.
        block = functools.partial(_of_block, self, method.__name__, example[:0], args, options)
        if hasattr(X, "map_partitions"):
            return X.map_partitions(block, meta=example[:0])
        import dask.array

        others = "abc"[: example.ndim - 1]
        return dask.array.blockwise(
            block,
            f"i{others}",
            X,
            "ij",
            new_axes=dict(zip(others, example.shape[1:], strict=True)),
            concatenate=True,
            dtype=example.dtype,
            meta=example[:0],
        )

    return cast(Method, answer)


def _of_block(
    estimator: Any, method: str, nothing: Any, args: tuple[Any, ...], options: dict[str, Any], rows: Any
) -> Any:
    return getattr(estimator, method)(rows, *args, **options) if len(rows) else nothing
