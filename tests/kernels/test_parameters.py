"""Positive parameters: what is accepted, how they are stored, read and set."""

import math

import pytest
import torch

from nadaraya.errors import InputError
from nadaraya.kernels import ExponentialDecay, Gaussian, KernelBank, Periodic


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
