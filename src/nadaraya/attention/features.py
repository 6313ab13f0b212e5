"""Features of queries and keys, token by token, whose product is the kernel: κ(i,j) = φ(q_i)·ψ(k_j)."""

import math
from typing import Any, Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._compile import _disable_dynamo  # torch.compiler.disable imports the compiler at once

from nadaraya.attention.autocast import full_precision
from nadaraya.attention.factored import Factored
from nadaraya.attention.projections import LayerShape
from nadaraya.errors import InputError, check_name, must_be
from nadaraya.kernels.heads import PartByHead
from nadaraya.kernels.parameters import Positive, at_least_float32, count, log_of_positive

Kind = Literal["elu", "relu", "silu", "taylor", "positive-random", "gaussian-random", "trigonometric-random"]
# A Gaussian's sums over keys are 1 at least where each token counts for itself, κ(0) = 1. A hundredth of that
# bounds what an error of the features can be multiplied by, and is low enough to shrink no row that is right
# but for a factor.
GAUSSIAN_FLOOR = 0.01
_FLOORS = {"trigonometric-random": GAUSSIAN_FLOOR, "taylor": 1e-6}  # κ = ((1 + s)² + 1)/2 is positive
_EVERY_FEATURE = 1e-4  # added to positive features, so that no query is without weight
_OF_RANDOM = ("num_features", "redraw_every", "seed")
_OPTIONS: dict[str, tuple[str, ...]] = {
    "taylor": ("scale",),
    "positive-random": ("scale", *_OF_RANDOM),
    "gaussian-random": ("bandwidth", *_OF_RANDOM),
    "trigonometric-random": ("bandwidth", *_OF_RANDOM),
}


class Features(PartByHead):
    """φ(q)·ψ(k) in place of the exponential of q·k: linear attention, and random features of a kernel.

    - "elu": elu(x) + 1 (Katharopoulos et al. 2020). "relu": max(x, 0). "silu": x σ(x), of either sign, as in
      Lightning attention.
    - "taylor": 1 + s + s²/2, the exponential of s = a q·k to second order, from 1 + d + d(d + 1)/2 features.
    - "positive-random": the exponential of a q·k, φ(x) = m^(−½) (exp(w·x − ‖x‖²/2) + 1e-4) of x √a, with m
      normal vectors w in orthogonal blocks (Choromanski et al. 2021), the same for every head.
    - "gaussian-random": the Gaussian exp(−‖q − k‖²/2σ²), φ(x) = m^(−½) exp(w·x/σ − ‖x‖²/σ²), with σ learned
      by each head. "trigonometric-random": the same by m cosines and m sines, of either sign.

    Random features are no short way to attention that was trained with the exact kernel: their variance grows
    exponentially with ‖x‖². Models are trained with them.

    Args:
        shape: sizes of the layer.
        kind: one of the above. Default "elu".
        num_features: m, of random features. Default ⌊d ln d⌋.
        normalise: divide by Σ_j κ(i,j). Default True, except for "silu", which does without.
        unit: queries and keys of length 1 (Luo et al. 2021). Default False.
        scale: a. Default 1/√d, and 1 for unit vectors.
        bandwidth: initial σ of every head, in the units of the features. Default d^(1/4), and 1 for unit
            vectors.
        redraw_every: training batches after which w is drawn anew, or None for never. Default 1000.
        seed: of w. Default one from torch's generator, so that layers differ.

    Raises:
        InputError: an unknown kind, or an option that it does not have.
    """

    factored = True
    bandwidth = Positive()
    w: Tensor
    drawn: Tensor
    per_head = ("log_bandwidth",)

    def __init__(
        self,
        shape: LayerShape,
        kind: Kind = "elu",
        num_features: int | None = None,
        *,
        normalise: bool | None = None,
        unit: bool = False,
        scale: float | None = None,
        bandwidth: float | None = None,
        redraw_every: int | None = 1000,
        seed: int | None = None,
    ) -> None:
        super().__init__(shape.num_heads)
        check_name("kind", kind, get_args(Kind))
        given = {"num_features": num_features, "scale": scale, "bandwidth": bandwidth, "seed": seed}
        given["redraw_every"] = None if redraw_every == 1000 else redraw_every
        for name, value in given.items():
            if value is not None and name not in _OPTIONS.get(kind, ()):
                raise InputError(f"{name} must not be given with kind={kind!r}, which has none")
        if kind == "silu" and normalise:
            raise must_be("normalise", "False for 'silu', whose sums can be 0 or below", normalise)
        self.kind, self.unit = kind, unit
        self.normalise = kind != "silu" if normalise is None else normalise
        self.scale = float((1.0 if unit else shape.head_dim**-0.5) if scale is None else scale)
        if not 0.0 < self.scale < math.inf:
            raise must_be("scale", "a positive finite number", scale)
        if "bandwidth" in _OPTIONS.get(kind, ()):
            if shape.num_key_value_heads != shape.num_heads:
                raise must_be("num_key_value_heads", "num_heads with one σ per head", shape[2])
            initial = (1.0 if unit else shape.head_dim**0.25) if bandwidth is None else bandwidth
            self.log_bandwidth = nn.Parameter(log_of_positive("bandwidth", initial).repeat(shape.num_heads))
        self.scales_rows = self.normalise and kind.startswith(("positive", "gaussian"))
        self.redraw_every = None if redraw_every is None else count("redraw_every", redraw_every)
        self.random = kind.endswith("random")
        if self.random:
            width = shape.head_dim
            default = max(1, int(width * math.log(width)))
            num_features = default if num_features is None else count("num_features", num_features)
            seed = int(torch.randint(2**31, (), device="cpu")) if seed is None else count("seed", seed, 0)
            w = orthogonal_normal(num_features, width, seed)
            self.register_buffer("w", w.to(torch.get_default_device(), torch.get_default_dtype()))
            self.register_buffer("drawn", torch.tensor([seed, 0]))  # and the batches that were trained on
            self._batches: list[int] | None = None

    def forward(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor, Factored]:
        """Features of queries (B, H, N, m) and of keys (B, G, N, m), and the operator's `content`."""
        if self.random and self.training:
            self._count_batch()
        with full_precision(query):
            left, right = self._features(query, key)
        floor = _FLOORS.get(self.kind) if self.normalise else None
        return left.to(query.dtype), right.to(query.dtype), Factored(self.normalise, floor)

    def _features(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        x = self._scaled(query)
        y = x if key is query else self._scaled(key)
        if not self.kind.startswith(("positive", "gaussian")):
            features = self._of_either(x)
            return features, features if y is x else self._of_either(y)
        of_query = self.logarithms(x)
        of_key = of_query if y is x else self.logarithms(y)
        if self.scales_rows:
            # What a row is divided by is free, and so is what all keys are: by ‖w − x‖² ≥ 0 a logarithm is at
            # most ‖w‖²/2, a bound of keys that are still to come too, and sums of any N keep within range.
            of_query = of_query - of_query.detach().amax(-1, keepdim=True)
            longest = self.w.square().sum(-1).amax() / 2
            of_key = of_key - F.relu(longest - math.log(torch.finfo(query.dtype).max) * 2 / 3)
        least = _EVERY_FEATURE if self.kind == "positive-random" else 0.0
        divisor = len(self.w) ** 0.5
        return (of_query.exp() + least) / divisor, (of_key.exp() + least) / divisor

    def logarithms(self, x: Tensor) -> Tensor:
        """log φ(x) √m of scaled vectors x (…, d), (…, m), before anything is added or taken off."""
        share = 0.5 if self.kind == "positive-random" else 1.0
        return x @ self.w.to(x.dtype).mT - share * x.square().sum(-1, keepdim=True)

    def _scaled(self, x: Tensor) -> Tensor:
        x = x.to(at_least_float32(x))
        if self.unit:
            x = F.normalize(x, dim=-1)
        if "scale" in _OPTIONS.get(self.kind, ()):
            return x * self.scale**0.5
        return x / self.bandwidth[:, None, None].to(x.dtype) if hasattr(self, "log_bandwidth") else x

    def _of_either(self, x: Tensor) -> Tensor:
        """Features that queries and keys have in the same way."""
        if self.kind == "trigonometric-random":
            angles = x @ self.w.to(x.dtype).mT
            return torch.cat((angles.cos(), angles.sin()), -1) / len(self.w) ** 0.5
        if self.kind == "taylor":
            first, second = torch.triu_indices(x.shape[-1], x.shape[-1], device=x.device)
            # Pairs of different channels occur twice in (q·k)²/2.
            weight = torch.where(first == second, 0.5**0.5, 1.0).to(x.dtype)
            pairs = x[..., first] * x[..., second] * weight
            return torch.cat((torch.ones_like(x[..., :1]), x, pairs), -1)
        return F.elu(x).add_(1) if self.kind == "elu" else F.relu(x) if self.kind == "relu" else F.silu(x)

    @_disable_dynamo
    def _count_batch(self) -> None:
        """Count a batch of training, and draw w anew where it is time."""
        if torch._C._current_graph_task_id() != -1:
            return  # a checkpoint that is computed again, in the backward pass, needs the w that it had
        if self.drawn.is_meta:
            return
        if self._batches is None:
            self._batches = self.drawn.tolist()
        seed, batches = self._batches
        if self.redraw_every is not None and batches and batches % self.redraw_every == 0:
            redrawn = orthogonal_normal(len(self.w), self.w.shape[1], seed + batches // self.redraw_every)
            self.w = redrawn.to(self.w)  # not in place: an earlier graph may still need the old one
        self._batches[1] += 1
        self.drawn[1] += 1

    def _load_from_state_dict(self, *args: Any, **options: Any) -> None:
        super()._load_from_state_dict(*args, **options)
        self._batches = None

    def extra_repr(self) -> str:
        size = f", num_features={len(self.w)}, redraw_every={self.redraw_every}" if self.random else ""
        return f"kind={self.kind!r}, normalise={self.normalise}, unit={self.unit}{size}"


def orthogonal_normal(num: int, width: int, seed: int) -> Tensor:
    """Standard normal vectors (num, width), orthogonal in blocks of `width`, the same for a seed."""
    generator = torch.Generator("cpu").manual_seed(seed)
    options: Any = {"generator": generator, "device": "cpu", "dtype": torch.float32}
    blocks = torch.randn(-(-num // width), width, width, **options)
    rotations, triangles = torch.linalg.qr(blocks)
    # The signs that make a rotation uniform.
    rotations = rotations * triangles.diagonal(dim1=-2, dim2=-1).sign()[:, None]
    lengths = torch.randn(num, width, **options).norm(dim=-1, keepdim=True)
    return rotations.mT.reshape(-1, width)[:num] * lengths
