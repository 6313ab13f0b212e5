"""The run folder: what its files are called, and its lock."""

from pathlib import Path
from typing import Self

from filelock import FileLock, Timeout

from nadaraya.errors import InputError
from nadaraya.files import check_utf8, writing

RECIPE_FILE = "config.yaml"
METRICS_FILE = "metrics.jsonl"
MODEL_FILE = "model.safetensors"
CONFIGURATION_FILE = "config.json"
TOKENIZER_FILE = "tokenizer.json"
INITIAL_KERNELS_FILE = "initial_kernels.safetensors"
AVERAGE_FILE = "ema.safetensors"
BEST_FILE = "best.safetensors"
IMAGES_FILE = "images.json"
TEXT_FILE = "text.json"
WINDOWS_FILE = "windows.jsonl"
SAMPLE_FILE = "sample.txt"
LENGTHS_FILE = "lengths.json"
STATE_FOLDER = "training_state"
LOCK_FILE = ".lock"


class FolderLock:
    """Lets one process at a time write a run folder; the lock of a killed process is free.

    A context: what `take` took is given back at its end. It waits so many seconds for another process.
    """

    def __init__(self, folder: Path, patience: float = 0.0) -> None:
        self._folder, self._lock = folder, FileLock(folder / LOCK_FILE, timeout=patience)

    def take(self) -> None:
        """Take the lock, in a folder made when absent; an InputError where another process has it."""
        check_utf8("the path of a run folder", str(self._folder))
        with writing(self._folder):
            self._folder.mkdir(parents=True, exist_ok=True)
            try:
                self._lock.acquire()
            except Timeout:
                raise InputError(
                    f"{self._folder} is being trained by another process: wait for it, or choose another "
                    "folder"
                ) from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._lock.release(force=True)
