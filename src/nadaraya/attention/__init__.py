"""The operator, its backends, and the attention layer with its variants."""

from nadaraya.attention.documents import document_ids_of
from nadaraya.attention.merging import merge_attention

__all__ = ["document_ids_of", "merge_attention"]
