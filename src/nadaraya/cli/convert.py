"""`nadaraya convert`: a kernel bank in place of the rotary positions of a trained model."""

from pathlib import Path
from typing import Annotated

import typer

from nadaraya.cli.options import DeviceOption, SeedOption, chosen_device
from nadaraya.cli.results import Result
from nadaraya.cli.tables import FigureTable
from nadaraya.files import check_new_folder

_CONTEXT = 1024


def convert(
    model: Annotated[str, typer.Argument(help="A folder that transformers wrote, or hf:NAME.")],
    text: Annotated[
        str, typer.Option(help="A text: nine tenths to train on, the last tenth for the losses.")
    ],
    out: Annotated[Path, typer.Option(help="Output folder of the model, new or empty.")],
    positions: Annotated[
        str, typer.Option(help="What replaces the rotations: bank, or a control: none, rotary (they stay).")
    ] = "bank",
    terms: Annotated[int, typer.Option(help="Terms of each head's bank.", min=1, max=64)] = 4,
    updates: Annotated[int, typer.Option(help="Updates of all parameters afterwards.", min=0)] = 300,
    context: Annotated[
        int | None, typer.Option(help="Tokens of a window.", min=2, show_default="the model's, at most 1024")
    ] = None,
    batch_size: Annotated[int, typer.Option(help="Windows of an update.", min=1)] = 8,
    learning_rate: Annotated[
        float, typer.Option(help="The first; it falls to 0. Ten times as much for banks.")
    ] = 3e-4,
    seed: SeedOption = 0,
    device: DeviceOption = "",
) -> Result:
    """Replace a model's rotary positions by the kernel banks that its heads imply.

    The bank of a head is fitted to its logits by lag; rotations stop; a few updates recalibrate. The folder
    has the model as transformers reads it, and the banks in the folder "bank".
    """
    from nadaraya.cli.texts import Source
    from nadaraya.data import load_corpus
    from nadaraya.interpret.conversion import convert_model
    from nadaraya.training import open_causal_model

    check_new_folder(out)
    causal, corpus = open_causal_model(model), load_corpus(text)
    causal.model.to(chosen_device(device))
    found = convert_model(
        causal.model, Source(corpus.name, corpus.text).tokens(causal), positions=positions,  # type: ignore[arg-type]
        context=min(causal.context, _CONTEXT) if context is None else context, num_terms=terms,
        updates=updates, batch_size=batch_size, learning_rate=learning_rate, seed=seed,
        progress=lambda step, loss: typer.echo(f"{step}: {loss:.4f} nats/token", err=True),
    )  # fmt: skip
    found.save(out, causal.tokenizer)
    table = FigureTable(["step"], ["nats/token", "change"])
    first = next(iter(found.losses.values()))
    for step, loss in found.losses.items():
        table.add_row(step, f"{loss:.4f}", f"{loss - first:+.4f}")
    asked = {"model": model, "text": corpus.name, "positions": positions, "terms": terms, "updates": updates}
    document = {**asked, "losses": found.losses, "r2": found.r2, "out": str(out)}
    return Result(document, [table, f"model: {out}"])
