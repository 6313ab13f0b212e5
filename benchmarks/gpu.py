"""Everything that waits for a GPU, in order of importance, within a time budget.

    python benchmarks/gpu.py --out FOLDER [--minutes 20] [--images SOURCE] [--dickens FOLDER] [--quick]

Checks of the operator, the main benchmarks, tuning, image models, the other benchmarks, model steps, short
trainings.
Each is a process with a time limit of its own. FOLDER gets summary.md, rewritten after every step, log.txt
with all that was printed, and a JSON file a step; a run that is cut at any moment keeps what was done.

--images names what `data.source` of an image recipe takes, --dickens a folder with what
`nadaraya data dickens --from FOLDER` takes; without them nothing is trained on images, or on text.
--quick runs every step on the CPU at tiny sizes: it shows that the script works and measures nothing.
"""

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import xml.etree.ElementTree as ET
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from typing import Any, TextIO

import torch
from summary import summary_text

from nadaraya.evaluation.timing import environment, write_json

HERE = Path(__file__).parent
GRACE_SECONDS = 10.0
_MOST_WORKERS = 12


@dataclass
class Step:
    """One process and what became of it.

    Args:
        name: as the summary calls it; its results go to NAME.json.
        command: arguments after the Python interpreter.
        share: its part of the whole time at most.
        env: environment variables it needs.
        skip: why it is not run, when that is known before.
    """

    name: str
    command: list[str]
    share: float
    env: dict[str, str] = field(default_factory=dict)
    skip: str | None = None
    status: str = "waiting"
    seconds: float = 0.0

    def record(self) -> dict[str, Any]:
        """The step's row of the summary."""
        return {"name": self.name, "status": self.status, "seconds": self.seconds}


def plan(
    out: Path, scratch: Path, quick: bool, dickens: Path | None, images: str | None = None
) -> list[Step]:
    """The steps, most important first."""
    device = "cpu" if quick else "cuda"
    tests = "tests/attention/test_rotary.py" if quick else "tests/attention"
    attention = [str(HERE / "attention.py"), "--device", device, *(["--quick"] if quick else [])]
    tune = HERE / "tune.py"
    step = ["--width", "16", "--batch", "2", "--runs", "2", "--variants", "rope", "gpa-rope"]
    if not quick:
        variants = ["rope", "gpa-rope", "gpa-mul", "gka", "gka-loo-bank"]
        step = ["--device", "cuda", "--width", "512", "--batch", "256", "--compile", "--variants", *variants]
    training = [
        "--steps",
        "3",
        "--variants",
        "rope",
        "--set",
        "model.hidden_size=16",
        "training.batch_size=4",
    ]

    vit = [str(HERE / "vit.py"), "--device", device]
    vit += ["--quick", "--sizes", "tiny", "--no-memory"] if quick else []
    # Every batch size is compiled anew: fewer of them, the peak is at the larger ones.
    compiled = ["--compile", *([] if quick else ["--batch-sizes", "64", "256", "512"])]
    no_timm = (find_spec("timm") is None, "timm is not installed")
    vision = HERE.parent / "experiments" / "vision.py"
    study = [str(vision), str(vision.with_name("vision-gpu.yaml")), "--source", str(images), "--seeds", "0"]
    study += ["--forms", "deit", "gka", "gka-loo-grid", "--runs", str(out / "vision-runs")]
    study += ["--out", str(out / "vision"), "--set", "training.epochs=10", "training.warmup_epochs=1"]

    loading = [str(HERE / "image_loading.py"), "deit", "--source", str(images), "--device", "cuda"]
    loading += ["--workers", str(min(12, os.cpu_count() or 1)), "--set", "training.batch_size=256"]
    no_images = (images is None, "no --images SOURCE")

    def json_file(name: str) -> list[str]:
        return ["--json", str(out / f"{name}.json")]

    junit = ["--junit-xml", str(scratch / "tests.xml")]
    pytest = ["-m", "pytest", "--maxfail=20", "-p", "no:cacheprovider", *junit, tests]
    if not quick:
        # What compiles ahead of time for other GPUs needs none.
        pytest += ["--ignore", "tests/attention/triton/test_compilation.py"]
        # Most of the time goes to compiling kernels, one core each.
        workers = min(os.cpu_count() or 1, _MOST_WORKERS)
        pytest += ["-n", str(workers)] if find_spec("xdist") is not None else []
    rest = ["gka-both", "decode", "general", "widths"]
    return [
        Step("tests", pytest, 0.35, {"NADARAYA_TEST_DEVICE": device}),
        Step("attention-main", [*attention, *json_file("attention-main"), "--only", *MAIN], 0.45),
        Step(
            "tune",
            [str(tune), "--out", str(out / "tune.json")],
            0.2,
            skip=_first((not tune.is_file(), "there is no tune.py"), (quick, "it needs a GPU")),
        ),
        Step("vit", [*vit, *compiled, *json_file("vit")], 0.35, skip=_first(no_timm)),
        Step("attention-rest", [*attention, *json_file("attention-rest"), "--only", *rest], 0.3),
        Step("vit-eager", [*vit, *json_file("vit-eager")], 0.2, skip=_first(no_timm)),
        Step("steps", [str(HERE / "step.py"), *step, *json_file("steps")], 0.25),
        Step(
            "vision",
            study,
            0.5,
            skip=_first(no_images, (quick, "it trains for minutes"), no_timm),
        ),
        Step(
            "loading",
            [*loading, *json_file("loading")],
            0.3,
            skip=_first(no_images, (quick, "it needs a GPU"), no_timm),
        ),
        Step(
            "dickens",
            [str(HERE / "training.py"), "--data", str(dickens), *json_file("dickens"), *(training * quick)],
            0.5,
            skip=_first((dickens is None, "no --dickens FOLDER")),
        ),
    ]


MAIN = ["accuracy", "determinism", "gpa", "gka"]


def _first(*reasons: tuple[bool, str]) -> str | None:
    return next((text for applies, text in reasons if applies), None)


def run(step: Step, limit: float, log: TextIO) -> None:
    """Runs a step, shows and logs what it prints, and ends it and all that it started at the limit.

    Args:
        step: what to run; its status and seconds are filled in.
        limit: seconds.
        log: gets every line.
    """
    start = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, "-u", *step.command],
        cwd=HERE.parent,
        env={**os.environ, **step.env},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )

    def show() -> None:
        assert process.stdout is not None
        for line in process.stdout:
            log.write(line)
            log.flush()
            print(line, end="", flush=True)

    reader = threading.Thread(target=show, daemon=True)
    reader.start()
    try:
        code = process.wait(timeout=limit)
        step.status = "done" if code == 0 else f"failed (exit status {code})"
    except subprocess.TimeoutExpired:
        step.status = f"cut after {limit:.0f} s"
    except KeyboardInterrupt:
        step.status = "interrupted"
        raise
    finally:
        _end(process)
        reader.join(GRACE_SECONDS)
        step.seconds = time.monotonic() - start


def _end(process: subprocess.Popen[str]) -> None:
    """Ends what is left of a process group: asks first, then insists."""
    for signum, patience in ((signal.SIGTERM, GRACE_SECONDS), (signal.SIGKILL, GRACE_SECONDS)):
        try:
            os.killpg(process.pid, signum)
            process.wait(patience)
        except ProcessLookupError:
            return
        except subprocess.TimeoutExpired:
            continue


def count_tests(report: Path) -> dict[str, Any]:
    """Numbers and names from a JUnit report of pytest."""
    suite = next(ET.parse(report).getroot().iter("testsuite"))
    counts: dict[str, Any] = {
        name: int(suite.get(name, 0)) for name in ("tests", "failures", "errors", "skipped")
    }
    counts["failed"] = [
        f"{case.get('classname')}::{case.get('name')}"
        for case in suite.iter("testcase")
        if case.find("failure") is not None or case.find("error") is not None
    ]
    return counts


def main() -> None:
    options = _options()
    out: Path = options.out
    out.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGTERM, _interrupt)
    deadline = time.monotonic() + 60 * options.minutes
    facts = environment()
    with tempfile.TemporaryDirectory() as scratch, (out / "log.txt").open("w", encoding="utf-8") as log:
        steps = plan(out, Path(scratch), options.quick, options.dickens, options.images)
        for step in steps:
            (out / f"{step.name}.json").unlink(missing_ok=True)  # of an earlier run

        def write_summary() -> None:
            records = [step.record() for step in steps]
            (out / "summary.md").write_text(summary_text(out, records, facts, options.quick))

        try:
            for step in steps:
                left = deadline - time.monotonic()
                if step.skip or left <= 0:
                    step.status = f"skipped: {step.skip or 'no time left'}"
                    continue
                step.status = "running"
                write_summary()
                title = f"== {step.name}: {left / 60:.1f} minutes left"
                print(title, flush=True)
                log.write(f"{title}\n")
                run(step, min(left, step.share * 60 * options.minutes), log)
                report = Path(scratch) / "tests.xml"
                if step.name == "tests" and report.is_file():
                    write_json(out / "tests.json", count_tests(report))
                print(f"== {step.name}: {step.status}, {step.seconds:.0f} s", flush=True)
        except KeyboardInterrupt:
            for step in steps:
                if step.status == "running":  # the signal came before its process was there, or after it
                    step.status = "interrupted"
            print(f"interrupted; {out / 'summary.md'} has what was done", file=sys.stderr)
            sys.exit(130)
        finally:
            write_summary()
    print(f"{out / 'summary.md'}")
    if any(step.status.startswith(("failed", "cut")) for step in steps):
        sys.exit(1)


def _interrupt(_signum: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--minutes", type=float, default=20.0, help="for all of it; default 20")
    parser.add_argument("--images", metavar="SOURCE", help="real images, for the short training")
    parser.add_argument("--dickens", type=Path, metavar="FOLDER", help="the corpus, for the short training")
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
