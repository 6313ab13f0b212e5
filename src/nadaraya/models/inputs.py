"""Inputs of a language model: mask, positions and cache as padding, packed documents, room for tokens."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn
from transformers.cache_utils import Cache, StaticCache

from nadaraya.attention import document_ids_of, document_ids_of_lengths
from nadaraya.errors import InputError, must_be, unknown_name
from nadaraya.files import is_file, reading
from nadaraya.models.config import KernelGPTConfig
from nadaraya.stored import Stored, read_stored

# What transformers' collators say of packed rows; the longest length is in the others.
_PACKING = ("cu_seq_lens_q", "cu_seq_lens_k", "seq_idx", "max_length_q", "max_length_k")


class _Index(Stored):
    """Index of sharded weights: the file of each."""

    weight_map: dict[str, Annotated[str, Field(pattern=r"^[\w.-]+\.safetensors$")]]


def check_index(folder: Path) -> None:
    """Refuse an index of weights that names files outside of its folder."""
    if is_file(index := folder / "model.safetensors.index.json"):
        read_stored(index, _Index, "an index of weights")


@contextmanager
def loading(source: str | Path | None, what: str) -> Iterator[None]:
    """Turn what transformers raises while it loads a folder, or a name on the Hub, into one line.

    An index that names weights outside of the folder is refused. None: the weights are given otherwise.
    """
    path = Path(source or "the model")
    with reading(path, what):
        check_index(path)
        try:
            yield
        except (AttributeError, AssertionError, ImportError) as error:  # fields of another type
            raise ValueError(str(error)) from error


def embedded(embedding: nn.Module, tokens: Tensor, vocab_size: int) -> Tensor:
    """The vectors of token numbers; refuses numbers that a model of so many tokens does not have."""
    try:
        vectors: Tensor = embedding(tokens)
    except IndexError:  # what a GPU raises names no number, and looking for it beforehand would stall it
        wrong = tokens[(tokens < 0) | (tokens >= vocab_size)]
        raise must_be("input_ids", f"from 0 to {vocab_size - 1}", int(wrong[0])) from None
    return vectors


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
    position_ids: Tensor | None,
    packing: dict[str, Any],
    key_mask: Tensor | None,
    hidden_states: Tensor,
    cached: int,
) -> Tensor | None:
    """Documents of packed rows, (B, N), or None for one a row; refuses those that do not fit, or differ.

    `position_ids` start again where a document begins; `packing`, further arguments of the model, has the
    cumulative lengths of the documents of one row, or their numbers `seq_idx`. `key_mask`, (B, cached + N),
    is False for padding; `hidden_states` are (B, N, D).
    """
    rows, new = hidden_states.shape[:2]
    documents = None
    if position_ids is not None:
        documents = _documents_of_positions(position_ids, key_mask, hidden_states, cached)
    for name, given in packing.items():
        if name not in _PACKING:
            raise unknown_name("argument of the model", name, ("input_ids", "position_ids", *_PACKING))
        if given is None or name.startswith("max_length"):
            continue
        shape, unread = tuple(given.shape), torch.compiler.is_compiling()
        if key_mask is not None or cached:
            raise must_be(name, "left out where there is padding or a cache", shape)
        if name == "seq_idx":
            accepted, fits = f"numbers of documents {(rows, new)}", shape == (rows, new)
        else:
            accepted = f"0 … {new} for one row"
            fits = rows == 1 and given.ndim == 1 and len(given) > 1
            fits = fits and (unread or bool((given[0] == 0) & (given[-1] == new) & (given.diff() > 0).all()))
        if not fits:
            raise must_be(name, accepted, given.tolist())
        told = given if name == "seq_idx" else document_ids_of_lengths(given, new)
        told = F.pad(told.diff() != 0, (1, 0)).cumsum(1)
        if documents is not None and not unread and not torch.equal(documents, told):
            raise must_be(name, "of the documents that the other arguments say", given.tolist())
        documents = told
    return documents


def _documents_of_positions(
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
    accepted = f"consecutive, from {cached} or from the end of the padding"
    if key_mask is None and not cached:
        documents = document_ids_of(position_ids)
        begins = F.pad(documents.diff(), (1, 0), value=1) > 0
        if bool((position_ids[begins] == 0).all()):
            return documents
        accepted = "consecutive, from 0, and from 0 again where a new document begins"
    row = position_ids[(~right).any(1).int().argmax()]
    wrong = (row.diff() != 1).nonzero()
    raise must_be("position_ids", accepted, row[wrong[0, 0] :][:2].tolist() if len(wrong) else row[0].item())


def check_cache(cache: Cache, so_far: int, config: KernelGPTConfig) -> None:
    """Refuses a cache without room for so many tokens, or whose layers keep less than the model's read."""
    room = max((getattr(layer, "max_cache_len", math.inf) for layer in cache.layers), default=math.inf)
    for index, kind in enumerate(config.layer_types or ()):
        layer: Any = cache.layers[index] if index < len(cache.layers) else None
        lacks = "hybrid" in kind and not hasattr(layer, "conv_states")
        if getattr(layer, "is_sliding", False):
            window = config.sliding_window if "sliding" in kind and config.sliding_window else math.inf
            kept = getattr(layer, "sliding_window", None) or layer.max_cache_len
            lacks = lacks or kept < min(window, room)
        if lacks:
            made = "made for the model, as DynamicCache(config=model.config) is"
            raise must_be("past_key_values", made, type(cache).__name__)
    if isinstance(cache, StaticCache) and so_far > room:
        raise InputError(f"past_key_values must have room for {so_far} tokens, got a StaticCache of {room}")
