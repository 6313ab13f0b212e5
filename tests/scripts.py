"""Scripts of benchmarks and experiments, run in this process: a new one takes seconds to import torch."""

import io
import runpy
import sys
from contextlib import redirect_stdout
from pathlib import Path

import pytest


def run_script(path: Path, *arguments: object) -> str:
    """What a script prints that is run with these arguments; it finds the modules beside it."""
    printed = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(printed):
        patch.syspath_prepend(str(path.parent))
        patch.setattr(sys, "argv", [str(path), *map(str, arguments)])
        runpy.run_path(str(path), run_name="__main__")
    return printed.getvalue()
