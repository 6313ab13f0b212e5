"""The kernels run in Triton's interpreter here, or, with NADARAYA_TEST_DEVICE=cuda, on a GPU."""

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import fields, is_dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from nadaraya import kernel_attention
from nadaraya.attention.triton.configs import KERNELS, Config, use
from nadaraya.kernels import Gaussian

ON_GPU = os.environ.get("NADARAYA_TEST_DEVICE") == "cuda"


def _cut(block_m: int, block_n: int) -> AbstractContextManager[None]:
    tiles, square = (Config(block_m, columns, num_warps=4, num_stages=2) for columns in (block_n, block_m))
    # Sums along diagonals need square tiles.
    return use(**{kernel: square if kernel.endswith("table_gradient") else tiles for kernel in KERNELS})


# Options that are tensors with a gradient, in float32 whatever the features are.
_DIFFERENTIABLE = ("position", "key_bias")
# So small that a few dozen tokens make several tiles; on a GPU also the tiles of the packaged table.
_TILINGS: dict[str, Callable[[], AbstractContextManager[None]]] = {
    "16x32": lambda: _cut(16, 32),
    "32x16": lambda: _cut(32, 16),
    **({"chosen": nullcontext} if ON_GPU else {}),
}


@pytest.fixture(autouse=True, scope="session")
def _needs_triton() -> None:
    pytest.importorskip("triton")


@pytest.fixture(autouse=True, scope="module")
def _quiet_infinities() -> Iterator[None]:
    """The interpreter computes with numpy, which would warn of every −∞ that a mask is made of."""
    with np.errstate(all="ignore"):
        yield


@pytest.fixture(params=list(_TILINGS), scope="module")
def tiles(request: pytest.FixtureRequest) -> Iterator[None]:
    """Every way of cutting the kernels in turn."""
    with _TILINGS[request.param]():
        yield


def _outcome(
    tensors: list[Tensor], options: dict[str, Any], backend: str, dtype: torch.dtype
) -> dict[str, Tensor]:
    """The output, and the gradient of every floating-point argument; computed in a dtype.

    A tensor that is given several times is one leaf, as it is to the operator, with one gradient.
    """
    leaves = {id(t): t.detach().to(dtype).requires_grad_() for t in tensors}
    precise = torch.promote_types(dtype, torch.float32)
    named = {
        name: options[name].detach().to(precise).requires_grad_()
        for name in _DIFFERENTIABLE
        if isinstance(options.get(name), Tensor)
    }
    position = options.get("position")
    if is_dataclass(position):
        # A mixture or a grid: its tensors are leaves by their own names.
        parts = {field.name: getattr(position, field.name) for field in fields(position)}
        leaves_of_it = {
            name: part.detach().to(precise).requires_grad_()
            for name, part in parts.items()
            if isinstance(part, Tensor)
        }
        named |= leaves_of_it
        options = {**options, "position": replace(position, **leaves_of_it)}
    given = {**options, **{name: leaf for name, leaf in named.items() if name in options}}
    if isinstance(options.get("content"), Gaussian):
        named["bandwidth"] = options["content"].bandwidth.detach().to(precise).requires_grad_()
        given["content"] = Gaussian(named["bandwidth"])
    out = kernel_attention(*(leaves[id(t)] for t in tensors), **given, backend=backend)
    # Rounded as the tensors are, so that both computations start from the same numbers.
    grad_out = torch.sin(torch.arange(out.numel())).to(tensors[0].dtype).to(dtype).view(out.shape)
    inputs = [*leaves.values(), *named.values()]
    grads = torch.autograd.grad(out, inputs, grad_out, allow_unused=True)
    names = {id(t): name for name, t in zip(("value", "key", "query"), reversed(tensors), strict=True)}
    results = zip([*(names[key] for key in leaves), *named], inputs, grads, strict=True)
    return {
        "output": out.detach(),
        **{name: torch.zeros_like(leaf) if grad is None else grad for name, leaf, grad in results},
    }


def _assert_agreement(
    tensors: list[Tensor], options: dict[str, Any], largest_logit: float = 0.0
) -> dict[str, Tensor]:
    dtype = tensors[0].dtype
    expected = _outcome(tensors, options, "reference", torch.float64)
    actual = _outcome(tensors, options, "triton", dtype)
    # A logit's rounding in float32 is a relative error of its weight.
    tolerance = 1e-5 + 4 * torch.finfo(torch.float32).eps * largest_logit
    if dtype != torch.float32:
        # Weights, their gradients, the output and the share of ε are each rounded to eps / 2.
        tolerance += 3 * torch.finfo(dtype).eps
    rounded = ("output", "query", "key", "value")
    for name, want in expected.items():
        assert want.isfinite().all(), name
        assert actual[name].dtype == (dtype if name in rounded else torch.float32)
        largest = want.abs().max().item() if want.numel() else 0.0
        # These add up what the rounding of the output leaves in every row.
        factor = 1.0 if name in rounded else 4.0
        torch.testing.assert_close(
            actual[name].double(),
            want,
            rtol=0,
            atol=factor * tolerance * max(1.0, largest),
            msg=lambda m, name=name: f"{name}: {m}",
        )
    return actual


@pytest.fixture(scope="module")
def usual_tiles() -> Iterator[None]:
    """The tiles of the packaged table on a GPU, small ones in the interpreter."""
    with _TILINGS["chosen" if ON_GPU else "16x32"]():
        yield


@pytest.fixture(scope="session")
def cut() -> Callable[[int, int], AbstractContextManager[None]]:
    """Cuts all kernels to BLOCK_M queries × BLOCK_N keys within a block."""
    return _cut


def _packed(batch: int, num_tokens: int, num_documents: int) -> Tensor:
    """Numbers of documents whose lengths are drawn at random; in each batch item other ones."""
    cuts = torch.rand(batch, num_tokens).argsort(1) < num_documents - 1
    # Neither ordered nor one after the other.
    return cuts.cumsum(1) * 37 % 101


@pytest.fixture(scope="session")
def packed() -> Callable[[int, int, int], Tensor]:
    """`document_ids` of so many batch items, tokens and (at most) documents."""
    return _packed


@pytest.fixture(scope="session")
def outcome() -> Callable[..., dict[str, Tensor]]:
    return _outcome


@pytest.fixture(scope="session")
def assert_agreement() -> Callable[..., dict[str, Tensor]]:
    """Output and gradients equal the definition in float64, but for the rounding of the tensors' dtype.

    `largest_logit` is to be told where logits are in the hundreds. Returns what the kernels gave.
    """
    return _assert_agreement
