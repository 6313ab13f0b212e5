"""`nadaraya generate`: text from a trained run."""

from pathlib import Path
from typing import Annotated

import typer

from nadaraya.errors import must_be


def generate(
    run: Annotated[Path, typer.Argument(help="A finished run folder.")],
    prompt: Annotated[
        str | None,
        typer.Option(help="The text to continue.", show_default="a newline, if the model knows it"),
    ] = None,
    tokens: Annotated[
        int, typer.Option(min=1, help="How many tokens to generate: characters, for a character model.")
    ] = 500,
    temperature: Annotated[float, typer.Option(help="Divides the logits before sampling.")] = 1.0,
    top_k: Annotated[
        int | None, typer.Option(min=1, help="Sample from the K likeliest.", show_default="all")
    ] = None,
    beams: Annotated[int, typer.Option(min=1, help="Width of a beam search in place of sampling.")] = 1,
    greedy: Annotated[bool, typer.Option("--greedy", help="Take the likeliest token each time.")] = False,
    seed: Annotated[int, typer.Option(min=0, help="The same seed gives the same text.")] = 0,
) -> None:
    """Continue a prompt with the model of a run; prints the prompt and its continuation."""
    from nadaraya.evaluation import generate_text
    from nadaraya.training import Run

    if greedy and beams > 1:
        raise must_be("--beams", "1 with --greedy", beams)
    opened = Run(run)
    text = generate_text(
        opened.load_model(),
        opened.tokenizer(),
        prompt,
        tokens,
        temperature=temperature,
        top_k=top_k,
        beams=beams,
        greedy=greedy,
        seed=seed,
    )
    typer.echo(text)
