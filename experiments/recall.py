"""Associative recall by length: small models with different positions, gates and a convolution beside all.

    python experiments/recall.py --json FILE [--updates 1500] [--seeds 0,1,2] [--only rope-gate,gpa-spread]

A row of 128 tokens has eight pairs of a key and a value among noise, and asks for each once, at all distances
alike on a logarithmic scale; only answers are in the loss. Two layers of width 64 with two heads. Afterwards
rows of up to sixteen times that length show the pairs in their first 64 tokens and ask in their last 64.
Rates are searched with a seed of its own, 100. What the file has is not measured again.
"""

import argparse
import json
import multiprocessing
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Generator, Tensor
from training import begun, train

from nadaraya.attention.rotary import RotaryEmbedding
from nadaraya.evaluation.language import predict
from nadaraya.files import write_file
from nadaraya.models import KernelGPTConfig, KernelGPTForCausalLM, extend_context

CONTEXT, BATCH, PAIRS = 128, 32, 8
WINDOW = 32
KEYS, VALUES, NOISE = 64, 64, 64
LENGTHS = (128, 256, 512, 1024, 2048)
RATES, SEARCH_SEED = (1.5e-3, 5e-3, 1.5e-2), 100
Cell = tuple[str, float, int]  # variant, rate, seed
SCALED = ("interpolate", "ntk", "yarn")
VARIANTS: dict[str, str | list[str]] = {
    "rope-gate": "rope-gate",
    "gpa-spread": "gpa-spread",
    "nope-gate": "nope-gate",
    "nope-loo-gate": "nope-loo-gate",
    "rope-loo-gate": "rope-loo-gate",
    "fox-loo-gate": "fox-loo-gate",
    "alibi-loo-gate": "alibi-loo-gate",
    "gpa-rope-gate": "gpa-rope-gate",
    # S: the first layer sees the last 32 tokens only
    "rope-gate S + nope-gate": ["rope-gate", "nope-gate"],
    "gpa-spread S + nope": ["gpa-spread", "nope-loo-gate"],
    "decay-loo-gate": "decay-loo-gate",
    "linear-bank-gate": "linear-bank-gate",
    "gka-loo-bank-gate": "gka-loo-bank-gate",
    "parallax-gate": "parallax-gate",
    "bam-gate": "bam-gate",
    "gka-nearest-gate": "gka-nearest-gate",
    "local-linear-gate": "local-linear-gate",
}


def rows_of(
    generator: Generator, length: int = CONTEXT, rows: int = BATCH, ends: int | None = None
) -> Tensor:
    """Rows (B, N) of noise with pairs and questions; with `ends`, pairs within that many first tokens, asked
    within as many last ones; else anywhere."""
    tokens = KEYS + VALUES + torch.randint(NOISE, (rows, length), generator=generator)
    keys = torch.rand(rows, KEYS, generator=generator).argsort(1)[:, :PAIRS]
    values = KEYS + torch.randint(VALUES, (rows, PAIRS), generator=generator)
    slots = (ends or length) // 2  # of two tokens
    if ends is None:
        shown, asked = _at_all_scales(rows, slots, generator)
    else:
        shown, asked = (torch.rand(rows, slots, generator=generator).argsort(1)[:, :PAIRS] for _ in range(2))
        asked = asked + (length - ends) // 2
    for place in (shown, asked):
        tokens.scatter_(1, 2 * place, keys).scatter_(1, 2 * place + 1, values)
    return tokens


def _at_all_scales(rows: int, slots: int, generator: Generator) -> tuple[Tensor, Tensor]:
    """Slots (B, P) of pairs and of their questions, no two alike, log-uniform distances from 1 on."""
    shown = torch.full((rows, PAIRS), -1)
    asked = shown.clone()
    taken = torch.zeros(rows, slots, dtype=torch.bool)
    each = torch.arange(rows)
    for pair in range(PAIRS):
        left = torch.ones(rows, dtype=torch.bool)
        while left.any():
            distance = (slots ** torch.rand(rows, generator=generator)).long().clamp(max=slots - 1)
            first = (torch.rand(rows, generator=generator) * (slots - distance)).long()
            free = left & ~taken[each, first] & ~taken[each, first + distance]
            shown[free, pair], asked[free, pair] = first[free], (first + distance)[free]
            taken[each[free], first[free]] = taken[each[free], (first + distance)[free]] = True
            left &= ~free
    return shown, asked


def answers(rows: Tensor) -> Tensor:
    """Where (B, N − 1) the next token is the value of a key that was there before."""
    keys = rows[:, :-1, None] == torch.arange(KEYS)
    return (keys & (keys.cumsum(1) == 2)).any(-1)


def loss_of(model: Any, rows: Tensor, step: int) -> Tensor:
    """Cross-entropy of the answers."""
    asked = answers(rows)
    logits = model(input_ids=rows, use_cache=False).logits[:, :-1]
    return F.cross_entropy(logits[asked], rows[:, 1:][asked])


def recalled(model: Any, length: int) -> float:
    """Share of the answers given at the end of a text of so many tokens."""
    generator = torch.Generator().manual_seed(length)
    rows = rows_of(generator, length, 64, 64)
    asked = answers(rows)
    given = torch.cat(
        [predict(model, part).argmax(-1)[:, :-1] for part in rows.split(max(1, 32_768 // length))]
    )
    return (given == rows[:, 1:])[asked].float().mean().item()


def by_length(model: Any, lengths: Sequence[int], way: str = "") -> Mapping[str, float]:
    """Recall at each length, by a way to extend the context."""
    found = {}
    for length in lengths:
        if way == "window":
            with extend_context(model, "window", window=CONTEXT):
                found[str(length)] = recalled(model, length)
        elif way and length > CONTEXT:
            with extend_context(model, way, factor=length / CONTEXT):  # type: ignore[arg-type]
                found[str(length)] = recalled(model, length)
        else:
            found[str(length)] = recalled(model, length)
    return found


def run(name: str, rate: float, seed: int, updates: int) -> dict[str, Any]:
    """Train one and measure it."""
    torch.manual_seed(seed)
    windows = {"window_pattern": "SL", "sliding_window": WINDOW} if " S " in name else {}
    config = KernelGPTConfig(
        variant=VARIANTS[name], vocab_size=KEYS + VALUES + NOISE, hidden_size=64, intermediate_size=128,
        num_hidden_layers=2, num_attention_heads=2, max_position_embeddings=CONTEXT, short_convolution=4,
        **windows,
    )  # fmt: skip
    model = KernelGPTForCausalLM(config)
    curve: dict[str, float] = {}

    def watch(step: int, loss: float) -> None:
        curve[str(step)] = recalled(model.eval(), CONTEXT)
        model.train()

    begun = time.perf_counter()
    train(model, rows_of, partial(loss_of, model), updates=updates, rate=rate, seed=seed, watch=watch)
    found = {"variant": name, "rate": rate, "seed": seed, "seconds": time.perf_counter() - begun}
    model.eval()
    if seed == SEARCH_SEED:
        return found | {"curve": curve, "recall": {"": by_length(model, (CONTEXT,))}}
    ways = {"": by_length(model, LENGTHS)}
    if any(isinstance(part, RotaryEmbedding) for part in model.modules()):
        ways |= {way: by_length(model, LENGTHS, way) for way in ("window", *SCALED)}
    return found | {"parameters": model.num_parameters(), "curve": curve, "recall": ways}


def main() -> None:
    """Search rates, train, measure, write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--updates", type=int, default=1500)
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--only", default=",".join(VARIANTS))
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--json", type=Path, required=True)
    options = parser.parse_args()
    settings = {"updates": options.updates, "context": CONTEXT, "batch": BATCH, "pairs": PAIRS}
    found = begun(options.json, settings)
    known = {(row["variant"], row["rate"], row["seed"]): row for row in found["runs"]}
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(options.workers, context, torch.set_num_threads, (1,)) as pool:

        def all_of(cells: list[Cell]) -> None:
            running = [pool.submit(run, *cell, options.updates) for cell in cells if cell not in known]
            for each in as_completed(running):
                row = each.result()
                known[row["variant"], row["rate"], row["seed"]] = row
                print(*list(row.values())[:4], row["curve"], row["recall"][""], flush=True)
                found["runs"] = list(known.values())
                write_file(options.json, json.dumps(found, indent=1) + "\n")

        for name in options.only.split(","):
            all_of([(name, rate, SEARCH_SEED) for rate in RATES])
            best = max(RATES, key=lambda rate: early_and_high(known[name, rate, SEARCH_SEED]))
            all_of([(name, best, seed) for seed in map(int, options.seeds.split(","))])


def early_and_high(row: dict[str, Any]) -> tuple[float, float]:
    """Recall at the end; equal recall goes to the run in which it came first."""
    return round(row["recall"][""][str(CONTEXT)], 2), sum(row["curve"].values())


if __name__ == "__main__":
    main()
