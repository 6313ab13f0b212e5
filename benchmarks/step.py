"""Training step time of model variants against `rope`, side by side in one process.

    python benchmarks/step.py [--variants rope gpa-rope …] [--width 128 512] [--json FILE]
    python benchmarks/step.py --device cuda --width 512 --batch 256 --compile
    python benchmarks/step.py --preset nano-d6 --batch 1 --variants rope gka gpa-rope
    python benchmarks/step.py --width 128 --variants rope gpa-spread:short_convolution=4:intermediate_size=448

A step is forward, backward, clipping and AdamW of the character GPT (4 layers, 4 heads, context 256), or of
another preset at its context, under autocast where the precision is bfloat16, as in training. Width 512 is
the model of Bunks et al. (2025). Behind a variant stand settings of its model, if any. A variant that cannot
run is reported with its reason. Beside the time of a step stand tokens/s and the model's share of the
device's speed: its training FLOPs (Kundu et al. (2026), table 8) over those of a large matrix product, which
takes its turn among the steps.
"""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
import yaml
from timing import alternate, as_json, as_table, environment, why_it_fails, write_json

from nadaraya import InputError, variants
from nadaraya.device import reuse_freed_memory
from nadaraya.evaluation.efficiency import training_flops
from nadaraya.models import KernelGPTConfig, KernelGPTForCausalLM

PRODUCT = "matrix product"
_SIDES = {"cpu": 2048, "cuda": 8192}  # of its factors


def configuration(preset: str, variant: str, width: int | None) -> KernelGPTConfig:
    """The preset with a variant and its settings, and with a width where one is given."""
    name, *settings = variant.split(":")
    given = {} if width is None else {"hidden_size": width}
    own = {key: yaml.safe_load(value) for key, value in (each.split("=") for each in settings)}
    return KernelGPTConfig.preset(preset, variant=name, **given, **own)


def matrix_product(device: str, precision: str) -> Callable[[], None]:
    """A product that the device does at its highest speed, in the precision of the steps."""
    dtype = getattr(torch, precision)
    factor = torch.randn(_SIDES[device], _SIDES[device], device=device, dtype=dtype)
    product = torch.empty_like(factor)

    def multiply() -> None:
        torch.mm(factor, factor, out=product)

    return multiply


def training_step(
    config: KernelGPTConfig, batch: int, device: str, precision: str, compiled: bool
) -> Callable[[], None]:
    """One update of a fresh model on fixed random tokens."""
    torch.manual_seed(0)
    model = KernelGPTForCausalLM(config).train().to(device)
    network = torch.compile(model) if compiled else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    tokens = torch.randint(config.vocab_size, (batch, config.max_position_embeddings + 1), device=device)

    def step() -> None:
        with torch.autocast(device, torch.bfloat16, enabled=precision == "bfloat16"):
            logits = network(tokens[:, :-1], use_cache=False).logits
        F.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten()).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return step


def known_variant(name: str) -> str:
    """A variant or a hybrid, `-loo`, `-gate` and such included, with its settings, as a type of argparse."""
    variant, *settings = name.split(":")
    try:
        variants.by_layer(variant, 1)
    except InputError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    if any(each.count("=") != 1 for each in settings):
        raise argparse.ArgumentTypeError(f"must be VARIANT:KEY=VALUE:…, got {name!r}")
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
        metavar="VARIANT[:KEY=VALUE…]",
    )
    parser.add_argument("--preset", default="dickens", help="dickens, or nano-d6 with any depth")
    parser.add_argument("--width", nargs="+", type=int, help="default 128 and 512, or the preset's own")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--runs", type=int, default=15)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument(
        "--precision", choices=("float32", "bfloat16"), help="default bfloat16 on a GPU, else float32"
    )
    parser.add_argument("--compile", action="store_true", help="also every variant under torch.compile")
    parser.add_argument("--json", type=Path, help="also write the figures to this file, after every width")
    options = parser.parse_args()
    options.precision = options.precision or ("bfloat16" if options.device == "cuda" else "float32")
    if options.device == "cuda" and not torch.cuda.is_available():
        print("step.py: --device must be cpu where there is no CUDA device, got cuda", file=sys.stderr)
        sys.exit(2)
    reuse_freed_memory()  # as training does
    results: dict = {
        "environment": environment(),
        "step_ms": {},
        "tokens_per_s": {},
        "share": {},
        "failed": {},
    }
    for width in options.width or ([128, 512] if options.preset == "dickens" else [None]):
        configs = {name: configuration(options.preset, name, width) for name in options.variants}
        first = configs[options.variants[0]]
        tokens = options.batch * first.max_position_embeddings
        title = f"{options.preset}, width {first.hidden_size}, batch {options.batch}, context "
        title += str(first.max_position_embeddings)
        title += ", cuda" if options.device == "cuda" else ""
        title += ", bfloat16" if options.precision == "bfloat16" else ""
        steps, failed = _runnable(options, configs)
        timings = alternate(
            {**steps, PRODUCT: matrix_product(options.device, options.precision)},
            options.runs,
            device=options.device,
        )
        flops_per_ms = 2 * _SIDES[options.device] ** 3 / timings.pop(PRODUCT).median
        speeds = {name: tokens / timing.median * 1e3 for name, timing in timings.items()}
        shares = {
            name: _flops_per_token(configs[name.split(",")[0]]) * speed / 1e3 / flops_per_ms
            for name, speed in speeds.items()
        }
        results["step_ms"][title] = as_json(timings)
        results["tokens_per_s"][title], results["share"][title] = speeds, shares
        results["failed"][title] = failed
        print(f"{title}; matrix product {flops_per_ms / 1e9:.3g} TFLOP/s")
        if timings:
            print(as_table(timings, options.variants[0]))
        for name, speed in speeds.items():
            print(f"{name}: {speed:,.0f} tokens/s, {shares[name]:.0%} of the matrix product's FLOP/s")
        for name, reason in failed.items():
            print(f"{name}: {reason}")
        print(flush=True)
        if options.json:
            write_json(options.json, results)


def _flops_per_token(config: KernelGPTConfig) -> float:
    with torch.device("meta"):
        return training_flops(KernelGPTForCausalLM(config), config.max_position_embeddings)


def _runnable(
    options: argparse.Namespace, configs: dict[str, KernelGPTConfig]
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
            step = training_step(configs[variant], options.batch, options.device, options.precision, compiled)
            reason = why_it_fails(step, options.device)
            if reason is None:
                steps[name] = step
            else:
                failed[name] = reason
    return steps, failed


if __name__ == "__main__":
    main()
