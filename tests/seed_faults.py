"""Whether the tests notice faults: each fault of faults.yaml is put into a copy of the package, alone.

    python tests/seed_faults.py [--only WORD …] [--tier fast|exhaustive] [--json FILE]

A fault replaces one piece of text that occurs once in its file. The tests likely to notice it run first
(`tests` of the fault), then all others of the tier; the first failure ends the run. A fault whose text is
not there is an error. Prints one row per fault: the test that found it, or "not found".
"""

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[1]
LONGEST = 600.0  # seconds: of a whole tier, with room
TIERS = {"fast": "not slow", "exhaustive": "slow"}


def first_failure(source: Path, tests: list[str], tier: str) -> str | None:
    """The first test that fails with the package of `source`; None where all pass."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-m", TIERS[tier]]
    environment = {**os.environ, "PYTHONPATH": str(source)}
    with subprocess.Popen(
        [*command, "-n", "auto", *tests], cwd=ROOT, env=environment, stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL, text=True, start_new_session=True,
    ) as process:  # fmt: skip
        try:
            output, _ = process.communicate(timeout=LONGEST)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # with the workers, of which one may turn for ever
            return "a test that does not end"
    if process.returncode in (0, 5):  # 5: nothing of this tier here
        return None
    found = re.search(r"^(?:FAILED|ERROR) (\S+)", output, re.MULTILINE)
    return found.group(1) if found else f"pytest stopped with status {process.returncode}"


def seed(fault: dict[str, str], source: Path) -> None:
    """Puts the fault into the copy of the package."""
    path = source / "nadaraya" / fault["file"]
    text = path.read_text(encoding="utf-8")
    if text.count(fault["old"]) != 1:
        raise SystemExit(f"{fault['name']}: its text occurs {text.count(fault['old'])} times in {path.name}")
    path.write_text(text.replace(fault["old"], fault["new"]), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", default=[""], metavar="WORD", help="faults whose name has one")
    parser.add_argument("--tier", choices=TIERS, default="fast")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    faults = yaml.safe_load((Path(__file__).parent / "faults.yaml").read_text(encoding="utf-8"))
    rows = []
    for fault in faults:
        if not any(word in fault["name"] for word in options.only):
            continue
        with tempfile.TemporaryDirectory() as folder:
            source = Path(folder) / "src"
            shutil.copytree(ROOT / "src", source, ignore=shutil.ignore_patterns("__pycache__"))
            seed(fault, source)
            begin = time.perf_counter()
            found = first_failure(source, fault["tests"].split(), options.tier) or first_failure(
                source, ["tests"], options.tier
            )
        rows.append({"fault": fault["name"], "file": fault["file"], "found_by": found})
        shown = found or "not found"
        print(
            f"| {fault['name']} | {fault['file']} | {shown} |  {time.perf_counter() - begin:.0f} s",
            flush=True,
        )
    print(
        f"{sum(row['found_by'] is not None for row in rows)} of {len(rows)} found by the {options.tier} tests"
    )
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
