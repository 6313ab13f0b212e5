"""Accuracy against float64, and whether gradients repeat bit for bit.

Errors are relative root mean squares, ‖actual − exact‖ / ‖exact‖, of the output and of each gradient; the
exact ones are the definition's in float64 on the same rounded inputs.
"""

from collections.abc import Callable
from typing import Any

import cases
import rivals
import torch
from cases import Case, Shape
from rivals import Contender
from timing import one_line
from torch import Tensor

from nadaraya import kernel_attention
from nadaraya.kernels import Gaussian

REPEATS = 3
STOCK_FLASH = "SDPA flash"


def accuracy(device: str, quick: bool) -> dict[str, Any]:
    """Errors of ours and of others on one input per part.

    Args:
        device: "cpu" or "cuda".
        quick: tiny shapes.

    Returns:
        Part → contender → {"output": error, name of an input: error of its gradient}, or {"failed": reason}.
        "dot" has no bias, "gpa" has a table, "gka" is the Gaussian of one tensor. In "gpa" and "gka" the row
        "SDPA flash, dot product" repeats stock attention's errors of "dot": another function at the same
        shape, which shows what bfloat16 costs there.
    """
    shape = Shape.square(1, 2, 32, 8) if quick else Shape.square(1, 2, 1024, 64)
    case = Case("accuracy", "accuracy", shape, True, cases.gpa)
    torch.manual_seed(0)
    q, k, v = cases.tokens(case, device, 3)
    table, sigma = cases.table(case, device), cases.bandwidth(case, device)
    grad_out = torch.randn_like(q)

    def part(
        names: dict[str, Tensor], options: dict[str, Any], contenders: list[Contender]
    ) -> dict[str, dict[str, Any]]:
        exact = _exact(names, options, grad_out)
        return {each.name: _errors(each, names, exact, grad_out) for each in contenders}

    by_others = {each.name: each for each in rivals.biased_by_others(q, k, v, table)}
    qkv = {"q": q, "k": k, "v": v}
    parts = {
        "dot": part(
            qkv, {"causal": True}, [*rivals.ours(q, k, v, causal=True), *rivals.stock(q, k, v, causal=True)]
        ),
        "gpa": part(
            {**qkv, "position": table},
            {"causal": True},
            [*rivals.ours(q, k, v, causal=True, table=table), by_others[rivals.SDPA_BIAS]],
        ),
        "gka": part(
            {"x": q, "bandwidth": sigma},
            {"causal": True},
            [
                *rivals.ours(q, q, q, bandwidth=sigma, causal=True),
                rivals.gaussian_by_hand(q, q, q, sigma, causal=True),
            ],
        ),
    }
    for name in ("gpa", "gka"):
        parts[name][f"{STOCK_FLASH}, dot product"] = parts["dot"][STOCK_FLASH]
    return parts


def determinism(device: str, quick: bool) -> dict[str, Any]:
    """Whether our outputs and gradients are the same bits in three runs.

    Args:
        device: "cpu" or "cuda".
        quick: tiny shapes.

    Returns:
        Case → "nadaraya" → {"identical": bool}, or {"failed": reason}.
    """
    causal = Shape.square(2, 2, 32, 8) if quick else Shape.square(4, 8, 2048, 64)
    both = Shape.square(2, 2, 32, 8) if quick else Shape.square(256, 3, 197, 64)
    line_up = [
        Case("gpa", "determinism", causal, True, cases.gpa_against_stock),
        Case("gka", "determinism", causal, True, cases.gka),
        Case("gka-both", "determinism", both, False, cases.gka),
        Case("gaussian-qkv", "determinism", causal, True, cases.general_gaussian),
        Case("gka-table-loo", "determinism", causal, True, cases.gka_table_loo),
        Case("mixed-logits", "determinism", causal, True, cases.mixed_logits),
        Case("mixed-kernels", "determinism", causal, True, cases.mixed_kernels),
        Case("grid", "determinism", both, False, cases.grid),
        Case("negligible", "determinism", causal, True, cases.negligible),
    ]
    return {case.name: {rivals.OURS: _repeats(case, device)} for case in line_up}


def _repeats(case: Case, device: str) -> dict[str, Any]:
    torch.manual_seed(0)
    mine = next(each for each in case.contenders(case, device) if each.name == rivals.OURS)

    def once() -> list[Tensor]:
        torch.manual_seed(1)
        out = mine.forward()
        return [out, *torch.autograd.grad(out, mine.inputs, torch.randn_like(out))]

    def repeat() -> dict[str, Any]:
        first, *others = (once() for _ in range(REPEATS))
        same = (torch.equal(a, b) for run in others for a, b in zip(first, run, strict=True))
        return {"identical": all(same)}

    return _or_reason(repeat)


def _exact(names: dict[str, Tensor], options: dict[str, Any], grad_out: Tensor) -> dict[str, Tensor]:
    """Output and gradients of the definition in float64."""
    leaves = {name: tensor.detach().double().requires_grad_() for name, tensor in names.items()}
    points = [leaves.pop(name) for name in ("q", "k", "v", "x") if name in leaves]
    q, k, v = points if len(points) == 3 else points * 3
    inputs = [*points, *leaves.values()]
    if "bandwidth" in leaves:
        options = {**options, "content": Gaussian(leaves.pop("bandwidth"))}
    out = kernel_attention(q, k, v, **leaves, **options, backend="reference")
    grads = torch.autograd.grad(out, inputs, grad_out.double())
    return {"output": out.detach(), **dict(zip(names, grads, strict=True))}


def _errors(
    contender: Contender, names: dict[str, Tensor], exact: dict[str, Tensor], grad_out: Tensor
) -> dict[str, Any]:
    by_tensor = {id(tensor): name for name, tensor in names.items()}

    def errors() -> dict[str, Any]:
        out = contender.forward()
        grads = torch.autograd.grad(out, contender.inputs, grad_out)
        actual = {by_tensor[id(t)]: grad for t, grad in zip(contender.inputs, grads, strict=True)}
        actual = {"output": out.detach(), **actual}
        return {name: float((got - exact[name]).norm() / exact[name].norm()) for name, got in actual.items()}

    return _or_reason(errors)


def _or_reason(call: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    try:
        return call()
    except Exception as error:  # a rival may fail in any way: that is its result
        return {"failed": one_line(error)}
