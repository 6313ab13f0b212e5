"""Makes torchvision importable where its compiled operators cannot be loaded; import it before timm.

The package index has torchvision built for CUDA alone. Beside a CPU build of PyTorch its operators do not
load, and importing it stops where it describes two of them (non-maximum suppression), though timm and this
library use its Python parts only. Declaring the two lets the import through; calling them still fails.
"""

import sys
from importlib.machinery import EXTENSION_SUFFIXES
from importlib.util import find_spec
from pathlib import Path

import torch

_DESCRIBED = ("nms", "qnms")
_declared: list[torch.library.Library] = []  # a declaration lasts as long as its library object


def _declare_missing_operators() -> None:
    spec = find_spec("torchvision")
    if "torchvision" in sys.modules or spec is None or spec.origin is None:
        return
    candidates = [Path(spec.origin).parent / f"_C{suffix}" for suffix in EXTENSION_SUFFIXES]
    try:
        for compiled in filter(Path.is_file, candidates):
            torch.ops.load_library(compiled)
    except OSError:
        library = torch.library.Library("torchvision", "FRAGMENT")
        for name in _DESCRIBED:
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _declared.append(library)


_declare_missing_operators()
