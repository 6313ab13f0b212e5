"""Features and sums beside automatic mixed precision."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor


def in_autocast_dtype(x: Tensor) -> Tensor:
    """Features that serve without a projection, in the dtype that projections would give them."""
    casts = _is_on(x) and x.dtype != torch.float64
    return x.to(torch.get_autocast_dtype(x.device.type)) if casts else x


def full_precision(x: Tensor) -> AbstractContextManager[Any]:
    """Within the block autocast takes no product of the tensor's device in half precision."""
    return torch.autocast(x.device.type, enabled=False) if _is_on(x) else nullcontext()


def _is_on(x: Tensor) -> bool:
    device = x.device.type
    return torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device)
