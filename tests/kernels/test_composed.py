"""Kernels of expressions against kernels composed by hand, and against the bank."""

import pytest
import torch

from nadaraya import kernel_attention
from nadaraya.kernels import (
    ComposedKernel,
    Constant,
    Exp,
    ExponentialDecay,
    Gaussian,
    Kernel,
    KernelBank,
    Matern,
    Periodic,
    RationalQuadratic,
)
from nadaraya.kernels.expressions import parse_expression

LAGS = torch.arange(60, dtype=torch.float64)


def composed(expression: str, num_heads: int = 2, seed: int = 0) -> ComposedKernel:
    """In float64, every parameter moved off its start."""
    kernel = ComposedKernel(expression, num_heads).double()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in kernel.parameters():
            parameter += 0.3 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
    return kernel


def leaves(kernel: Kernel, kind: type[Kernel]) -> list[Kernel]:
    return [part for part in kernel.modules() if type(part) is kind]


def test_a_sum_of_products_is_the_one_by_hand() -> None:
    kernel = composed("2*gaussian*periodic + matern32 + constant")
    (gaussian,), (periodic,), (matern,) = (leaves(kernel, kind) for kind in (Gaussian, Periodic, Matern))
    floor, amplitude, of_matern = leaves(kernel, Constant)
    terms: list[Kernel] = [Constant(floor.sigma), Constant(of_matern.sigma) * Matern(matern.length, nu=1.5)]
    for copy in range(2):
        # The parameters of a product with two copies: those of head 0, then those of head 1.
        mine = slice(copy, None, 2)
        terms.append(
            Constant(amplitude.sigma[mine])
            * Gaussian(gaussian.bandwidth[mine])
            * Periodic(periodic.alpha[mine], periodic.tau[mine])
        )
    by_hand = sum(term(LAGS) for term in terms)
    torch.testing.assert_close(kernel(LAGS), by_hand)
    torch.testing.assert_close(kernel.log(LAGS), by_hand.log())
    torch.testing.assert_close(kernel.log_terms(LAGS).exp().sum(1), by_hand)
    assert kernel.log_terms(LAGS).shape == (2, kernel.num_terms, 60) == (2, 4, 60)


def test_a_product_with_a_sum_and_an_exponential_is_the_one_by_hand() -> None:
    kernel = composed("rq*(exponential + periodic)*exp(gaussian)")
    (rq,), (decay,), (periodic,), (gaussian,) = (
        leaves(kernel, kind) for kind in (RationalQuadratic, Matern, Periodic, Gaussian)
    )
    # In the order of the expression: inside of the exponential, then those of the sum.
    inner, first, second = (leaf.sigma for leaf in leaves(kernel, Constant))
    by_hand = (
        RationalQuadratic(rq.length, rq.alpha)
        * (ExponentialDecay(decay.length, first) + Constant(second) * Periodic(periodic.alpha, periodic.tau))
        * Exp(Constant(inner) * Gaussian(gaussian.bandwidth))
    )
    torch.testing.assert_close(kernel(LAGS), by_hand(LAGS))
    torch.testing.assert_close(kernel.log(LAGS), by_hand.log(LAGS))


@pytest.mark.parametrize("num_terms", [1, 2, 8])
def test_copies_of_a_decaying_periodic_kernel_are_the_bank(num_terms: int) -> None:
    bank = KernelBank(3, num_terms).double()
    kernel = ComposedKernel(f"{num_terms}*exponential*periodic", 3).double()
    torch.testing.assert_close(kernel.log(LAGS), bank.log(LAGS), rtol=1e-5, atol=1e-6)
    weights = torch.randn(3, 60, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    for each in (bank, kernel):
        (each.log(LAGS) * weights).sum().backward()
    (matern,), (periodic,) = leaves(kernel, Matern), leaves(kernel, Periodic)
    pairs = [(matern.log_length, bank.log_length), (periodic.log_tau, bank.log_tau)]
    pairs += [(periodic.log_alpha, bank.log_alpha)]
    pairs += [(leaf.log_sigma, bank.log_sigma) for leaf in leaves(kernel, Constant)]
    assert len(pairs) == (4 if num_terms > 1 else 3)  # a lone amplitude would cancel in attention
    for ours, theirs in pairs:
        assert ours.shape == (3 * num_terms,)
        torch.testing.assert_close(ours.view_as(theirs), theirs, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(ours.grad.view_as(theirs), theirs.grad, rtol=1e-4, atol=1e-6)


def test_inside_an_exponential_a_sum_starts_at_one() -> None:
    for expression in ("exp(rq)", "exp(4*exponential*periodic)", "exp(2*gaussian + rq)"):
        kernel = ComposedKernel(expression, 2)
        torch.testing.assert_close(kernel.log(0.0), torch.ones(2))


@pytest.mark.parametrize("expression", ["2*periodic", "periodic*periodic", "2*rq*rq*(periodic + gaussian)"])
def test_kernels_of_one_kind_start_apart(expression: str) -> None:
    for kind, name in ((Periodic, "tau"), (RationalQuadratic, "length")):
        starts = [getattr(leaf, name)[: len(getattr(leaf, name)) // 2] for leaf in
                  leaves(ComposedKernel(expression, 2), kind)]  # fmt: skip
        values = torch.cat(starts) if starts else torch.zeros(0)
        assert len(values.unique()) == len(values)


@pytest.mark.parametrize(
    ("expression", "parameters"),
    [
        ("rq", 2),
        ("gaussian + rq", 5),
        ("8*exponential*periodic", 32),
        ("rq*(gaussian + periodic)", 7),
        ("exp(gaussian)", 2),
        ("constant + periodic", 4),
    ],
)
def test_parameters_per_head(expression: str, parameters: int) -> None:
    for heads in (1, 3):
        assert ComposedKernel(expression, heads).parameters_per_head == parameters
    with torch.device("meta"):
        assert ComposedKernel(expression, 1).parameters_per_head == parameters


def test_equal_expressions_are_one_kernel() -> None:
    one, other = (
        ComposedKernel(text, 2) for text in ("periodic*rq + 2*gaussian", "2*gaussian + rq*periodic")
    )
    assert one.expression == other.expression == str(parse_expression(other.expression))
    assert one.state_dict().keys() == other.state_dict().keys()
    assert torch.equal(one(LAGS), other(LAGS))
    assert repr(one) == repr(other)


@pytest.mark.parametrize("expression", ["2*exponential*periodic + rq", "exp(2*matern52)*periodic + constant"])
def test_gradients(expression: str) -> None:
    kernel = composed(expression)
    names = [name for name, _ in kernel.named_parameters()]

    def log(*values: torch.Tensor) -> torch.Tensor:
        given = dict(zip(names, values, strict=True))
        return torch.func.functional_call(kernel, given, (LAGS[:7],))

    assert torch.autograd.gradcheck(log, tuple(kernel.parameters()))


@pytest.mark.parametrize("backend", ["sdpa", "auto"])
def test_attention_by_it_agrees_with_the_definition(backend: str) -> None:
    kernel = composed("2*exponential*periodic + rq*(gaussian + constant)")
    generator = torch.Generator().manual_seed(1)
    q, k, v = torch.randn(3, 1, 2, 24, 8, dtype=torch.float64, generator=generator)
    options = {"position": kernel, "causal": True}
    reference = kernel_attention(q, k, v, backend="reference", **options)
    torch.testing.assert_close(kernel_attention(q, k, v, backend=backend, **options), reference)
    logits = q @ k.mT / 8**0.5 + kernel.log(LAGS[:24, None] - LAGS[:24])
    masked = logits.masked_fill(torch.ones(24, 24, dtype=torch.bool).triu(1), -torch.inf)
    torch.testing.assert_close(reference, masked.softmax(-1) @ v)
