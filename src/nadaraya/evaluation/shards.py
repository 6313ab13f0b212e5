"""Cross-entropy and bits per byte of documents in token shards."""

from collections.abc import Iterator
from typing import Literal

import torch
from torch import Tensor, nn

from nadaraya.data import TokenShards, document_positions, num_windows, read_windows
from nadaraya.evaluation.language import TextEvaluation, summed_nats, token_bytes


def evaluate_shards(
    model: nn.Module,
    shards: TokenShards,
    *,
    context: int,
    batch_size: int = 16,
    documents: Literal["packed", "joined"] = "packed",
) -> TextEvaluation:
    """Predict every token of the shards but the first, each exactly once, in adjacent windows.

    The token that begins a document is predicted from the end of the one before: it says that this one is
    complete. It has no bytes, and bits per byte leave it out, as `bits_per_byte` does.

    Args:
        model: as in `evaluate_text`.
        shards: what is predicted.
        context: inputs per window.
        batch_size: windows at a time, default 16.
        documents: "packed", attention stays inside each document (the model takes `position_ids`), or
            "joined"; default "packed".

    Returns:
        As `evaluate_text`.

    Raises:
        InputError: the shards have fewer tokens than one window, or tokens that the model does not have.

    >>> from pathlib import Path
    >>> from nadaraya.data import tokenize_corpus
    >>> from nadaraya.evaluation import evaluate_shards
    >>> from nadaraya.models import KernelGPTConfig, KernelGPTForCausalLM
    >>> _ = Path("poem.txt").write_text("Tyger Tyger<|endoftext|>burning bright<|endoftext|>In the forests")
    >>> shards = tokenize_corpus("poem.txt", "shards", vocabulary=257, validation_documents=1)
    >>> model = KernelGPTForCausalLM(KernelGPTConfig.preset("demo", vocab_size=257))
    >>> result = evaluate_shards(model, shards, context=8)
    >>> result.tokens, result.bytes
    (29, 28)
    """

    def windows() -> Iterator[tuple[Tensor, Tensor, Tensor | None]]:
        for numbers in torch.arange(num_windows(shards.num_tokens, context)).split(batch_size):
            inputs, targets = read_windows(shards, numbers.numpy(), context)
            packed = document_positions(inputs, shards.document_token) if documents == "packed" else None
            yield inputs, targets, packed

    nats, bits_per_byte, num_bytes = summed_nats(model, windows(), token_bytes(shards.tokenizer))
    predicted = shards.num_tokens - 1
    return TextEvaluation(nats / predicted, bits_per_byte, predicted, num_bytes)
