"""Training steps of a T5 and an Inkling block with our attention and with the library's own, on the CPU.

    python benchmarks/other_models.py [--tokens 1024 2048 …] [--json FILE] [--figure FILE]
    python benchmarks/other_models.py --draw FILE.json --figure FILE

A step is forward and backward of one text through one block of T5-small's encoder (8 heads of width 64) and
through one full-attention layer of a small Inkling (4 heads of width 64, 16 profiles of 1,024 lags), in
float32, without dropout. Peak memory is what a step adds to a process of its own, whose data may not grow
beyond `--limit` GiB: what does not fit, or cannot run, is reported with its reason. Times are from one
process, where contenders that fit take turns. The largest difference of their gradients from those of
`eager`, in parts of the largest gradient of the parameter, is checked at the smallest size.
"""

import argparse
import json
import multiprocessing
import resource
import sys
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from peak_memory import peak_kib
from tables import markdown
from timing import alternate, as_json, environment, one_line, write_json
from torch import Tensor
from transformers import PreTrainedModel, T5Config, T5EncoderModel, logging
from transformers.models.inkling import InklingForCausalLM
from transformers.models.inkling.configuration_inkling import InklingTextConfig

from nadaraya.models import attach_attention

MODELS = ("T5", "Inkling")
CONTENDERS = ("nadaraya", "eager", "sdpa", "flex_attention")
_VOCABULARY = 64
_WARM = 128  # tokens of the step before the first that counts


def make(name: str, contender: str) -> PreTrainedModel:
    """One block with random weights and the contender's attention."""
    torch.manual_seed(0)
    if name == "T5":
        t5 = T5Config(vocab_size=_VOCABULARY, num_layers=1, dropout_rate=0.0)  # the rest is T5-small
        model: PreTrainedModel = T5EncoderModel(t5)
    else:
        model = InklingForCausalLM(
            InklingTextConfig(
                vocab_size=_VOCABULARY, hidden_size=256, intermediate_size=1024, num_hidden_layers=1,
                num_attention_heads=4, num_key_value_heads=2, head_dim=64, swa_num_attention_heads=4,
                swa_num_key_value_heads=2, swa_head_dim=64, layer_types=["hybrid"], mlp_layer_types=["dense"],
            )
        )  # fmt: skip
    if contender == "nadaraya":
        attach_attention(model)
    else:
        model.set_attn_implementation(contender)
    return model.train()


def step(model: PreTrainedModel, tokens: Tensor) -> None:
    """Forward and backward; gradients stay on the parameters."""
    model.zero_grad()
    out = model(tokens)[0]
    # Not the mean of squares, which a norm keeps constant.
    (out * torch.linspace(-1, 1, out.shape[2])).mean().backward()


def some_tokens(length: int) -> Tensor:
    """(1, length) the same in every process."""
    return torch.randint(3, _VOCABULARY, (1, length), generator=torch.Generator().manual_seed(0))


def _alone(name: str, contender: str, length: int, limit: float, answer: Connection) -> None:
    """Send what one step adds to this process, in MiB, or why it cannot run."""
    ceiling = int(limit * 2**30)
    resource.setrlimit(resource.RLIMIT_DATA, (ceiling, ceiling))
    try:
        model = make(name, contender)
        step(model, some_tokens(_WARM))
        before = peak_kib()
        step(model, some_tokens(length))
    except Exception as error:  # a contender may fail in any way: that is its result
        full = isinstance(error, (MemoryError, RuntimeError)) and "allocate memory" in str(error)
        answer.send({"failed": f"more than {limit:g} GiB" if full else one_line(error)})
    else:
        answer.send({"peak_mib": (peak_kib() - before) / 1024})


def memory(name: str, contender: str, length: int, options: argparse.Namespace) -> dict[str, Any]:
    """What `_alone` found in a process of its own."""
    # A fork has everything imported already; this process must not have computed anything before.
    context = multiprocessing.get_context("fork")
    answer, send = context.Pipe(duplex=False)
    process = context.Process(target=_alone, args=(name, contender, length, options.limit, send))
    process.start()
    send.close()
    try:
        found = (
            answer.recv() if answer.poll(options.timeout) else {"failed": f"longer than {options.timeout} s"}
        )
    except EOFError:
        process.join()
        found = {"failed": f"ended with status {process.exitcode}"}
    process.kill()
    process.join()
    return dict(found)


def differences(name: str, contenders: list[str], length: int) -> dict[str, float]:
    """The largest difference of any gradient from that of `eager`, in parts of its parameter's largest."""
    gradients: dict[str, dict[str, Tensor]] = {}
    for contender in ("eager", *contenders):
        model = make(name, contender)
        step(model, some_tokens(length))
        gradients[contender] = {key: p.grad for key, p in model.named_parameters() if p.grad is not None}
    return {
        contender: max(
            ((gradients[contender][key] - want).abs().max() / want.abs().max()).item()
            for key, want in gradients["eager"].items()
            if want.abs().max() > 0
        )
        for contender in contenders
    }


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """All figures, written to the file after every size."""
    models: dict[str, dict[str, dict[str, Any]]] = {name: {} for name in options.models}
    for name in options.models:
        out: dict[str, str] = {}  # what failed at a smaller size
        for length in options.tokens:
            rows = models[name][str(length)] = {}
            for contender in options.contenders:
                print(f"memory of {name}, {length} tokens, {contender}", file=sys.stderr, flush=True)
                reason = out.get(contender)
                rows[contender] = {"failed": reason} if reason else memory(name, contender, length, options)
                if "failed" in rows[contender]:
                    out[contender] = rows[contender]["failed"]
    results: dict[str, Any] = {"environment": environment("transformers"), "limit_gib": options.limit}
    results |= {"difference": {}, "models": models}
    for length in options.tokens:
        for name in options.models:
            print(f"time of {name}, {length} tokens", file=sys.stderr, flush=True)
            rows = models[name][str(length)]
            fit = [contender for contender, row in rows.items() if "peak_mib" in row]
            for contender, timing in as_json(_times(name, fit, length, options.runs)).items():
                rows[contender] |= timing
            if length == min(options.tokens):
                others = [contender for contender in fit if contender != "eager"]
                results["difference"][name] = differences(name, others, length)
            if options.json:
                write_json(options.json, results)
    return results


def _times(name: str, contenders: list[str], length: int, runs: int) -> dict[str, Any]:
    tokens = some_tokens(length)
    models = {contender: make(name, contender) for contender in contenders}
    calls: dict[str, Callable[[], None]] = {
        contender: lambda model=model: step(model, tokens)  # type: ignore[misc]
        for contender, model in models.items()
    }
    return alternate(calls, runs, warmup=1)


def text(results: dict[str, Any]) -> str:
    """A Markdown table per model: seconds per step, and MiB at its peak."""
    parts = []
    for name, lengths in results["models"].items():
        names = [
            each for each in CONTENDERS if any("peak_mib" in rows.get(each, ()) for rows in lengths.values())
        ]
        header = [f"{name}, tokens", *(f"{each}, s" for each in names), *(f"{each}, MiB" for each in names)]
        lines = [
            [
                f"{int(length):,}",
                *(f"{rows[each]['median'] / 1e3:.2f}" if "median" in rows[each] else "–" for each in names),
                *(f"{rows[each]['peak_mib']:,.0f}" if "peak_mib" in rows[each] else "–" for each in names),
            ]
            for length, rows in lengths.items()
        ]
        parts.append(markdown(header, lines))
        failed = {
            each: row["failed"] for rows in lengths.values() for each, row in rows.items() if "failed" in row
        }
        parts += [f"- {each}: {reason}" for each, reason in failed.items()]
        for each, difference in results["difference"].get(name, {}).items():
            parts.append(f"- {each}: gradients within {difference:.1g} of eager's")
    return "\n".join(parts)


def draw(results: dict[str, Any], file: Path) -> None:
    """Time and memory over the number of tokens, one column per model."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.subplots(2, len(results["models"]), sharex=True, squeeze=False)
    for column, (name, lengths) in zip(axes.T, results["models"].items(), strict=True):
        for contender in CONTENDERS:
            for axis, key, unit in zip(column, ("median", "peak_mib"), (1e3, 1024), strict=True):
                points = [
                    (int(n), rows[contender][key] / unit)
                    for n, rows in lengths.items()
                    if key in rows.get(contender, ())
                ]
                if points:
                    axis.loglog(*zip(*points, strict=True), marker="o", label=contender)
        column[0].set(title=name, ylabel="seconds per step")
        column[1].set(xlabel="tokens", ylabel="peak memory of a step, GiB")
        for axis in column:
            axis.set_xscale("log", base=2)
            axis.grid(alpha=0.3)
    axes[0, 0].legend()
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tokens", nargs="+", type=int, default=[1024, 2048, 4096, 8192, 16384])
    parser.add_argument("--models", nargs="+", choices=MODELS, default=MODELS)
    parser.add_argument("--contenders", nargs="+", choices=CONTENDERS, default=CONTENDERS)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--limit", type=float, default=12.0, help="GiB of data a process may have")
    parser.add_argument("--timeout", type=int, default=600, help="seconds a process may take")
    parser.add_argument("--json", type=Path, help="also write the figures to this file, after every size")
    parser.add_argument("--figure", type=Path, help="also draw them, to this file")
    parser.add_argument("--draw", type=Path, help="measure nothing: show the figures of this file")
    options = parser.parse_args()
    logging.set_verbosity_error()
    results = json.loads(options.draw.read_text()) if options.draw else measure(options)
    print(text(results))
    if options.figure:
        draw(results, options.figure)


if __name__ == "__main__":
    main()
