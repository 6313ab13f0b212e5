"""Evaluation of trained models: cross-entropy and bits per byte, tasks, accuracy on images, generation."""

from nadaraya.evaluation.classification import ImageEvaluation, evaluate_images
from nadaraya.evaluation.generation import default_prompt, generate_text, sample_text
from nadaraya.evaluation.harness import evaluate_lm_eval, write_lm_eval_tasks
from nadaraya.evaluation.language import (
    CausalModel,
    TextEvaluation,
    bits_per_byte,
    evaluate_shards,
    evaluate_string,
    evaluate_text,
    token_bytes,
)
from nadaraya.evaluation.lengths import LengthLoss, LengthLosses, length_losses

__all__ = [
    "CausalModel",
    "ImageEvaluation",
    "LengthLoss",
    "LengthLosses",
    "TextEvaluation",
    "bits_per_byte",
    "default_prompt",
    "evaluate_images",
    "evaluate_lm_eval",
    "evaluate_shards",
    "evaluate_string",
    "evaluate_text",
    "generate_text",
    "length_losses",
    "sample_text",
    "token_bytes",
    "write_lm_eval_tasks",
]
