"""Whether a call happens inside torch.func transforms or forward-mode differentiation."""

import torch
from torch.autograd import forward_ad


def is_transformed() -> bool:
    """PyTorch would drop forward tangents of custom operators without a word: they must refuse such calls."""
    return torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0
