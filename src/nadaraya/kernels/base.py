"""Stationary kernels κ(r) of a lag or a distance, and their algebra: k1 + k2, k1 * k2, 2.0 * k."""

import operator
from collections.abc import Callable, Iterator
from functools import reduce
from numbers import Real
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn

from nadaraya.errors import InputError, must_be
from nadaraya.kernels.batches import as_points, common_batch_shape, log_of_sum
from nadaraya.kernels.drawing import plot_kernel
from nadaraya.kernels.modal import Modes
from nadaraya.kernels.parameters import Positive, at_least_float32, count, describe, log_of_positive, natural

if TYPE_CHECKING:
    from matplotlib.axes import Axes


class Kernel(nn.Module):
    """A stationary kernel κ(r): how much one position counts for another at lag (or distance) r.

    On lags (whole tokens, query position minus key position) it weights attention; on distances it
    weights regression. A kernel of our own is a subclass that names its positive parameters and gives
    its logarithm::

        class Cauchy(Kernel):
            width = Positive()

            def __init__(self, width):
                super().__init__(width=width)

            def log(self, r):
                r = self.lags(r)
                return -torch.log1p((r / self.natural("width", r)) ** 2)

    Args:
        positive: positive parameters by name, each a number, or a tensor of shape (H,) with one value per
            head, stored as `log_<name>`, float32 unless a float64 tensor is given. They become parameters of
            the kernel, except for tensors that require a gradient, such as the output of a network: these
            are used as they are, and gradients flow back to them.

    Attributes:
        batch_shape: () for one kernel, (H,) for one kernel per head.
        symmetric: whether κ(−r) = κ(r); a kernel that is not tells the past (r > 0) from the future.
        settings: names of the attributes, other than parameters, that its text shows.

    Raises:
        InputError: a parameter is not positive and finite, or parameters name different numbers of heads.

    >>> import torch
    >>> from nadaraya.kernels import Gaussian, Kernel, Periodic
    >>> kernel = 2.0 * Gaussian(bandwidth=8.0) * Periodic(alpha=0.5, tau=3.0)
    >>> isinstance(kernel, Kernel), kernel.lag_logits(num_lags=4).shape
    (True, torch.Size([4]))
    """

    symmetric: bool = True
    settings: tuple[str, ...] = ()
    batch_shape: torch.Size

    # NumPy scalars and arrays on the left of * then leave the product to __rmul__.
    __array_ufunc__ = None

    def __init__(self, **positive: float | Tensor) -> None:
        super().__init__()
        for name, value in positive.items():
            if not isinstance(getattr(type(self), name, None), Positive):
                raise must_be(f"{name} of {type(self).__name__}", "named Positive() in its class", value)
            logarithm = log_of_positive(name, value)
            # One with a history is no parameter of this module, which then only uses it.
            setattr(self, f"log_{name}", logarithm if logarithm.requires_grad else nn.Parameter(logarithm))
        self.batch_shape = common_batch_shape((name, getattr(self, f"log_{name}").shape) for name in positive)

    def log(self, r: Tensor | float) -> Tensor:
        """log κ(r), −inf where κ(r) = 0; it does not underflow where κ itself would.

        Args:
            r: lags (tokens) or distances, any shape, any real dtype.

        Returns:
            (*batch_shape, *r.shape), float32, or float64 when r or a parameter is float64.
        """
        raise InputError(f"{type(self).__name__} must define log(r), the logarithm of its κ(r)")

    def forward(self, r: Tensor | float) -> Tensor:
        """κ(r), for the same r and of the same shape and dtype as `log`."""
        return self.log(r).exp()

    def matrix(self, x: Tensor, z: Tensor | None = None) -> Tensor:
        """The Gram matrix κ(‖x_i − z_j‖) of two sets of points.

        Distances come from direct differences, so nothing cancels far from the origin, and the gradient
        with respect to the points is finite where two of them coincide.

        Args:
            x: (n, d) points, or (n,) for d = 1.
            z: (m, d) points, or (m,); default x.

        Returns:
            (*batch_shape, n, m), float32 at least.

        Raises:
            InputError: the points are not 1-D or 2-D, their dimensions differ, or the kernel is signed.
        """
        if not self.symmetric:
            raise must_be("kernel of a Gram matrix", "symmetric", self)
        x = as_points("x", x)
        z = x if z is None else as_points("z", torch.as_tensor(z, device=x.device))
        if x.shape[1] != z.shape[1]:
            raise must_be("points of x and z", "of one dimension", (x.shape[1], z.shape[1]))
        dtype = at_least_float32(x, z, *self.tensors())
        return self(torch.cdist(x.to(dtype), z.to(dtype), compute_mode="donot_use_mm_for_euclid_dist"))

    def lag_logits(self, num_lags: int, causal: bool = False) -> Tensor:
        """The relative position bias by lag that attention adds to its logits: log κ, so that κ multiplies
        the attention weights (Bunks et al. (2025), eq. 6).

        Args:
            num_lags: number of lags L, including lag 0.
            causal: the future is never looked at; a signed kernel then gives the past only. Default False.

        Returns:
            (*batch_shape, L) for lags 0 … L − 1 when the kernel is symmetric or `causal`, otherwise
            (*batch_shape, 2L − 1) for lags −(L − 1) … L − 1; a lag is query position minus key position.

        Raises:
            InputError: num_lags is not a positive whole number.
        """
        num_lags = count("num_lags", num_lags)
        first = 0 if self.symmetric or causal else 1 - num_lags
        return self.log(torch.arange(first, num_lags, device=self.device))

    def modes(self, dtype: torch.dtype = torch.float32, tolerance: float = 1e-7) -> Modes | None:
        """Damped modes that κ is a finite sum of: decays, Matérn and periodic kernels, their sums, products.

        Args:
            dtype: of the modes. Default float32.
            tolerance: error of κ, for κ(0) = 1, by harmonics of periodic kernels left out. Default 1e-7.

        Returns:
            The modes, for lags r ≥ 0; None where the kernel is no such sum.

        >>> from nadaraya.kernels import ExponentialDecay, Gaussian, Periodic
        >>> (ExponentialDecay(20.0) * Periodic(alpha=0.7, period=70.0)).modes().num_states
        12
        >>> Gaussian(20.0).modes() is None
        True
        """
        return None

    def check_serves(self, num_heads: int, name: str) -> None:
        """Check that the kernel is one for all heads, or has one value for each.

        Args:
            num_heads: H.
            name: of the argument that the kernel is, for the message.

        Raises:
            InputError: it has values for another number of heads.
        """
        if tuple(self.batch_shape) not in ((), (num_heads,)):
            accepted = f"a kernel shared by all heads or with one value for each of {num_heads}"
            raise must_be(name, accepted, self)

    def plot(self, max_lag: float = 128, ax: "Axes | None" = None) -> "Axes":
        """Plot κ against the lag, one line per head.

        Args:
            max_lag: the last lag (tokens), or distance in units of r; a kernel that is not symmetric is drawn
                from −max_lag. Default 128.
            ax: matplotlib's axes; None makes a new figure. Default None.

        Returns:
            The axes.

        Raises:
            InputError: max_lag is not positive and finite, or matplotlib is not installed.

        >>> from nadaraya.kernels import ExponentialDecay
        >>> ExponentialDecay(20.0).plot(max_lag=60).get_title()
        'ExponentialDecay(length=20, sigma=1)'
        """
        axes: Axes = plot_kernel(self, max_lag, ax)
        return axes

    @property
    def device(self) -> torch.device:
        """Device of the kernel; the CPU if it has neither parameters nor buffers."""
        return next((tensor.device for tensor in self.tensors()), torch.device("cpu"))

    def tensors(self) -> Iterator[Tensor]:
        """Parameters, buffers, and tensors that were used as they were given."""
        yield from self.parameters()
        yield from self.buffers()
        for module in self.modules():
            yield from (value for value in vars(module).values() if isinstance(value, Tensor))

    def lags(self, r: Tensor | float) -> Tensor:
        """r as the kernel computes with it: |r| if symmetric, float32 at least, float64 if a parameter is."""
        if not isinstance(r, Tensor):
            r = torch.as_tensor(r, device=self.device)
        if r.is_complex():
            raise must_be("lags", "real numbers", r.dtype)
        r = r.to(at_least_float32(r, *self.tensors()))
        return r.abs() if self.symmetric else r

    def aligned(self, name: str, r: Tensor) -> Tensor:
        """A parameter or buffer as stored, in r's dtype, shaped to broadcast with r: (*batch, 1, …, 1)."""
        value: Tensor = getattr(self, name)
        return value.to(r.dtype).reshape(value.shape + (1,) * r.ndim)

    def natural(self, name: str, r: Tensor) -> Tensor:
        """A positive parameter in natural units, otherwise as `aligned` gives it."""
        return self.aligned(f"log_{name}", r).exp()

    def _number(self, name: str, dtype: torch.dtype) -> Tensor:
        """A positive parameter in natural units, (H or 1,)."""
        logarithm: Tensor = getattr(self, f"log_{name}")
        return torch.exp(logarithm.to(dtype)).reshape(-1)

    def __add__(self, other: Any) -> "Sum":
        return Sum(self, other) if isinstance(other, Kernel) else NotImplemented

    def __mul__(self, other: Any) -> "Kernel":
        if isinstance(other, Kernel):
            return Product(self, other)
        if isinstance(other, Real):
            return Scaled(self, float(other))
        return Scaled(self, other) if isinstance(other, Tensor) else NotImplemented

    __rmul__ = __mul__

    def extra_repr(self) -> str:
        """Settings, and positive parameters in natural units."""
        tensors = {**self._parameters, **vars(self)}
        logs = [name for name in tensors if name.startswith("log_") and isinstance(tensors[name], Tensor)]
        shown = [f"{name}={getattr(self, name)!r}" for name in self.settings]
        return ", ".join(shown + [f"{name[4:]}={describe(natural(getattr(self, name)))}" for name in logs])


class _Composite(Kernel):
    """Several kernels under one associative operation; nested ones of the same class are flattened."""

    _operation: Callable[[Any, Any], Any]

    def __init__(self, *kernels: Kernel) -> None:
        super().__init__()
        if not kernels or not all(isinstance(kernel, Kernel) for kernel in kernels):
            raise must_be(f"arguments of {type(self).__name__}", "one or more kernels", kernels)
        self.kernels = nn.ModuleList()
        for kernel in kernels:
            self.kernels.extend(kernel.kernels if type(kernel) is type(self) else [kernel])
        self.symmetric = all(kernel.symmetric for kernel in kernels)
        self.batch_shape = common_batch_shape((type(each).__name__, each.batch_shape) for each in kernels)

    def forward(self, r: Tensor | float) -> Tensor:
        r = self.lags(r)
        return reduce(self._operation, (kernel(r) for kernel in self.kernels))

    def modes(self, dtype: torch.dtype = torch.float32, tolerance: float = 1e-7) -> Modes | None:
        found = [cast("Kernel", kernel).modes(dtype, tolerance) for kernel in self.kernels]
        return None if None in found else reduce(self._operation, found)

    def _logs(self, r: Tensor | float) -> Iterator[Tensor]:
        r = self.lags(r)
        return (cast("Kernel", kernel).log(r) for kernel in self.kernels)


class Sum(_Composite):
    """κ(r) = Σ_k κ_k(r); written k1 + k2.

    Args:
        kernels: one or more kernels; those with one value per head must agree on the number of heads.

    Raises:
        InputError: an argument is not a kernel; the numbers of heads differ.

    >>> from nadaraya.kernels import Gaussian
    >>> (Gaussian(1.0) + Gaussian(2.0))(0.0)
    tensor(2., grad_fn=<AddBackward0>)
    """

    _operation = staticmethod(operator.add)

    def log(self, r: Tensor | float) -> Tensor:
        return log_of_sum(torch.stack(torch.broadcast_tensors(*self._logs(r))), dim=0)

    def __repr__(self) -> str:
        return " + ".join(map(repr, self.kernels))


class Product(_Composite):
    """κ(r) = Π_k κ_k(r); written k1 * k2.

    Args:
        kernels: one or more kernels; those with one value per head must agree on the number of heads.

    Raises:
        InputError: an argument is not a kernel; the numbers of heads differ.

    >>> from nadaraya.kernels import Gaussian
    >>> (Gaussian(1.0) * Gaussian(2.0))(0.0)
    tensor(1., grad_fn=<MulBackward0>)
    """

    _operation = staticmethod(operator.mul)

    def log(self, r: Tensor | float) -> Tensor:
        return reduce(operator.add, self._logs(r))

    def __repr__(self) -> str:
        return " * ".join(f"({each!r})" if isinstance(each, Sum) else repr(each) for each in self.kernels)


class Exp(Kernel):
    """κ(r) = exp(κ_1(r)): multiplying attention by it adds κ_1 to the logits.

    Positive definite where κ_1 is: its power series is a sum of products. The bank of Gaussian Process
    Attention (anonymous), eq. 6, is `Exp(KernelBank(…))`.

    Args:
        kernel: κ_1.

    Raises:
        InputError: the argument is not a kernel.

    >>> from nadaraya.kernels import Exp, Gaussian
    >>> Exp(Gaussian(1.0)).log(0.0)
    tensor(1., grad_fn=<ExpBackward0>)
    """

    def __init__(self, kernel: Kernel) -> None:
        super().__init__()
        if not isinstance(kernel, Kernel):
            raise must_be("argument of Exp", "a kernel", kernel)
        self.kernel = kernel
        self.symmetric = kernel.symmetric
        self.batch_shape = kernel.batch_shape

    def log(self, r: Tensor | float) -> Tensor:
        return cast("Tensor", self.kernel(self.lags(r)))

    def __repr__(self) -> str:
        return f"Exp({self.kernel!r})"


class Scaled(Kernel):
    """κ(r) = c κ_1(r) with a learnable factor c > 0; written c * k.

    Args:
        kernel: the kernel to scale.
        factor: c, a number, or (H,) for one factor per head.

    Raises:
        InputError: the factor is not positive and finite, or the numbers of heads differ.

    >>> from nadaraya.kernels import Gaussian
    >>> (3.0 * Gaussian(1.0))(0.0)
    tensor(3..., grad_fn=<MulBackward0>)
    """

    factor = Positive()

    def __init__(self, kernel: Kernel, factor: float | Tensor) -> None:
        super().__init__(factor=factor)
        self.kernel = kernel
        self.symmetric = kernel.symmetric
        shapes = [("factor", self.batch_shape), (type(kernel).__name__, kernel.batch_shape)]
        self.batch_shape = common_batch_shape(shapes)

    def log(self, r: Tensor | float) -> Tensor:
        r = self.lags(r)
        return self.aligned("log_factor", r) + self.kernel.log(r)

    def forward(self, r: Tensor | float) -> Tensor:
        r = self.lags(r)
        return self.natural("factor", r) * self.kernel(r)

    def modes(self, dtype: torch.dtype = torch.float32, tolerance: float = 1e-7) -> Modes | None:
        found = self.kernel.modes(dtype, tolerance)
        return None if found is None else found.scaled(self._number("factor", dtype))

    def __repr__(self) -> str:
        inner = f"({self.kernel!r})" if isinstance(self.kernel, _Composite) else repr(self.kernel)
        return f"{describe(self.factor)} * {inner}"
