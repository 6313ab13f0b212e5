"""Everything that waits for a GPU, by one command that can be stopped at any moment and called again.

    python benchmarks/gpu.py --out FOLDER [--minutes 9] [--images SOURCE] [--dickens FOLDER] [--quick]

Runs `nadaraya check`, the tests of the operator, then the benchmarks, most important first, each in a process
of its own. FOLDER gets NAME.json from every step, log.txt with all that was printed, and steps.json with what
became of each. A call ends after --minutes; the next one takes up the steps that are not done, those never
tried first.
Exit status: 0, all done; 1, a step failed; 3, steps are left for another call.

--images names what `data.source` of an image recipe takes, --dickens a folder with what
`nadaraya data dickens --from FOLDER` takes; without them nothing is trained on images, or on text.
--quick runs every step on the CPU at tiny sizes: it shows that the script works and measures nothing.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TextIO

import torch
from timing import environment, write_json

HERE = Path(__file__).parent
EXPERIMENTS = HERE.parent / "experiments"
SIZES = ("tiny", "small", "base")
MAIN_GROUPS = ("accuracy", "determinism", "gpa", "gka")
OTHER_GROUPS = ("gka-both", "decode", "general", "positions", "widths")
VARIANTS = ("rope", "gpa-rope", "gpa-mul", "gka", "gka-loo-bank")
_SHORTEST_STEP = 20.0  # seconds: less time than this is not worth a start
_MOST_WORKERS = 12


def plan(
    out: Path, *, quick: bool, images: str | None = None, dickens: Path | None = None
) -> dict[str, list[str]]:
    """The steps, most important first.

    Args:
        out: folder of the results.
        quick: tiny sizes on the CPU.
        images: image source, or None to leave out what needs one.
        dickens: folder with the corpus, or None likewise.

    Returns:
        Name → arguments after the Python interpreter.
    """
    device = ["--device", "cpu" if quick else "cuda"]
    tiny = ["--quick"] if quick else []
    workers = str(min(os.cpu_count() or 1, _MOST_WORKERS))
    steps: dict[str, list[str]] = {
        "check": ["-m", "nadaraya.cli", "check", *device, *tiny, "--force", "--out", str(out / "check.json")],
        "tests": _tests(out, workers, quick),
    }

    def add(name: str, script: Path, *arguments: str, result: str = "--json") -> None:
        steps[name] = [str(script), result, str(out / f"{name}.json"), *arguments]

    add("attention-main", HERE / "attention.py", *device, *tiny, "--only", *MAIN_GROUPS)
    if not quick:
        add("tune", HERE / "tune.py", result="--out")
    # Every batch size is compiled anew: fewer of them, the peak is at the larger ones.
    compiled = ["--compile", *([] if quick else ["--batch-sizes", "64", "256", "512"])]
    for size in SIZES[:1] if quick else SIZES:
        add(f"vit-{size}", HERE / "vit.py", *device, *tiny, "--sizes", size, *compiled)
    add("attention-rest", HERE / "attention.py", *device, *tiny, "--only", *OTHER_GROUPS)
    for size in SIZES[:1] if quick else SIZES:
        add(f"vit-eager-{size}", HERE / "vit.py", *device, *tiny, "--sizes", size)
    shape = (
        ["--width", "16", "--batch", "2", "--runs", "2"] if quick else ["--width", "512", "--batch", "256"]
    )
    add(
        "steps",
        HERE / "step.py",
        *device,
        *shape,
        "--compile",
        "--variants",
        *VARIANTS[: 2 if quick else None],
    )
    if not quick:
        for depth, batch in (("12", "32"), ("20", "16")):
            shape = ["--preset", f"nano-d{depth}", "--batch", batch, "--runs", "8", "--compile"]
            variants = ["--variants", "rope", "gka", "gpa-rope", "gka-loo-bank"]
            add(f"steps-nano-d{depth}", HERE / "step.py", *device, *shape, *variants)
        add("regression", HERE / "regression.py", *device)
    if images is not None and not quick:
        add("loading", HERE / "image_loading.py", "deit", "--source", images, *device, "--workers", workers,
            "--set", "training.batch_size=256")  # fmt: skip
        steps["vision"] = [
            str(EXPERIMENTS / "vision.py"), str(EXPERIMENTS / "vision-gpu.yaml"), "--source", images,
            "--seeds", "0", "--forms", "deit", "gka", "gka-loo-grid", "--runs", str(out / "vision-runs"),
            "--out", str(out / "vision"), "--set", "training.epochs=10", "training.warmup_epochs=1",
        ]  # fmt: skip
    short = ["--steps", "3", "--set", "model.hidden_size=16", "training.batch_size=4"] if quick else []
    for variant in VARIANTS[: 1 if quick else None] if dickens is not None else ():
        add(f"dickens-{variant}", HERE / "training.py", "--data", str(dickens), "--variants", variant, *short)
    return steps


def _tests(out: Path, workers: str, quick: bool) -> list[str]:
    folder = "tests/attention"
    command = [
        "-m",
        "pytest",
        "--maxfail=20",
        "-p",
        "no:cacheprovider",
        "--junit-xml",
        str(out / "tests.xml"),
    ]
    if quick:
        return [*command, f"{folder}/test_rotary.py"]
    # Most of the time goes to compiling kernels, one core each; what compiles for other GPUs needs none.
    side_by_side = ["-n", workers] if find_spec("xdist") is not None else []
    return [*command, folder, "--ignore", f"{folder}/triton/test_compilation.py", *side_by_side]


def run(command: list[str], limit: float, log: TextIO, device: str) -> str:
    """Runs a step, and ends it with all that it started at the limit, or when this program is stopped.

    Args:
        command: arguments after the Python interpreter.
        limit: seconds.
        log: gets what it prints.
        device: of the tests of the operator.

    Returns:
        What became of it.
    """
    process = subprocess.Popen(
        [sys.executable, "-u", *command],
        cwd=HERE.parent,
        env={**os.environ, "NADARAYA_TEST_DEVICE": device},
        stdout=log,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        code = process.wait(limit)
    except subprocess.TimeoutExpired:
        return f"cut after {limit:.0f} s"
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    return "done" if code == 0 else f"failed with exit status {code}"


def main() -> None:
    options = _options()
    out: Path = options.out
    out.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + 60 * options.minutes
    steps = plan(out, quick=options.quick, images=options.images, dickens=options.dickens)
    results = out / "steps.json"
    records: dict[str, dict[str, Any]] = json.loads(results.read_text())["steps"] if results.is_file() else {}
    # What an earlier call did counts where the step is still the same.
    records = {name: r for name, r in records.items() if r["command"] == steps.get(name)}
    new = {"status": "waiting", "attempts": 0, "seconds": 0.0}
    records = {name: records.get(name, {"command": command, **new}) for name, command in steps.items()}

    def save() -> None:
        write_json(results, {"environment": environment(), "steps": records})

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    left = [name for name in steps if records[name]["status"] != "done"]
    with (out / "log.txt").open("a", encoding="utf-8") as log:
        for name in sorted(left, key=lambda name: records[name]["attempts"]):
            limit, record = deadline - time.monotonic(), records[name]
            if limit < _SHORTEST_STEP:
                break
            print(f"== {name}: {limit / 60:.1f} minutes left", file=log, flush=True)
            record.update(status="interrupted", attempts=record["attempts"] + 1)
            save()
            start = time.monotonic()
            record["status"] = run(record["command"], limit, log, "cpu" if options.quick else "cuda")
            record["seconds"] = time.monotonic() - start
            save()
            print(f"{name}: {record['status']}, {record['seconds']:.0f} s", flush=True)
    statuses = {record["status"].split()[0] for record in records.values()}
    print(f"{results}")
    sys.exit(1 if "failed" in statuses else 0 if statuses == {"done"} else 3)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--minutes", type=float, default=9.0, help="of this call; default 9")
    parser.add_argument("--images", metavar="SOURCE", help="real images, for loading and a short training")
    parser.add_argument("--dickens", type=Path, metavar="FOLDER", help="the corpus, for short trainings")
    parser.add_argument("--quick", action="store_true", help="tiny, on the CPU: to see the script work")
    options = parser.parse_args()
    if not options.quick and not torch.cuda.is_available():
        print("gpu.py: no CUDA device here; --quick shows the script at work on the CPU", file=sys.stderr)
        sys.exit(2)
    options.out = options.out.resolve()  # steps run in the checkout
    if options.images is not None and Path(options.images).exists():
        options.images = str(Path(options.images).resolve())
    if options.dickens is not None:
        options.dickens = options.dickens.resolve()
    return options


if __name__ == "__main__":
    main()
