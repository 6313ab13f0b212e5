"""Peak memory of this program, and of work in a process of its own (Linux)."""

import subprocess
import sys
from pathlib import Path

_PROGRAM = """
from peak_memory import peak_kib
{setup}
{warm_up}
before = peak_kib()
{work}
print(peak_kib() - before)
"""


def peak_kib() -> int:
    """KiB of this program alone: getrusage would count the process that started it."""
    return int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0])


def added_mib(setup: str, warm_up: str, work: str) -> float:
    """MiB that one line of Python adds to the peak of a fresh process.

    Args:
        setup: the imports of the other two.
        warm_up: the work in small, so that what is loaded with the first call does not count.
        work: what is measured.
    """
    program = _PROGRAM.format(setup=setup, warm_up=warm_up, work=work)
    command = [sys.executable, "-c", program]
    result = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, check=True)
    return int(result.stdout) / 1024
