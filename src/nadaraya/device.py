"""Name and memory of the device that computes; the reuse of freed memory."""

import ctypes
import os
import platform
from pathlib import Path

import torch

from nadaraya.errors import InputError

_CPUS = Path("/proc/cpuinfo")
_KEYS = ("model name", "cpu family", "model")
# mallopt's names for two thresholds of glibc, and the highest values that it takes.
_GLIBC_THRESHOLDS = {-3: 2**25, -1: 2**31 - 1}  # M_MMAP_THRESHOLD, M_TRIM_THRESHOLD


def device_name(kind: str = "cpu") -> str:
    """The name of the device that computes, "cpu" or "cuda".

    Processors of one name can round differently, so that theirs has the numbers of family and model too,
    where the system tells them.
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


def training_device() -> str:
    """Kind of the device that training computes on: "cuda" where there is a GPU, else "cpu"."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def machine_memory(device: str = "cpu") -> int:
    """Bytes of memory of this machine, or in all of its GPU's for "cuda"."""
    if device == "cuda":
        return int(torch.cuda.get_device_properties("cuda").total_memory)
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def check_memory(what: str, needed: int, smaller: str, device: str = "cpu") -> None:
    """Refuse what needs so many bytes, where there are fewer; `smaller` are arguments that need less."""
    if needed > (there := machine_memory(device)):
        need, has = (
            f"{count / 1e9:,.1f} GB" if count >= 1e8 else f"{count / 1e6:,.1f} MB"
            for count in (needed, there)
        )
        raise InputError(f"{what} needs at least {need} of memory, this machine has {has}: reduce {smaller}")


def reuse_freed_memory() -> None:
    """Let glibc keep tensors of up to 32 MiB that are freed, for the next ones.

    By default it gives large freed blocks back to the system, which then clears every page anew for the
    activations of the next update. Nothing is done without glibc, or where the environment sets thresholds.
    """
    if any(name.startswith(("MALLOC_", "GLIBC_TUNABLES")) for name in os.environ):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if os.name == "posix" else None
    if mallopt is not None:
        for threshold, highest in _GLIBC_THRESHOLDS.items():
            mallopt(threshold, highest)
