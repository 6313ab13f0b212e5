"""Leaving out keys where the kernel of the lag has decayed, against stock attention without any bias.

    python benchmarks/decay.py --json FILE [--tokens 16384 65536] [--heads 6] [--runs 3]

Causal, float32, d = 64, queries and keys of norm √d as after QK-norm, and the kernel bank that layers start
with (8 terms, geometric), its gradient included. `prune_tol` is 2^-24, the last digit of float32. Peak
memory is that of forward + backward with one head, each in a process of its own.
"""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from peak_memory import added_mib
from timing import alternate, as_json, as_table, environment, write_json

from nadaraya import kernel_attention
from nadaraya.kernels import KernelBank

WIDTH = 64
STOCK = "stock SDPA, no bias"
NEGLIGIBLE = 2.0**-24


def cases(tokens: int, heads: int, backward: bool) -> dict[str, Callable[[], None]]:
    """Every contender on one shape, forward or forward + backward."""
    torch.manual_seed(0)
    query, key, value = (
        (F.normalize(torch.randn(1, heads, tokens, WIDTH), dim=-1) * WIDTH**0.5).requires_grad_(backward)
        for _ in range(3)
    )
    bank = KernelBank(heads, 8).requires_grad_(backward)
    grad = torch.randn(1, heads, tokens, WIDTH)
    attend: dict[str, Callable[[], torch.Tensor]] = {
        STOCK: lambda: F.scaled_dot_product_attention(query, key, value, is_causal=True),
        "bank, all keys": lambda: kernel_attention(query, key, value, position=bank, causal=True),
        "bank, negligible keys left out": lambda: kernel_attention(
            query, key, value, position=bank, causal=True, prune_tol=NEGLIGIBLE
        ),
    }

    def run(call: Callable[[], torch.Tensor]) -> None:
        out = call()
        if backward:
            out.backward(grad)
            for tensor in (query, key, value, *bank.parameters()):
                tensor.grad = None

    return {name: lambda call=call: run(call) for name, call in attend.items()}  # type: ignore[misc]


def peak_memory(case: str, tokens: int) -> float:
    """MiB that forward + backward add to the peak of a fresh process, inputs included."""
    small, large = (f"cases({count}, 1, True)[{case!r}]()" for count in (256, tokens))
    return added_mib("from decay import cases", small, large)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures to this file")
    parser.add_argument("--tokens", nargs="+", type=int, default=[16_384, 65_536])
    parser.add_argument("--heads", type=int, default=6)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--skip-full", action="store_true", help="leave out the bank over all keys")
    parser.add_argument("--processor-time", action="store_true", help="one thread, by processor time")
    options = parser.parse_args()
    if options.processor_time:
        torch.set_num_threads(1)
    results: dict[str, Any] = {"environment": environment(), "heads": options.heads, "rows": []}
    for tokens in options.tokens:
        for backward in (False, True):
            contenders = cases(tokens, options.heads, backward)
            if options.skip_full:
                del contenders["bank, all keys"]
            clock = "processor" if options.processor_time else "cpu"
            timings = alternate(contenders, options.runs, warmup=1, device=clock)
            work = "forward + backward" if backward else "forward"
            print(f"H {options.heads}, N {tokens}, d {WIDTH}, causal, float32, {work}")
            print(as_table(timings, STOCK), end="\n\n", flush=True)
            results["rows"].append({"tokens": tokens, "work": work, "time_ms": as_json(timings)})
            if options.json:
                write_json(options.json, results)
    results["peak_memory_mib"] = {}
    for tokens in options.tokens:
        memory = peak_memory("bank, negligible keys left out", tokens)
        results["peak_memory_mib"][str(tokens)] = memory
        print(f"peak memory of one head, N {tokens}, negligible keys left out: {memory:.0f} MiB")
    if options.json:
        write_json(options.json, results)


if __name__ == "__main__":
    main()
