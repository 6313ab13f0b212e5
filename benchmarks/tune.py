"""Chooses the tiles of every fused kernel on the GPU at hand, by timing a few candidates.

    python benchmarks/tune.py --out FILE [--widths 64 128] [--table FILE]

--out gets the environment, every candidate's time and the table of tiles that results: the packaged one with
this GPU's generation, 16-bit precision and the timed widths replaced. --table gets the table alone, as
`NADARAYA_TRITON_CONFIGS` and the package's own configs.json take it.

A backward kernel is timed inside the whole backward pass, the other kernels cut as the table says.
"""

import argparse
import json
import re
import sys
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from typing import Any

import torch
from timing import alternate, as_json, environment, why_it_fails, write_json

from nadaraya.attention.triton.configs import KERNELS, Config, Kernel, choose, use

SHAPE = (4, 16, 4096)
# (BLOCK_M, BLOCK_N, warps, stages); the table's own choice is timed beside them.
CANDIDATES: dict[Kernel, dict[int, list[tuple[int, int, int, int]]]] = {
    "forward": {
        64: [(128, 64, 4, 3), (128, 64, 8, 3), (128, 128, 8, 2), (128, 128, 8, 3), (64, 64, 4, 3)],
        128: [(128, 64, 8, 3), (128, 128, 8, 2), (128, 64, 8, 2), (64, 64, 4, 3)],
    },
    "key_value_gradient": {
        64: [(64, 128, 8, 2), (64, 64, 4, 2), (32, 128, 8, 3), (64, 64, 4, 3)],
        128: [(32, 128, 8, 2), (32, 64, 4, 2), (64, 64, 8, 2), (64, 128, 8, 2)],
    },
    "query_gradient": {
        64: [(128, 64, 8, 2), (64, 64, 4, 2), (128, 64, 8, 3), (128, 128, 8, 2)],
        128: [(128, 64, 8, 2), (64, 64, 4, 2), (64, 64, 8, 2), (128, 64, 8, 3)],
    },
    "table_gradient": {
        64: [(64, 64, 4, 2), (64, 64, 8, 2), (64, 64, 4, 3), (128, 128, 8, 2)],
        128: [(64, 64, 4, 2), (64, 64, 8, 2), (64, 64, 8, 1), (32, 32, 4, 2)],
    },
    "gaussian_table_gradient": {
        64: [(64, 64, 4, 2), (64, 64, 8, 2), (32, 32, 4, 2)],
        128: [(64, 64, 8, 2), (32, 32, 4, 2), (32, 32, 8, 2)],
    },
    "one_tensor_gradient": {
        64: [(64, 32, 4, 2), (128, 32, 8, 2), (64, 64, 4, 2), (128, 64, 8, 2)],
        128: [(64, 32, 4, 2), (128, 32, 8, 2), (64, 32, 8, 2), (128, 64, 8, 2)],
    },
}


def calls(width: int) -> dict[Kernel, Callable[[], Any]]:
    """For each kernel a call in which it takes a good part of the time, bfloat16, causal."""
    from nadaraya.attention.triton.operator import triton_attention, triton_attention_backward

    torch.manual_seed(0)
    query, key, value, grad = torch.randn(4, *SHAPE, width, device="cuda", dtype=torch.bfloat16).unbind(0)
    heads, tokens = SHAPE[1:]
    table = torch.randn(heads, 2 * tokens - 1, device="cuda")
    sigma = torch.full((heads,), width**0.25, device="cuda")
    dot = (width**-0.5, None, table, None, None, None, True, 0, False)
    gaussian = (1.0, sigma, table, None, None, None, True, 0, False)
    one_tensor = (1.0, sigma, None, None, None, None, True, 0, False)

    def backward(tensors: Any, options: Any, need_table: bool = False) -> Callable[[], Any]:
        out, lse, alone = triton_attention(*tensors, *options)
        grads = (grad, torch.zeros_like(lse))
        return lambda: triton_attention_backward(
            *grads, *tensors, out, lse, alone, *options, need_table, False
        )

    three = (query, key, value)
    return {
        "forward": lambda: triton_attention(*three, *dot),
        "key_value_gradient": backward(three, dot),
        "query_gradient": backward(three, dot),
        "table_gradient": backward(three, dot, need_table=True),
        "gaussian_table_gradient": backward(three, gaussian, need_table=True),
        "one_tensor_gradient": backward((query, None, None), one_tensor),
    }


def with_config(kernel: Kernel, config: Config, call: Callable[[], Any]) -> Callable[[], Any]:
    """The call with one kernel cut as given."""

    def run() -> Any:
        with use(**{kernel: config}):
            return call()

    return run


def name_of(config: Config) -> str:
    return f"{config.block_m}×{config.block_n}, {config.num_warps} warps, {config.num_stages} stages"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--table", type=Path, help="also write the table alone")
    parser.add_argument("--widths", type=int, nargs="+", default=[64, 128], choices=[64, 128])
    parser.add_argument("--runs", type=int, default=10)
    options = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("tune.py times kernels on a GPU, and PyTorch sees none")
    capability = torch.cuda.get_device_capability()
    generation = f"{capability[0]}.0"
    table = json.loads(resources.files("nadaraya.attention.triton").joinpath("configs.json").read_text())
    if generation not in table:
        sys.exit(f"tune.py knows GPUs of generations {', '.join(table)}, this one is {generation}")
    results: dict[str, Any] = {"environment": environment(), "shape": SHAPE, "timings": {}, "table": table}
    for width in options.widths:
        by_kernel = calls(width)
        for kernel in KERNELS:
            known = choose(kernel, width, torch.bfloat16, capability)
            configs = dict.fromkeys([known, *(Config(*numbers) for numbers in CANDIDATES[kernel][width])])
            runs = {name_of(c): with_config(kernel, c, by_kernel[kernel]) for c in configs}
            failures = {name: why_it_fails(run, "cuda") for name, run in runs.items()}
            able = {name: run for name, run in runs.items() if failures[name] is None}
            timings = alternate(able, options.runs, device="cuda")
            best = min(timings, key=lambda name: timings[name].median)
            winner = next(c for c in configs if name_of(c) == best)
            table[generation]["half"][kernel][str(width)] = list(vars(winner).values())
            results["timings"][f"{kernel}, d {width}"] = {
                **as_json(timings),
                **{name: {"failed": reason} for name, reason in failures.items() if reason is not None},
            }
            print(f"{kernel}, d {width}: {best}, {timings[best].median:.3f} ms", flush=True)
            write_json(options.out, results)
    if options.table:
        text = re.sub(
            r"\[\s+(\d+),\s+(\d+),\s+(\d+),\s+(\d+)\s+\]", r"[\1, \2, \3, \4]", json.dumps(table, indent=1)
        )
        options.table.write_text(text + "\n")


if __name__ == "__main__":
    main()
