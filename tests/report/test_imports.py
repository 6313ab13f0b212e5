"""The package needs matplotlib, jinja2 and scipy: whatever made a run is not loaded to show it."""

import subprocess
import sys

PROGRAM = """
import sys
import torch
import nadaraya.report.maps
from nadaraya.interpret.attention_maps import AttentionMaps, LayerMaps
from nadaraya.report.html import render
from nadaraya.report.maps_text import TextFigures
from nadaraya.report.runs import RunData

records = [{"kind": "validation", "step": step, "loss": 9 / step} for step in (1, 2, 3)]
render([RunData("demo", "demo", "rope", records, sample="a line\\n" * 50)])
layer = LayerMaps("attn", torch.eye(2).expand(1, 1, 2, 2), bandwidth=None, error=0.0)
maps = AttentionMaps((layer,), output=None, reads="last", tokens=(("a", "b"),))
TextFigures(maps).views()
heavy = "transformers tokenizers timm torchvision accelerate datasets pydantic yaml sklearn numba typer"
print([name for name in heavy.split() if name in sys.modules])
"""


def test_drawing_loads_nothing_that_trains() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False)
    assert done.stdout == "[]\n", done.stderr
