"""The one list of all kernels that the laws are tested over."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch

from nadaraya.kernels import (
    KERPLE,
    ALiBi,
    Boxcar,
    ComposedKernel,
    Constant,
    Epanechnikov,
    Exp,
    ExponentialDecay,
    FreeTable,
    Gaussian,
    GaussianWithoutHalf,
    Kernel,
    KernelBank,
    Matern,
    Periodic,
    RationalQuadratic,
    Sandwich,
    T5Buckets,
    Tricube,
)


@dataclass(frozen=True)
class Case:
    """A kernel and what is true of it."""

    name: str
    make: Callable[[], Kernel]
    at_zero: float | None = 1.0  # κ(0); None where it is learned
    decreasing: bool = False  # κ falls (weakly) with |r|
    definite_up_to: int = 0  # largest dimension, of those tried, in which κ is positive definite

    def build(self) -> Kernel:
        """The kernel in float64, every parameter moved off its start so that heads and terms differ."""
        kernel = self.make().double()
        generator = torch.Generator().manual_seed(0)
        with torch.no_grad():
            for parameter in kernel.parameters():
                if parameter.ndim:
                    parameter += 0.3 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        return kernel


def _per_head(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


CASES = [
    Case("gaussian", lambda: Gaussian(1.7), decreasing=True, definite_up_to=3),
    Case("gaussian-heads", lambda: Gaussian(_per_head(0.5, 3.0)), decreasing=True, definite_up_to=3),
    Case("gaussian-without-half", lambda: GaussianWithoutHalf(1.7), decreasing=True, definite_up_to=3),
    Case("decay", lambda: ExponentialDecay(2.5, sigma=1.5), 2.25, decreasing=True, definite_up_to=3),
    Case("periodic", lambda: Periodic(0.8, 1.3), definite_up_to=1),
    Case("rational-quadratic", lambda: RationalQuadratic(1.2, 0.7), decreasing=True, definite_up_to=3),
    Case("matern-1/2", lambda: Matern(1.4, nu=0.5), decreasing=True, definite_up_to=3),
    Case("matern-3/2", lambda: Matern(1.4, nu=1.5), decreasing=True, definite_up_to=3),
    Case("matern-5/2", lambda: Matern(1.4, nu=2.5), decreasing=True, definite_up_to=3),
    Case("epanechnikov", lambda: Epanechnikov(2.2), decreasing=True),
    Case("tricube", lambda: Tricube(2.2), decreasing=True),
    Case("boxcar", lambda: Boxcar(2.2), decreasing=True),
    Case("bank", lambda: KernelBank(2, 3), None, definite_up_to=1),
    Case("bank-paper", lambda: KernelBank(3, 4, init="paper"), None, definite_up_to=1),
    Case("bank-decay", lambda: KernelBank(2, 3, periodic=False), None, decreasing=True, definite_up_to=3),
    Case("bank-shared", lambda: KernelBank(2, 3, share="heads"), None, definite_up_to=1),
    Case("bank-softplus", lambda: KernelBank(2, 3, parameterisation="softplus"), None, definite_up_to=1),
    Case("constant", lambda: Constant(_per_head(0.5, 1.5)), None, decreasing=True, definite_up_to=3),
    Case("composed", lambda: ComposedKernel("exponential + 2*rq", 2), None, True, 3),
    Case("composed-lone", lambda: ComposedKernel("matern32*gaussian", 2), 1.0, True, 3),
    Case(
        "composed-nested",
        lambda: ComposedKernel("2*(periodic + exp(3*rq))*matern52*periodic + constant", 3),
        None,
        definite_up_to=1,
    ),
    Case("composed-compact", lambda: ComposedKernel("2*epanechnikov + tricube*gaussian", 2), None, True),
    Case("alibi", lambda: ALiBi(6), decreasing=True, definite_up_to=3),
    Case("kerple-log", lambda: KERPLE(2, "log"), decreasing=True, definite_up_to=3),
    Case("kerple-power", lambda: KERPLE(2, "power"), decreasing=True, definite_up_to=3),
    Case("sandwich", lambda: Sandwich(2, dim=16), definite_up_to=1),
    Case("t5", lambda: T5Buckets(2, num_buckets=8, max_distance=20), None),
    Case("t5-bidirectional", lambda: T5Buckets(2, 8, 20, bidirectional=True), None),
    Case("free", lambda: FreeTable(2, 6), None),
    Case("free-signed", lambda: FreeTable(2, 6, signed=True), None),
    Case("sum", lambda: Gaussian(1.5) + Matern(_per_head(1.0, 4.0), nu=0.5), 2.0, True, 3),
    Case("product", lambda: ExponentialDecay(3.0) * Periodic(_per_head(1.0, 0.4), 2.0), definite_up_to=1),
    Case("scaled", lambda: 2.0 * Gaussian(1.5), 2.0, True, 3),
    Case("sum-compact", lambda: Epanechnikov(1.5) + Tricube(3.0), 2.0, True),
    Case("product-compact", lambda: Gaussian(2.0) * Epanechnikov(3.0), decreasing=True),
    Case(
        "nested",
        lambda: 0.5 * (Gaussian(1.0) + Periodic(0.6, 2.0) * Matern(5.0)) * Gaussian(9.0),
        1.0,
        False,
        1,
    ),
    Case("exp", lambda: Exp(Gaussian(_per_head(1.5, 4.0))), math.e, True, 3),
    Case("exp-bank", lambda: Exp(KernelBank(2, 3, init="paper")), None, definite_up_to=1),
    Case("exp-bank-cosine", lambda: Exp(KernelBank(2, 3, periodic="cosine")), None, definite_up_to=1),
    Case("exp-bank-signed", lambda: Exp(KernelBank(2, 3, signed=True)), None),
    Case("exp-signed", lambda: Exp(FreeTable(2, 6, signed=True)), None),
    Case("exp-product", lambda: 0.5 * Exp(Gaussian(1.5)) * ExponentialDecay(3.0), math.e / 2, True, 3),
]


@pytest.fixture(params=CASES, ids=[case.name for case in CASES])
def case(request: pytest.FixtureRequest) -> Case:
    return request.param


@pytest.fixture
def kernel(case: Case) -> Kernel:
    return case.build()
