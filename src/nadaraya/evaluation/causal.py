"""A causal language model with its tokenizer, as it is evaluated; those of transformers by folder or name."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nadaraya.data.textfile import one_line
from nadaraya.data.tokenizer import check_vocabulary
from nadaraya.errors import InputError
from nadaraya.evaluation.language import num_tokens

LONGEST = 2048  # context of a model whose configuration names none


@dataclass(frozen=True)
class CausalModel:
    """A model with what is needed to evaluate it; an InputError where the tokenizer is not that of the model.

    Args:
        name: the folder or the name at the hub.
        model: maps token ids to logits, in eval mode, on the CPU.
        tokenizer: its tokenizer.
        context: tokens that it reads at a time.

    >>> from nadaraya.data import byte_tokenizer
    >>> from nadaraya.evaluation import CausalModel
    >>> from nadaraya.models import KernelGPTConfig, KernelGPTForCausalLM
    >>> model = KernelGPTForCausalLM(KernelGPTConfig.preset("demo", vocab_size=256))
    >>> CausalModel("demo", model, byte_tokenizer(), context=256).context
    256
    """

    name: str
    model: Any
    tokenizer: Any
    context: int

    def __post_init__(self) -> None:
        check_vocabulary(self.tokenizer, num_tokens(self.model))
        self.tokenizer.split_special_tokens = True  # what spells a special token in a text is text


def open_pretrained(name: str, local: bool) -> CausalModel:
    """A model that transformers knows by itself, or a KernelGPT, of a local folder or a name at the hub."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    from nadaraya.models.inputs import check_index  # registers KernelGPT too
    from nadaraya.models.quiet import without_bars

    options: Any = {"local_files_only": local, "trust_remote_code": False}
    if local:
        check_index(Path(name))
    with one_line(name, "as a causal language model of transformers, in safetensors"), without_bars():
        tokenizer: Any = AutoTokenizer.from_pretrained(name, **options)
        config = AutoConfig.from_pretrained(name, **options)
        config._attn_implementation = None  # what the file names could be code at the hub
        options |= {"config": config, "use_safetensors": True, "dtype": torch.float32}
        loaded: Any = AutoModelForCausalLM.from_pretrained(name, output_loading_info=True, **options)
    model, report = loaded
    if not tokenizer.is_fast:
        raise InputError(f"{name} must have a tokenizer that the tokenizers library reads, got one without")
    if report["missing_keys"]:
        raise InputError(f"{name} is damaged: it lacks {sorted(report['missing_keys'])[0]}")
    config = model.config.get_text_config()
    limits = (getattr(config, key, None) for key in ("max_position_embeddings", "n_positions", "n_ctx"))
    context = next((limit for limit in limits if isinstance(limit, int) and limit > 1), LONGEST)
    return CausalModel(name, model.eval(), tokenizer, context)
