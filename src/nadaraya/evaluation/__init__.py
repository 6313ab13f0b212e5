"""Evaluation of trained models: cross-entropy and bits per byte of a text, accuracy on images, generation."""

from nadaraya.evaluation.classification import ImageEvaluation, evaluate_images
from nadaraya.evaluation.generation import default_prompt, generate_text, sample_text
from nadaraya.evaluation.language import TextEvaluation, evaluate_string, evaluate_text
from nadaraya.evaluation.shards import evaluate_shards

__all__ = [
    "ImageEvaluation",
    "TextEvaluation",
    "default_prompt",
    "evaluate_images",
    "evaluate_shards",
    "evaluate_string",
    "evaluate_text",
    "generate_text",
    "sample_text",
]
