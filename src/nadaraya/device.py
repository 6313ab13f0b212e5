"""What a processor or a GPU is called: the first thing that a measured number depends on."""

import platform
from pathlib import Path

import torch

_CPUS = Path("/proc/cpuinfo")
_KEYS = ("model name", "cpu family", "model")


def device_name(kind: str = "cpu") -> str:
    """The name of the device that computes.

    Args:
        kind: "cpu" (default) or "cuda". Processors of one name can round differently, so that theirs has the
            numbers of family and model too, where the system tells them.

    >>> from nadaraya.device import device_name
    >>> device_name() != ""
    True
    """
    if kind == "cuda":
        return torch.cuda.get_device_name()
    try:
        first = _CPUS.read_text(encoding="utf-8").split("\n\n")[0]
    except OSError:
        first = ""
    facts = {
        key.strip(): value.strip() for key, _, value in (row.partition(":") for row in first.splitlines())
    }
    if not all(key in facts for key in _KEYS):
        return platform.processor() or platform.machine()
    name, family, model = (facts[key] for key in _KEYS)
    return f"{name}, family {family}, model {model}"
