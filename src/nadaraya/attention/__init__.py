"""The operator, its backends, and the attention layer with its variants."""

from nadaraya.attention.documents import document_ids_of, document_ids_of_lengths
from nadaraya.attention.factored import Factored
from nadaraya.attention.functional import choose_backend
from nadaraya.attention.merging import merge_attention
from nadaraya.attention.positions import GridLogits, MixedKernels, MixedLogits

__all__ = [
    "Factored",
    "GridLogits",
    "MixedKernels",
    "MixedLogits",
    "choose_backend",
    "document_ids_of",
    "document_ids_of_lengths",
    "merge_attention",
]
