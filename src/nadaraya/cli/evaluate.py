"""`nadaraya evaluate`: how well a model predicts a text, classifies images or solves tasks."""

import math
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from nadaraya.cli.lengths import length_table, lengths_of, recall_table
from nadaraya.cli.options import (
    DeviceOption,
    ModelArgument,
    PrecisionOption,
    TextOption,
    computing,
    refuse_given,
    whole_numbers,
)
from nadaraya.cli.results import Result
from nadaraya.cli.tasks import Chosen, names, opened, run_core, run_lm_eval
from nadaraya.cli.texts import Source, is_run, text_source
from nadaraya.errors import InputError, must_be

# Arguments of `length_losses`: what each is called in JSON, and its column.
_CONTROLS = {
    "sliding_window": ("window", "window\n{:,}"),
    "far_context": ("how", "far\n{}"),
    "extended": ("how", "{}"),
}


def evaluate(
    run: ModelArgument,
    text: TextOption = None,
    part: Annotated[
        str | None,
        typer.Option(
            help="Of the run's text: train, validation, or test, which follows data.limit.",
            show_default="validation",
        ),
    ] = None,
    context: Annotated[
        int | None,
        typer.Option(help="Tokens per window of the text.", min=1, show_default="the model's context"),
    ] = None,
    lengths: Annotated[
        str | None,
        typer.Option(
            help="Predict the same tokens from contexts of these lengths, such as 256,512,1024.",
            show_default="adjacent windows of the model's context",
        ),
    ] = None,
    windows: Annotated[
        int | None, typer.Option(help="With --lengths: number of windows of the text.", show_default="64")
    ] = None,
    sliding_window: Annotated[
        int | None,
        typer.Option(
            help="With --lengths: also with attention to so many tokens only, in every layer.", min=1
        ),
    ] = None,
    far_context: Annotated[
        str | None,
        typer.Option(
            help="With --lengths: also with what is further away than the shortest length shuffled or cut."
        ),
    ] = None,
    extended: Annotated[
        str | None,
        typer.Option(help="With --lengths: also with rotary positions changed by interpolate, ntk or yarn."),
    ] = None,
    recall: Annotated[
        str | None,
        typer.Option(
            help="Show random tokens again after these distances, such as 64,256,1024: how many it gives.",
            show_default="not measured",
        ),
    ] = None,
    images: Annotated[
        str | None,
        typer.Option(
            help="Classify the validation images of a folder, shards, an .npz or torchvision:NAME.",
            show_default="the run's own",
        ),
    ] = None,
    core: Annotated[
        Path | None,
        typer.Option(
            help="Run the CORE tasks in this folder: DCLM's bundle, or .jsonl files with core_meta.json."
        ),
    ] = None,
    lm_eval: Annotated[
        str | None,
        typer.Option("--lm-eval", help="Run these tasks of lm-evaluation-harness, separated by commas."),
    ] = None,
    tasks: Annotated[
        str | None,
        typer.Option(help="With --core: task labels, separated by commas.", show_default="all in the folder"),
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option(help="With --core or --lm-eval: examples per task.", show_default="all"),
    ] = None,
    shots: Annotated[
        int | None,
        typer.Option(
            help="With --lm-eval: solved examples before each question.", show_default="each task's own"
        ),
    ] = None,
    task_folder: Annotated[
        Path | None,
        typer.Option(help="With --lm-eval: folder of further tasks in its format; their Python code is run."),
    ] = None,
    batch_size: Annotated[
        int | None,
        typer.Option(help="With --core or --lm-eval: prompts per batch.", min=1, show_default="16"),
    ] = None,
    weights: Annotated[
        str | None,
        typer.Option(
            help="Weights of a run: trained, averaged or best.", show_default="averaged, if the run has them"
        ),
    ] = None,
    device: DeviceOption = "",
    precision: PrecisionOption = "float32",
) -> Result:
    """Measure a model: loss on a text, accuracy on images, or scores on benchmark tasks."""
    sources = {"--text": text, "--images": images, "--core": core, "--lm-eval": lm_eval}
    given = [option for option, value in sources.items() if value is not None]
    if len(given) > 1:
        raise must_be(given[1], f"left out where {given[0]} is given", sources[given[1]])
    controls = {"sliding_window": sliding_window, "far_context": far_context, "extended": extended}
    needed: dict[tuple[str, ...], dict[str, Any]] = {
        ("--core",): {"tasks": tasks},
        ("--core", "--lm-eval"): {"limit": limit, "batch_size": batch_size},
        ("--lm-eval",): {"shots": shots, "task_folder": task_folder},
        ("--lengths",): {"windows": windows, **controls},
    }
    at_lengths = [] if lengths is None else ["--lengths"]
    for wanted, options in needed.items():
        if not {*given, *at_lengths} & {*wanted}:
            refuse_given(f"given with {' or '.join(wanted)}", **options)
    others = [option for option in given if option != "--text"]
    with_context = [] if context is None else ["--context"]
    for excluding, options in (
        (given, {"part": part}),
        (at_lengths + others, {"context": context}),
        (others, {"lengths": lengths}),
        (at_lengths + others + with_context, {"recall": recall}),
    ):
        if excluding:
            refuse_given(f"left out where {excluding[0]} is given", **options)
    from nadaraya.training import Run  # takes seconds, which a wrong option need not wait for

    own = Run(run) if is_run(run) else None
    chosen = Chosen(weights if own is None else weights or own.weights, device, precision)
    if core is not None:
        found = run_core(run, chosen, core, names(tasks), limit, batch_size or 16)
    elif lm_eval is not None:
        options = {"batch_size": batch_size or 16, "shots": shots, "folder": task_folder}
        found = run_lm_eval(run, chosen, names(lm_eval) or [], limit, **options)
    elif images is not None or (own and text is None and own.recipe.task == "image"):
        accepted = "given for a model of text"
        refuse_given(accepted, lengths=lengths, context=context, recall=recall, part=part)
        found = _images(run, images, chosen)
    elif lengths is not None:
        numbers = whole_numbers(lengths, "--lengths", "whole numbers of tokens, separated by commas")
        source = text_source(run, text, "--text", part)
        found = _at_lengths(run, source, numbers, 64 if windows is None else windows, controls, chosen)
    elif recall is not None:
        numbers = whole_numbers(recall, "--recall", "whole numbers of tokens, separated by commas")
        found = _recall(run, text_source(run, text, "--text", part), numbers, chosen)
    else:
        found = _text(run, text, part, context, chosen)
    used = {"weights": chosen.weights} if own else {}  # a model that is no run has one set of them
    return Result({"run": run, **used, **found.document}, found.shown)


def _at_lengths(
    run: str, source: Source, lengths: list[int], windows: int, controls: dict[str, Any], chosen: Chosen
) -> Result:
    with opened(run, chosen) as causal:
        result = lengths_of(causal, source, lengths, windows)
        limited = {
            name: lengths_of(causal, source, lengths, windows, **{name: value})
            for name, value in controls.items()
            if value is not None
        }
    for loss in (loss for losses in (result, *limited.values()) for loss in losses.lengths):
        _check_finite(loss.cross_entropy, f"{source.name} at length {loss.length}", run)
    document = {"text": source.name, "context": causal.context, **asdict(result)}
    titles = {}
    for name, losses in limited.items():
        key, title = _CONTROLS[name]
        document[name] = {key: controls[name], **asdict(losses)}
        titles[title.format(controls[name])] = losses
    return Result(document, length_table(result, source.name, causal.context, titles))


def _recall(run: str, source: Source, distances: list[int], chosen: Chosen) -> Result:
    from nadaraya.evaluation import recall_by_distance

    with opened(run, chosen) as causal:
        found = recall_by_distance(causal.model, source.tokens(causal), distances)
    for each in found:
        _check_finite(each.cross_entropy, f"{source.name} at distance {each.distance}", run)
    document = {"text": source.name, "context": causal.context, "recall": [asdict(each) for each in found]}
    return Result(document, recall_table(found, source.name))


def _text(run: str, text: str | None, part: str | None, context: int | None, chosen: Chosen) -> Result:
    from nadaraya.evaluation import evaluate_string
    from nadaraya.evaluation.language import evaluate_shards

    with opened(run, chosen) as causal:
        if context is not None and context > causal.context:
            raise must_be(
                "--context", f"at most the model's {causal.context} (--lengths goes beyond)", context
            )
        size = context or causal.context
        name, content, documents = text_source(run, text, "--text, --core or --lm-eval", part)
        if isinstance(content, str):
            result = evaluate_string(causal.model, causal.tokenizer, content, context=size)
        else:
            result = evaluate_shards(causal.model, content, context=size, documents=documents)
    _check_finite(result.cross_entropy, name, run)
    line = (
        f"{name}: {result.cross_entropy:.4f} nats/token over {result.tokens:,} tokens, "
        f"{result.bits_per_byte:.4f} bits/byte over {result.bytes:,} bytes{chosen.named}"
    )
    return Result({"text": name, **asdict(result)}, [line])


def _images(folder: str, source: str | None, chosen: Chosen) -> Result:
    from nadaraya.data.images import evaluation_batches
    from nadaraya.evaluation.classification import evaluate_images
    from nadaraya.training import Run

    run = Run(folder)
    recipe = run.image_recipe()
    model, images = run.load_model(weights=chosen.weights), run.images(source)
    batches = evaluation_batches(images, recipe.augmentation(), batch_size=128, workers=recipe.data.workers)
    with computing(model, chosen.device, chosen.precision):
        result = evaluate_images(model, batches)
    _check_finite(result.loss, images.name, folder)
    line = (
        f"{images.name}: top-1 {result.top1:.2%}, top-5 {result.top5:.2%}, {result.loss:.4f} nats/image over "
        f"{result.images:,} validation images{chosen.named}"
    )
    return Result({"images_of": images.name, **asdict(result)}, [line])


def _check_finite(loss: float, name: str, run: str) -> None:
    """Refuse a loss that is not finite."""
    if not math.isfinite(loss):
        raise InputError(
            f"the loss of {run} on {name} is {loss}, not a finite number: its weights have diverged in "
            "training, or its activations are too large for the --precision"
        )
