"""Positive parameters: what is accepted, how they are stored, read and set."""

import math
from typing import Any

import numpy as np
import pytest
import torch

from nadaraya.errors import InputError
from nadaraya.kernels import (
    ComposedKernel,
    Exp,
    ExponentialDecay,
    Gaussian,
    GridKernel,
    KernelBank,
    Periodic,
    fit_bank,
)


def test_stored_as_log_and_read_in_natural_units():
    kernel = Gaussian(3.0)
    assert dict(kernel.named_parameters()).keys() == {"log_bandwidth"}
    assert kernel.log_bandwidth.item() == pytest.approx(math.log(3.0))
    assert kernel.bandwidth.item() == pytest.approx(3.0)


def test_assigning_a_natural_value_keeps_the_parameter():
    bank = KernelBank(2, 3)
    parameter = bank.log_tau
    bank.tau = torch.tensor([2.0, 4.0, 8.0])
    assert bank.log_tau is parameter
    torch.testing.assert_close(bank.tau, torch.tensor([[2.0, 4.0, 8.0]] * 2))
    with pytest.raises(InputError, match="tau must be positive and finite, got -1"):
        bank.tau = -1.0


def test_dtype_is_float32_unless_float64_is_given():
    assert Gaussian(2).log_bandwidth.dtype == torch.float32
    assert Gaussian(torch.tensor(2)).log_bandwidth.dtype == torch.float32
    assert Gaussian(torch.tensor(2.0, dtype=torch.bfloat16)).log_bandwidth.dtype == torch.float32
    assert Gaussian(torch.tensor(2.0, dtype=torch.float64)).log_bandwidth.dtype == torch.float64


def test_natural_values_of_half_precision_parameters_are_float32():
    assert Gaussian(2.0).bfloat16().bandwidth.dtype == torch.float32


def test_one_head_shares_a_number_with_many():
    kernel = Periodic(alpha=1.0, tau=torch.tensor([2.0, 3.0]))
    assert kernel.batch_shape == (2,)
    assert kernel.alpha.shape == ()
    assert kernel(torch.arange(5)).shape == (2, 5)


@pytest.mark.parametrize("value", [0.0, -2.0, float("nan"), float("inf"), torch.tensor([1.0, -3.0]), "wide"])
def test_refused_values_are_named(value):
    with pytest.raises(InputError, match=r"bandwidth must be .*positive.*, got "):
        Gaussian(value)


def test_refused_shapes_are_named():
    with pytest.raises(InputError, match=r"of shape \(heads,\), got \(2, 2\)"):
        Gaussian(torch.ones(2, 2))
    with pytest.raises(
        InputError, match=r"numbers of heads must be equal, got \[\('length', 2\), \('sigma', 3\)\]"
    ):
        ExponentialDecay(torch.ones(2), torch.ones(3))


def test_can_be_made_without_memory():
    with torch.device("meta"):
        kernels = [Gaussian(2.0), KernelBank(2, 3)]
    for kernel in kernels:
        assert all(parameter.is_meta for parameter in kernel.parameters())
        assert "meta" in repr(kernel)


@pytest.mark.parametrize("per_head", [False, True])
def test_tensors_of_a_graph_are_used_as_they_are_and_get_the_gradients(per_head):
    network = torch.nn.Linear(3, 2)
    length, sigma = network(torch.ones(3)).exp().expand(2, 2) if per_head else network(torch.ones(3)).exp()
    kernel = ExponentialDecay(length, sigma) * Gaussian(3.0)
    assert [name for name, _ in kernel.named_parameters()] == ["kernels.1.log_bandwidth"]
    assert list(kernel.state_dict()) == ["kernels.1.log_bandwidth"]
    assert kernel.batch_shape == ((2,) if per_head else ())
    kernel.log(torch.arange(4)).sum().backward()
    assert all(bool((parameter.grad != 0).any()) for parameter in network.parameters())


@pytest.mark.parametrize("make", [Gaussian, lambda x: Periodic(x, 1.5), lambda x: x * Exp(Gaussian(1.0))])
def test_gradients_to_a_given_tensor_are_those_of_a_parameter_of_that_value(make):
    value = torch.tensor([0.7, 2.0], dtype=torch.float64)
    lags = torch.tensor([0.0, 0.4, 1.1], dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda given: make(given).log(lags), value.clone().requires_grad_())
    owned = make(value)
    (parameter,) = (p for p in owned.parameters() if p.shape == (2,))
    torch.testing.assert_close(make(value.clone().requires_grad_())(lags), owned(lags))
    by_log = torch.autograd.grad(owned.log(lags).sum(), parameter)[0]
    given = value.clone().requires_grad_()
    by_value = torch.autograd.grad(make(given).log(lags).sum(), given)[0]
    torch.testing.assert_close(by_value * value, by_log)


def test_the_text_of_a_kernel_names_what_it_was_given():
    given = torch.tensor([2.0, 4.0], requires_grad=True)
    assert repr(Gaussian(given)) == repr(Gaussian(given.detach())) == "Gaussian(bandwidth=[2, 4])"
    assert repr(ExponentialDecay(3.0, given)) == "ExponentialDecay(length=3, sigma=[2, 4])"


def test_tensors_of_a_graph_are_checked_and_set_the_dtype():
    with pytest.raises(InputError, match="bandwidth must be positive and finite, got -1"):
        Gaussian(torch.tensor(-1.0, requires_grad=True))
    assert Gaussian(torch.tensor(2.0, dtype=torch.float64, requires_grad=True))(1.0).dtype == torch.float64


def test_numbers_of_numpy_are_numbers() -> None:
    bank = KernelBank(np.int64(2), np.int64(3))  # type: ignore[arg-type]
    assert bank.lag_logits(np.int64(4)).shape == (2, 4)  # type: ignore[arg-type]
    pytest.importorskip("matplotlib")
    bank.plot(np.float32(10.0))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Gaussian(1 + 1j), r"bandwidth must be real, got \(1\+1j\)"),
        (lambda: ComposedKernel("rq", 1, length="a"), "length must be a positive finite number"),
        (lambda: ComposedKernel("constant", 1, length=-1.0), "length must be positive and finite, got -1.0"),
        (lambda: GridKernel(2, "a"), "rows must be a kernel, or a function .* got 'a'"),
        (lambda: GridKernel(2, lambda heads: None), "rows must be a kernel, or a function .* got None"),
        (lambda: fit_bank("abc", 1), "logits must be at least two finite numbers, .* got 'abc'"),
        (lambda: fit_bank([[1], [1, 2]], 1), "logits must be at least two finite numbers"),
        (lambda: fit_bank(torch.ones(3, dtype=torch.complex64), 1), "logits must be at least two finite num"),
    ],
)
def test_what_is_no_number_is_named(make: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        make()
