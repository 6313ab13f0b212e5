"""The first hour of somebody new: every step of docs/first-hour.md as a process of its own, timed.

    python experiments/first_hour.py --out experiments/results/first-hour.json --page docs/first-hour.md

runs in a new temporary folder, or in --folder. --quick makes each model in a few updates.
"""

import argparse
import json
import os
import platform
import re
import shlex
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

from PIL import Image

from nadaraya.data import load_corpus

PAGE = Path(__file__).parents[1] / "docs" / "first-hour.md"
BEGIN, END = "<!-- log -->\n", "<!-- end of the log -->\n"
QUICK = {
    "nadaraya train demo": "training.steps=4 training.warmup_steps=0 training.batch_size=2 "
    "model.num_hidden_layers=1 training.sample_characters=40",
    "nadaraya train cifar-cpu": "model.options.depth=1 training.epochs=1",
}


def steps(page: Path) -> list[str]:
    """The commands of the page, in its order; Python is one command."""
    found = []
    for language, text in re.findall(
        r"^```(\w*)\n(.*?)^```$", page.read_text("utf-8"), re.DOTALL | re.MULTILINE
    ):
        if language == "python":
            found.append(text)
        elif not language:
            found += [line.split("  #")[0].strip() for line in text.splitlines()]
    return [step for step in found if not step.startswith("pip ")]


def arguments(step: str, quick: bool) -> list[str]:
    """A step as a process: the command is that of the installation that runs this script."""
    if "\n" in step:
        return [sys.executable, "-c", step]
    words = shlex.split(step)
    if quick:
        words = [
            *words,
            *(word for start, more in QUICK.items() if step.startswith(start) for word in more.split()),
        ]
        words = [
            "1" if before == "--steps" else word for before, word in zip(["", *words], words, strict=False)
        ]
    return (
        [sys.executable, "-m", "nadaraya.cli", *words[1:]]
        if words[0] == "nadaraya"
        else [sys.executable, *words[1:]]
    )


def furnish(folder: Path, characters: int) -> None:
    """What a reader brings: a text, another one, images in two classes, a picture."""
    text = load_corpus("embedded").text
    (folder / "my.txt").write_text(text[:characters], encoding="utf-8")
    (folder / "other.txt").write_text(text[characters : characters + 5_000], encoding="utf-8")
    for part, count in (("train", 40), ("val", 10)):
        for name, colours in (("dawn", ("black", "orange")), ("dusk", ("orange", "black"))):
            place = folder / "photos" / part / name
            place.mkdir(parents=True)
            for number in range(count):
                picture = Image.new("RGB", (48, 48), colours[0])
                picture.paste(colours[1], (0, 12 + number % 24, 48, 48))
                picture.save(place / f"{number}.png")
    picture.save(folder / "dusk.png")


def run(folder: Path, quick: bool) -> list[dict[str, Any]]:
    """Every step in turn, with its seconds; the first that fails ends the hour with its output."""
    furnish(folder, 60_000 if quick else 400_000)
    log = []
    for step in steps(PAGE):
        begun = time.perf_counter()
        done = subprocess.run(arguments(step, quick), cwd=folder, capture_output=True, text=True)
        seconds = time.perf_counter() - begun
        print(f"{seconds:6.1f} s  {step.splitlines()[0]}", flush=True)
        if done.returncode:
            sys.exit(f"{step}\n{done.stdout}{done.stderr}")
        shown = "the Python above" if "\n" in step else f"`{step}`"
        log.append({"step": shown, "seconds": round(seconds, 1)})
    return log


def table(log: list[dict[str, Any]]) -> str:
    """The log as Markdown."""
    rows = [f"| {entry['step']} | {entry['seconds']:.1f} |" for entry in log]
    total = sum(entry["seconds"] for entry in log)
    return "\n".join(["| step | seconds |", "|---|---:|", *rows, f"| all | {total:.1f} |", ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, help="an empty folder; default a temporary one")
    parser.add_argument("--quick", action="store_true", help="a few updates for every model")
    parser.add_argument("--out", type=Path, help="the log as JSON")
    parser.add_argument("--page", type=Path, help="put the log into this page as a table")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        log = run(given.folder or Path(scratch), given.quick)
    document = {
        "machine": f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}",
        "versions": {name: version(name) for name in ("torch", "transformers", "timm")},
        "quick": given.quick,
        "log": log,
    }
    if given.out:
        given.out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    if given.page:
        text = given.page.read_text(encoding="utf-8")
        before, after = text.split(BEGIN)[0], text.split(END)[1]
        given.page.write_text(before + BEGIN + "\n" + table(log) + "\n" + END + after, encoding="utf-8")


if __name__ == "__main__":
    main()
