"""A tiny finished run with a bank, on a text of lines of 23 characters."""

from pathlib import Path

import pytest

from nadaraya.training import Run, load_recipe, train


@pytest.fixture(scope="session")
def finished_run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """One layer, two heads, four terms, context 40; the lines of its text make a lag of 24."""
    folder: Path = tmp_path_factory.mktemp("bank")
    (folder / "text.txt").write_text(("x" * 11 + " the cat sat\n") * 60)
    recipe = load_recipe(
        "demo",
        [
            f"data.corpus={folder / 'text.txt'}", "data.context=40", "model.variant=gpa-mul",
            "model.variant_options.num_terms=4", "model.hidden_size=16", "model.num_hidden_layers=1",
            "model.num_attention_heads=2", "training.steps=4", "training.warmup_steps=0",
            "training.batch_size=4", "training.validation_batches=1", "training.sample_characters=0",
        ],
    )  # fmt: skip
    return train(recipe, folder / "run", progress=False)
