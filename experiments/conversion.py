"""Converts a rotary Llama trained on characters of Dickens: banks, nothing, or its rotations, equally tuned.

    python experiments/conversion.py --json FILE [--updates 3000] [--seeds 0,1,2]

Four layers of width 128 with four heads, context 256. Each conversion trains for the same 300 updates of all
parameters. Losses are validation nats/character. A seed that the file has is not trained again.
"""

import argparse
import copy
import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from nadaraya.data import load_corpus, train_character_tokenizer
from nadaraya.data.tokenizer import encode_text
from nadaraya.files import write_file
from nadaraya.interpret.conversion import convert_model

CONTEXT, BATCH, RATE, TUNING = 256, 8, 1.5e-3, 300


def rotary_model(vocabulary: int, seed: int) -> LlamaForCausalLM:
    """A Llama with random weights."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=vocabulary, hidden_size=128, intermediate_size=344, num_hidden_layers=4,
        num_attention_heads=4, max_position_embeddings=CONTEXT,
    )  # fmt: skip
    return LlamaForCausalLM(config)


def train(model: LlamaForCausalLM, tokens: Tensor, updates: int, seed: int) -> None:
    """AdamW with a warm-up and a linear decay, on windows at random."""
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.AdamW(model.parameters(), RATE, betas=(0.9, 0.95), weight_decay=0.1)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / 100, 1.0, (updates - step) / (0.5 * updates))
    )
    model.train()
    for step in range(updates):
        starts = torch.randint(len(tokens) - CONTEXT, (BATCH, 1), generator=generator)
        rows = tokens[starts + torch.arange(CONTEXT)]
        optimizer.zero_grad()
        loss = model(input_ids=rows, labels=rows).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 100 == 0:
            print(f"  {step:5} {loss.item():.3f}", flush=True)


def main() -> None:
    """Train, convert in three ways, write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--corpus", default="dickens")
    parser.add_argument("--updates", type=int, default=3000)
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--json", type=Path, required=True)
    options = parser.parse_args()
    settings = {"updates": options.updates, "tuning": TUNING, "context": CONTEXT, "batch": BATCH}
    found: dict[str, Any] = {"settings": settings, "runs": []}
    if options.json.is_file():
        found = json.loads(options.json.read_text(encoding="utf-8"))
    text = load_corpus(options.corpus).text
    tokenizer = train_character_tokenizer(text)
    tokens = encode_text(tokenizer, text)
    for seed in map(int, options.seeds.split(",")):
        if seed in [run["seed"] for run in found["runs"]]:
            continue
        trained = rotary_model(tokenizer.vocab_size, seed)
        train(trained, tokens[: len(tokens) * 9 // 10], options.updates, seed)
        run: dict[str, Any] = {"seed": seed}
        for positions in ("bank", "none", "rotary"):
            result = convert_model(
                copy.deepcopy(trained), tokens, context=CONTEXT, positions=positions,  # type: ignore[arg-type]
                updates=TUNING, seed=seed,
            )  # fmt: skip
            run[positions] = {"losses": result.losses, "r2": result.r2}
            print(seed, positions, result.losses, flush=True)
        found["runs"].append(run)
        write_file(options.json, json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
