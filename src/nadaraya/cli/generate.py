"""`nadaraya generate`: text from a trained run."""

from pathlib import Path
from typing import Annotated, Any

import typer

from nadaraya.cli.options import (
    DeviceOption,
    PrecisionOption,
    SeedOption,
    TemperatureOption,
    computing,
    refuse_given,
    token_progress,
)
from nadaraya.cli.results import Result
from nadaraya.errors import must_be


def generate(
    run: Annotated[Path, typer.Argument(help="A finished run folder.")],
    prompt: Annotated[
        str | None,
        typer.Option(help="Text to continue.", show_default="a newline, if the model knows it"),
    ] = None,
    tokens: Annotated[
        int, typer.Option(help="Number of tokens to generate (characters, for a character model).")
    ] = 500,
    temperature: TemperatureOption = 1.0,
    top_k: Annotated[
        int | None,
        typer.Option(help="Sample from the K most probable tokens.", show_default="all"),
    ] = None,
    beams: Annotated[int, typer.Option(help="Number of beams of a beam search; 1 samples.")] = 1,
    greedy: Annotated[bool, typer.Option("--greedy", help="Take the most probable token each time.")] = False,
    seed: SeedOption = 0,
    device: DeviceOption = "",
    precision: PrecisionOption = "float32",
) -> Result:
    """Continue a prompt with the model of a run."""
    from nadaraya.evaluation import generate_text
    from nadaraya.evaluation.generation import default_prompt
    from nadaraya.training import Run

    if greedy and beams > 1:
        raise must_be("--beams", "1 with --greedy", beams)
    if greedy or beams > 1:
        of_samples = {"temperature": None if temperature == 1.0 else temperature, "top_k": top_k}
        refuse_given(f"left out with {'--greedy' if greedy else '--beams'}", **of_samples)
    opened = Run(run)
    model, tokenizer = opened.load_model(), opened.tokenizer()
    prompt = default_prompt(tokenizer) if prompt is None else prompt
    settings: dict[str, Any] = {
        "tokens": tokens,
        "temperature": temperature,
        "top_k": top_k,
        "beams": beams,
        "greedy": greedy,
        "seed": seed,
    }
    with computing(model, device, precision), token_progress(tokens) as progress:
        text = generate_text(model, tokenizer, prompt, progress=progress, **settings)
    return Result({"run": str(run), "prompt": prompt, "text": text, **settings}, [text])
