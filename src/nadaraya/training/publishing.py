"""The model of a run for others: in its library's own format, with a model card, in a folder or on a hub."""

import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from safetensors.torch import save_model

from nadaraya.errors import InputError
from nadaraya.files import check_new_folder, write_file, write_into
from nadaraya.training.folder import CONFIGURATION_FILE, MODEL_FILE
from nadaraya.training.image_recipe import ImageRecipe

if TYPE_CHECKING:
    from nadaraya.training.run import Run

_USAGE = {
    "text": """import nadaraya.models  # registers the architecture
from transformers import AutoModelForCausalLM, AutoTokenizer

model = AutoModelForCausalLM.from_pretrained("FOLDER OR REPOSITORY")
tokenizer = AutoTokenizer.from_pretrained("FOLDER OR REPOSITORY")
""",
    "image": """import nadaraya.models.vit  # registers the architecture
import timm

model = timm.create_model("hf-hub:REPOSITORY", pretrained=True)  # or "local-dir:FOLDER"
""",
}
_FIGURES = {
    "loss": "validation loss, nats",
    "bits_per_byte": "validation, bits/byte",
    "top1": "top-1",
    "ema_top1": "top-1 of the averaged weights",
    "parameters": "parameters",
    "kernel_parameters": "kernel parameters",
}


def model_card(run: "Run", weights: str | None = None) -> str:
    """A model card in Markdown: what the model is, how it was trained, its figures, how it is loaded."""
    if run.final is None:
        raise InputError(f"{run.path} is not finished: only finished runs have a model card")
    image = isinstance(run.recipe, ImageRecipe)
    last = (weights or run.weights) != "best"  # losses are those of the last update
    known = {key for key in run.final if last or key in ("parameters", "kernel_parameters")}
    rows = "".join(f"| {what} | {run.final[key]:,} |\n" for key, what in _FIGURES.items() if key in known)
    return f"""---
library_name: {"timm" if image else "transformers"}
pipeline_tag: {"image-classification" if image else "text-generation"}
tags: [nadaraya, kernel-attention]
---
# {run.name}

{run.recipe.label}, trained by nadaraya for {run.steps:,} updates; the {weights or run.weights} weights.

| | |
|---|---|
{rows}
```python
{_USAGE[run.recipe.task]}```

## Recipe

```yaml
{run.recipe.to_yaml()}```
"""


def export_model(run: "Run", folder: str | Path, weights: str | None = None) -> Path:
    """Write the model of a run as its library saves one, with tokenizer or labels and a model card.

    Args:
        run: a finished run.
        folder: where to; made when absent, and refused where it has files.
        weights: as for `Run.load_model`, default None: `Run.weights`.

    Returns:
        The folder: transformers' `from_pretrained` or timm's `create_model("local-dir:…")` loads it.

    Raises:
        InputError: the run is not finished, lacks the weights, or the folder is not empty.

    >>> from nadaraya.training import export_model, load_recipe, train
    >>> overrides = ["training.steps=2", "training.warmup_steps=0", "model.hidden_size=8", "data.limit=9000"]
    >>> run = train(load_recipe("demo", [*overrides, "training.batch_size=1"]), "runs/export", progress=False)
    >>> (export_model(run, "exported") / "README.md").is_file()
    True
    """
    folder = Path(folder)
    check_new_folder(folder)
    model, card = run.load_model(weights=weights), model_card(run, weights)
    with write_into(folder) as scratch:
        if isinstance(run.recipe, ImageRecipe):
            run.check_files(CONFIGURATION_FILE)
            shutil.copy(run.path / CONFIGURATION_FILE, scratch)
            save_model(model, str(scratch / MODEL_FILE))
        else:
            model.save_pretrained(scratch)
            run.tokenizer().save_pretrained(scratch)
    write_file(folder / "README.md", card)
    return folder


def push_to_hub(
    run: "Run", repository: str, *, weights: str | None = None, private: bool = True, token: str | None = None
) -> str:
    """Upload what `export_model` writes to the Hugging Face hub; the repository is made when absent.

    Args:
        run: a finished run.
        repository: its name, "user/model".
        weights: as for `Run.load_model`, default None: `Run.weights`.
        private: whether a new repository is private, default True.
        token: of the hub; default the one that `hf auth login` saved.

    Returns:
        The address of the repository.

    Raises:
        InputError: the run is not finished, or the hub refused; its reason is in the message.

    >>> from nadaraya.training import Run, push_to_hub
    >>> push_to_hub(Run("runs/export"), "user/model")  # doctest: +SKIP
    'https://huggingface.co/user/model'
    """
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    with tempfile.TemporaryDirectory() as scratch:
        folder = export_model(run, scratch, weights)
        hub = HfApi(token=token)
        try:
            address = hub.create_repo(repository, private=private, exist_ok=True)
            hub.upload_folder(repo_id=repository, folder_path=folder, commit_message=f"Add {run.name}")
        except (HfHubHTTPError, HFValidationError, OSError) as error:
            raise InputError(f"{repository} cannot be uploaded: {' '.join(str(error).split())}") from error
    return str(address)
