"""Gates of a layer: how much of the past a token forgets, and how much of what it found is passed on."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nadaraya.attention.projections import LayerShape, by_head
from nadaraya.errors import must_be
from nadaraya.kernels.heads import PartByHead


class ForgetGate(PartByHead):
    """a_j = −Σ_{t ≤ j} log f_t, f_t = σ(w·x_t + b): tokens that say how much of the past is forgotten.

    The Forgetting Transformer (Lin et al. 2025): log κ(i,j) gains Σ_{j < t ≤ i} log f_t. For causal layers.

    Args:
        shape: sizes of the layer.
        bias: initial b; default 4, with which a token keeps 98 % of what came before it.

    Raises:
        InputError: a bias that is not a finite number.
    """

    per_head = ("gate",)

    def __init__(self, shape: LayerShape, bias: float = 4.0) -> None:
        super().__init__(shape.num_heads)
        _check_finite("bias", bias)
        self.gate = nn.Linear(shape.dim, shape.num_heads)
        nn.init.constant_(self.gate.bias, bias)
        self.gate.keeps_start = True  # type: ignore[assignment]

    def forward(self, x: Tensor) -> Tensor:
        """log f of the tokens x (B, N, D), (B, H, N) in float32 at least."""
        logits = self.gate(x).transpose(1, 2)
        return F.logsigmoid(logits.to(torch.promote_types(logits.dtype, torch.float32)))

    @staticmethod
    def key_bias(log_forget: Tensor) -> Tensor:
        """a from log f, (B, H, Nk); shifted by a constant per row of the batch, which changes no weight."""
        # Counted from the end: the newest tokens, which weigh most, keep the most digits.
        return log_forget.flip(-1).cumsum(-1).flip(-1) - log_forget


class OutputGate(PartByHead):
    """y ⊙ σ(W x): each channel of the smoothed values passes as far as the token wants it.

    Args:
        shape: sizes of the layer.
    """

    per_head = ("gate",)

    def __init__(self, shape: LayerShape) -> None:
        super().__init__(shape.num_heads)
        self.gate = nn.Linear(shape.dim, shape.heads_dim, bias=False)

    def forward(self, out: Tensor, x: Tensor) -> Tensor:
        """The heads' outputs (B, H, N, d), gated by the tokens x (B, N, D)."""
        return out * by_head(self.gate(x), self.num_heads).sigmoid()


class Sink(PartByHead):
    """Σ_j κ_j v_j / (Σ_j κ_j + eˢ): a key of weight eˢ without a value, s learned by each head.

    The less a token finds that is like it, the less is passed on: regression that shrinks towards zero. The
    sinks of gpt-oss (OpenAI 2025). A kernel that is far above 1 drowns it: beside a bank added from the
    paper's start, G(0) = 64, no sink learns.

    Args:
        shape: sizes of the layer.
        logit: initial s of every head; default 0.

    Raises:
        InputError: a logit that is not a finite number.
    """

    per_head = ("logit",)

    def __init__(self, shape: LayerShape, logit: float = 0.0) -> None:
        super().__init__(shape.num_heads)
        _check_finite("logit", logit)
        self.logit = nn.Parameter(torch.full((shape.num_heads,), float(logit)))

    def forward(self, lse: Tensor) -> Tensor:
        """The share of the smoothed values that is passed on, from log Σ_j κ(i,j); both (B, H, N)."""
        return torch.sigmoid(lse - self.logit[:, None].to(lse.dtype))


def _check_finite(name: str, value: float) -> None:
    if not isinstance(value, (int, float)) or not math.isfinite(value):
        raise must_be(name, "a finite number", value)
