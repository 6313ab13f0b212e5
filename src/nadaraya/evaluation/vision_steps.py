"""One call of an image model: a forward pass or a training update, and the memory that it takes."""

import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nadaraya.models.vit import create_image_model, image_shape

MODES = ("inference", "training")
PRECISIONS = {"bfloat16": torch.bfloat16, "float32": torch.float32}


@dataclass(frozen=True)
class Case:
    """One model at one batch size.

    Args:
        model: a name of timm.
        mode: "inference", a forward pass without gradients; "training", forward, cross-entropy against soft
            labels, backward and AdamW.
        batch: images a call.
        device: "cpu" or "cuda".
        precision: "float32" (default); or "bfloat16": in inference weights and images, kernels excepted, in
            training float32 weights under autocast.
        compiled: whether `torch.compile` compiles the model, for this batch size alone.
        image_size: pixels a side; default the model's own.
        options: keywords of `timm.create_model`.
    """

    model: str
    mode: str
    batch: int
    device: str = "cpu"
    precision: str = "float32"
    compiled: bool = False
    image_size: int | None = None
    options: Mapping[str, Any] = field(default_factory=dict)


def make_step(case: Case) -> Callable[[], None]:
    """A fresh model and a fixed random batch.

    Args:
        case: what is measured.

    Returns:
        The call that does the work once; the first calls also compile.

    Raises:
        InputError: the model cannot be built.
    """
    torch.manual_seed(0)
    model = create_image_model(case.model, image_size=case.image_size, options=case.options)
    shape = image_shape(model, case.image_size)
    images = torch.randn(case.batch, *shape).to(case.device)
    model = model.to(case.device)
    if case.mode == "inference":
        return _inference(case, model, images)
    return _training(case, model, images)


def _inference(case: Case, model: nn.Module, images: Tensor) -> Callable[[], None]:
    dtype = PRECISIONS[case.precision]
    model, images = model.to(dtype), images.to(dtype)
    for _, parameter in getattr(model, "kernel_parameters", tuple)():
        parameter.data = parameter.data.float()
    network = _compiled(case, model)

    def infer() -> None:
        with torch.inference_mode():
            network(images)

    return infer


def _training(case: Case, model: nn.Module, images: Tensor) -> Callable[[], None]:
    dtype = PRECISIONS[case.precision]
    network = _compiled(case, model.train())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=case.device == "cuda")
    labels = torch.rand(case.batch, int(model.num_classes), device=case.device).softmax(-1)  # type: ignore[arg-type]

    def update() -> None:
        with torch.autocast(case.device, dtype, enabled=dtype is not torch.float32):
            logits = network(images)
        F.cross_entropy(logits.float(), labels).backward()
        optimizer.step()
        optimizer.zero_grad()

    return update


def _compiled(case: Case, model: nn.Module) -> Callable[[Tensor], Tensor]:
    return torch.compile(model, dynamic=False) if case.compiled else model


MEMORY_ON_CPU = (
    "peak resident memory of a process of its own during one call, beyond what its imports hold, MiB"
)
MEMORY_ON_CUDA = "peak of torch.cuda.max_memory_allocated during one call, less other models' weights, MiB"


def process_peak(case: Case) -> dict[str, Any]:
    """Peak memory of a case in a process of its own (Linux).

    Args:
        case: a case on the CPU.

    Returns:
        {"memory_mib": …}, or {"memory_failed": reason in one line}.
    """
    if not Path("/proc/self/clear_refs").exists():
        return {"memory_failed": "the peak of a process is read from Linux's /proc"}
    arguments = [json.dumps(asdict(case)), str(torch.get_num_threads())]
    program = "from nadaraya.evaluation.vision_steps import print_own_peak; print_own_peak()"
    child = subprocess.run(
        [sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=False
    )
    if child.returncode == 0:
        return {"memory_mib": float(child.stdout.split()[-1])}
    # A negative status is a signal: the system ends a process that takes all memory by -9.
    said = child.stderr.strip().splitlines()
    return {"memory_failed": f"exit status {child.returncode}{': ' + said[-1] if said else ''}"[:200]}


def print_own_peak() -> None:
    """What the process of `process_peak` runs; its arguments are the case as JSON and the threads."""
    case = Case(**json.loads(sys.argv[1]))
    torch.set_num_threads(int(sys.argv[2]))
    create_image_model(case.model, options=case.options, device="meta")  # imports all that is needed
    imported = _resident("VmRSS")
    step = make_step(case)
    step()  # what is made on the first call stays: compiled code, the optimiser's moments
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts again from here
    step()
    print(_resident("VmHWM") - imported)


def _resident(entry: str) -> float:
    """MiB, of this process alone."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    return int(status.split(f"{entry}:")[1].split()[0]) / 1024
