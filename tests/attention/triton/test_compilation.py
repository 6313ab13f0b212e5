"""What the kernels take of a GPU, read from code compiled ahead of time for two generations without a GPU."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from filelock import FileLock

from nadaraya.attention.triton.configs import choose

pytestmark = pytest.mark.slow
BENCHMARKS = Path(__file__).parents[3] / "benchmarks"

AMPERE, HOPPER = (8, 0), (9, 0)
# Bytes that one program may have. The tiles for 8.0 serve younger GPUs too, which have less.
SHARED_MEMORY = {AMPERE: 99 * 1024, HOPPER: 227 * 1024}
MATRIX_INSTRUCTION = {AMPERE: "HMMA", HOPPER: "HGMMA"}


class Compilation(NamedTuple):
    kernel: str
    capability: tuple[int, int]
    width: int
    dtype: str
    options: tuple[str, ...]

    def __str__(self) -> str:
        generation = f"sm_{self.capability[0]}{self.capability[1]}"
        return "-".join((self.kernel, generation, str(self.width), self.dtype, *self.options))

    @property
    def is_usual(self) -> bool:
        """Half precision, heads up to 128, and no persistent loop or general Gaussian around the tiles."""
        heavy = self.kernel.endswith("table_gradient") or (
            "gaussian" in self.options and "one_tensor" not in self.options
        )
        return self.dtype != "float32" and self.width <= 128 and not heavy

    @property
    def has_narrow_tiles(self) -> bool:
        """Tiles of fewer than 64 rows, for want of registers: HGMMA works on 64."""
        return self.width > 128 or (self.kernel == "gaussian_table_gradient" and self.width > 64)


# Of each kernel, the calls that models make most and the one that needs most registers.
OPTIONS = {
    "forward": [
        ("causal", "table"),
        ("gaussian", "one_tensor", "fixed_peak"),
        ("causal", "table", "documents"),
        (),
    ],
    "key_value_gradient": [
        ("causal", "table"),
        ("causal", "gaussian", "table"),
        ("causal", "key_bias", "key_bias_grad"),
        ("causal", "table", "documents"),
    ],
    "query_gradient": [("causal",), ("causal", "documents")],
    "table_gradient": [("causal", "table"), ("causal", "table", "documents")],
    "gaussian_table_gradient": [("causal", "table", "exclude_self")],
    "one_tensor_gradient": [("fixed_peak",), ("fixed_peak", "causal")],
    "decoding": [("causal", "table")],
}
COMPILATIONS = [
    # Each kernel for both generations, and each set of options for one of them: a compilation takes seconds.
    *(
        Compilation(kernel, capability, 128, "bfloat16", options)
        for kernel, sets in OPTIONS.items()
        for capability, part in ((AMPERE, sets[::2]), (HOPPER, sets[1::2] or sets))
        for options in part
    ),
    *(
        Compilation(kernel, HOPPER, width, dtype, OPTIONS[kernel][0])
        for kernel in OPTIONS
        for width, dtype in ((64, "float32"), (256, "bfloat16"))
    ),
    *(
        Compilation("decoding", AMPERE, width, dtype, ("causal", "gaussian", rows))
        for width, dtype, rows in (
            (128, "bfloat16", "rows=64"),
            (256, "bfloat16", "rows=64"),
            (128, "float32", "rows=16"),
            (256, "float32", "rows=16"),
        )
    ),
    Compilation("forward", HOPPER, 16, "float16", ("causal", "window", "key_bias", "hidden", "exclude_self")),
    Compilation("table_gradient", AMPERE, 256, "bfloat16", ("causal", "table")),
    *(
        Compilation("forward", HOPPER, 64, "bfloat16", options)
        for options in (("causal",), ("causal", "table"))
    ),
    # Strips of rows, and tiles that are not kept.
    *(
        Compilation(kernel, HOPPER, 64, "bfloat16", ("causal", "table", "per_query"))
        for kernel in ("forward", "key_value_gradient", "table_gradient")
    ),
    Compilation("key_value_gradient", HOPPER, 64, "bfloat16", ("causal", "table", "active=256")),
]
# Instructions, once per program: Triton 3.9 has up to 50 where 3.7 had none.
MOST_SPILLS = 64
PROGRAM = """
import json, sys
import torch
from machine_code import compile_kernel

for kernel, capability, width, dtype, options in json.load(sys.stdin):
    named = {name: int(value) if value else True for name, _, value in (o.partition("=") for o in options)}
    compiled = compile_kernel(kernel, tuple(capability), width=width, dtype=getattr(torch, dtype), **named)
    print(json.dumps(vars(compiled)), flush=True)
"""


@pytest.fixture(scope="module")
def resources(tmp_path_factory: pytest.TempPathFactory) -> dict[Compilation, dict[str, Any]]:
    """Registers, spills, shared memory and instructions of every compilation, made once for all workers."""
    if importlib.util.find_spec("triton.backends.nvidia") is None:
        pytest.skip("this Triton has no compiler for NVIDIA GPUs")
    shared = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        shared = shared.parent
    found = shared / "compilations.json"
    with FileLock(shared / "compilations.lock"):
        if not found.exists():
            found.write_text(json.dumps(_compiled(shared / "triton")))
    return dict(zip(COMPILATIONS, json.loads(found.read_text()), strict=True))


def _compiled(cache: Path) -> list[dict[str, Any]]:
    """What every compilation gives, by two processes."""
    # Without the interpreter, and without anything compiled before.
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(cache)
    halves = COMPILATIONS[::2], COMPILATIONS[1::2]
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM],
            cwd=BENCHMARKS,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment,
        )
        for _ in halves
    ]  # fmt: skip
    outputs: dict[Compilation, dict[str, Any]] = {}
    for process, half in zip(processes, halves, strict=True):
        process.stdin.write(json.dumps(half))
        process.stdin.close()
    for process, half in zip(processes, halves, strict=True):
        lines = process.stdout.read().splitlines()
        assert process.wait() == 0, process.stderr.read()
        outputs.update(zip(half, map(json.loads, lines), strict=True))
    return [outputs[compilation] for compilation in COMPILATIONS]


@pytest.mark.parametrize("compilation", COMPILATIONS, ids=str)
def test_kernels_fit_the_device(
    resources: dict[Compilation, dict[str, Any]], compilation: Compilation
) -> None:
    found = resources[compilation]
    assert found["registers"] <= 255
    assert found["shared_memory"] <= SHARED_MEMORY[compilation.capability]


@pytest.mark.parametrize("compilation", COMPILATIONS, ids=str)
def test_no_register_is_spilled_in_the_loops_over_tiles(
    resources: dict[Compilation, dict[str, Any]], compilation: Compilation
) -> None:
    assert resources[compilation]["loop_spills"] == 0


@pytest.mark.parametrize("compilation", [c for c in COMPILATIONS if c.is_usual], ids=str)
def test_the_usual_kernels_spill_little_outside_of_loops_too(
    resources: dict[Compilation, dict[str, Any]], compilation: Compilation
) -> None:
    assert resources[compilation]["spills"] <= MOST_SPILLS


@pytest.mark.parametrize("compilation", COMPILATIONS, ids=str)
def test_products_are_taken_by_the_matrix_unit(
    resources: dict[Compilation, dict[str, Any]], compilation: Compilation
) -> None:
    instructions = resources[compilation]["instructions"]
    if compilation.kernel == "decoding":
        # A few queries fill no group of 64 rows, which HGMMA would need.
        assert instructions.get("HMMA", 0) > 0
    elif compilation.dtype == "float32" or compilation.has_narrow_tiles:
        assert any(instructions.get(name, 0) for name in MATRIX_INSTRUCTION.values())
    else:
        assert instructions.get(MATRIX_INSTRUCTION[compilation.capability], 0) > 0


def test_the_lag_table_costs_no_shared_memory_and_less_than_a_load_per_pair(
    resources: dict[Compilation, dict[str, Any]],
) -> None:
    without, with_table = (
        resources[Compilation("forward", HOPPER, 64, "bfloat16", options)]
        for options in (("causal",), ("causal", "table"))
    )
    assert with_table["shared_memory"] == without["shared_memory"]
    loads = with_table["instructions"]["LDG"] - without["instructions"].get("LDG", 0)
    # A causal kernel has two loops over tiles, one with masks and one without.
    tiles = choose("forward", 64, torch.bfloat16, HOPPER)
    pairs_of_a_thread = tiles.block_m * tiles.block_n // (32 * tiles.num_warps)
    assert 0 < loads < 2 * pairs_of_a_thread


ROCM_PROGRAM = """
import torch

torch.version.hip = "7.0"  # as PyTorch built for ROCm says

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from nadaraya.attention.triton.kernels.tiles import lag_bias


@triton.jit
def kernel(table_ptr, out_ptr):
    keys = tl.arange(0, 64)
    tl.store(out_ptr + keys, lag_bias(table_ptr + 64, 3, keys))


source = ASTSource(kernel, signature={"table_ptr": "*fp32", "out_ptr": "*fp32"}, constexprs={})
assert "global_load" in triton.compile(source, target=GPUTarget("hip", "gfx942", 64)).asm["amdgcn"]
"""


def test_the_lag_table_is_read_without_nvidias_assembly_on_rocm(tmp_path: Path) -> None:
    if importlib.util.find_spec("triton.backends.amd") is None:
        pytest.skip("this Triton has no compiler for AMD GPUs")
    program = tmp_path / "program.py"
    program.write_text(ROCM_PROGRAM, encoding="utf-8")
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(tmp_path / "cache")
    found = subprocess.run([sys.executable, program], env=environment, capture_output=True, text=True)
    assert found.returncode == 0, found.stderr
