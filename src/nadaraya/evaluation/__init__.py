"""Evaluation of trained models: cross-entropy and bits per byte, tasks, accuracy on images, generation."""

from nadaraya.evaluation.classification import evaluate_images
from nadaraya.evaluation.generation import generate_text, sample_text
from nadaraya.evaluation.harness import evaluate_lm_eval
from nadaraya.evaluation.language import bits_per_byte, evaluate_string, evaluate_text
from nadaraya.evaluation.lengths import length_losses
from nadaraya.evaluation.recall import recall_by_distance

__all__ = [
    "bits_per_byte",
    "evaluate_images",
    "evaluate_lm_eval",
    "evaluate_string",
    "evaluate_text",
    "generate_text",
    "length_losses",
    "recall_by_distance",
    "sample_text",
]
