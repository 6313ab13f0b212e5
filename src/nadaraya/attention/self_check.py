"""Fused kernels against the definition on a tiny call, ahead of the first real one of a kind.

What a kernel computes depends on the GPU, its driver and the compiler too. The check runs in a thread and, on
a GPU, a stream of its own: a compiler or a kernel that does not come back costs the process some time and one
warning. An illegal access to memory, though, ends the CUDA context of every process that makes it.
"""

import threading
import warnings
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor

from nadaraya.attention import reference, triton
from nadaraya.attention.arguments import AttentionArguments
from nadaraya.attention.kinds import Kind, arguments, drawn
from nadaraya.attention.triton.configs import rounds_float32
from nadaraya.files import first_line

_LIMIT = 180.0  # seconds, nearly all of them for compiling some four kernels
_TOKENS = 160  # several tiles of each kernel
_MANY_TOKENS = 1152  # of decoding, whose keys are split, and where negligible keys are looked for
_found: dict[tuple[Kind, torch.device], str | None] = {}
_one_at_a_time = threading.Lock()

Attend = Callable[[AttentionArguments], Tensor]


def problem(kind: Kind, device: torch.device) -> str | None:
    """Why the Triton kernels are not to be trusted with a kind of call, or None; it is checked once."""
    return _problem(device, *kind)


def _problem(device: torch.device, *fields: Any) -> str | None:
    key = kind, device = Kind(*fields), device
    if key in _found:
        return _found[key]
    if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
        return "it was not checked before a CUDA graph was captured"
    with _one_at_a_time:
        if key not in _found:
            reason, accepted = None, tolerance(kind)
            try:
                error = largest_error_in_time(kind, lambda args: triton.attention(args)[0], device)
                if not error <= accepted:
                    reason = f"its self-check found an error of {error:.1e}, above {accepted:.1e}"
            except Exception as failure:  # whatever a compiler or a driver raises
                reason = f"its self-check failed with {said(failure)}"
            if reason is not None:
                warnings.warn(f"Triton kernels are not used ({kind}): {reason}", stacklevel=2)
            _found[key] = reason
    return _found[key]


# As torch.compiler.assume_constant_result does, which would import the compiler: a traced call is checked.
_problem._dynamo_marked_constant = True  # type: ignore[attr-defined]


def said(failure: Exception) -> str:
    """The type and the first line of an exception."""
    return f"{type(failure).__name__}: {first_line(failure)}"


def largest_error_in_time(kind: Kind, attend: Attend, device: torch.device) -> float:
    """`largest_error` in a thread of its own; TimeoutError where it does not end."""
    outcome: list[float | Exception] = []

    def look() -> None:
        try:
            with ExitStack() as stack:
                # A backward pass in the thread of the device would keep all others waiting if it hangs.
                stack.enter_context(torch.autograd.set_multithreading_enabled(False))
                if device.type == "cuda":
                    stack.enter_context(torch.cuda.device(device))
                    stack.enter_context(torch.cuda.stream(torch.cuda.Stream(device)))
                outcome.append(largest_error(kind, attend, device))
        except Exception as failure:
            outcome.append(failure)

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    thread.join(_LIMIT)
    if not outcome:
        raise TimeoutError(f"no end within {_LIMIT:g} s")
    if isinstance(outcome[0], Exception):
        raise outcome[0]
    return outcome[0]


def largest_error(kind: Kind, attend: Attend, device: torch.device) -> float:
    """The largest error of output and gradients of a small call, relative to the largest number or 1.

    Args:
        kind: of the call.
        attend: the output by what is checked.
        device: that it computes on; the definition has the same numbers in float64 on the CPU.

    Returns:
        The error; NaN where it is not finite.
    """
    batch, tokens = (1, _MANY_TOKENS) if kind.queries or "pruned" in kind.flags else (2, _TOKENS)
    tensors = drawn(kind, batch, 2 * kind.group, tokens)
    exact = {name: tensor.double() for name, tensor in tensors.items()}
    wanted = _outcome(kind, exact, lambda args: reference.attention(args).out)
    got = _outcome(kind, {name: tensor.to(device) for name, tensor in tensors.items()}, attend)
    errors = [
        (mine.cpu() - want).abs().max() / want.abs().max().clamp(min=1.0)
        for mine, want in zip(got, wanted, strict=True)
    ]
    return float(torch.stack(errors).max())


def tolerance(kind: Kind) -> float:
    """Largest accepted error: some roundings of a dtype, or of the products that PyTorch is told to round."""
    if kind.dtype != torch.float32:
        return 6 * torch.finfo(kind.dtype).eps
    if rounds_float32():
        return 5e-3
    return 1e-3 if kind.content == "gaussian" else 1e-4  # differences of larger logits


def _outcome(kind: Kind, tensors: dict[str, Tensor], attend: Attend) -> list[Tensor]:
    """Output and gradients."""
    leaves = {name: t.detach().requires_grad_(name in kind.gradients) for name, t in tensors.items()}
    out = attend(arguments(kind, leaves))
    if not kind.gradients:
        return [out]
    weights = torch.arange(out.numel()).sin().to(kind.dtype).to(out).view(out.shape)
    return [out.detach(), *torch.autograd.grad(out, [leaves[name] for name in kind.gradients], weights)]
