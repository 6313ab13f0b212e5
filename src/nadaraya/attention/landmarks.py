"""Content by landmarks: a few rows stand for all tokens, and the kernel factorises in likenesses to them."""

from typing import Literal, get_args

import torch
from torch import Tensor, nn

from nadaraya.attention.autocast import full_precision
from nadaraya.attention.factored import Factored
from nadaraya.attention.features import GAUSSIAN_FLOOR
from nadaraya.attention.projections import LayerShape
from nadaraya.errors import check_name, must_be
from nadaraya.kernels.heads import PartByHead
from nadaraya.kernels.parameters import Positive, at_least_float32, count, log_of_positive

Landmarks = Literal["random", "segments", "learned"]


class NystromContent(PartByHead):
    """K_XZ (K_ZZ + λI)^{-1} K_ZX: Gaussian kernel attention by Nyström's method, from m landmarks Z.

    With K_ZZ + λI = L Lᵀ the features of x are K_xZ L^{-T}. They may be negative. Where each token counts for
    itself the exact sum over keys is at least κ(0) = 1, so that a sum below 0.01 is error and counts as 0.01.

    Args:
        shape: sizes of the layer.
        num_landmarks: m; of a text with fewer tokens each is one. Default 64.
        landmarks: "random", rows of the text (default), in training drawn anew from torch's generator, in
            evaluation with a fixed seed; "segments", means of stretches of equal length; "learned",
            parameters, which alone serve a causal layer. Where queries are not the keys, half are of each.
        bandwidth: initial σ of every head, in the units of the features. Default d^(1/4). Learned.
        ridge: λ. Default 1e-6.

    Attributes:
        bandwidth: σ, (H,).

    Raises:
        InputError: an unknown kind of landmarks, a number that is not positive, or heads that share keys.
    """

    takes_key_mask = True
    causal = False
    why_not_causal = "its landmarks are taken from the whole text; landmarks='learned' are not"
    factored = Factored(floor=GAUSSIAN_FLOOR)
    bandwidth = Positive()
    per_head = ("log_bandwidth", "points")

    def __init__(
        self,
        shape: LayerShape,
        num_landmarks: int = 64,
        landmarks: Landmarks = "random",
        bandwidth: float | None = None,
        ridge: float = 1e-6,
    ) -> None:
        super().__init__(shape.num_heads)
        check_name("landmarks", landmarks, get_args(Landmarks))
        if not 0.0 < ridge < float("inf"):
            raise must_be("ridge", "a positive finite number", ridge)
        check_heads(shape)
        self.num_landmarks, self.landmarks = count("num_landmarks", num_landmarks), landmarks
        self.ridge = ridge
        self.causal = landmarks == "learned"
        self.takes_key_mask = not self.causal
        initial = shape.head_dim**0.25 if bandwidth is None else bandwidth
        self.log_bandwidth = nn.Parameter(log_of_positive("bandwidth", initial).repeat(shape.num_heads))
        self.points: nn.Parameter | None = None
        if landmarks == "learned":
            self.points = nn.Parameter(torch.randn(shape.num_heads, num_landmarks, shape.head_dim))

    def forward(
        self, query: Tensor, key: Tensor, key_mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Factored]:
        """Features of queries and keys, (B, H, N, m), and the operator's `content`."""
        with full_precision(query):
            sigma = self.bandwidth[:, None, None].to(at_least_float32(query))
            x = visible(query, key_mask) / sigma
            y = x if key is query else visible(key, key_mask) / sigma
            if self.points is None:
                z, present = self._rows(x, y, key_mask)
            else:
                z = (self.points.to(sigma.dtype) / sigma)[None]
                present = torch.ones_like(z[:, :1, :, 0], dtype=torch.bool)
            left, right = self._factors(x, y, z, present)
        return left.to(query.dtype), right.to(query.dtype), self.factored

    def _factors(self, x: Tensor, y: Tensor, z: Tensor, present: Tensor) -> tuple[Tensor, Tensor]:
        # In float64: tokens that occur twice make K_ZZ singular, and float32 has not the digits of λ.
        lower = torch.linalg.cholesky(_among(z.double(), present, self.ridge))
        inverse = torch.linalg.solve_triangular(lower, torch.eye(z.shape[-2]).to(lower), upper=False)
        whiten = inverse.mT.to(x.dtype)
        features = _gaussian(x, z, present) @ whiten
        return features, features if y is x else _gaussian(y, z, present) @ whiten

    def _rows(self, x: Tensor, y: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """Landmarks (B, H, m, d), and which of them there are, (B or 1, 1, m)."""
        mask = every_token(x) if mask is None else mask
        numbers = [self.num_landmarks] if y is x else [self.num_landmarks // 2, -(-self.num_landmarks // 2)]
        rows, present = [], []
        for source, number in zip((x, y), numbers, strict=False):
            if self.landmarks == "segments":
                means = averaging(mask, number, x.dtype)
                rows.append(means @ source)
                present.append(means.any(-1))
            else:
                places, there = _sampled(mask, number, self.training)
                rows.append(torch.take_along_dim(source, places[:, None, :, None], 2))
                present.append(there[:, None])
        return torch.cat(rows, 2), torch.cat(present, 2)

    def extra_repr(self) -> str:
        return f"num_landmarks={self.num_landmarks}, landmarks={self.landmarks!r}, ridge={self.ridge:g}"


class SkyformerContent(NystromContent):
    """K_QZ (K_ZZ + λI)^{-1} K_ZK of a Gaussian, not normalised by its row sums (Skyformer, Chen et al. 2021).

    σ = d^(1/4) stays as it is: queries and keys times d^(−1/4) have σ = 1. The inverse is D^(−½) of that of
    D^(−½) (K_ZZ + λI) D^(−½) by six iterations, D the row sums of K_ZZ + λI.

    Args:
        shape: sizes of the layer.
        num_landmarks: m. Default 128.
        landmarks: as for `NystromContent`; the paper samples them, "random". Default that.
        ridge: λ. Default 0.1.
    """

    factored = Factored(normalise=False)
    normalise = False
    steps = 6

    def __init__(
        self, shape: LayerShape, num_landmarks: int = 128, landmarks: Landmarks = "random", ridge: float = 0.1
    ) -> None:
        super().__init__(shape, num_landmarks, landmarks, ridge=ridge)
        fixed = self.log_bandwidth.detach()
        del self.log_bandwidth
        self.register_buffer("log_bandwidth", fixed)

    def _factors(self, x: Tensor, y: Tensor, z: Tensor, present: Tensor) -> tuple[Tensor, Tensor]:
        among = _among(z, present, self.ridge)
        root = among.sum(-1, keepdim=True).rsqrt()
        # From each matrix alone: other texts of the batch, and other heads, are no part of it.
        inverse = root * newton_inverse(root * among * root.mT, self.steps, each=True) * root.mT
        return _gaussian(x, z, present) @ inverse, _gaussian(y, z, present)


def newton_inverse(matrix: Tensor, steps: int = 6, each: bool = False) -> Tensor:
    """Z ≈ A^{-1} of non-negative matrices (…, m, m), as Xiong et al. (2021) iterate.

    Z ← ¼ Z (13I − AZ (15I − AZ (7I − AZ))) from Aᵀ over the largest of all columns' sums, or of those of each
    matrix with `each`.
    """
    identity = torch.eye(matrix.shape[-1]).to(matrix)
    columns = matrix.sum(-2, keepdim=True)
    inverse = matrix.mT / (columns.amax(-1, keepdim=True) if each else columns.max())
    for _ in range(steps):
        product = matrix @ inverse
        inner = 15 * identity - product @ (7 * identity - product)
        inverse = 0.25 * inverse @ (13 * identity - product @ inner)
    return inverse


def check_heads(shape: LayerShape) -> None:
    """Refuse heads that share keys."""
    if shape.num_key_value_heads != shape.num_heads:
        accepted = f"num_heads = {shape.num_heads} with landmarks, which give each head keys of its own"
        raise must_be("num_key_value_heads", accepted, shape.num_key_value_heads)


def visible(x: Tensor, mask: Tensor | None) -> Tensor:
    """Tokens in float32 at least, zero where they are padding, which may hold anything."""
    x = x.to(at_least_float32(x))
    return x if mask is None else x.masked_fill(~mask[:, None, :, None], 0.0)


def every_token(x: Tensor) -> Tensor:
    """The mask (1, N) of tokens (B, H, N, d) without padding."""
    return torch.ones((1, x.shape[2]), dtype=torch.bool, device=x.device)


def averaging(mask: Tensor, num: int, dtype: torch.dtype) -> Tensor:
    """Means of segments, (B or 1, 1, m, N); of rows with fewer tokens than m the last ones are zero."""
    tokens = mask.sum(1, keepdim=True)
    segment = (mask.cumsum(1) - 1) * tokens.clamp(max=num) // tokens.clamp(min=1)
    numbers = torch.arange(min(num, mask.shape[1]), device=mask.device)
    members = ((segment[:, None] == numbers[:, None]) & mask[:, None])[:, None]
    return members.to(dtype) / members.sum(-1, keepdim=True).clamp(min=1)


def _sampled(mask: Tensor, num: int, anew: bool) -> tuple[Tensor, Tensor]:
    """Places of different tokens, (B or 1, m), and which of them are no padding."""
    if anew:
        order = torch.rand(mask.shape, device=mask.device)
    else:  # by their number among the tokens, wherever padding is
        generator = torch.Generator("cpu").manual_seed(0)
        fixed = torch.rand(mask.shape[1], generator=generator, device="cpu").to(mask.device)
        order = fixed[(mask.cumsum(1) - 1).clamp(min=0)]
    found = order.masked_fill(~mask, -1.0).topk(min(num, mask.shape[1]), -1)
    return found.indices, found.values >= 0.0


def _gaussian(x: Tensor, z: Tensor, present: Tensor) -> Tensor:
    """exp(−‖x − z‖²/2), (…, n, m), zero for landmarks that there are not."""
    centre = z.detach().mean(-2, keepdim=True)  # far from 0 products would lose digits
    x, z = x - centre, z - centre
    squares = x.square().sum(-1, keepdim=True) + z.square().sum(-1)[..., None, :]
    return torch.exp((x @ z.mT - squares / 2).clamp(max=0.0)) * present[:, :, None]


def _among(z: Tensor, present: Tensor, ridge: float) -> Tensor:
    """K_ZZ + λI; a landmark that there is not has 1 + λ on the diagonal."""
    return _gaussian(z, z, present) * present[..., None] + torch.diag_embed(ridge + (~present).to(z.dtype))
