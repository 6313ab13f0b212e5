"""Text from a trained model, longer than its context when asked for."""

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from nadaraya.data.tokenizer import is_character_tokenizer
from nadaraya.device import check_memory
from nadaraya.errors import InputError, must_be
from nadaraya.evaluation.language import encoded, predict
from nadaraya.modes import evaluating

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

    from nadaraya.models import KernelGPTForCausalLM

LEAST_TEMPERATURE = 1e-6  # logits divided by it are far from the end of float32, and all but greedy


def generate_text(
    model: "KernelGPTForCausalLM",
    tokenizer: "PreTrainedTokenizerFast",
    prompt: str | None,
    tokens: int,
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    beams: int = 1,
    greedy: bool = False,
    seed: int = 0,
    progress: Callable[[int], object] | None = None,
) -> str:
    """Continue a prompt.

    When the context is full, the model goes on from the newer half of it; of a prompt longer than the context
    it sees the end.

    Args:
        model: a causal language model.
        tokenizer: its tokenizer.
        prompt: at least one character, all of them known to the tokenizer; None: `default_prompt`. Where
            documents of the tokenizer begin with a token of their own, that comes first.
        tokens: how many tokens to add (characters, for a character tokenizer).
        temperature: divides the logits before sampling, finite and at least 1e-6, default 1.
        top_k: sample from the k likeliest tokens, default all; more than the vocabulary has are all.
        beams: width of a beam search, which replaces sampling when above 1; its cache must fit in memory.
        greedy: take the likeliest token each time.
        seed: of the sampling, from 0 to 2^64 − 1; the global generator is left as it was.
        progress: called with the number of tokens added so far, each time the context is full and at the end.

    Returns:
        The prompt and its continuation.

    Raises:
        InputError: an empty prompt, a character unseen in training, an option out of range, or a model whose
            logits are not finite.

    >>> from nadaraya.data import train_character_tokenizer
    >>> from nadaraya.evaluation import generate_text
    >>> from nadaraya.models import KernelGPTConfig, KernelGPTForCausalLM
    >>> tokenizer = train_character_tokenizer("the cat sat on the mat")
    >>> model = KernelGPTForCausalLM(KernelGPTConfig.preset("demo", vocab_size=tokenizer.vocab_size))
    >>> len(generate_text(model, tokenizer, "the ", 10))
    14
    """
    if prompt is None:
        prompt = default_prompt(tokenizer)
    if not prompt and tokenizer.bos_token_id is None:
        raise must_be("prompt", "at least one character", prompt)
    counts = {"tokens": tokens, "beams": beams, "top_k": 1 if top_k is None else top_k}
    _check_sampling(temperature, seed, counts)
    config = model.config
    heads = config.num_attention_heads
    keys = config.hidden_size * (config.num_key_value_heads or heads) // heads
    cached = 2 * keys * config.num_hidden_layers * config.max_position_embeddings
    needed = 4 * beams * (cached + config.vocab_size)  # keys, values and logits in float32
    check_memory(f"a beam search of width {beams:,}", needed, "beams", model.device.type)
    ids = _prompt_ids(model, tokenizer, prompt)
    if config.vocab_size == 1:  # there is one text, and no second beam
        beams = 1
    if greedy or beams > 1:
        options: dict[str, Any] = {"do_sample": False, "num_beams": beams}
    else:
        options = {"do_sample": True, "temperature": float(temperature), "top_k": top_k or 0}
    continued = _continue(model, ids, tokens, options, seed, progress)
    return prompt + str(tokenizer.decode(continued[0, ids.shape[1] :]))


def default_prompt(tokenizer: "PreTrainedTokenizerFast") -> str:
    """The text to start from without a prompt: a newline, or the first token of an alphabet without.

    Nothing where documents begin with a token of their own.
    """
    if tokenizer.bos_token_id is not None:
        return ""
    if is_character_tokenizer(tokenizer) and "\n" not in tokenizer.get_vocab():
        return str(tokenizer.decode([0]))
    return "\n"


def sample_text(
    model: "KernelGPTForCausalLM",
    tokenizer: "PreTrainedTokenizerFast",
    tokens: int,
    seed: int = 0,
    *,
    temperature: float = 1.0,
    progress: Callable[[int], object] | None = None,
) -> str:
    """Generate a sample of text, in passages written in one batch.

    Each passage starts from `default_prompt` and ends at its last newline,
    so that joining them makes no line that the model did not write.

    Args:
        model: a causal language model.
        tokenizer: its tokenizer.
        tokens: how many to generate (characters, for a character tokenizer); some are lost where a passage
            is cut at its last newline.
        seed: of the sampling; the global generator is left as it was.
        temperature: as of `generate_text`, default 1.
        progress: called with the number of tokens made so far, in all passages, as that of `generate_text`.

    Returns:
        The text, the first prompt included.

    Raises:
        InputError: tokens, temperature or seed out of range, or a model whose logits are not finite.

    >>> from nadaraya.data import train_character_tokenizer
    >>> from nadaraya.evaluation import sample_text
    >>> from nadaraya.models import KernelGPTConfig, KernelGPTForCausalLM
    >>> tokenizer = train_character_tokenizer("the cat sat on the mat")
    >>> model = KernelGPTForCausalLM(KernelGPTConfig.preset("demo", vocab_size=tokenizer.vocab_size))
    >>> len(sample_text(model, tokenizer, 10))
    11
    """
    _check_sampling(temperature, seed, {"tokens": tokens})
    rows = min(max(1, tokens // 500), 64)
    prompt = _prompt_ids(model, tokenizer, default_prompt(tokenizer))
    options = {"do_sample": True, "temperature": float(temperature), "top_k": 0}
    told = progress and (lambda made: progress(rows * made))
    continued = _continue(model, prompt.repeat(rows, 1), -(-tokens // rows), options, seed, told)
    passages = [str(tokenizer.decode(row)) for row in continued]
    return "".join(each[: each.rfind("\n", 1)] if "\n" in each[1:] else each for each in passages)


def _check_sampling(temperature: float, seed: int, counts: dict[str, int]) -> None:
    """Refuse what cannot be sampled with, in the words of its arguments."""
    if not LEAST_TEMPERATURE <= temperature <= sys.float_info.max:
        accepted = f"a finite number of at least {LEAST_TEMPERATURE:.0e} (greedy takes the likeliest token)"
        raise must_be("temperature", accepted, temperature)
    for name, count in counts.items():
        if not 1 <= count < 2**63:
            raise must_be(name, "a positive integer below 2^63", count)
    if not 0 <= seed < 2**64:
        raise must_be("seed", "from 0 to 2^64 − 1", seed)


def _prompt_ids(model: "KernelGPTForCausalLM", tokenizer: "PreTrainedTokenizerFast", prompt: str) -> Tensor:
    """(1, n) token numbers of a prompt; refuses weights that have diverged, from which nothing is sampled."""
    ids = encoded(tokenizer, prompt)[None]
    if not predict(model, ids[:, :1]).isfinite().all():
        raise InputError(
            "the logits of the model must be finite, got nan or inf: its weights have diverged in training"
        )
    return ids


@torch.no_grad()
def _continue(
    model: "KernelGPTForCausalLM",
    ids: Tensor,
    tokens: int,
    options: dict[str, Any],
    seed: int,
    progress: Callable[[int], object] | None,
) -> Tensor:
    """(B, n) ids continued to (B, n + tokens), a context at a time."""
    context = int(model.config.max_position_embeddings)
    device = next(model.parameters()).device
    generate: Any = model.generate  # type: ignore[misc]  # transformers types self by a protocol of its own
    window = ids.to(device)
    pieces, added = [window], 0
    with evaluating(model), torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        while added < tokens:
            if window.shape[1] >= context:
                window = window[:, -(context // 2) :]
            read = window.shape[1]
            whole = torch.ones_like(window)  # no padding: every id of the vocabulary is a token
            room = min(context - read, tokens - added)
            window = generate(window, attention_mask=whole, max_new_tokens=room, **options)
            pieces.append(window[:, read:])
            added += window.shape[1] - read
            if progress is not None:
                progress(added)
    return torch.cat(pieces, dim=1)
