"""What a language model reads from its mask and positions: padding, and documents packed into one row."""

import torch
import torch.nn.functional as F
from torch import Tensor

from nadaraya.attention import document_ids_of
from nadaraya.errors import must_be


def key_mask_of(attention_mask: Tensor | None, hidden_states: Tensor, cached: int) -> Tensor | None:
    """True where a token, cached ones first, is none of padding, (B, cached + N); None where all are."""
    if attention_mask is None:
        return None
    expected = (hidden_states.shape[0], cached + hidden_states.shape[1])
    if tuple(attention_mask.shape) != expected:
        raise must_be("attention_mask", f"of shape (batch, tokens) = {expected}", tuple(attention_mask.shape))
    present = attention_mask != 0
    # Without padding the mask says nothing, and attention is faster without it. Looking would stall a GPU.
    unread = torch.compiler.is_compiling() or present.device.type != "cpu"
    return present if unread or not bool(present.all()) else None


def documents_of(
    position_ids: Tensor, key_mask: Tensor | None, hidden_states: Tensor, cached: int
) -> Tensor | None:
    """Documents that positions tell of, (B, N), or None for one a row; refuses positions of another kind."""
    rows, new = hidden_states.shape[:2]
    if tuple(position_ids.shape) not in ((new,), (1, new), (rows, new)):
        raise must_be("position_ids", f"of shape {(rows, new)}", tuple(position_ids.shape))
    if torch.compiler.is_compiling():  # values are not known in a compiled graph
        return None
    position_ids = position_ids.expand(rows, new)
    place = torch.arange(cached, cached + new, device=hidden_states.device)
    right = position_ids == place
    if key_mask is not None:
        unread = ~key_mask[:, cached:]
        before = (~key_mask).int().cumprod(1).sum(1, keepdim=True)  # padding on the left of each row
        right = (right | unread).all(1, keepdim=True) | (position_ids == place - before) | unread
    if bool(right.all()):
        return None
    if key_mask is None and not cached:
        documents = document_ids_of(position_ids)
        begins = F.pad(documents.diff(), (1, 0), value=1) > 0
        if bool((position_ids[begins] == 0).all()):
            return documents
    accepted = f"consecutive, from {cached} or from the end of the padding"
    if key_mask is None and not cached:
        accepted = "consecutive, from 0, and from 0 again where a new document begins"
    row = position_ids[(~right).any(1).int().argmax()]
    wrong = (row.diff() != 1).nonzero()
    raise must_be("position_ids", accepted, row[wrong[0, 0] :][:2].tolist() if len(wrong) else row[0].item())
