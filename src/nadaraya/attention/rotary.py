"""Rotary position embedding: static angles (Su et al. 2021), learned ones (Bunks et al. (2025), fig. 2)."""

import math
from functools import lru_cache

import torch
from torch import Tensor, nn

from nadaraya.attention.arguments import in_dtype
from nadaraya.errors import must_be

_AT_ONCE = 64  # positions whose turns are made together


class RotaryEmbedding(nn.Module):
    """Rotates pairs of features by angles that grow with position, so that q·k depends on the lag alone.

        z_p = x_2p + i x_{2p+1} → z_p exp(i n θ_p),   θ_p = base^(−2p/d),   p = 0 … d/2 − 1

    A rotation changes no norm, and rotating both sides by the same angle changes no distance.

    Args:
        head_dim: width d of a head, even.
        base: ratio of the slowest to the fastest wavelength; default 10,000.
        learned: whether the angles θ are parameters (one set per layer), stored as logs; default False.
        values: whether features that are values without a matrix of their own carry the rotation of the keys
            (Kundu et al. (2026) can be read either way); default False.

    Raises:
        InputError: head_dim is odd, or base is not a finite number above 1.
    """

    def __init__(
        self, head_dim: int, base: float = 10_000.0, learned: bool = False, values: bool = False
    ) -> None:
        super().__init__()
        if head_dim < 2 or head_dim % 2:
            raise must_be("head_dim", "even with rotary positions", head_dim)
        if not isinstance(base, (int, float)) or not 1.0 < base < math.inf:
            raise must_be("rotary_base", "a finite number above 1", base)
        self.head_dim, self.base, self.learned, self.values = head_dim, base, learned, values
        #: other angles θ (d/2,) and a factor of what is rotated, in place of the own
        self.replaced: tuple[Tensor, float] | None = None
        if learned:
            self.log_angle = nn.Parameter(_log_angles(head_dim, base, None))

    def forward(self, x: Tensor, first_position: int = 0, starts: Tensor | None = None) -> Tensor:
        """Rotates features by their positions.

        Args:
            x: (B, H, N, d); row n is at position first_position + n.
            first_position: position of the first row, in tokens; default 0.
            starts: (B, N) or (B, 1), from which positions count instead of 0. Default None.

        Returns:
            (B, H, N, d) in the dtype of x.
        """
        dtype = torch.promote_types(x.dtype, torch.float32)  # half-precision angles are wrong far from 0
        positions = (first_position, first_position + x.shape[2])
        own = starts is None and not self.learned and self.replaced is None
        pairs = in_dtype(x, dtype).reshape(*x.shape[:-1], -1, 2)
        if torch.compiler.is_compiling():
            # The compiler fuses real arithmetic and has none for complex numbers.
            angles = _angles(positions, self.angles(x.device).to(dtype), starts)
            (a, b), cos, sin = pairs.unbind(-1), angles.cos(), angles.sin()
            rotated = torch.stack((a * cos - b * sin, a * sin + b * cos), dim=-1)
        else:
            if own and type(x) is Tensor:
                # Tokens that are decoded one by one share what is made.
                first, last = first_position // _AT_ONCE * _AT_ONCE, -(-positions[1] // _AT_ONCE) * _AT_ONCE
                turns = _static_turns((first, last), self.head_dim, self.base, x.device, dtype)
                turns = turns[first_position - first : positions[1] - first]
            else:
                turns = _turns(_angles(positions, self.angles(x.device).to(dtype), starts))
            # One complex product is a third of the memory traffic of the four real ones.
            rotated = torch.view_as_real(torch.view_as_complex(pairs) * turns)
        rotated = rotated.flatten(-2)
        if self.replaced is not None and self.replaced[1] != 1.0:
            factor = torch.where(self.angles(x.device) > 0, self.replaced[1], 1.0)  # of what turns at all
            rotated = rotated * factor.to(dtype).repeat_interleave(2)
        return in_dtype(rotated, x.dtype)

    def angles(self, device: torch.device | None = None) -> Tensor:
        """θ, in radians/token, (d/2,)."""
        if self.replaced is not None:
            return self.replaced[0].to(device)
        return (self.log_angle if self.learned else _log_angles(self.head_dim, self.base, device)).exp()

    def extra_repr(self) -> str:
        return f"head_dim={self.head_dim}, base={self.base:g}, learned={self.learned}"


def _log_angles(head_dim: int, base: float, device: torch.device | None) -> Tensor:
    """log θ of the pairs of features, (d/2,)."""
    pairs = torch.arange(0, head_dim, 2, dtype=torch.float32, device=device)
    return -math.log(base) * pairs / head_dim


def _angles(positions: tuple[int, int], angle: Tensor, starts: Tensor | None = None) -> Tensor:
    """n θ of the positions from the first up to the second, (N, d/2); from starts: (B, 1, N, d/2)."""
    indices = torch.arange(*positions, device=angle.device)
    if starts is not None:
        indices = (indices - starts)[:, None]
    return indices[..., None] * angle


def _turns(angles: Tensor) -> Tensor:
    """exp(i angle)."""
    return torch.polar(torch.ones_like(angles), angles)


@lru_cache(maxsize=8)
def _static_turns(
    positions: tuple[int, int], head_dim: int, base: float, device: torch.device, dtype: torch.dtype
) -> Tensor:
    """The turns of all layers of a model, made once; never an inference tensor, which training refuses."""
    with torch.inference_mode(False), torch.no_grad():
        return _turns(_angles(positions, _log_angles(head_dim, base, device).exp().to(dtype)))
