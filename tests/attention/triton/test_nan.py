"""NaN in the features is NaN in what depends on them, though a GPU's minimum of NaN and 0 is 0."""

from typing import Any

import numpy as np
import pytest
import torch
from grids import covering
from torch import Tensor

from nadaraya import kernel_attention
from nadaraya.kernels import Gaussian

pytestmark = [
    pytest.mark.usefixtures("usual_tiles"),
    pytest.mark.filterwarnings("ignore:All-NaN slice encountered"),  # of the interpreter
]


@pytest.fixture(autouse=True)
def _minima_of_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton 3.6's interpreter lets NaN win where min.f32 lets it lose."""
    torch.manual_seed(0)
    interpreter = pytest.importorskip("triton.runtime.interpreter")
    for name, function in (("create_minnumf", np.fmin), ("create_maxnumf", np.fmax)):
        chosen = lambda self, a, b, function=function: self.binary_op(a, b, function)  # noqa: E731
        monkeypatch.setattr(interpreter.InterpreterBuilder, name, chosen)


def gradients_of(tensors: dict[str, Tensor], backend: str, **options: Any) -> tuple[Tensor, Tensor]:
    """Output, and log-sum-exp, of leaves that have their gradients afterwards."""
    query = tensors["query"]
    key, value = tensors.get("key", query), tensors.get("value", query)
    out, lse = kernel_attention(query, key, value, backend=backend, return_lse=True, **options)
    if any(t.requires_grad for t in tensors.values()):
        out.sum().backward()
    return out.detach(), lse.detach()


@pytest.mark.parametrize(
    ("spoilt", "width", "dtype", "causal", "exclude_self"),
    covering(
        ["query", "key", "one tensor"],
        [4, 16],  # distances by differences, and by products
        [torch.float32, torch.float16],
        [False, True],
        [False, True],
        whole=False,
    ),
)
def test_nan_reaches_what_the_definition_says(
    spoilt: str, width: int, dtype: torch.dtype, causal: bool, exclude_self: bool
) -> None:
    names = ["query"] if spoilt == "one tensor" else ["query", "key", "value"]
    features = {name: torch.randn(1, 1, 40, width).to(dtype) for name in names}
    features["query" if spoilt == "one tensor" else spoilt][:, :, 20, 1] = torch.nan
    options = {"causal": causal, "exclude_self": exclude_self, "content": Gaussian(2.0)}
    tensors = {name: t.requires_grad_() for name, t in features.items()}
    out, lse = gradients_of(tensors, "triton", **options)
    expected = kernel_attention(
        *(features.get(name, features["query"]).detach().double() for name in ("query", "key", "value")),
        return_lse=True, backend="reference", **options,
    )  # fmt: skip
    first = 20 if causal else 0  # before it the definition has 0 · NaN
    for actual, want in zip((out[:, :, first:], lse[:, :, first:]), expected, strict=True):
        want = want[:, :, first:]
        assert (actual.isnan() | ~want.isnan()).all()
        if dtype == torch.float16 or spoilt == "query":
            assert torch.equal(actual.isnan(), want.isnan())
    # Every weight of a spoilt row is NaN, and with it what it sends back.
    assert all(t.grad is not None and t.grad[:, :, :21].isnan().any() for t in tensors.values())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("spoilt", ["query", "key"])
def test_nan_reaches_the_output_of_decoding(spoilt: str, dtype: torch.dtype) -> None:
    tensors = {
        name: torch.randn(1, 1, 1 if name == "query" else 40, 16).to(dtype)
        for name in ("query", "key", "value")
    }
    tensors[spoilt][:, :, 0, 1] = torch.nan
    out, lse = gradients_of(tensors, "triton", content=Gaussian(2.0))
    assert out.isnan().all()
    assert lse.isnan().all()
