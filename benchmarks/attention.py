"""The operator against its rivals, side by side in one process: time, TFLOP/s, peak memory, accuracy.

    python benchmarks/attention.py [--json FILE] [--only NAME …] [--device cuda|cpu] [--quick]

Contenders take turns; figures are medians with quartiles. On a GPU they are the device's own time, each call
from a flushed L2 cache. TFLOP/s count the useful operations, half of them where attention is causal. Memory
is the peak beyond inputs and outputs (gradients are outputs), from a pass of its own. What cannot run is
recorded with its reason. FILE is written after every case; a run that was stopped goes on where it was.
docs/development/targets.md has the targets.

--quick makes every shape tiny and the runs few: it shows that the script works and measures nothing.
"""

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import checks
import tables
import torch
from cases import Case, all_cases
from rivals import Contender
from timing import alternate, as_json, environment, one_line, why_it_fails, write_json
from torch import Tensor

CHECKS = {"accuracy": checks.accuracy, "determinism": checks.determinism}
GROUPS = [*dict.fromkeys(case.group for case in all_cases(quick=True)), *CHECKS]
WARMUP = 3


def measure(case: Case, device: str, runs: int) -> dict[str, Any]:
    """One case: for each contender and pass a timing with TFLOP/s and memory, or the reason why not.

    Args:
        case: what to measure.
        device: "cpu" or "cuda".
        runs: counted rounds.

    Returns:
        The case's description and `contenders`: name → pass → figures or {"failed": reason}.
    """
    torch.manual_seed(0)
    torch._dynamo.reset()  # compiled rivals of earlier shapes would count against the limit of recompilations
    contenders = case.contenders(case, device)
    shape = (case.shape.batch, case.shape.heads, case.shape.queries, case.shape.width)
    grad_out = torch.randn(shape, device=device, dtype=case.dtype)
    figures: dict[str, dict[str, Any]] = {contender.name: {} for contender in contenders}
    for which in case.passes:
        calls, memory = {}, {}
        for contender in contenders:
            call = _pass(contender, which, grad_out)
            needs_cuda = contender.cuda_only and device != "cuda"
            reason = "needs a CUDA device" if needs_cuda else why_it_fails(call, device)
            if reason is None:
                calls[contender.name] = call
                memory[contender.name] = _peak_memory(call) if device == "cuda" else None
            else:
                figures[contender.name][which] = {"failed": reason}
        timings = as_json(alternate(calls, runs, WARMUP, device))
        for name, timing in timings.items():
            timing["tflops"] = case.flops(which) / timing["median"] / 1e9
            timing["memory_mib"] = memory[name]
            figures[name][which] = timing
    return {**case.describe(), "contenders": figures}


def _pass(contender: Contender, which: str, grad_out: Tensor) -> Callable[[], list[Tensor]]:
    """A call that returns all that the pass computes."""

    def forward() -> list[Tensor]:
        with torch.no_grad():
            return [contender.forward()]

    def forward_backward() -> list[Tensor]:
        out = contender.forward()
        return [out, *torch.autograd.grad(out, contender.inputs, grad_out)]

    return forward if which == "forward" else forward_backward


def _peak_memory(call: Callable[[], list[Tensor]]) -> float:
    """MiB at the peak of a call beyond what was there before and what it returns."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    returned = sum(tensor.nbytes for tensor in call())
    torch.cuda.synchronize()
    return (torch.cuda.max_memory_allocated() - before - returned) / 2**20


def main() -> None:
    options = _options()
    device, quick = options.device, options.quick
    groups = options.only or GROUPS
    results = _started({"device": device, "quick": quick, "runs": options.runs}, options.json)

    def save(text: str) -> None:
        print(text, end="\n\n", flush=True)
        if options.json:
            write_json(options.json, results)

    for name in (name for name in CHECKS if name in groups and name not in results["checks"]):
        results["checks"][name] = CHECKS[name](device, quick)
        save(tables.check_text(name, results["checks"][name]))
    for case in all_cases(quick):
        if case.group not in groups or case.name in results["cases"]:
            continue
        try:
            results["cases"][case.name] = measure(case, device, options.runs)
        except Exception as error:  # the other cases are still worth having
            results["cases"][case.name] = {"failed": one_line(error)}
        save(tables.case_text(case.name, results["cases"][case.name]))
        if device == "cuda":
            torch.cuda.empty_cache()


def _started(settings: dict[str, Any], path: Path | None) -> dict[str, Any]:
    """The results so far of the same measurement on the same machine, or none."""
    new = {"environment": environment(), "settings": settings, "checks": {}, "cases": {}}
    earlier = json.loads(path.read_text()) if path and path.is_file() else new
    same = all(earlier.get(key) == new[key] for key in ("environment", "settings"))
    return earlier if same else new


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, help="also write the figures to this file, after every case")
    parser.add_argument("--only", nargs="+", choices=GROUPS, metavar="NAME", help=", ".join(GROUPS))
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--runs", type=int, help="counted rounds; default 20, with --quick 2")
    parser.add_argument("--quick", action="store_true", help="tiny shapes: to see the script work")
    options = parser.parse_args()
    if options.device == "cuda" and not torch.cuda.is_available():
        print(
            "attention.py: no CUDA device here; --device cpu --quick shows the script at work",
            file=sys.stderr,
        )
        sys.exit(2)
    options.runs = options.runs or (2 if options.quick else 20)
    return options


if __name__ == "__main__":
    main()
