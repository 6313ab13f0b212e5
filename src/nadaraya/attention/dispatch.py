"""The choice of a backend for a call of the operator."""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.autograd import forward_ad

from nadaraya.attention import dense, linear, measured, sdpa, self_check, stock, triton
from nadaraya.attention.arguments import AttentionArguments
from nadaraya.attention.kinds import kind_of
from nadaraya.errors import InputError, unknown_name


class BackendChoice(NamedTuple):
    """The backend of a call.

    Attributes:
        name: the backend.
        refused: why each faster one does not, by name, or that it was measured to be slower.
    """

    name: str
    refused: dict[str, str]


def by_backend(name: str, args: AttentionArguments, with_lse: bool) -> tuple[Tensor, Tensor | None]:
    """Output and log-sum-exp by a backend other than the reference."""
    if name in linear.FORMS:
        return linear.attention(name, args, with_lse)
    if name == "triton":
        return triton.attention(args, with_lse)
    if name == "dense":
        return sdpa.attention(args, with_lse, keep=True)
    return sdpa.attention(args, with_lse)


def choice(backend: str, args: AttentionArguments, return_weights: bool) -> BackendChoice:
    """The backend of a call, one that is asked for by name or the fastest.

    Why the Triton kernels are not for a CPU is told by `explained`: no call waits for it.
    """
    if backend == "auto" and args.factored is not None:
        return _of_least_work(args, return_weights)
    if backend == "auto":
        return _fastest(args, return_weights)
    names = (*measured.BACKENDS, *linear.FORMS)
    if backend in names:
        reason = why_not(backend, args, return_weights)
        if reason is not None:
            raise InputError(f"backend {backend!r} cannot do this call: {reason}")
    elif backend != "reference":
        raise unknown_name("backend", backend, ("auto", "reference", *names))
    return BackendChoice(backend, {})


def explained(backend: str, args: AttentionArguments, return_weights: bool) -> BackendChoice:
    """The same, with a reason for every faster backend."""
    found = choice(backend, args, return_weights)
    if backend != "auto" or args.factored is not None or args.on_gpu:
        return found
    reason = why_not("triton", args, return_weights) or "its interpreter is for tests"
    return BackendChoice(found.name, {"triton": reason, **found.refused})


def _fastest(args: AttentionArguments, return_weights: bool) -> BackendChoice:
    """The backend measured to be fastest; not measured, PyTorch's own kernels where they are the call.

    On a GPU the Triton kernels do the others, after a self-check: the row blocks of "sdpa" have O(N) memory
    too, but are no fused kernels. On a CPU all pairs are written out where sequences are short.
    """
    first, other = rivals = measured.ON_GPU if args.on_gpu else measured.ON_CPU
    if (reason := _why_none(return_weights)) is not None:
        return BackendChoice("reference", dict.fromkeys(rivals, reason))
    slower: dict[str, str] = {}
    if not args.on_gpu and args.query.shape[2] <= 1:
        reason = "one row is done so in any case"
    else:
        reason = (triton if args.on_gpu else dense).why_not(args) or measured.why_wrong(first, args)
    if reason is None:
        if (found := measured.slower(args, rivals)) is not None:
            slower, reason = found, found.get(first)
        elif not args.on_gpu:
            reason = dense.why_slow(args)
        elif stock.can(args):
            reason = "PyTorch's fused attention does this call as it stands"
        if reason is None and args.on_gpu:
            reason = self_check.problem(kind_of(args), args.query.device)
        if reason is None:
            return BackendChoice(first, slower)
    if wrong := measured.why_wrong(other, args):
        return BackendChoice("reference", {first: reason, other: wrong})
    return BackendChoice(other, {first: reason})


def _of_least_work(args: AttentionArguments, return_weights: bool) -> BackendChoice:
    """The form of factorised content that costs least."""
    names = (*linear.FORMS, "sdpa")
    reasons = {name: why_not(name, args, return_weights) or measured.why_wrong(name, args) for name in names}
    work = {name: linear.work(name, args) for name in names if reasons[name] is None}
    if not work:
        return BackendChoice("reference", {name: str(reason) for name, reason in reasons.items()})
    best = min(work, key=work.__getitem__)
    refused = {
        name: reason or f"it costs {work[name] / work[best]:.1f} times as much as {best!r}"
        for name, reason in reasons.items()
        if name != best
    }
    return BackendChoice(best, refused)


def _why_none(return_weights: bool) -> str | None:
    """Why no fast backend can do a call, whatever its arguments, or None."""
    if return_weights:
        return "only the reference returns weights"
    if torch.compiler.is_exporting() and torch.onnx.is_in_onnx_export():
        return "ONNX has none of its operators"
    # PyTorch would silently drop the forward tangents of custom operators: they must refuse such calls.
    if not torch.compiler.is_compiling() and (
        torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0
    ):
        return "it has no rule for torch.func transforms and forward-mode differentiation"
    return None


def why_not(backend: str, args: AttentionArguments, return_weights: bool) -> str | None:
    """Why a fast backend cannot do a call, or None when it can."""
    if (reason := _why_none(return_weights)) is not None:
        return reason
    if backend in linear.FORMS:
        return linear.why_not(backend, args)
    if backend == "triton":
        return triton.why_not(args)
    return dense.why_not(args) if backend == "dense" else None
