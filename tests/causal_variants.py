"""Variants that language models can have, without importing transformers, which imports Triton."""

from typing import Any

from nadaraya import variants

NEVER_CAUSAL = ("nystromformer", "linformer")
CAUSAL = [name for name in variants.names() if name not in NEVER_CAUSAL]  # those of language models


def causal_options(variant: Any) -> dict[str, Any]:
    """The options that make a variant causal, where its landmarks are not by default."""
    learned = isinstance(variant, str) and "landmarks" in variants.options(variant)
    return {"landmarks": "learned"} if learned else {}
