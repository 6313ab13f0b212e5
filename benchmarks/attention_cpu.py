"""The operator against its rivals on this machine's CPU, forward + backward, side by side in one process.

    python benchmarks/attention_cpu.py [--json FILE]

The N × N form is what a user writes by hand: scores, softmax, product, autograd. Stock SDPA is PyTorch's
fused attention without any bias. Every contender computes its output and all its gradients.
The last part measures peak memory at N = 16,384 in processes of their own.
"""

import argparse
import json
import math
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from peak_memory import added_mib
from timing import alternate, as_json, as_table, environment
from torch import Tensor

from nadaraya import kernel_attention
from nadaraya.kernels import Exp, Gaussian, KernelBank


def hand_written_gka(x: Tensor, bandwidth: Tensor) -> Tensor:
    """Gaussian kernel attention with every pair written out (‖a‖² + ‖b‖² − 2ab, as its authors do)."""
    square = x.square().sum(-1)
    distance = square[..., :, None] + square[..., None, :] - 2 * x @ x.transpose(-1, -2)
    kappa = torch.exp(-distance / (2 * bandwidth.square()[:, None, None])).tril()
    return kappa / kappa.sum(-1, keepdim=True) @ x


def hand_written_gpa(q: Tensor, k: Tensor, v: Tensor, table: Tensor) -> Tensor:
    """Attention with an additive bias by lag, gathered to N × N."""
    n = q.shape[2]
    lags = torch.arange(n)[:, None] - torch.arange(n)
    scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[3]) + table[:, lags.clamp(min=0)]
    return scores.masked_fill(lags < 0, -torch.inf).softmax(-1) @ v


def materialised_bias(q: Tensor, k: Tensor, v: Tensor, table: Tensor) -> Tensor:
    """Stock SDPA given the N × N bias, which then requires grad."""
    n = q.shape[2]
    lags = torch.arange(n)[:, None] - torch.arange(n)
    bias = table[:, lags.clamp(min=0)].masked_fill(lags < 0, -torch.inf)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=bias[None])


def cases(batch: int, heads: int, tokens: int, width: int) -> dict[str, Callable[[], None]]:
    """Forward + backward of every contender on one shape, causal, float32."""
    torch.manual_seed(0)
    q, k, v, x = (torch.randn(batch, heads, tokens, width, requires_grad=True) for _ in range(4))
    bandwidth = torch.full((heads,), width**0.25, requires_grad=True)
    added = Exp(KernelBank(heads, 64, init="paper"))
    grad = torch.randn(batch, heads, tokens, width)

    def run(out: Tensor) -> None:
        out.backward(grad)
        for tensor in (q, k, v, x, bandwidth, *added.parameters()):
            tensor.grad = None

    def table() -> Tensor:
        return added.lag_logits(tokens)

    return {
        "stock SDPA, no bias": lambda: run(F.scaled_dot_product_attention(q, k, v, is_causal=True)),
        "gpa, with the gradient of the bank": lambda: run(
            kernel_attention(q, k, v, position=table(), causal=True)
        ),
        "gpa, SDPA with an N×N bias": lambda: run(materialised_bias(q, k, v, table())),
        "gpa, N×N by hand": lambda: run(hand_written_gpa(q, k, v, table())),
        "gka": lambda: run(kernel_attention(x, x, x, content=Gaussian(bandwidth), causal=True)),
        "gka, N×N by hand": lambda: run(hand_written_gka(x, bandwidth)),
    }


def peak_memory(case: str, tokens: int) -> float:
    """MiB that forward + backward add to the peak of a fresh process, gradients included.

    Beyond that of 2,048 tokens, in which the same code has its threads and their buffers.
    """
    small, large = (f"cases(1, 1, {count}, 64)[{case!r}]()" for count in (2048, tokens))
    return added_mib("from attention_cpu import cases", small, large)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=9)
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    options = parser.parse_args()
    results: dict = {"environment": environment(), "time_ms": {}, "peak_memory_mib": {}}
    for shape in ((1, 6, 2048, 64), (16, 4, 256, 32), (16, 4, 256, 128)):
        title = "B {}, H {}, N {}, d {}".format(*shape)
        timings = alternate(cases(*shape), options.runs)
        results["time_ms"][title] = as_json(timings)
        print(f"{title}, causal, float32, forward + backward")
        print(as_table(timings, "stock SDPA, no bias"), end="\n\n")
    tokens = 16_384
    print(f"peak memory, one head, N {tokens}, d 64; one N×N float32 matrix is {tokens**2 / 2**18:.0f} MiB")
    for case in ("stock SDPA, no bias", "gpa, with the gradient of the bank", "gka"):
        results["peak_memory_mib"][case] = peak_memory(case, tokens)
        print(f"{case:36} {results['peak_memory_mib'][case]:7.0f} MiB")
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
