"""What the kernels take on a GPU, read from code compiled ahead of time: no GPU is needed.

    python benchmarks/machine_code.py

compiles every kernel with its chosen tiles for two generations and prints registers, spills, shared memory
and matrix instructions.
"""

import re
import subprocess
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
import triton
from triton import JITFunction
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from nadaraya.attention.triton.configs import Config, Kernel, choose
from nadaraya.attention.triton.decoding import decoding_config
from nadaraya.attention.triton.kernels.decoding import decoding_kernel
from nadaraya.attention.triton.kernels.forward import forward_kernel
from nadaraya.attention.triton.kernels.gradients import key_value_gradient_kernel
from nadaraya.attention.triton.kernels.one_tensor import one_tensor_gradient_kernel
from nadaraya.attention.triton.kernels.query_gradient import query_gradient_kernel
from nadaraya.errors import unknown_name

_KERNELS: dict[str, JITFunction] = {
    "forward": forward_kernel,
    "key_value_gradient": key_value_gradient_kernel,
    "query_gradient": query_gradient_kernel,
    "table_gradient": query_gradient_kernel,
    "gaussian_table_gradient": query_gradient_kernel,
    "one_tensor_gradient": one_tensor_gradient_kernel,
    "decoding": decoding_kernel,
}
_TENSORS = re.compile(r"(query|key|value|out|grad_out|grad_query|grad_key|grad_value|features|gradient)_ptr")
_POINTER_TYPES = {"alone_ptr": "*i8", "range_ptr": "*i32", "document_ptr": "*i32", "active_ptr": "*i32"}
_SUMS = ("grad_key_ptr", "grad_value_ptr")  # in float32 where strips of rows add to them
_TYPE_NAMES = {torch.float16: "fp16", torch.bfloat16: "bf16", torch.float32: "fp32"}
_MATRIX_INSTRUCTIONS = ("HGMMA", "HMMA", "QGMMA", "IMMA", "UTCHMMA", "UTCMMA")
_SPILLS = ("LDL", "STL")
_INSTRUCTION = re.compile(r"^\s+/\*([0-9a-f]+)\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9]*)(.*?);", re.MULTILINE)
_WARP_REGISTERS = 65_536
_THREADS_PER_WARP = 32


@dataclass(frozen=True)
class Resources:
    """One compiled kernel."""

    registers: int  # of a thread
    spills: int  # instructions that move registers to local memory and back
    loop_spills: int  # those among them in the loops over tiles, where they would cost time
    shared_memory: int  # bytes of a program
    instructions: Counter[str]  # by opcode, whole kernel

    @property
    def matrix_instructions(self) -> int:
        return sum(self.instructions[name] for name in _MATRIX_INSTRUCTIONS)

    def programs_in_registers(self, num_warps: int) -> int:
        """How many programs' registers fit a multiprocessor."""
        return _WARP_REGISTERS // (self.registers * _THREADS_PER_WARP * num_warps)


def compile_kernel(
    kernel: Kernel | Literal["decoding"],
    capability: tuple[int, int],
    *,
    width: int,
    dtype: torch.dtype = torch.bfloat16,
    config: Config | None = None,
    grouped: bool = False,
    rows: int = 16,
    **options: Any,
) -> Resources:
    """Compiles a kernel as it would be for a call and reads the machine code.

    Args:
        kernel: its name.
        capability: compute capability of the GPU, such as (9, 0).
        width: head width of queries, keys and values.
        dtype: of the tensors.
        config: tiles; default those chosen for such a call.
        grouped: several query heads share a key-value head.
        rows: of the decoding kernel: queries × heads that share keys, as a power of two from 16 on.
        options: compile-time switches in lower case that differ from False: causal, table, key_bias,
            key_bias_grad, gaussian, hidden, documents, window, exclude_self, one_tensor, fixed_peak;
            per_query and table_grad for a table per query; active, the number 256.

    Returns:
        The resources.

    Raises:
        InputError: an option that the kernel does not have.
    """
    function = _KERNELS[kernel]
    padded = max(16, 1 << (width - 1).bit_length())
    if config is None and kernel == "decoding":
        config = decoding_config(rows, padded, dtype)
    elif config is None:
        config = choose(kernel, padded, dtype, capability)  # type: ignore[arg-type]
        if kernel.endswith("table_gradient") and options.get("per_query"):
            config = config.narrow
    constants: dict[str, Any] = {
        "PRECISION": "tf32x3" if dtype == torch.float32 else "tf32",
        "WIDTH": padded,
        "VALUE_WIDTH": padded,
        "EVEN_WIDTH": padded == width,
        "EVEN_VALUE_WIDTH": padded == width,
        "TABLE_GRAD": kernel.endswith("table_gradient"),
        "BLOCK_M": config.block_m,
        "BLOCK_N": config.block_n,
        **{name.upper(): value for name, value in options.items()},
    }
    gaussian = kernel in ("gaussian_table_gradient", "one_tensor_gradient") or options.get("gaussian")
    constants["GAUSSIAN"] = -1 if gaussian else 0  # by products, as half precision takes it
    signature: dict[str, Any] = {}
    attributes: dict[tuple[int, ...], list[list[Any]]] = {}
    for index, parameter in enumerate(function.params):
        name = parameter.name
        if parameter.is_constexpr:
            signature[name] = "constexpr"
            constants.setdefault(name, False)
        elif name == "group_size" and not grouped:
            signature[name], constants[name] = "constexpr", 1  # as a call does to arguments that are 1
        elif name.endswith("strides"):
            signature[name] = ("i32",) * 3
            attributes.update({(index, place): [["tt.divisibility", 16]] for place in range(3)})
        elif name.endswith("_ptr"):
            pointed = f"*{_TYPE_NAMES[dtype]}" if _TENSORS.fullmatch(name) else "*fp32"
            summed = options.get("per_query") and name in _SUMS
            signature[name] = "*fp32" if summed else _POINTER_TYPES.get(name, pointed)
            attributes[(index,)] = [["tt.divisibility", 16]]
        else:
            signature[name] = "fp32" if name == "scale" else "i32"
    unknown = [name for name in options if name.upper() not in signature]
    if unknown:
        raise unknown_name("option", unknown[0], [name.lower() for name in signature if name.isupper()])
    constants = {name: value for name, value in constants.items() if name in signature}
    source = ASTSource(function, signature=signature, constexprs=constants, attrs=attributes)
    compiled = triton.compile(
        source,
        target=GPUTarget("cuda", 10 * capability[0] + capability[1], _THREADS_PER_WARP),
        options={"num_warps": config.num_warps, "num_stages": config.num_stages},
    )
    registers, code = _disassemble(compiled.asm["cubin"])
    opcodes = [opcode for _, opcode, _ in code]
    return Resources(
        registers=registers,
        spills=sum(opcode in _SPILLS for opcode in opcodes),
        loop_spills=sum(opcodes[place] in _SPILLS for place in _tile_loops(code)),
        shared_memory=compiled.metadata.shared,
        instructions=Counter(opcodes),
    )


def _disassemble(cubin: bytes) -> tuple[int, list[tuple[int, str, str]]]:
    """Registers of a thread, and the machine code as (address, opcode, operands)."""
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        usage = _output(tool, "-res-usage", file.name)
        text = _output(tool, "-sass", file.name)
    registers = re.search(r"\bREG:(\d+)", usage)
    if registers is None:
        raise RuntimeError(f"{tool.name} did not tell the registers: {usage[:200]!r}")
    return int(registers[1]), [(int(at, 16), opcode, rest) for at, opcode, rest in _INSTRUCTION.findall(text)]


def _tile_loops(code: list[tuple[int, str, str]]) -> set[int]:
    """Places of the instructions inside innermost loops that hold matrix instructions."""
    places = {address: place for place, (address, _, _) in enumerate(code)}
    loops = []
    for place, (address, opcode, rest) in enumerate(code):
        target = re.search(r"\b0x([0-9a-f]+)", rest) if opcode == "BRA" else None
        if target is not None and int(target[1], 16) < address:
            loops.append((places[int(target[1], 16)], place))
    innermost = [
        (start, stop)
        for start, stop in loops
        if not any((start <= a and b < stop) or (start < a and b <= stop) for a, b in loops)
    ]
    return {
        place
        for start, stop in innermost
        if any(code[place][1] in _MATRIX_INSTRUCTIONS for place in range(start, stop))
        for place in range(start, stop + 1)
    }


def _output(tool: Path, *arguments: str) -> str:
    return subprocess.run([tool, *arguments], capture_output=True, text=True, check=True).stdout


def main() -> None:
    """Prints what every kernel takes with its chosen tiles."""
    causal_table: dict[str, Any] = {"causal": True, "table": True}
    switches: list[tuple[Kernel | Literal["decoding"], dict[str, Any]]] = [
        ("forward", causal_table),
        ("forward", {"gaussian": True, "one_tensor": True, "fixed_peak": True}),
        ("key_value_gradient", causal_table),
        ("query_gradient", causal_table),
        ("table_gradient", causal_table),
        ("gaussian_table_gradient", {**causal_table, "exclude_self": True}),
        ("one_tensor_gradient", {"fixed_peak": True}),
        ("one_tensor_gradient", {"fixed_peak": True, "causal": True}),
        ("decoding", causal_table),
        ("decoding", {"gaussian": True, "one_tensor": True, "causal": True}),
    ]
    print(f"{'':52}width  registers  spills  in loops  shared  matrix")
    for capability in ((8, 0), (9, 0)):
        for kernel, options in switches:
            for width in (64, 128):
                found = compile_kernel(kernel, capability, width=width, **options)
                name = f"sm_{capability[0]}{capability[1]} {kernel} ({', '.join(options)})"
                print(
                    f"{name:52} {width:5} {found.registers:9} {found.spills:8} {found.loop_spills:9} "
                    f"{found.shared_memory:8} {found.matrix_instructions:6}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
