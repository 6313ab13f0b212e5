"""Any causal language model: that of a run folder, a folder of transformers, or one of its hub."""

from pathlib import Path
from typing import Any

from nadaraya.data.textfile import one_line
from nadaraya.errors import InputError
from nadaraya.evaluation.language import CausalModel
from nadaraya.files import is_file, is_folder
from nadaraya.names import HUB
from nadaraya.training.run import Run

LONGEST = 2048  # context of a model whose configuration names none


def open_causal_model(source: str | Path, weights: str | None = None) -> CausalModel:
    """Load a causal language model and its tokenizer. Weights are safetensors; no code of the source runs.

    Args:
        source: a run folder, a folder that transformers wrote, or hf:NAME, a model at the hub, which is
            downloaded where it is not in transformers' cache.
        weights: of a run, as `Run.load_model` takes them; default its own choice.

    Returns:
        The model, with the kernel bank that `nadaraya convert` wrote beside it. Its context is that of the
        run's recipe, or of the model's configuration, or 2048.

    Raises:
        InputError: there is none, it has other weights than safetensors or code of its own, a run is not
            finished, or a download fails.

    >>> from nadaraya.data import byte_tokenizer
    >>> from nadaraya.models import KernelGPTConfig, KernelGPTForCausalLM
    >>> from nadaraya.training import open_causal_model
    >>> KernelGPTForCausalLM(KernelGPTConfig.preset("demo", vocab_size=256)).save_pretrained("model")
    >>> _ = byte_tokenizer().save_pretrained("model")
    >>> open_causal_model("model").context
    256
    """
    path, (hub, _, name) = Path(source), str(source).partition(HUB)
    at_hub = isinstance(source, str) and hub == "" != name  # a folder of this name is ./hf:NAME
    if not at_hub and is_folder(path) and is_file(path / "config.yaml"):
        run = Run(path)
        recipe = run.text_recipe()
        return CausalModel(str(path), run.load_model(weights=weights), run.tokenizer(), recipe.data.context)
    if weights is not None:
        raise InputError(f"--weights chooses among those of a run folder, which {path} is not")
    if at_hub:
        return _pretrained(name, local=False)
    if not is_folder(path):
        raise InputError(f"{path} is not a run folder or a model's, and no {HUB}NAME of a model at the hub")
    if not is_file(path / "config.json"):
        raise InputError(f"{path} is not a run folder or a model's: it has no config.yaml or config.json")
    return _pretrained(str(path), local=True)


def _pretrained(name: str, local: bool) -> CausalModel:
    """A model that transformers knows by itself, or a KernelGPT, of a local folder or a name at the hub."""
    import torch
    from transformers import AutoTokenizer

    from nadaraya.models.inputs import check_index  # registers KernelGPT too
    from nadaraya.models.kernel_bank import KernelBankAdapter, bank_beside
    from nadaraya.models.pruning import changed_config, class_of
    from nadaraya.models.quiet import without_bars

    options: Any = {"local_files_only": local, "trust_remote_code": False}
    if local:
        check_index(Path(name))
    how = "as a causal language model of transformers, in safetensors"
    with one_line(name, how):
        config = changed_config(name, local)
    with one_line(name, "as a tokenizer of transformers"):
        tokenizer: Any = AutoTokenizer.from_pretrained(name, **options)
    with one_line(name, how), without_bars():
        options |= {"config": config, "use_safetensors": True, "dtype": torch.float32}
        loaded: Any = class_of(config).from_pretrained(name, output_loading_info=True, **options)
    model, report = loaded
    if not tokenizer.is_fast:
        raise InputError(f"{name} must have a tokenizer that the tokenizers library reads, got one without")
    if report["missing_keys"]:
        raise InputError(f"{name} is damaged: it lacks {sorted(report['missing_keys'])[0]}")
    if (bank := bank_beside(name, local)) is not None:
        KernelBankAdapter.from_pretrained(model, bank, freeze=False)
    config = model.config.get_text_config()
    limits = (getattr(config, key, None) for key in ("max_position_embeddings", "n_positions", "n_ctx"))
    context = next((limit for limit in limits if isinstance(limit, int) and limit > 1), LONGEST)
    return CausalModel(name, model.eval(), tokenizer, context)
