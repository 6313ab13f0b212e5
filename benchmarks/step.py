"""Training step time of model variants against `rope`, side by side in one process.

    python benchmarks/step.py [--variants rope gpa-rope …] [--width 128 512] [--json FILE]
    python benchmarks/step.py --device cuda --width 512 --batch 256 --compile

A step is forward, backward, clipping and AdamW of the character GPT (4 layers, 4 heads, context 256), on a
GPU under bfloat16 autocast as in training. Width 512 is the model of Bunks et al. (2025). A variant
that cannot run is reported with its reason.
"""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from timing import alternate, as_json, as_table, environment, why_it_fails, write_json

from nadaraya import InputError, variants
from nadaraya.models import KernelGPTConfig, KernelGPTForCausalLM

VOCABULARY = 93


def training_step(variant: str, width: int, batch: int, device: str, compiled: bool) -> Callable[[], None]:
    """One update of a fresh model on fixed random tokens."""
    torch.manual_seed(0)
    config = KernelGPTConfig.preset("dickens", vocab_size=VOCABULARY, hidden_size=width, variant=variant)
    model = KernelGPTForCausalLM(config).train().to(device)
    network = torch.compile(model) if compiled else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    tokens = torch.randint(VOCABULARY, (batch, config.max_position_embeddings + 1), device=device)

    def step() -> None:
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            logits = network(tokens[:, :-1], use_cache=False).logits
        F.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten()).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return step


def known_variant(name: str) -> str:
    """The name of a variant, `-loo` and `-xsa` included, as a type of argparse."""
    try:
        variants.get(name)
    except InputError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return name


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--variants",
        nargs="+",
        type=known_variant,
        default=["rope", "gpa-rope", "gpa-mul", "gka-loo-bank"],
        metavar="VARIANT",
    )
    parser.add_argument("--width", nargs="+", type=int, default=[128, 512])
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--runs", type=int, default=15)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--compile", action="store_true", help="also every variant under torch.compile")
    parser.add_argument("--json", type=Path, help="also write the figures to this file, after every width")
    options = parser.parse_args()
    if options.device == "cuda" and not torch.cuda.is_available():
        print("step.py: --device must be cpu where there is no CUDA device, got cuda", file=sys.stderr)
        sys.exit(2)
    results: dict = {"environment": environment(), "step_ms": {}, "failed": {}}
    for width in options.width:
        title = f"width {width}, batch {options.batch} × 256 characters"
        if options.device == "cuda":
            title += ", cuda, bfloat16"
        steps, failed = _runnable(options, width)
        timings = alternate(steps, options.runs, device=options.device)
        results["step_ms"][title] = as_json(timings)
        results["failed"][title] = failed
        print(title)
        if timings:
            print(as_table(timings, options.variants[0]))
        for name, reason in failed.items():
            print(f"{name}: {reason}")
        print(flush=True)
        if options.json:
            write_json(options.json, results)


def _runnable(
    options: argparse.Namespace, width: int
) -> tuple[dict[str, Callable[[], None]], dict[str, str]]:
    """The steps that run here, by name, and why the others do not."""
    steps: dict[str, Callable[[], None]] = {}
    failed: dict[str, str] = {}
    # Each variant is its own code to the compiler, which gives up after a few by default.
    torch._dynamo.config.recompile_limit = 64
    for compiled in (False, True) if options.compile else (False,):
        for variant in options.variants:
            name = f"{variant}, compiled" if compiled else variant
            print(f"preparing {name}", file=sys.stderr, flush=True)
            step = training_step(variant, width, options.batch, options.device, compiled)
            reason = why_it_fails(step, options.device)
            if reason is None:
                steps[name] = step
            else:
                failed[name] = reason
    return steps, failed


if __name__ == "__main__":
    main()
