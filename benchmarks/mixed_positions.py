"""Positions that every query mixes for itself, and a logit for every key, against stock attention on the CPU.

    python benchmarks/mixed_positions.py [--threads 2] [--runs 15] [--json FILE]

Stock is PyTorch's fused attention without any bias. The dense form writes the mixed logits of all pairs out
and hands them to it as a mask, which then requires grad. All turns are taken in one process, causal, float32;
forward + backward computes all gradients, those of weights and profiles included. The last part measures the
memory that one head's forward + backward adds, in processes of their own.
"""

import argparse
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from peak_memory import added_mib
from timing import alternate, as_json, as_table, environment, write_json
from torch import Tensor

from nadaraya import kernel_attention
from nadaraya.attention import MixedKernels, MixedLogits

STOCK = "stock SDPA, no bias"
TERMS = 16


def dense_bias(weights: Tensor, profiles: Tensor, of_kernels: bool) -> Tensor:
    """The mixed logits of all pairs, (B, H, N, N), −inf for the future and for kernels out of reach."""
    tokens, extent = weights.shape[2], profiles.shape[1]
    lags = torch.arange(tokens)[:, None] - torch.arange(tokens)
    by_lag = weights @ profiles.exp() if of_kernels else weights @ profiles
    if of_kernels:
        by_lag = by_lag.log()
    bias = by_lag.gather(3, lags.clamp(0, extent - 1).expand(*weights.shape[:3], -1))
    hidden = (lags < 0) | (lags >= extent) if of_kernels else lags < 0
    bias = bias.masked_fill(hidden, -torch.inf)
    return bias if of_kernels else bias.masked_fill(lags >= extent, 0.0)


def cases(heads: int, tokens: int, width: int, extents: tuple[int, ...]) -> dict[str, Callable[[], Tensor]]:
    """The forward pass of every contender."""
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, heads, tokens, width, requires_grad=True) for _ in range(3))
    gates = torch.randn(1, heads, tokens).requires_grad_()
    weights = torch.randn(1, heads, tokens, TERMS).requires_grad_()
    positive = weights.detach().exp().requires_grad_()
    named: dict[str, Callable[[], Tensor]] = {
        STOCK: lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True),
        "a logit for every key": lambda: kernel_attention(q, k, v, key_bias=gates, causal=True),
    }
    for extent in extents:
        profiles = (0.3 * torch.randn(TERMS, extent)).requires_grad_()
        for of_kernels, mixing in ((False, weights), (True, positive)):
            form = MixedKernels if of_kernels else MixedLogits
            title = f"mixed {'kernels' if of_kernels else 'logits'}, {extent} lags"
            position = form(mixing, profiles)
            named[title] = lambda position=position: kernel_attention(q, k, v, position=position, causal=True)
            if extent == tokens:
                named[f"{title}, dense"] = lambda mixing=mixing, profiles=profiles, of_kernels=of_kernels: (
                    F.scaled_dot_product_attention(q, k, v, dense_bias(mixing, profiles, of_kernels))
                )
    return named


def without_gradients(forward: Callable[[], Tensor]) -> Callable[[], None]:
    def run() -> None:
        with torch.no_grad():
            forward()

    return run


def with_gradients(forward: Callable[[], Tensor]) -> Callable[[], None]:
    def run() -> None:
        out = forward()
        out.backward(torch.ones_like(out))

    return run


def peak_memory(case: str, tokens: int) -> float:
    """MiB that forward + backward add to the peak of a fresh process, gradients included."""
    small, large = (
        f"with_gradients(cases(1, {count}, 64, ({count},))[{case.format(count)!r}])()"
        for count in (128, tokens)
    )
    return added_mib("from mixed_positions import cases, with_gradients", small, large)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=15)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    results: dict = {"environment": environment(), "time_ms": {}, "peak_memory_mib": {}}
    forwards = cases(6, 2048, 64, (2048, 1024))
    for title, wrap in (("forward", without_gradients), ("forward + backward", with_gradients)):
        timings = alternate({name: wrap(case) for name, case in forwards.items()}, options.runs)
        results["time_ms"][title] = as_json(timings)
        print(f"B 1, H 6, N 2048, d 64, M {TERMS}, causal, float32, {title}")
        print(as_table(timings, STOCK), end="\n\n")
    tokens = 16_384
    print(f"peak memory, one head, N {tokens}, d 64; one N×N matrix is {tokens**2 / 2**18:.0f} MiB")
    for case in (STOCK, "mixed logits, {} lags", "mixed kernels, {} lags"):
        name = f"{case.format(tokens)}, N {tokens}"
        results["peak_memory_mib"][name] = peak_memory(case, tokens)
        print(f"{name:40} {results['peak_memory_mib'][name]:7.0f} MiB")
    if options.json:
        write_json(options.json, results)


if __name__ == "__main__":
    main()
