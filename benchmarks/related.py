"""The related systems of Kundu et al. (2026), table 1, their heirs and ours: time and memory of one layer.

    python benchmarks/related.py --json FILE [--grids text-training …] [--systems linear-bank …]

One layer of width 384 with 6 heads, batch 1, float32. Systems of a grid and a number of tokens take turns.
Training is forward + backward, decoding some tokens of a language model of one block after N tokens. Peak
memory is the most that PyTorch had allocated during a first call, which does not count as a time. A cell that
the file has is not measured again. One that would exceed a limit by the growth over smaller sizes, or did in
its first call, is not run.
"""

import argparse
import gc
import json
import math
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from timing import alternate, as_json, environment, one_line, write_json
from torch import Tensor
from transformers import DynamicCache, MiniMaxConfig
from transformers.models.minimax.modeling_minimax import MiniMaxLightningAttention

from nadaraya import KernelSelfAttention, variants
from nadaraya.attention.features import Features
from nadaraya.attention.gates import OutputGate
from nadaraya.evaluation.decoding import cache_bytes
from nadaraya.evaluation.efficiency import flop_counter
from nadaraya.evaluation.throughput import allocated
from nadaraya.kernels import ALiBi
from nadaraya.models import KernelGPTConfig, KernelGPTForCausalLM

WIDTH, HEADS = 384, 6
LEARNED = {"landmarks": "learned", "num_landmarks": 64}
BARE = {"rotary": None, "head_norm": False}
TEXT: dict[str, dict[str, Any]] = {
    "rope": {},
    "gka": {},
    "gpa-mul": {},
    "gpa-spread": {},
    "linear": {},
    "linear-bank": {},
    "performer": {},
    "kernelized-rpe": {},
    "gka-nystrom": LEARNED,
    "skyformer": LEARNED,
    "gka-features": {},
    "krause": {},
    "gka-nearest": {},
    "non-local": {},
    "local-linear": {},
    "parallax": {},
    "bam": {},
}
VISION: dict[str, dict[str, Any]] = {
    "softmax": {},
    "gka": BARE,
    "linear": {},
    "performer": {},
    "kernelized-rpe": {},
    "linformer": {"num_mixtures": 64},
    "nystromformer": {},
    "skyformer": {"num_landmarks": 64},
    "gka-nystrom": {"head_norm": False},
    "gka-features": {"head_norm": False},
    "krause": {"nearest": 16, "bandwidth": 4.5},
    "gka-nearest": {"nearest": 16, **BARE},
    "non-local": {},
    "local-linear": {"rotary": None},
    "parallax": {"rotary": None},
}
# Those whose parts have a number of tokens.
SIZED = ("kernelized-rpe", "linformer")
LIGHTNING = "transformers, Lightning attention"
SAME = "nadaraya, chunks"
STEPS = 4  # tokens that are decoded in one call
PROMPT = 256  # tokens that are read; the others of a cache repeat theirs

Call = Callable[[], Any]


class Grid(NamedTuple):
    """Contestants, numbers of tokens, and a call that does the work of one of them once."""

    systems: dict[str, dict[str, Any]]
    tokens: tuple[int, ...]
    make: Callable[[str, int], Call]


def options_of(systems: dict[str, dict[str, Any]], name: str, tokens: int) -> dict[str, Any]:
    """Options of a variant at a number of tokens."""
    return systems[name] | ({"num_tokens": tokens} if name in SIZED else {})


def layer(name: str, tokens: int, causal: bool) -> KernelSelfAttention:
    """One attention layer with the weights that it starts with."""
    torch.manual_seed(0)
    options = options_of(TEXT if causal else VISION, name, tokens)
    return KernelSelfAttention(WIDTH, HEADS, causal=causal, **variants.get(name, **options))


def of_layer(make: Callable[[], torch.nn.Module], tokens: int, backward: bool) -> Call:
    """Forward of a layer in evaluation, or forward + backward in training."""
    module = make().train(backward)
    x = torch.randn(1, tokens, WIDTH, generator=torch.Generator().manual_seed(1))

    def infer() -> None:
        with torch.inference_mode():
            module(x)

    def update() -> None:
        inputs = x.detach().requires_grad_()
        out = module(inputs)
        (out[0] if isinstance(out, tuple) else out).sum().backward()
        module.zero_grad()

    return update if backward else infer


def training(causal: bool, name: str, tokens: int) -> Call:
    """Forward + backward of a system's layer."""
    return of_layer(partial(layer, name, tokens, causal), tokens, True)


def inference(name: str, tokens: int) -> Call:
    """Forward of a layer of patches."""
    return of_layer(partial(layer, name, tokens, False), tokens, False)


class Theirs(MiniMaxLightningAttention):
    """Lightning attention with what it must be called with; its slopes are those of its first layer."""

    def __init__(self) -> None:
        config = MiniMaxConfig(
            hidden_size=WIDTH, num_attention_heads=HEADS, num_hidden_layers=1_000, hidden_act="silu"
        )
        super().__init__(config, 0)

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        out: Tensor = super().forward(x, (x, x), None)[0]
        return out


def ours() -> KernelSelfAttention:
    """SiLU features, one decay per head with the same slopes, no denominator, a gate on the output."""
    return KernelSelfAttention(
        WIDTH, HEADS, causal=True, content=partial(Features, kind="silu"),
        position=lambda shape: ALiBi(shape.num_heads), output_gate=OutputGate,
    )  # fmt: skip


def lightning(name: str, tokens: int) -> Call:
    """Forward + backward of Lightning attention, theirs or ours."""
    return of_layer(Theirs if name == LIGHTNING else ours, tokens, True)


def decoding(name: str, tokens: int) -> Call:
    """Some tokens of a language model of one block, after a cache of so many; returns the cache's bytes."""
    torch.manual_seed(0)
    room = tokens + 1024
    options = options_of(TEXT, name, room)
    config = KernelGPTConfig(
        vocab_size=64, hidden_size=WIDTH, num_hidden_layers=1, num_attention_heads=HEADS,
        max_position_embeddings=room, variant=name, variant_options=options,
    )  # fmt: skip
    model = KernelGPTForCausalLM(config).eval()
    cache = DynamicCache(config=model.config)
    with torch.inference_mode():
        model(torch.randint(64, (1, PROMPT)), past_key_values=cache)
        for each in cache.layers:
            kept: Any = each
            if kept.keys.untyped_storage().nbytes() > 4:
                kept.keys, kept.values = (
                    t.repeat(1, 1, tokens // PROMPT, 1) for t in (kept.keys, kept.values)
                )
            else:  # a state, and one number that counts tokens
                kept.keys = kept.values = kept.keys[:, :, :1].expand(-1, -1, tokens, -1)

    def decode() -> int:
        with torch.inference_mode():
            for _ in range(STEPS):
                model(torch.zeros((1, 1), dtype=torch.long), past_key_values=cache)
        return cache_bytes(cache)

    return decode


LENGTHS = (1024, 4096, 16_384, 65_536)
GRIDS = {
    "text-training": Grid(TEXT, LENGTHS, partial(training, True)),
    "text-decoding": Grid(TEXT, LENGTHS, decoding),
    "vision-training": Grid(VISION, (196, 1024, 4096), partial(training, False)),
    "vision-inference": Grid(VISION, (196, 1024, 4096), inference),
    "growth": Grid({"linear-bank": {}}, (8192, 32_768), partial(training, True)),
    "lightning": Grid({LIGHTNING: {}, SAME: {}}, (4096, 16_384), lightning),
}


def counts(name: str, causal: bool, tokens: int = 1024) -> dict[str, int]:
    """Parameters of a layer, and FLOPs of one forward pass over so many tokens."""
    module = layer(name, tokens, causal).eval().requires_grad_(False)
    with (counter := flop_counter()), torch.no_grad():
        module(torch.randn(1, tokens, WIDTH))
    return {"parameters": sum(p.numel() for p in module.parameters()), "flops": counter.get_total_flops()}


def predicted(found: list[tuple[int, float]], tokens: int) -> float:
    """A cost at a number of tokens by its growth over the last two smaller ones, N^1.5 after one."""
    (before, cost), power = found[-1], 1.5
    if len(found) > 1 and found[-2][1] > 0:
        power = math.log(max(1.0, cost / found[-2][1])) / math.log(before / found[-2][0])
    return float(cost * (tokens / before) ** power)


def why_not(cells: dict[str, Any], name: str, tokens: int, options: argparse.Namespace) -> str | None:
    """Why a cell is not run, or None."""
    smaller = [(int(size), row[name]) for size, row in cells.items() if int(size) < tokens and name in row]
    measured = [(size, row) for size, row in sorted(smaller, key=lambda each: each[0]) if "median" in row]
    if len(measured) < len(smaller):
        return "a smaller size was not run"
    if not measured:
        return None
    seconds = predicted([(size, row["median"] / 1e3) for size, row in measured], tokens)
    gib = predicted([(size, row["peak_mib"] / 1024) for size, row in measured], tokens)
    if seconds > options.limit:
        return f"about {seconds:.0f} s"
    return f"about {gib:.0f} GiB" if gib > options.memory else None


def measure(grid: Grid, tokens: int, cells: dict[str, Any], options: argparse.Namespace) -> None:
    """Fill in the cells of a number of tokens."""
    row = cells.setdefault(str(tokens), {})
    wanted = [name for name in options.systems or grid.systems if name in grid.systems and name not in row]
    calls: dict[str, Call] = {}
    for name in wanted:
        reason = why_not(cells, name, tokens, options)
        if reason is not None:
            row[name] = {"not_run": reason}
            continue
        try:
            call = grid.make(name, tokens)
            begun = time.perf_counter()
            held, _, peak = allocated(call)
            seconds = time.perf_counter() - begun
        except (RuntimeError, MemoryError, ValueError) as error:
            row[name] = {"not_run": one_line(error)}
            continue
        if seconds > 1.5 * options.limit:  # what a first call does once is in it
            row[name] = {"not_run": f"about {seconds:.0f} s"}
            continue
        calls[name] = call
        row[name] = {"peak_mib": peak / 2**20} | ({"cache_bytes": held} if held is not None else {})
        print(f"  {name:34} {peak / 2**20:8.0f} MiB", flush=True)
    rounds = options.rounds if tokens <= 4096 else min(3, options.rounds)
    for name, times in as_json(alternate(calls, rounds, warmup=0)).items():
        row[name] |= times
    gc.collect()


def show(kind: str, tokens: int, row: dict[str, Any]) -> None:
    """Print the cells of a number of tokens, the fastest first."""
    print(f"{kind}, N {tokens:,}")
    for name, cell in sorted(row.items(), key=lambda item: item[1].get("median", math.inf)):
        if "median" in cell:
            spread = f"{cell['low']:.1f}–{cell['high']:.1f}"
            print(f"  {name:34} {cell['median']:9.1f} ms  {spread:>17}  {cell['peak_mib']:7.0f} MiB")
        else:
            print(f"  {name:34} not run: {cell['not_run']}")


def main() -> None:
    """Measure what the file lacks."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--grids", nargs="+", choices=GRIDS, default=list(GRIDS), metavar="GRID")
    parser.add_argument("--systems", nargs="+", metavar="SYSTEM", help="of each grid; default all")
    parser.add_argument("--tokens", nargs="+", type=int, metavar="N", help="of each grid; default all")
    parser.add_argument("--rounds", type=int, default=5, help="turns; at most 3 above 4,096 tokens")
    parser.add_argument("--limit", type=float, default=8.0, help="seconds that one call may take")
    parser.add_argument("--memory", type=float, default=4.0, help="GiB that one call may take")
    parser.add_argument("--json", type=Path, metavar="FILE", help="the results, written after every size")
    options = parser.parse_args()
    results: dict[str, Any] = {}
    if options.json and options.json.is_file():
        results = json.loads(options.json.read_text(encoding="utf-8"))
    results.setdefault("environment", environment("transformers"))
    results["settings"] = {"width": WIDTH, "heads": HEADS, "steps": STEPS}
    for kind in options.grids:
        grid, cells = GRIDS[kind], results.setdefault(kind, {})
        for tokens in grid.tokens:
            if options.tokens and tokens not in options.tokens:
                continue
            measure(grid, tokens, cells, options)
            show(kind, tokens, cells[str(tokens)])
            if options.json:
                write_json(options.json, results)
    for causal, kind in ((True, "text-counts"), (False, "vision-counts")):
        counted = results.setdefault(kind, {})
        for name in TEXT if causal else VISION:
            if name not in counted and (options.systems is None or name in options.systems):
                counted[name] = counts(name, causal)
        print(json.dumps(counted, indent=1))
    if options.json:
        write_json(options.json, results)


if __name__ == "__main__":
    main()
