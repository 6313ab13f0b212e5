"""Freed memory is kept for the next tensors, where glibc manages it."""

import ctypes
import os
import subprocess
import sys

import pytest

_SCRIPT = """
import ctypes, torch
from nadaraya.device import reuse_freed_memory

class Info(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in "arena ordblks smblks hblks hblkhd".split()]
    _fields_ += [(f"unused{i}", ctypes.c_size_t) for i in range(5)]

mallinfo = ctypes.CDLL(None).mallinfo2
mallinfo.restype = Info
reuse_freed_memory()
before = mallinfo().hblkhd
tensor = torch.ones(3 * 2**20)
print(mallinfo().hblkhd - before)
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallinfo2"), reason="needs glibc 2.33")
@pytest.mark.parametrize(("chosen", "apart"), [({}, 0), ({"MALLOC_MMAP_THRESHOLD_": "1000000"}, 12 * 2**20)])
def test_tensors_of_some_megabytes_are_not_mapped_apart_unless_the_environment_says_so(
    chosen: dict[str, str], apart: int
) -> None:
    plain = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    found = subprocess.run(
        [sys.executable, "-c", _SCRIPT], env={**plain, **chosen}, capture_output=True, text=True, check=True
    )
    assert int(found.stdout) == pytest.approx(apart, abs=2**20)
