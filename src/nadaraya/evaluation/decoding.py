"""Speed of generation and memory of its cache, against the same model with separate keys and values."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor
from transformers.cache_utils import Cache, DynamicCache, StaticCache

from nadaraya.attention.layer import KernelSelfAttention
from nadaraya.errors import check_name, must_be
from nadaraya.evaluation.throughput import PRECISIONS, alternate, in_precision, rates
from nadaraya.models.growing import GrowingLayer

if TYPE_CHECKING:
    from nadaraya.models import KernelGPTForCausalLM

CACHES = ("dynamic", "static")


@dataclass(frozen=True)
class DecodingSettings:
    """Amounts to generate, and how to measure.

    Args:
        batch: prompts side by side; default 8.
        prompt: tokens of the longest prompt; default 512.
        tokens: tokens generated for each prompt, the likeliest every time; default 64.
        padded: prompts of half to full length, padded on the left, in place of equal ones; default False.
        device: "cpu" (default), "cuda" or "mps".
        precision: "float32" (default); or "bfloat16", weights and cache, kernels excepted.
        rounds: turns of each contestant; default 5.

    Raises:
        InputError: a value that is not accepted.
    """

    batch: int = 8
    prompt: int = 512
    tokens: int = 64
    padded: bool = False
    device: str = "cpu"
    precision: str = "float32"
    rounds: int = 5

    def __post_init__(self) -> None:
        for name in ("batch", "prompt", "tokens", "rounds"):
            if getattr(self, name) < 1:
                raise must_be(name, "a positive integer", getattr(self, name))
        check_name("precision", self.precision, PRECISIONS)


@dataclass(frozen=True)
class Decoding:
    """One model with one kind of cache.

    Args:
        model: its name.
        cache: "dynamic", which grows and forgets what windows no longer see; or "static", of fixed size.
        one_tensor: whether what is key and value at once is cached once; False: keys and values apart.
        tokens_per_second: of all prompts together after the first token, the median of the turns.
        low: its lower quartile.
        high: its upper quartile.
        prompt_seconds: until the first token, the median.
        cache_bytes: of the tokens in the cache at the end, room for more not counted.
        speed_ratio: tokens/s over those with keys and values apart; None where there is no other way.
        cache_ratio: the same of the bytes.
    """

    model: str
    cache: str
    one_tensor: bool
    tokens_per_second: float
    low: float
    high: float
    prompt_seconds: float
    cache_bytes: int
    speed_ratio: float | None = None
    cache_ratio: float | None = None


class _Turn(NamedTuple):
    """One generation."""

    prompt_seconds: float
    seconds: float
    cache_bytes: int
    tokens: Tensor  # (B, tokens)


def measure_decoding(
    models: "Mapping[str, KernelGPTForCausalLM]", caches: Sequence[str], settings: DecodingSettings
) -> list[Decoding]:
    """Generate with every model and cache, taking turns: drift of the machine affects all of them equally.

    A model that caches one tensor for keys and values is measured both ways.

    Args:
        models: the models by name; they are moved to the device and put into eval mode.
        caches: of `CACHES`.
        settings: how.

    Returns:
        One row per model, cache and way.

    Raises:
        InputError: no models, or an unknown cache.
    """
    if not models:
        raise must_be("models", "at least one", models)
    for kind in caches:
        check_name("cache", kind, CACHES)
    for model in models.values():
        in_precision(model.eval(), settings.precision).to(settings.device)
    cells: dict[tuple[str, str, bool], Callable[[], _Turn]] = {
        (name, kind, one_tensor): partial(generate_once, model, kind, one_tensor, settings)
        for (name, model), kind in product(models.items(), caches)
        for one_tensor in ((False, True) if keeps_one_tensor(model) else (False,))
    }
    turns = alternate(cells, settings.rounds + 1)
    rows: list[Decoding] = []
    for cell, (_, *found) in turns.items():  # without the first: memory is fetched and kernels are compiled
        low, median, high = rates(settings.batch * settings.tokens, [turn.seconds for turn in found])
        prompt_seconds = float(np.median([turn.prompt_seconds for turn in found]))
        row = Decoding(*cell, median, low, high, prompt_seconds, found[-1].cache_bytes)
        if row.one_tensor:  # comes after keys and values apart
            speed = median / rows[-1].tokens_per_second
            row = replace(row, speed_ratio=speed, cache_ratio=row.cache_bytes / rows[-1].cache_bytes)
        rows.append(row)
    return rows


def keeps_one_tensor(model: "KernelGPTForCausalLM") -> bool:
    """Return whether keys and values are one tensor in some layer's cache."""
    cache = DynamicCache(config=model.config)
    with torch.no_grad():
        model(torch.zeros((1, 1), dtype=torch.long, device=model.device), past_key_values=cache)
    return any(getattr(layer, "values").numel() == 0 for layer in cache.layers)  # noqa: B009 (not of its type)


@torch.no_grad()
def generate_once(
    model: "KernelGPTForCausalLM", kind: str, one_tensor: bool, settings: DecodingSettings
) -> _Turn:
    """Read the prompts and generate, the likeliest token each time, with a kind of cache; see `Decoding`."""
    _share(model, one_tensor)
    tokens, mask = prompts(model.config.vocab_size, settings)
    tokens, mask = tokens.to(model.device), None if mask is None else mask.to(model.device)
    room = settings.prompt + settings.tokens
    cache: Cache = DynamicCache(config=model.config)
    if kind == "static":
        cache = StaticCache(config=model.config, max_cache_len=room)
    begun, first, generated = _now(settings.device), 0.0, []
    for _ in range(settings.tokens + 1):
        out = model(tokens, attention_mask=mask, past_key_values=cache, logits_to_keep=1)
        tokens = out.logits[:, -1].argmax(-1, keepdim=True)
        generated.append(tokens)
        if mask is not None:
            mask = torch.cat((mask, torch.ones_like(tokens)), 1)
        first = first or _now(settings.device)
    end = _now(settings.device)
    _share(model, True)
    return _Turn(first - begun, end - first, cache_bytes(cache), torch.cat(generated, 1))


def prompts(vocab_size: int, settings: DecodingSettings) -> tuple[Tensor, Tensor | None]:
    """Random prompts (B, N), the same each time, and the mask of the padding on their left."""
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(vocab_size, (settings.batch, settings.prompt), generator=generator)
    if not settings.padded:
        return tokens, None
    lengths = torch.linspace(settings.prompt, (settings.prompt + 1) // 2, settings.batch).long()
    mask = torch.arange(settings.prompt) >= settings.prompt - lengths[:, None]
    return tokens, mask.long()


def cache_bytes(cache: Cache) -> int:
    """Bytes of the tokens in a cache of transformers: what several tensors share counts once.

    Room for further tokens is not counted: at most a quarter where caches grow in place, beyond 256 tokens.
    """
    held = {}
    for layer in cache.layers:
        parts = [getattr(layer, name, None) for name in ("keys", "values", "conv_states", "recurrent_states")]
        # States are tensors by number from release 5 of transformers on.
        tensors = [part for each in parts for part in (each.values() if isinstance(each, dict) else [each])]
        for tensor in [part for part in tensors if part is not None]:
            stored = tensor.untyped_storage()
            held[stored.data_ptr()] = tensor.nbytes if isinstance(layer, GrowingLayer) else stored.nbytes()
    return sum(held.values())


def _share(model: "KernelGPTForCausalLM", one_tensor: bool) -> None:
    for module in model.modules():
        if isinstance(module, KernelSelfAttention):
            module.one_tensor_cache = one_tensor


def _now(device: str) -> float:
    if device != "cpu":
        getattr(torch, device).synchronize()
    return time.perf_counter()
