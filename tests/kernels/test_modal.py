"""Kernels that are finite sums of damped modes: the modes are the kernel, with as few states as it needs."""

import pytest
import torch
from scipy.special import ive

from nadaraya.kernels import (
    ALiBi,
    ComposedKernel,
    Constant,
    Exp,
    ExponentialDecay,
    Gaussian,
    Kernel,
    KernelBank,
    Matern,
    Periodic,
)

# Of the one list of all kernels, those that are such sums.
WITH_MODES = {
    "decay", "periodic", "matern-1/2", "matern-3/2", "matern-5/2", "bank", "bank-paper", "bank-decay",
    "bank-shared", "bank-softplus", "constant", "alibi", "product",
}  # fmt: skip
HEADS = torch.tensor([3.0, 40.0, 9.0], dtype=torch.float64)
MORE = {
    "bank-cosine": lambda: KernelBank(3, 4, periodic="cosine"),
    "bank-signed": lambda: KernelBank(3, 4, signed=True),
    "bank-signed-cosine": lambda: KernelBank(3, 2, signed=True, periodic="cosine", share="heads"),
    "sum": lambda: Matern(7.0, 2.5) + ExponentialDecay(HEADS) + Periodic(0.6, 5.0),
    "product-of-powers": lambda: Matern(HEADS, 2.5) * Matern(20.0, 1.5),
    "product-of-waves": lambda: Periodic(0.5, period=11.0) * Periodic(0.8, HEADS) * Matern(30.0, 1.5),
    "scaled": lambda: 0.3 * (ALiBi(3) + 2.0 * ExponentialDecay(15.0, sigma=0.7) * Constant(1.3)),
    "composed": lambda: ComposedKernel("2*(periodic + matern32)*exponential + 3*matern52*periodic", 3),
    "composed-lone": lambda: ComposedKernel("2*exponential*periodic + constant", 2),
}
LAGS = torch.arange(501, dtype=torch.float64)


def assert_modes_are(kernel: Kernel) -> None:
    """In values and in the gradient of every parameter."""
    modes = kernel.modes(torch.float64, 1e-12)
    assert modes is not None
    expected = torch.atleast_2d(kernel(LAGS))
    found = modes.at(LAGS).expand_as(expected)
    largest = float(expected.detach()[:, 0].abs().max())
    assert (found - expected).abs().max() < 1e-9 * largest
    parameters = list(kernel.parameters())
    if not parameters:
        return
    generator = torch.Generator().manual_seed(1)
    weights = torch.randn(expected.shape, generator=generator, dtype=torch.float64)
    wanted, gradients = (
        torch.autograd.grad((values * weights).sum(), parameters) for values in (expected, found)
    )
    size = max(float(gradient.abs().max()) for gradient in wanted)
    assert size > 0
    for gradient, want in zip(gradients, wanted, strict=True):
        torch.testing.assert_close(gradient, want, rtol=1e-7, atol=1e-9 * size)


def test_modes_are_the_kernel_where_it_is_such_a_sum(case):
    kernel = case.build()
    if case.name in WITH_MODES:
        assert_modes_are(kernel)
    else:
        assert kernel.modes(torch.float64, 1e-12) is None


@pytest.mark.parametrize("name", MORE)
def test_modes_of_sums_products_and_banks(name):
    kernel = MORE[name]().double()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in kernel.parameters():
            parameter += 0.2 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
    assert_modes_are(kernel)


@pytest.mark.parametrize(
    "without",
    [
        lambda part: part + Gaussian(3.0),
        lambda part: Gaussian(3.0) * part,
        lambda part: 2.0 * (part * Gaussian(3.0)),
        lambda part: Exp(part),
        lambda part: ComposedKernel("exponential + gaussian", 2) * part,
    ],
    ids=["sum", "product", "scaled", "exp", "composed"],
)
def test_one_part_that_is_no_sum_of_modes_is_enough(without):
    assert without(ExponentialDecay(5.0)).modes() is None


@pytest.mark.parametrize(
    ("kernel", "states"),
    [
        (Constant(2.0), 1),
        (ExponentialDecay(5.0), 1),
        (ALiBi(4), 1),
        (Matern(5.0, 0.5), 1),
        (Matern(5.0, 1.5), 2),
        (Matern(5.0, 2.5), 3),
        (Matern(5.0, 1.5) * Matern(9.0, 2.5), 4),
        (ExponentialDecay(5.0) * ExponentialDecay(9.0), 1),
        (ExponentialDecay(5.0) + ExponentialDecay(9.0), 2),
        (KernelBank(2, 5, periodic=False), 5),
        (KernelBank(2, 5, periodic="cosine"), 10),  # the two parts of a complex number each
    ],
    ids=repr,
)
def test_number_of_states(kernel, states):
    modes = kernel.modes(torch.float64)
    assert modes is not None
    assert modes.num_states == states


@pytest.mark.parametrize("alpha", [0.2, 0.7, 1.0, 1.3, 2.5])
def test_cosines_of_a_periodic_kernel_are_those_of_jacobi_and_anger(alpha):
    modes = Periodic(alpha, tau=3.0).double().modes(torch.float64, 1e-13)
    assert modes is not None
    assert modes.frequency is not None
    number = torch.arange(modes.rate.shape[1], dtype=torch.float64)
    bessel = torch.tensor(ive(number.numpy(), alpha**2))
    torch.testing.assert_close(
        modes.coefficients[0, :, 0], torch.where(number > 0, 2.0, 1.0) * bessel, rtol=1e-6, atol=1e-14
    )
    torch.testing.assert_close(modes.frequency[0], 2 * number / 3.0)
    assert not modes.rate.any()


@pytest.mark.parametrize(("error", "harmonics"), [(2e-3, 4), (3e-5, 6), (3e-7, 8), (2e-9, 10)])
def test_few_harmonics_make_a_periodic_kernel(error, harmonics):
    """Coefficients fall faster than any power of their number."""
    kernel = Periodic(1.3, tau=7.0).double()
    modes = kernel.modes(torch.float64, error)
    assert modes is not None
    difference = (modes.at(LAGS)[0] - kernel(LAGS)).abs().max()
    assert difference <= error
    assert modes.rate.shape[1] <= harmonics + 1  # and the mean


@pytest.mark.parametrize("tolerance", [1e-2, 1e-5, 1e-9])
def test_the_head_that_needs_most_sets_the_number_of_harmonics(tolerance):
    alphas = torch.tensor([0.1, 2.0, 0.9], dtype=torch.float64)
    together = Periodic(alphas, 5.0).double().modes(torch.float64, tolerance)
    alone = [Periodic(float(alpha), 5.0).double().modes(torch.float64, tolerance) for alpha in alphas]
    assert together.num_states == max(modes.num_states for modes in alone)
    assert (together.at(LAGS) - Periodic(alphas, 5.0)(LAGS)).abs().max() <= tolerance


def test_no_modes_where_the_tolerance_cannot_be_had():
    sharp = Periodic(50.0, tau=7.0).double()
    assert sharp.modes(torch.float64, 1e-7) is None
    assert (sharp * ExponentialDecay(9.0)).modes(torch.float64, 1e-7) is None
    assert (sharp + ExponentialDecay(9.0)).modes(torch.float64, 1e-7) is None
    bank = KernelBank(1, 2).double()
    with torch.no_grad():
        bank.log_alpha.fill_(4.0)
    assert bank.modes(torch.float64, 1e-7) is None
