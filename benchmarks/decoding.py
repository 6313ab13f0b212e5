"""Tokens per second of generation on the CPU: models of ours and transformers' Llama of the same size.

    python benchmarks/decoding.py --json FILE [--rounds 3]

Four layers of width 256 with four heads, random weights; each sequence gets 32 tokens, greedily.
Contestants take turns in one process.
"""

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from nadaraya.attention.measured import identity
from nadaraya.evaluation.decoding import DecodingSettings, measure_decoding
from nadaraya.files import write_file
from nadaraya.models import KernelGPTConfig, KernelGPTForCausalLM

VARIANTS = ("rope", "gpa-rope", "gka")
CASES = ((1, 1024), (8, 1024), (1, 4096), (8, 4096), (1, 16384))  # sequences, tokens of the prompt
SIZES = {"hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4, "vocab_size": 256}


def main() -> None:
    """Measure, write, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    found: dict[str, Any] = {"identity": identity(torch.device("cpu")), "rows": []}
    for batch, prompt in CASES:
        longest = prompt + 64
        llama = LlamaConfig(
            **SIZES, intermediate_size=688, max_position_embeddings=longest, attn_implementation="sdpa"
        )
        models: dict[str, Any] = {"Llama, sdpa": LlamaForCausalLM(llama)}
        for variant in VARIANTS:
            config = KernelGPTConfig(
                **SIZES, variant=variant, intermediate_size=688, max_position_embeddings=longest
            )
            models[variant] = KernelGPTForCausalLM(config)
        settings = DecodingSettings(batch=batch, prompt=prompt, tokens=32, rounds=options.rounds)
        for row in measure_decoding(models, ["dynamic"], settings):
            found["rows"].append({"batch": batch, "prompt": prompt, **asdict(row)})
            print(batch, prompt, row.model, row.one_tensor, f"{row.tokens_per_second:.1f}", flush=True)
        write_file(options.json, json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
