"""The text that a model is looked at on: that of its run, or one that is named."""

from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple, get_args

from nadaraya.errors import InputError, check_name
from nadaraya.files import is_file
from nadaraya.names import HUB

if TYPE_CHECKING:
    from torch import Tensor

    from nadaraya.data import TokenShards
    from nadaraya.evaluation.language import CausalModel


class Source(NamedTuple):
    """A text, or token shards."""

    name: str
    content: "str | TokenShards"
    documents: Literal["packed", "joined"] = "joined"  # of shards: "packed" where attention stays inside each

    def tokens(self, causal: "CausalModel") -> "Tensor | TokenShards":
        """The tokens of a text in the model's own numbers, or the shards."""
        from nadaraya.data.tokenizer import encode_text

        return encode_text(causal.tokenizer, self.content) if isinstance(self.content, str) else self.content

    @property
    def document_token(self) -> int | None:
        """Token that begins a document of shards, where attention stays inside each."""
        if isinstance(self.content, str) or self.documents != "packed":
            return None
        return self.content.document_token


def is_run(path: str) -> bool:
    """Return whether this is a run folder, and no name of a model at the hub."""
    return not path.startswith(HUB) and is_file(Path(path) / "config.yaml")


def text_source(run: str, text: str | None, instead: str, part: str | None = None) -> Source:
    """The text of --text, or a part of a run's own; without one an error says what to give `instead`."""
    from nadaraya.data import load_corpus
    from nadaraya.training import Run
    from nadaraya.training.run import Part

    part = part or "validation"
    check_name("--part", part, get_args(Part))
    if text is not None:
        corpus = load_corpus(text)
        return Source(corpus.name, corpus.text)
    if not is_run(run):
        raise InputError(f"{run} is not a run, which has a validation text: give {instead}")
    opened = Run(run)
    data = opened.text_recipe().data
    if opened.on_shards:
        return Source(f"{part} text", opened.shards(part), data.documents)
    return Source(f"{part} text", opened.text(part))  # type: ignore[arg-type]
