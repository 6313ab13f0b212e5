"""Published relative position biases as kernels: log κ(r) is the bias that is added to the logits.

Each has one kernel per head. Where a table has an end, lags beyond it take its last entry, so that text may
grow longer than what was trained on.
"""

import math

import torch
from torch import Tensor, nn

from nadaraya.errors import check_name, must_be
from nadaraya.kernels.base import Kernel
from nadaraya.kernels.modal import Modes
from nadaraya.kernels.parameters import Positive, count


class _PerHead(Kernel):
    """A kernel with H rows of something other than positive parameters."""

    settings: tuple[str, ...] = ("num_heads",)

    def __init__(self, num_heads: int) -> None:
        super().__init__()
        self.num_heads = count("num_heads", num_heads)
        self.batch_shape = torch.Size((num_heads,))


class _Table(_PerHead):
    """log κ(r) is an entry of a learned table, `logits` (H, entries); subclasses say which."""

    def __init__(self, num_heads: int, num_entries: int, symmetric: bool) -> None:
        super().__init__(num_heads)
        self.symmetric = symmetric
        self.logits = nn.Parameter(torch.empty(num_heads, num_entries))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Sets every logit to zero: no preference for any lag."""
        nn.init.zeros_(self.logits)


class ALiBi(_PerHead):
    """log κ(r) = −m_h |r| with fixed slopes (Press et al. 2022).

    For H a power of two the slopes are 2^(−8h/H), h = 1 … H; otherwise those of the nearest smaller power of
    two, followed by every second one of the next. κ is an exponential decay of length 1/m_h. Nothing is
    learned.

    Args:
        num_heads: H.

    Attributes:
        slopes: (H,) buffer, m_h in nats/token.

    Raises:
        InputError: num_heads is not a positive whole number.

    >>> from nadaraya.kernels import ALiBi
    >>> ALiBi(num_heads=2).slopes
    tensor([0.0625, 0.0039])
    """

    slopes: Tensor

    def __init__(self, num_heads: int) -> None:
        super().__init__(num_heads)
        self.register_buffer("slopes", torch.tensor(_alibi_slopes(num_heads)))

    def log(self, r: Tensor | float) -> Tensor:
        r = self.lags(r)
        return -self.aligned("slopes", r) * r

    def modes(self, dtype: torch.dtype = torch.float32, tolerance: float = 1e-7) -> Modes | None:
        slopes = self.slopes.to(dtype)[:, None]
        return Modes(torch.ones_like(slopes)[..., None], slopes)


class KERPLE(_PerHead):
    """A decay of learned shape from a conditionally positive definite kernel (Chi et al. 2022).

    "log": log κ(r) = −r1 log(1 + r2 |r|) with r1, r2 > 0.
    "power": log κ(r) = −r1 |r|^r2 with r1 > 0 and 0 < r2 < 2 (stored as the logit of r2 / 2).

    Args:
        num_heads: H.
        form: "log" (default) or "power".

    Attributes:
        r1, r2: (H,) in natural units. As published, each starts at a uniform draw for every head: r1 below 2
            and r2 below 1 for "log", r1 below 1 and r2 below 2 for "power" (at least 0.01).

    Raises:
        InputError: num_heads is not a positive whole number, or form is unknown.

    >>> from nadaraya.kernels import KERPLE
    >>> KERPLE(num_heads=4).lag_logits(num_lags=10).shape
    torch.Size([4, 10])
    """

    settings = ("num_heads", "form")
    r1 = Positive()

    def __init__(self, num_heads: int, form: str = "log") -> None:
        super().__init__(num_heads)
        check_name("form", form, ("log", "power"))
        self.form = form
        self.log_r1 = nn.Parameter(torch.empty(num_heads))
        self.raw_r2 = nn.Parameter(torch.empty(num_heads))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws r1 and r2 anew from torch's generator."""
        first, second = (2.0, 1.0) if self.form == "log" else (1.0, 2.0)
        with torch.no_grad():
            self.log_r1.uniform_(0, first).clamp_(min=0.01).log_()
            self.raw_r2.uniform_(0, second).clamp_(min=0.01, max=1.99)
            if self.form == "log":
                self.raw_r2.log_()
            else:
                self.raw_r2.div_(2).logit_()

    @property
    def r2(self) -> Tensor:
        return self._second(self.raw_r2.to(torch.promote_types(self.raw_r2.dtype, torch.float32)))

    def log(self, r: Tensor | float) -> Tensor:
        r = self.lags(r)
        r1, r2 = self.natural("r1", r), self._second(self.aligned("raw_r2", r))
        if self.form == "log":
            return -r1 * torch.log1p(r2 * r)
        # |r|^r2 has no finite derivative at 0 where r2 < 1; lag 0 is kept out of the graph.
        return -r1 * r.masked_fill(r == 0, 1.0).pow(r2).masked_fill(r == 0, 0.0)

    def _second(self, raw: Tensor) -> Tensor:
        return raw.exp() if self.form == "log" else 2 * raw.sigmoid()


class Sandwich(_PerHead):
    """log κ(r) = Σ_i (cos(r / 10000^(2i/d)) − 1) / c_h, i = 0 … d/2 − 1, c_h = 8h/H (Chi et al. 2023).

    The inner product of two sinusoidal position encodings, compressed by c_h, h = 1 … H; the constant that
    makes κ(0) = 1 cancels in the softmax. Nothing is learned.

    Args:
        num_heads: H.
        dim: d, even, the dimension of the encodings. Default 128.

    Raises:
        InputError: num_heads is not a positive whole number, or dim is not a positive even one.

    >>> from nadaraya.kernels import Sandwich
    >>> Sandwich(num_heads=4).lag_logits(num_lags=10).shape
    torch.Size([4, 10])
    """

    frequencies: Tensor
    ratios: Tensor

    settings = ("num_heads", "dim")
    shared_tensors = ("frequencies",)

    def __init__(self, num_heads: int, dim: int = 128) -> None:
        super().__init__(num_heads)
        self.dim = _even("dim", dim)
        self.register_buffer("frequencies", 10000.0 ** (-2 / dim * torch.arange(dim // 2)))
        self.register_buffer("ratios", 8 / num_heads * torch.arange(1.0, num_heads + 1))

    def log(self, r: Tensor | float) -> Tensor:
        r = self.lags(r)
        waves = torch.cos(r[..., None] * self.frequencies.to(r.dtype)) - 1  # (*r.shape, d/2)
        return waves.sum(dim=-1) / self.aligned("ratios", r)


class T5Buckets(_Table):
    """log κ(r) = a learned number for the bucket that r falls into (Raffel et al. 2020).

    Half of the buckets hold one lag each; the others widen in equal ratios up to `max_distance`, and the last
    one holds everything beyond. Lags are rounded to whole tokens. Starts at zero: no preference for any lag.

    Args:
        num_heads: H.
        num_buckets: number of buckets. Default 32.
        max_distance: lag (tokens) from which on all share the last bucket. Default 128.
        bidirectional: half of the buckets for the past, half for the future (r < 0); otherwise κ(−r) = κ(r).
            Default False.

    Attributes:
        logits: (H, num_buckets), learned.

    Raises:
        InputError: a count is not a positive whole number, the buckets cannot be halved as asked, or
            max_distance lies within the buckets of one lag each.

    >>> from nadaraya.kernels import T5Buckets
    >>> T5Buckets(num_heads=4).buckets(20)
    tensor(17)
    """

    settings = ("num_heads", "num_buckets", "max_distance", "bidirectional")

    def __init__(
        self, num_heads: int, num_buckets: int = 32, max_distance: int = 128, bidirectional: bool = False
    ) -> None:
        count("num_buckets", num_buckets, least=4 if bidirectional else 2)
        if bidirectional:
            _even("num_buckets", num_buckets)
        super().__init__(num_heads, num_buckets, symmetric=not bidirectional)
        self.num_buckets = num_buckets
        self.bidirectional = bidirectional
        one_way = num_buckets // 2 if bidirectional else num_buckets
        self.max_distance = count("max_distance", max_distance, least=one_way // 2 + 1)

    def buckets(self, r: Tensor | float) -> Tensor:
        """The bucket of each lag (tokens, query position minus key position): int64, 0 … num_buckets − 1."""
        lags = self.lags(r).round()
        distance = lags.abs().float()
        num_buckets = self.num_buckets if self.symmetric else self.num_buckets // 2
        exact = num_buckets // 2
        # The order of these float32 operations decides on which side of an edge a lag falls, and so whether
        # a table trained elsewhere is read the same way.
        ratio = torch.log(distance.clamp(min=1) / exact) / math.log(self.max_distance / exact)
        wide = exact + (ratio * (num_buckets - exact)).long()
        bucket = torch.where(distance < exact, distance.long(), wide).clamp(max=num_buckets - 1)
        return bucket if self.symmetric else bucket + num_buckets * (lags < 0)

    def log(self, r: Tensor | float) -> Tensor:
        return self.logits.to(self.lags(r).dtype)[:, self.buckets(r)]


class FreeTable(_Table):
    """log κ(r) = one learned number per lag: no assumption about shape at all.

    Lags are rounded to whole tokens; those beyond the table take its last entry. Starts at zero: no
    preference for any lag.

    Args:
        num_heads: H.
        num_lags: L, the lags 0 … L − 1 have an entry of their own.
        signed: entries for lags −(L − 1) … L − 1, so that the future has its own. Default False.

    Attributes:
        logits: (H, L), or (H, 2L − 1) when signed; learned.

    Raises:
        InputError: num_heads or num_lags is not a positive whole number.

    >>> from nadaraya.kernels import FreeTable
    >>> FreeTable(num_heads=4, num_lags=10, signed=True).lag_logits(num_lags=10).shape
    torch.Size([4, 19])
    """

    settings = ("num_heads", "num_lags", "signed")

    def __init__(self, num_heads: int, num_lags: int, signed: bool = False) -> None:
        count("num_lags", num_lags)
        super().__init__(num_heads, 2 * num_lags - 1 if signed else num_lags, symmetric=not signed)
        self.num_lags = num_lags
        self.signed = signed

    def log(self, r: Tensor | float) -> Tensor:
        r = self.lags(r)
        last = self.num_lags - 1
        entry = r.round().clamp(-last, last).long() + (0 if self.symmetric else last)
        return self.logits.to(r.dtype)[:, entry]


class GeneralizedGaussian(_PerHead):
    """log κ(r) = −|(r − μ) / α|^β, the prior of Bianchessi et al. (2025): where to look, how sharply.

    β = 1 is the exponential decay, β = 2 the Gaussian. With μ ≠ 0 it tells the past from the future.

    Args:
        num_heads: H.

    Attributes:
        scale, shape: α in tokens and β, (H,). As ALiBi at first: α = 1/m_h, β = 1.
        center: μ in tokens, (H,), of either sign; 0 at first.

    Raises:
        InputError: num_heads is not a positive whole number.

    >>> from nadaraya.kernels import GeneralizedGaussian
    >>> GeneralizedGaussian(num_heads=2).log(16.0)
    tensor([-1.0000, -0.0625], grad_fn=<NegBackward0>)
    """

    symmetric = False
    scale = Positive()
    shape = Positive()

    def __init__(self, num_heads: int) -> None:
        super().__init__(num_heads)
        self.log_scale = nn.Parameter(torch.empty(num_heads))
        self.log_shape = nn.Parameter(torch.empty(num_heads))
        self.center = nn.Parameter(torch.empty(num_heads))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Puts every number back to where it starts."""
        with torch.no_grad():
            self.log_scale.copy_(-torch.tensor(_alibi_slopes(self.num_heads)).log())
            self.log_shape.zero_()
            self.center.zero_()

    def log(self, r: Tensor | float) -> Tensor:
        r = self.lags(r)
        distance = (r - self.aligned("center", r)).abs() / self.natural("scale", r)
        # At 0 a power below 1 has no derivative: it is kept from there.
        return -(distance.clamp(min=torch.finfo(r.dtype).tiny) ** self.natural("shape", r))


def _alibi_slopes(num_heads: int) -> list[float]:
    power = 2 ** int(math.log2(num_heads))
    slopes = [2 ** (-8 * head / power) for head in range(1, power + 1)]
    return slopes if power == num_heads else slopes + _alibi_slopes(2 * power)[::2][: num_heads - power]


def _even(name: str, value: int) -> int:
    if count(name, value, least=2) % 2:
        raise must_be(name, "even", value)
    return value
