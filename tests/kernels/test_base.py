"""Laws that hold for every kernel, and for sums, products and multiples of any of them."""

import copy
import math
import re
import sys

import pytest
import torch

from nadaraya import kernel_attention
from nadaraya.errors import InputError
from nadaraya.kernels import (
    ALiBi,
    Boxcar,
    Epanechnikov,
    Exp,
    ExponentialDecay,
    FreeTable,
    Gaussian,
    Kernel,
    KernelBank,
    Periodic,
    Positive,
    Tricube,
)
from nadaraya.kernels.base import Product, Scaled, Sum

# Clear of half-way points, where table kernels round, and of the edges of supports.
POINTS = torch.tensor([0.0, 0.2, 0.9, 1.7, 2.6, 4.2, 9.3, 31.1], dtype=torch.float64)


def test_shape_is_batch_shape_then_the_shape_of_the_lags(kernel):
    for r in (torch.tensor(1.0), torch.arange(4), torch.rand(2, 3), torch.zeros(0)):
        assert kernel(r).shape == (*kernel.batch_shape, *r.shape)
        assert kernel.log(r).shape == (*kernel.batch_shape, *r.shape)


def test_value_is_the_exponential_of_log(kernel):
    torch.testing.assert_close(kernel(POINTS), kernel.log(POINTS).exp())


def test_even_exactly_when_it_says_symmetric(kernel):
    same = torch.equal(kernel(POINTS[1:]), kernel(-POINTS[1:]))
    assert same == kernel.symmetric


def test_value_at_zero(case):
    value = case.build()(torch.tensor(0.0))
    if case.at_zero is not None:
        torch.testing.assert_close(value, torch.full_like(value, case.at_zero))
    assert (value > 0).all()


def test_never_negative_and_falls_with_distance_where_it_should(case):
    values = case.build()(torch.linspace(0, 40, 401, dtype=torch.float64))
    assert (values >= 0).all()
    if case.decreasing:
        assert (values.diff(dim=-1) <= 1e-15).all()


def test_whole_lags_and_real_lags_are_the_same(kernel):
    lags = torch.arange(-5, 6)
    torch.testing.assert_close(kernel(lags), kernel(lags.double()), rtol=0, atol=0)


def test_a_number_is_a_lag(kernel):
    assert torch.equal(kernel(2.0), kernel(torch.tensor(2.0)))


def test_gram_matrix_is_positive_semidefinite(case):
    generator = torch.Generator().manual_seed(1)
    for dim in range(1, case.definite_up_to + 1):
        gram = case.build().matrix(3 * torch.randn(40, dim, generator=generator, dtype=torch.float64))
        torch.testing.assert_close(gram, gram.mT, rtol=1e-12, atol=1e-12)
        eigenvalues = torch.linalg.eigvalsh(gram)
        assert eigenvalues.amin() > -1e-9 * eigenvalues.amax()


@pytest.mark.parametrize("compact", [Epanechnikov, Tricube, Boxcar])
def test_compact_kernels_are_not_positive_definite(compact):
    points = torch.linspace(0, 10, 60, dtype=torch.float64)
    assert torch.linalg.eigvalsh(compact(2.5).matrix(points)).amin() < -0.1


def test_log_is_finite_at_very_long_lags(case):
    logs = case.make().log(torch.tensor([1e3, 1e5]))
    if "compact" in case.name or case.name in ("epanechnikov", "tricube", "boxcar"):
        assert torch.isneginf(logs).all()
    else:
        assert torch.isfinite(logs).all()


@pytest.mark.parametrize("method", ["forward", "log"])
def test_gradients_are_right(kernel, method):
    # A table is piecewise constant in r: its derivative with respect to r is not defined.
    r = torch.tensor([0.3, 0.9, 1.4, 1.8], dtype=torch.float64, requires_grad=not _has_table(kernel))
    assert torch.autograd.gradcheck(lambda r, *_: getattr(kernel, method)(r), (r, *kernel.parameters()))


def _has_table(kernel: Kernel) -> bool:
    return any(name.endswith("logits") for name, _ in kernel.named_parameters())


def test_gradients_are_never_nan(kernel):
    r = torch.tensor([0.0, 0.0, 1.5, 2.2, 3.0, 50.0, 1e5], dtype=torch.float64, requires_grad=True)
    for values in (kernel(r), kernel.log(r).exp()):
        inputs = [tensor for tensor in (r, *kernel.parameters()) if tensor.requires_grad]
        if values.requires_grad:
            for gradient in torch.autograd.grad(values.sum(), inputs, allow_unused=True):
                assert gradient is None or torch.isfinite(gradient).all()


def test_state_dict_round_trip(case):
    source = case.build()
    target = case.make().double()
    target.load_state_dict(source.state_dict())
    assert torch.equal(source(POINTS), target(POINTS))


def test_can_be_copied(kernel):
    assert torch.equal(copy.deepcopy(kernel)(POINTS), kernel(POINTS))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_computed_in_float32_at_least(case, dtype):
    kernel = case.make().to(dtype)
    for r in (torch.arange(6), torch.arange(6, dtype=dtype)):
        assert kernel(r).dtype == kernel.log(r).dtype == torch.float32


def test_float64_lags_or_parameters_give_float64(case):
    assert case.make().float()(POINTS).dtype == torch.float64
    for r in (torch.arange(6), torch.tensor(1.0), 2.0):
        kernel = case.make().double()
        expected = torch.float64 if [*kernel.parameters(), *kernel.buffers()] else torch.float32
        assert kernel(r).dtype == kernel.log(r).dtype == expected


def test_autocast_changes_nothing(case):
    kernel = case.make().float()
    x = torch.randn(7, 2)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = [kernel(torch.arange(6)), kernel.log(torch.arange(6))]
        inside += [kernel.matrix(x)] if kernel.symmetric else []
    outside = [kernel(torch.arange(6)), kernel.log(torch.arange(6))]
    outside += [kernel.matrix(x)] if kernel.symmetric else []
    torch.testing.assert_close(inside, outside, rtol=0, atol=0)


def test_repr_is_one_line_with_natural_units(kernel):
    assert "\n" not in repr(kernel)
    assert "log_" not in repr(kernel)


@pytest.fixture
def three() -> tuple[Kernel, Kernel, Kernel]:
    heads = torch.tensor([1.0, 2.5], dtype=torch.float64)
    return Gaussian(heads), Periodic(0.7, 1.9).double(), ExponentialDecay(4.0).double()


def test_sum_and_product_act_on_values(three):
    a, b, _ = three
    torch.testing.assert_close((a + b)(POINTS), a(POINTS) + b(POINTS))
    torch.testing.assert_close((a * b)(POINTS), a(POINTS) * b(POINTS))
    torch.testing.assert_close((3.0 * a)(POINTS), 3.0 * a(POINTS))


def test_sum_and_product_commute_and_distribute(three):
    a, b, c = three
    torch.testing.assert_close((a + b)(POINTS), (b + a)(POINTS))
    torch.testing.assert_close((a * b)(POINTS), (b * a)(POINTS))
    torch.testing.assert_close((a * 3.0)(POINTS), (3.0 * a)(POINTS))
    torch.testing.assert_close((a * (b + c)).log(POINTS), (a * b + a * c).log(POINTS))


def test_nested_sums_and_products_are_flat(three):
    a, b, c = three
    for left, right in (((a + b) + c, a + (b + c)), ((a * b) * c, a * (b * c))):
        assert list(left.kernels) == list(right.kernels) == [a, b, c]


def test_factor_may_differ_by_head_and_is_learned(three):
    _, b, _ = three
    factor = torch.tensor([0.5, 4.0], dtype=torch.float64)
    for scaled in (b * factor, factor * b):
        assert isinstance(scaled, Scaled)
        torch.testing.assert_close(scaled(POINTS), factor[:, None] * b(POINTS))
        assert scaled.log_factor.requires_grad


def test_the_log_of_exp_is_the_kernel(kernel):
    exp = Exp(kernel)
    assert exp.symmetric == kernel.symmetric
    assert exp.batch_shape == kernel.batch_shape
    torch.testing.assert_close(exp.log(-POINTS), kernel(-POINTS))
    torch.testing.assert_close((exp * exp).log(POINTS), 2 * kernel(POINTS))


def test_exp_adds_no_parameter_and_names_those_of_its_kernel_in_its_text_and_state():
    exp = Exp(Gaussian(2.0) + Periodic(0.5, period=3))
    assert repr(exp) == "Exp(Gaussian(bandwidth=2) + Periodic(alpha=0.5, period=3))"
    assert list(exp.state_dict()) == [f"kernel.{name}" for name in exp.kernel.state_dict()]
    with pytest.raises(InputError, match=r"argument of Exp must be a kernel, got 2\.0"):
        Exp(2.0)


def test_products_of_many_small_kernels_do_not_underflow_in_log():
    product = Product(*(Gaussian(0.01) for _ in range(10)))
    torch.testing.assert_close(product.log(10.0), torch.tensor(-5e6), rtol=1e-5, atol=0)


def test_a_sum_of_kernels_that_are_all_zero_is_zero():
    both = Gaussian(1.0) * Epanechnikov(1.0) + Gaussian(1.0) * Tricube(2.0)
    assert both.log(3.0) == -torch.inf
    both.log(torch.tensor([0.5, 3.0])).exp().sum().backward()
    assert all(torch.isfinite(parameter.grad).all() for parameter in both.parameters())


def test_mixed_precision_is_raised_even_for_scalars():
    mixed = Gaussian(torch.tensor([1.0, 2.0])) * Gaussian(torch.tensor(3.0, dtype=torch.float64))
    for r in (2.0, torch.arange(3)):
        assert mixed(r).dtype == mixed.log(r).dtype == torch.float64


def test_signed_table_makes_the_sum_signed():
    assert not (Gaussian(1.0) + FreeTable(2, 3, signed=True)).symmetric


def test_different_numbers_of_heads_do_not_mix():
    two, three = Gaussian(torch.ones(2)), Gaussian(torch.ones(3))
    for combine in (lambda: two + three, lambda: two * three, lambda: two * torch.ones(3)):
        with pytest.raises(InputError, match=r"2.*3|3.*2"):
            combine()


def test_only_kernels_are_summed():
    with pytest.raises(InputError, match=r"arguments of Sum must be one or more kernels, got \(\)"):
        Sum()
    with pytest.raises(InputError, match=r"arguments of Product must be one or more kernels, got .* 2\.0"):
        Product(Gaussian(1.0), 2.0)
    with pytest.raises(TypeError):
        Gaussian(1.0) + 1.0


@pytest.mark.parametrize("factor", [0.0, -1.0, float("nan")])
def test_factor_must_be_positive(factor):
    with pytest.raises(InputError, match="factor"):
        factor * Gaussian(1.0)


def test_a_kernel_of_our_own_has_everything():
    class Cauchy(Kernel):
        width = Positive()

        def __init__(self, width):
            super().__init__(width=width)

        def log(self, r):
            r = self.lags(r)
            return -torch.log1p((r / self.natural("width", r)) ** 2)

    kernel = 2.0 * Cauchy(torch.tensor([1.0, 2.0]))
    torch.testing.assert_close(kernel(2.0), torch.tensor([0.4, 1.0]))


def test_a_kernel_of_our_own_without_log_says_what_to_define():
    class Triangle(Kernel):
        def forward(self, r):
            return (1.0 - self.lags(r) / 8.0).clamp(min=0.0)

    assert Triangle()(2.0) == 0.75
    x = torch.randn(1, 1, 4, 2)
    with pytest.raises(InputError, match=r"^Triangle must define log\(r\), the logarithm of its κ\(r\)$"):
        kernel_attention(x, x, x, position=Triangle())


def test_a_misspelt_parameter_of_a_kernel_of_our_own_is_refused():
    class Cauchy(Kernel):
        width = Positive()

        def __init__(self, width):
            super().__init__(widht=width)

    with pytest.raises(InputError, match=r"widht of Cauchy must be named Positive\(\) in its class"):
        Cauchy(2.0)


def test_matrix_is_the_kernel_of_distances():
    x, z = torch.randn(5, 3, dtype=torch.float64), torch.randn(4, 3, dtype=torch.float64)
    kernel = Gaussian(torch.tensor([0.7, 2.0], dtype=torch.float64))
    distances = torch.stack([torch.stack([(a - b).norm() for b in z]) for a in x])
    torch.testing.assert_close(kernel.matrix(x, z), kernel(distances))
    torch.testing.assert_close(kernel.matrix(x[:, 0]), kernel(x[:, None, 0] - x[None, :, 0]))


def test_matrix_does_not_lose_digits_far_from_the_origin():
    x = torch.randn(6, 2)
    torch.testing.assert_close(Gaussian(0.5).matrix(x + 4096), Gaussian(0.5).matrix(x), rtol=0, atol=5e-3)


def test_matrix_has_finite_gradients_where_points_coincide(case):
    kernel = case.build()
    if not kernel.symmetric:
        return
    x = torch.tensor([[0.0, 1.0], [0.0, 1.0], [2.0, 0.3]], dtype=torch.float64, requires_grad=True)
    matrix = kernel.matrix(x)
    if matrix.requires_grad:
        matrix.sum().backward()
        assert x.grad is None or torch.isfinite(x.grad).all()


def test_matrix_of_points_that_do_not_fit():
    with pytest.raises(InputError, match=r"points of x and z must be of one dimension, got \(2, 3\)"):
        Gaussian(1.0).matrix(torch.zeros(4, 2), torch.zeros(4, 3))
    with pytest.raises(InputError, match="shape"):
        Gaussian(1.0).matrix(torch.zeros(4, 2, 2))
    with pytest.raises(InputError, match="symmetric"):
        FreeTable(1, 3, signed=True).matrix(torch.zeros(4))


def test_lag_logits_are_log_kappa_and_those_of_exp_kappa_at_each_lag(kernel):
    length = 7
    for causal in (False, True):
        first = 0 if kernel.symmetric or causal else 1 - length
        lags = torch.arange(first, length)
        torch.testing.assert_close(kernel.lag_logits(length, causal=causal), kernel.log(lags))
        torch.testing.assert_close(Exp(kernel).lag_logits(length, causal=causal), kernel(lags))


def test_lag_logits_of_bad_requests():
    with pytest.raises(InputError, match="num_lags must be a whole number of at least 1, got 0"):
        ALiBi(2).lag_logits(0)


@pytest.fixture
def axes():
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    from matplotlib import pyplot

    yield pyplot.subplots()[1]
    pyplot.close("all")


def test_plots_one_line_per_head_through_the_values(axes):
    bank = KernelBank(3, 2)
    assert bank.plot(64, axes) is axes
    assert (axes.get_title(), axes.get_xlabel(), axes.get_ylabel()) == ("KernelBank", "lag (tokens)", "κ(r)")
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["head 0", "head 1", "head 2"]
    for line, values in zip(axes.lines, bank(torch.arange(65)).detach(), strict=True):
        torch.testing.assert_close(torch.tensor(line.get_ydata())[::4], values)


def test_plots_of_many_heads_name_the_first_and_the_last(axes):
    KernelBank(12, 2).plot(ax=axes)
    assert len({line.get_color() for line in axes.lines}) == 12
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["head 0", "head 11"]


def test_plots_any_kernel(kernel, axes):
    kernel.plot(16.5, axes)
    assert len(axes.lines) == (kernel.batch_shape or [1])[0]
    assert axes.lines[0].get_xdata()[-1] == 16.5
    assert axes.lines[0].get_xdata()[0] == (0 if kernel.symmetric else -16.5)


@pytest.mark.parametrize("max_lag", [0, -1.0, float("nan"), float("inf"), "8", True])
def test_plots_need_a_last_lag(max_lag):
    with pytest.raises(InputError, match="max_lag must be a positive finite number, got"):
        Gaussian(1.0).plot(max_lag)


def test_plots_name_the_extra_that_they_need(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    with pytest.raises(InputError, match=re.escape('plots need matplotlib: pip install "nadaraya[report]"')):
        Gaussian(1.0).plot()


def test_complex_lags_are_refused():
    with pytest.raises(InputError, match="complex"):
        Gaussian(1.0)(torch.tensor([1j]))


def test_a_sum_of_another_class_stays_one_part() -> None:
    class Halved(Sum):
        def log(self, r: torch.Tensor | float) -> torch.Tensor:
            return super().log(r) - math.log(2.0)

    a, b, c, r = Gaussian(1.0), Gaussian(2.0), Gaussian(3.0), torch.tensor([0.5, 1.0])
    total = Sum(Halved(a, b), c)
    torch.testing.assert_close(total.log(r).exp(), (a(r) + b(r)) / 2 + c(r))
    assert len((a + b + c).kernels) == 3  # type: ignore[arg-type]
