"""Any kernel of the distance is a content: equal to the formula, by every backend, in layers and models."""

from functools import partial

import pytest
import torch
from torch import Tensor

from nadaraya import InputError, KernelSelfAttention, kernel_attention, variants
from nadaraya.attention.content import KernelContent
from nadaraya.kernels import (
    ComposedKernel,
    Epanechnikov,
    Exp,
    ExponentialDecay,
    Gaussian,
    Kernel,
    KernelBank,
    Matern,
    Periodic,
    RationalQuadratic,
    Tricube,
)
from nadaraya.kernels.relative import ALiBi

HEADS = 3
PER_HEAD = torch.tensor([1.0, 1.7, 0.8], dtype=torch.float64)
KERNELS: dict[str, Kernel] = {
    "scaled gaussian": 2.0 * Gaussian(1.3),
    "sum": Gaussian(PER_HEAD) + Gaussian(3.0),
    "product of one per head and one for all": RationalQuadratic(PER_HEAD, 0.5) * Periodic(0.4, 2.0),
    "scaled per head": PER_HEAD * ExponentialDecay(2.0),
    "matern": Matern(PER_HEAD, nu=2.5),
    "compact": Epanechnikov(2.5 * PER_HEAD) + Tricube(2.0),
    "exponential of a bank": Exp(KernelBank(HEADS, 3)),
    "bank that all heads share": KernelBank(HEADS, 4, share="heads"),
    "expression": ComposedKernel("2*gaussian*rq + exp(matern32)", HEADS, length=2.0),
    "linear bias": ALiBi(HEADS),
}


def points(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def by_formula(query: Tensor, key: Tensor, value: Tensor, kernel: Kernel, added: Tensor) -> Tensor:
    """Σ_j κ(‖q_i − k_j‖) v_j / Σ_j κ(‖q_i − k_j‖), zero in rows without weight, every head by itself."""
    r = torch.linalg.vector_norm(query[:, :, :, None] - key[:, :, None], dim=-1)
    kappa = torch.stack(
        [kernel(r[:, head])[head] if kernel.batch_shape else kernel(r[:, head]) for head in range(HEADS)], 1
    )
    kappa = kappa * added.exp()
    total = kappa.sum(-1, keepdim=True)
    return kappa @ value / torch.where(total == 0.0, 1.0, total)


@pytest.mark.parametrize("backend", ["reference", "sdpa"])
@pytest.mark.parametrize("name", KERNELS)
def test_a_kernel_of_the_distance_is_its_formula(name: str, backend: str) -> None:
    kernel = KERNELS[name].double()
    query, key, value = points(2, HEADS, 7, 4), points(2, HEADS, 9, 4, seed=1), points(2, HEADS, 9, 5, seed=2)
    lags = torch.arange(7)[:, None] + 2 - torch.arange(9)
    added = (-0.2 * lags.double()).masked_fill(lags < 0, -torch.inf)
    table = -0.2 * torch.arange(9.0, dtype=torch.float64)[None]
    leaves = [t.clone().requires_grad_() for t in (query, key, value)]
    leaves += [p for p in kernel.parameters() if p.requires_grad]
    want = by_formula(*leaves[:3], kernel, added)
    got = kernel_attention(
        *leaves[:3],
        content=kernel,
        position=table,
        causal=True,
        backend=backend,
    )
    torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-12)
    weight = points(*want.shape, seed=3)
    torch.testing.assert_close(
        torch.autograd.grad((got * weight).sum(), leaves),
        torch.autograd.grad((want * weight).sum(), leaves),
        rtol=1e-9,
        atol=1e-11,
    )


def test_second_derivatives_are_those_of_the_formula() -> None:
    kernel = (Gaussian(PER_HEAD) * RationalQuadratic(1.0, 0.7)).double()
    x, value = points(1, HEADS, 5, 2), points(1, HEADS, 5, 2, seed=1)

    def call(x: Tensor) -> Tensor:
        return kernel_attention(x, x + 0.1, value, content=kernel, backend="reference")

    assert torch.autograd.gradgradcheck(call, x.requires_grad_())


@pytest.mark.parametrize("backend", ["reference", "dense"])
def test_second_derivatives_of_the_gaussian_are_finite_at_0(backend: str) -> None:
    x = torch.cat([points(1, HEADS, 4, 2), torch.zeros(1, HEADS, 1, 2, dtype=torch.float64)], 2)

    def call(x: Tensor) -> Tensor:
        return kernel_attention(x, 1.0 * x, x, content=Gaussian(1.0).double(), backend=backend, causal=True)

    assert torch.autograd.gradgradcheck(call, x.requires_grad_())


@pytest.mark.parametrize("kernel", [Matern(1.0, nu=0.5), RationalQuadratic(1.0, 1.0), Tricube(4.0)])
def test_coinciding_points_have_finite_gradients(kernel: Kernel) -> None:
    x = points(1, 1, 6, 3).float().requires_grad_()
    out = kernel_attention(x, x, x, content=kernel)
    (gradient,) = torch.autograd.grad(out.square().sum(), x)
    assert gradient.isfinite().all()


def test_it_compiles_without_graph_breaks() -> None:
    kernel = RationalQuadratic(PER_HEAD.float(), 0.5)
    x = points(1, HEADS, 6, 4).float()

    def call(x: Tensor) -> Tensor:
        return kernel_attention(x, x, x, content=kernel, causal=True)

    compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x), call(x))


def test_refusals_name_what_is_wrong() -> None:
    x = torch.randn(1, HEADS, 4, 2)
    with pytest.raises(InputError, match="content must be a kernel shared by all heads or with one value"):
        kernel_attention(x, x, x, content=RationalQuadratic(torch.ones(2), 1.0))
    with pytest.raises(InputError, match="content must be a finite scale"):
        kernel_attention(x, x, x, content=10**400)
    with pytest.raises(InputError, match=r"None, a scale .* a Kernel or Factored"):
        kernel_attention(x, x, x, content="gaussian")  # type: ignore[arg-type]


@pytest.mark.parametrize("expression", ["rq", "2*gaussian", "matern32 + exponential", "epanechnikov"])
def test_a_layer_takes_an_expression(expression: str) -> None:
    torch.manual_seed(0)
    layer = KernelSelfAttention(
        24, HEADS, causal=True, content=partial(KernelContent, kernel=expression, shift=True)
    )
    x = torch.randn(2, 6, 24, requires_grad=True)
    layer(x).square().sum().backward()
    for name, parameter in layer.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
    kept = layer(x).detach()
    layer.keep_heads([0, 2])
    assert layer(x).shape == kept.shape
    assert layer.content.kernel.batch_shape == (2,)


def test_a_variant_takes_an_expression() -> None:
    x, outputs = torch.randn(1, 6, 16), {}
    for content in ("gaussian", "1*gaussian + 0*rq", "rq", "2*gaussian"):
        if "0*" in content:
            with pytest.raises(InputError, match="copies"):
                variants.get("gka", content=content)
            continue
        torch.manual_seed(0)
        outputs[content] = KernelSelfAttention(16, 2, causal=True, **variants.get("gka", content=content))(x)
    assert not torch.allclose(outputs["gaussian"], outputs["rq"])
    assert not torch.allclose(outputs["gaussian"], outputs["2*gaussian"])
    with pytest.raises(InputError, match="did you mean 'gaussian'"):
        variants.get("gka", content="gausian")
