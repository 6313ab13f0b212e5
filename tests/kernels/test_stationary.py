"""The smooth kernels against their limits, each other, scikit-learn and GPyTorch."""

import math

import gpytorch
import pytest
import torch
from sklearn.gaussian_process import kernels as sklearn_kernels

from nadaraya.errors import InputError
from nadaraya.kernels import (
    ExponentialDecay,
    Gaussian,
    GaussianWithoutHalf,
    Kernel,
    Matern,
    Periodic,
    RationalQuadratic,
)


def double(value: float) -> torch.Tensor:
    return torch.tensor(value, dtype=torch.float64)


def points(dim: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(dim)
    x = torch.randn(9, dim, generator=generator, dtype=torch.float64)
    return x, 2 * torch.randn(7, dim, generator=generator, dtype=torch.float64)


ALPHA, TAU = 0.8, 1.3
SKLEARN = [
    (Gaussian(double(0.7)), sklearn_kernels.RBF(0.7), 3),
    (Matern(double(1.3), nu=0.5), sklearn_kernels.Matern(1.3, nu=0.5), 3),
    (ExponentialDecay(double(1.3)), sklearn_kernels.Matern(1.3, nu=0.5), 3),
    (Matern(double(1.3), nu=1.5), sklearn_kernels.Matern(1.3, nu=1.5), 3),
    (Matern(double(1.3), nu=2.5), sklearn_kernels.Matern(1.3, nu=2.5), 3),
    (
        RationalQuadratic(double(0.9), double(1.7)),
        sklearn_kernels.RationalQuadratic(length_scale=0.9, alpha=1.7),
        3,
    ),
    # exp(−2 sin²(π r / p) / ℓ²): α = 1/ℓ and the period is p = π τ
    (Periodic(double(ALPHA), double(TAU)), sklearn_kernels.ExpSineSquared(1 / ALPHA, math.pi * TAU), 1),
    (
        2.0 * Gaussian(double(0.7)) * Periodic(double(ALPHA), double(TAU)) + Matern(double(1.3), nu=0.5),
        2.0 * sklearn_kernels.RBF(0.7) * sklearn_kernels.ExpSineSquared(1 / ALPHA, math.pi * TAU)
        + sklearn_kernels.Matern(1.3, nu=0.5),
        1,
    ),
]


@pytest.mark.parametrize(("ours", "theirs", "dim"), SKLEARN, ids=[repr(row[1]) for row in SKLEARN])
def test_agrees_with_scikit_learn(ours: Kernel, theirs, dim):
    x, z = points(dim)
    expected = torch.from_numpy(theirs(x.numpy(), z.numpy()))
    # The factor 2.0 is held in float32.
    torch.testing.assert_close(ours.matrix(x, z).detach(), expected, rtol=1e-6, atol=1e-12)


def gpytorch_kernel(kernel, **settings):
    for name, value in settings.items():
        setattr(kernel, name, value)
    return kernel.double()


@pytest.mark.parametrize(
    ("ours", "theirs", "dim"),
    [
        (Gaussian(double(0.7)), gpytorch_kernel(gpytorch.kernels.RBFKernel(), lengthscale=0.7), 3),
        (
            Matern(double(1.3), nu=0.5),
            gpytorch_kernel(gpytorch.kernels.MaternKernel(0.5), lengthscale=1.3),
            3,
        ),
        (
            Matern(double(1.3), nu=1.5),
            gpytorch_kernel(gpytorch.kernels.MaternKernel(1.5), lengthscale=1.3),
            3,
        ),
        (
            Matern(double(1.3), nu=2.5),
            gpytorch_kernel(gpytorch.kernels.MaternKernel(2.5), lengthscale=1.3),
            3,
        ),
        (
            RationalQuadratic(double(0.9), double(1.7)),
            gpytorch_kernel(gpytorch.kernels.RQKernel(), lengthscale=0.9, alpha=1.7),
            3,
        ),
        # exp(−2 sin²(π r / p) / λ): here λ is not squared, so α = 1/√λ
        (
            Periodic(double(ALPHA), double(TAU)),
            gpytorch_kernel(
                gpytorch.kernels.PeriodicKernel(), lengthscale=ALPHA**-2, period_length=math.pi * TAU
            ),
            1,
        ),
    ],
    ids=["rbf", "matern-1/2", "matern-3/2", "matern-5/2", "rational-quadratic", "periodic"],
)
def test_agrees_with_gpytorch(ours: Kernel, theirs, dim):
    x, z = points(dim)
    # GPyTorch sets its parameters in float32.
    torch.testing.assert_close(
        ours.matrix(x, z).detach(), theirs(x, z).to_dense().detach(), rtol=2e-5, atol=1e-7
    )


R = torch.linspace(0, 12, 50, dtype=torch.float64)


def test_the_two_gaussian_conventions_differ_by_the_root_of_two():
    torch.testing.assert_close(GaussianWithoutHalf(double(1.1))(R), Gaussian(double(1.1 / math.sqrt(2)))(R))


def test_period_is_pi_tau():
    kernel = Periodic(double(0.9), double(4.0))
    torch.testing.assert_close(kernel(R + kernel.period.detach()), kernel(R))
    trough = kernel(kernel.period.detach() / 2).item()
    assert trough == pytest.approx(math.exp(-2 * 0.81))
    assert (kernel(R) >= trough - 1e-12).all()
    assert kernel.period.item() == pytest.approx(4 * math.pi)


def test_a_period_stands_for_tau():
    periods = torch.tensor([7.0, 70.0], requires_grad=True)
    for given, expected in ((70, 70.0), (70.0, 70.0), (double(70.0), 70.0), (periods, [7.0, 70.0])):
        kernel = Periodic(0.9, period=given)
        torch.testing.assert_close(kernel.period.tolist(), expected)
        torch.testing.assert_close(kernel(R), Periodic(0.9, tau=kernel.tau.detach())(R))
    kernel(R).sum().backward()
    assert periods.grad.abs().min() > 0
    assert list(Periodic(0.9, period=70).state_dict()) == ["log_alpha", "log_tau"]


def test_one_of_period_and_tau_is_given():
    for given in ({}, {"tau": 2.0, "period": 7.0}):
        with pytest.raises(InputError, match="Periodic needs either period or tau"):
            Periodic(1.0, **given)
    with pytest.raises(InputError, match="period must be positive and finite, got -7"):
        Periodic(1.0, period=-7)


def test_rational_quadratic_tends_to_the_gaussian():
    torch.testing.assert_close(
        RationalQuadratic(double(2.0), double(1e7))(R), Gaussian(double(2.0))(R), rtol=1e-4, atol=1e-6
    )


def test_matern_tends_to_the_gaussian_in_order():
    gaussian = Gaussian(double(3.0))(R)
    errors = [(Matern(double(3.0), nu=nu)(R) - gaussian).abs().amax() for nu in (0.5, 1.5, 2.5)]
    assert errors[0] > errors[1] > errors[2]


def test_decay_falls_by_e_every_length():
    kernel = ExponentialDecay(double(3.0), sigma=double(2.0))
    torch.testing.assert_close(kernel(R + 3), kernel(R) / math.e)
    assert kernel(0.0).item() == pytest.approx(4.0)


def test_matern_knows_three_smoothnesses():
    with pytest.raises(InputError, match=r"nu must be 0\.5, 1\.5 or 2\.5, got 2\.0"):
        Matern(1.0, nu=2.0)
