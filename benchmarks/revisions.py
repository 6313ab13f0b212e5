"""Whether a change made anything slower: the same calls on two revisions, alternating round by round.

    python benchmarks/revisions.py REVISION [--cases operator step regression loading] [--json FILE]

The other revision is checked out beside this one; one process for each stays open and they take turns, so
that drift of the machine affects both equally. Where a process lies in memory moves its times by a tenth:
several pairs of processes follow each other. Each revision is called as its own copy of this script calls it:
the interfaces may differ, the names of the cases may not. The ratio is the median over rounds of new / old,
with its quartiles. `loading` needs an image source: --images SOURCE.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
Case = Callable[[], Any]


def operator_cases() -> dict[str, Case]:
    """Forward and backward with every gradient, causal, float32."""
    import torch

    from nadaraya import kernel_attention
    from nadaraya.kernels import Exp, Gaussian, KernelBank

    def gpa(shape: tuple[int, ...]) -> Case:
        position = Exp(KernelBank(shape[1], 64, init="paper"))
        q, k, v = (torch.randn(shape, requires_grad=True) for _ in range(3))

        def call() -> None:
            kernel_attention(q, k, v, position=position, causal=True).sum().backward()

        return call

    def gka(shape: tuple[int, ...]) -> Case:
        x = torch.randn(shape, requires_grad=True)
        bandwidth = torch.full((shape[1],), 2.8, requires_grad=True)
        return lambda: kernel_attention(x, x, x, content=Gaussian(bandwidth), causal=True).sum().backward()

    torch.manual_seed(0)
    shapes = ((1, 6, 2048, 64), (16, 4, 256, 32))
    return {f"{make.__name__} {shape}": make(shape) for make in (gpa, gka) for shape in shapes}


def step_cases() -> dict[str, Case]:
    """A training step of the character GPT: forward, backward, clipping, AdamW."""
    import torch
    import torch.nn.functional as F

    from nadaraya.models import KernelGPTConfig, KernelGPTForCausalLM

    def step(variant: str) -> Case:
        torch.manual_seed(0)
        config = KernelGPTConfig.preset("dickens", vocab_size=93, hidden_size=128, variant=variant)
        model = KernelGPTForCausalLM(config).train()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
        tokens = torch.randint(93, (16, 257))

        def call() -> None:
            logits = model(tokens[:, :-1], use_cache=False).logits
            F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()

        return call

    return {f"step {variant}": step(variant) for variant in ("rope", "gpa-rope", "gpa-mul", "gka-loo-bank")}


def regression_cases() -> dict[str, Case]:
    """Sums over a line, sums in three dimensions, choosing bandwidths."""
    import numpy as np

    from nadaraya.regression import NadarayaWatson

    generator = np.random.default_rng(0)
    line = generator.standard_normal((1_000_000, 1))
    space = generator.standard_normal((20_000, 3))
    plane = generator.standard_normal((1_000, 2))

    def target(x: Any) -> Any:
        return np.sin(2 * x[:, 0]) + 0.3 * generator.standard_normal(len(x))

    line_y, plane_y = target(line), target(plane)
    queries = generator.standard_normal(line.shape)

    def on_the_line(kernel: str) -> Case:
        model = NadarayaWatson(kernel, 0.01).fit(line, line_y)
        return lambda: model.predict(queries)

    in_space = NadarayaWatson(bandwidth=0.25).fit(space, target(space))
    lines_in_space = NadarayaWatson(bandwidth=0.25, degree=1).fit(space, target(space))
    loo = NadarayaWatson(bandwidth=0.01).fit(line[:200_000], line_y[:200_000])
    kernels = ("gaussian", "exponential", "matern32", "epanechnikov", "tricube", "boxcar")
    return {
        **{f"1e6 at 1e6, d 1, {kernel}": on_the_line(kernel) for kernel in kernels},
        "leave-one-out predictions, 2e5, d 1": loo.loo_predictions,
        "2e4 at 2e4, d 3": lambda: in_space.predict(space),
        "2e4 at 2e4, d 3, local linear": lambda: lines_in_space.predict(space),
        "select, loo, n 1000, d 2": lambda: NadarayaWatson(bandwidth="loo").fit(plane, plane_y),
        "select, aic, n 1000, d 2": lambda: NadarayaWatson(bandwidth="aic").fit(plane, plane_y),
        "select, loo, local linear, n 1000, d 2": lambda: NadarayaWatson(bandwidth="loo", degree=1).fit(
            plane, plane_y
        ),
        "select, aic, n 20000, d 1": lambda: NadarayaWatson(n_starts=1).fit(line[:20_000], line_y[:20_000]),
    }


def loading_cases(source: str) -> dict[str, Case]:
    """Twenty augmented batches of 64 images, in the calling process and in a worker."""
    from nadaraya.data.images import Augmentation, open_images, training_batches

    images = open_images(source)
    deit = Augmentation()
    plain = Augmentation(
        image_size=32, padding_crop=4, rand_augment=None, random_erasing=0.0, mixup=0.0, cutmix=0.0, repeats=1
    )

    def load(augmentation: Augmentation, workers: int, steps: int) -> Case:
        def call() -> None:
            batches = training_batches(
                images, augmentation, batch_size=64, seed=0, first_step=0, steps=steps, workers=workers
            )
            for _ in batches:
                pass

        return call

    return {
        "20 batches, 32 pixels, padding and crop": load(plain, 0, 20),
        "20 batches, 32 pixels, one worker": load(plain, 1, 20),
        "2 batches, 224 pixels, DeiT's recipe": load(deit, 0, 2),
    }


def serve(groups: list[str], images: str | None) -> None:
    """Answers names of cases, one on a line, with their seconds."""
    make: dict[str, Callable[[], dict[str, Case]]] = {
        "operator": operator_cases,
        "step": step_cases,
        "regression": regression_cases,
        "loading": lambda: loading_cases(images or ""),
    }
    cases = {name: call for group in groups for name, call in make[group]().items()}
    for call in cases.values():  # compiled and allocated before anything counts
        call()
    print(json.dumps(list(cases)), flush=True)
    for line in sys.stdin:
        begin = time.perf_counter()
        cases[line.strip()]()
        print(time.perf_counter() - begin, flush=True)


@contextmanager
def opened(tree: Path, options: argparse.Namespace) -> Iterator[subprocess.Popen[str]]:
    """A process that serves the cases of a checkout, by its script with its package."""
    script = tree / "benchmarks" / Path(__file__).name
    command = [sys.executable, script, options.revision, "--serve", "--cases", *options.cases]
    if options.images:
        command += ["--images", options.images]
    environment = {**os.environ, "PYTHONPATH": str(tree / "src")}
    with subprocess.Popen(
        command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield process
        process.terminate()


def ask(process: subprocess.Popen[str], name: str) -> float:
    assert process.stdin
    assert process.stdout
    process.stdin.write(f"{name}\n")
    process.stdin.flush()
    return float(process.stdout.readline())


def take_turns(
    old: subprocess.Popen[str], new: subprocess.Popen[str], rounds: int
) -> dict[str, list[tuple[float, float]]]:
    """Seconds of both revisions in every round, by case."""
    assert old.stdout
    assert new.stdout
    names = json.loads(old.stdout.readline())
    assert names == json.loads(new.stdout.readline())
    seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in names}
    for name in names:
        for turn in range(rounds):
            if turn % 2:
                before = ask(old, name)
                seconds[name].append((before, ask(new, name)))
            else:
                after = ask(new, name)
                seconds[name].append((ask(old, name), after))
    return seconds


def summarise(seconds: dict[str, list[tuple[float, float]]]) -> dict[str, Any]:
    """Milliseconds of both revisions and the ratio new / old of every case, printed too."""
    rows = {}
    for name, pairs in seconds.items():
        low, middle, high = statistics.quantiles([after / before for before, after in pairs], n=4)
        old, new = (1e3 * statistics.median(times) for times in zip(*pairs, strict=True))
        rows[name] = {"old_ms": old, "new_ms": new, "ratio": middle, "quartiles": [low, high]}
        print(f"{name:40} {old:9.1f} {new:9.1f} ms  {middle:.3f}  ({low:.3f}–{high:.3f})", flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("revision", help="the other revision, as git names it")
    parser.add_argument(
        "--cases", nargs="+", choices=("operator", "step", "regression", "loading"),
        default=["operator", "step", "regression"],
    )  # fmt: skip
    parser.add_argument("--images", metavar="SOURCE", help="as data.source of a recipe")
    parser.add_argument("--rounds", type=int, default=5, help="of one pair of processes")
    parser.add_argument("--processes", type=int, default=3, help="pairs of them, one after the other")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.cases, options.images)
        return
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "old"
        subprocess.run(
            ["git", "worktree", "add", "-q", "--detach", tree, options.revision], cwd=ROOT, check=True
        )
        try:
            seconds: dict[str, list[tuple[float, float]]] = {}
            for pair in range(options.processes):
                with opened(tree, options) as old, opened(ROOT, options) as new:
                    for name, pairs in take_turns(old, new, options.rounds).items():
                        seconds.setdefault(name, []).extend(pairs)
                print(f"after {pair + 1} of {options.processes} pairs of processes:")
                rows = summarise(seconds)
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", tree], cwd=ROOT, check=True)
    if options.json:
        options.json.write_text(json.dumps({"revision": options.revision, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
