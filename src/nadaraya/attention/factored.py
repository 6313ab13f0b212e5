"""Content that factorises: κ(i,j) is a product of features of the query and of the key."""

from dataclasses import dataclass
from numbers import Real

import torch
from torch import Tensor

from nadaraya.errors import InputError, must_be
from nadaraya.kernels.parameters import is_transformed


@dataclass(frozen=True)
class Factored:
    """κ(i,j) = φ(q_i)·ψ(k_j): queries and keys that are features already, in place of an exponential.

    A position multiplies κ, as G(i − j); a table of logits does so by its exponential.

    Args:
        normalise: divide by Σ_j κ(i,j) + ε. Features must not be negative then. False: out_i = Σ_j κ v_j,
            features of any sign. Default True.
        floor: least denominator, for features of either sign, whose sums can come to 0 or below: a smaller
            one counts as the floor. Default None, features that are negative are refused.

    Raises:
        InputError: a floor that is not positive, or one without a denominator.

    >>> import torch
    >>> from nadaraya import kernel_attention
    >>> from nadaraya.attention import Factored
    >>> features, value = torch.rand(1, 2, 5, 8), torch.randn(1, 2, 5, 4)
    >>> kernel_attention(features, features, value, content=Factored(), causal=True).shape
    torch.Size([1, 2, 5, 4])
    """

    normalise: bool = True
    floor: float | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.normalise, bool):
            raise must_be("normalise", "True or False", self.normalise)
        if self.floor is not None and not (isinstance(self.floor, Real) and 0.0 < self.floor < float("inf")):
            raise must_be("floor", "None or a positive finite number", self.floor)
        if self.floor is not None and not self.normalise:
            raise InputError("floor must not be given with normalise=False, which divides by nothing")

    def check(self, query: Tensor, key: Tensor) -> None:
        """Refuse negative features with a denominator that they may bring to 0, where looking is free."""
        free = query.device.type == "cpu" and not is_transformed()
        if not self.normalise or self.floor is not None or not free:
            return
        for name, features in (("query", query), ("key", key)):
            if features.numel() and (least := features.detach().amin().item()) < 0.0:
                accepted = "features of at least 0 with a denominator (normalise=False and floor take others)"
                raise must_be(name, accepted, least)

    def denominator(self, mass: Tensor, scale: Tensor, eps: float) -> Tensor:
        """Divisor of the sums, from Σ_j κ over e^shift and a scale e^−shift; 1 where both are 0."""
        if eps > 0.0:
            mass = mass + eps * scale
        if self.floor is not None:
            return torch.maximum(mass, self.floor * scale)
        return mass.masked_fill(mass == 0, 1.0)
