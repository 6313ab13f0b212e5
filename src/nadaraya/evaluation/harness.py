"""EleutherAI's lm-evaluation-harness (Gao et al.) on any causal model, through its class for transformers."""

import logging
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from nadaraya.data.tokenizer import encode_text
from nadaraya.errors import InputError, must_be, unknown_name
from nadaraya.evaluation.generation import default_prompt
from nadaraya.evaluation.language import CausalModel
from nadaraya.files import first_line, is_folder


def evaluate_lm_eval(
    causal: CausalModel,
    tasks: Sequence[str],
    *,
    shots: int | None = None,
    limit: int | None = None,
    folder: str | Path | None = None,
    batch_size: int = 16,
    precision: str = "float32",
) -> dict[str, Any]:
    """Run tasks of lm-evaluation-harness; its own progress goes to standard error.

    It seeds the global generators of random numbers, as it always does.

    Args:
        causal: from `nadaraya.training.open_causal_model`; its model is on the device where it shall run.
        tasks: names of tasks, groups or tags, or patterns of them, as lm-eval knows them ("hellaswag").
        shots: solved examples in front of each question; default each task's own.
        limit: examples per task, the first; default all.
        folder: of further tasks in lm-eval's form, which win over its own of the same name. Python that they
            name runs.
        batch_size: requests at a time, default 16.
        precision: "float32" (default) or "bfloat16", by autocast.

    Returns:
        What lm-eval returns: "results" (metrics by task), "n-shot", "n-samples", "configs", "samples", …

    Raises:
        InputError: lm-eval is not installed, an unknown task, one whose data cannot be had, or an option out
            of range.

    >>> from nadaraya.data import byte_tokenizer
    >>> from nadaraya.evaluation import evaluate_lm_eval
    >>> from nadaraya.evaluation.language import CausalModel
    >>> from nadaraya.models import KernelGPTConfig, KernelGPTForCausalLM
    >>> model = KernelGPTForCausalLM(KernelGPTConfig.preset("demo", vocab_size=256))
    >>> evaluate_lm_eval(CausalModel("demo", model, byte_tokenizer(), 256), [])
    Traceback (most recent call last):
    nadaraya.errors.InputError: tasks must be one or more names of lm-eval's, got []
    """
    if not tasks:
        raise must_be("tasks", "one or more names of lm-eval's", list(tasks))
    for name, given, least in (("shots", shots, 0), ("limit", limit, 1), ("batch_size", batch_size, 1)):
        if given is not None and given < least:
            raise must_be(name, f"an integer of at least {least}", given)
    if folder is not None and not is_folder(Path(folder)):
        raise must_be("the folder of tasks", "one that exists", str(folder))
    with ExitStack() as undo:  # errors alone, not lm-eval's advice on models that are given as objects
        logger = logging.getLogger("lm_eval")
        undo.callback(logger.setLevel, logger.level)
        logger.setLevel(logging.ERROR)
        try:
            from lm_eval import simple_evaluate
            from lm_eval.models.huggingface import HFLM
        except ModuleNotFoundError as missing:
            raise InputError(f'lm-eval needs {missing.name}: pip install "nadaraya[lm-eval]"') from None
        manager, names = _find(tasks, folder)

        class Harness(HFLM):
            """Without an end-of-text token, texts end at the stops of a task alone."""

            def tok_encode(self, string: str, *args: Any, **options: Any) -> list[int]:
                encode_text(self.tokenizer, string)  # refuses what the tokenizer does not know
                return list(super().tok_encode(string, *args, **options))

            def _loglikelihood_tokens(self, requests: Any, *args: Any, **options: Any) -> Any:
                longest = max((len(continuation) for _, _, continuation in requests), default=0)
                if longest > self.max_length:
                    accepted = f"at least the {longest} tokens of the longest answer"
                    raise must_be("context of the model", accepted, self.max_length)
                return super()._loglikelihood_tokens(requests, *args, **options)

            def tok_decode(self, tokens: Any, skip_special_tokens: bool = True) -> Any:
                return None if tokens is None else super().tok_decode(tokens, skip_special_tokens)

        harness: Any = Harness(
            pretrained=causal.model,
            backend="causal",
            tokenizer=causal.tokenizer,
            max_length=causal.context,
            batch_size=batch_size,
            prefix_token_id=_prefix(causal.tokenizer),
            mixed_precision_dtype=None if precision == "float32" else precision,
        )
        from datasets.exceptions import DatasetsError

        try:
            return simple_evaluate(harness, tasks=names, num_fewshot=shots, limit=limit, task_manager=manager)
        except (OSError, DatasetsError) as error:
            named = ", ".join(tasks)
            raise InputError(f"lm-eval has no data for {named}: {first_line(error)}") from error


def _find(tasks: Sequence[str], folder: str | Path | None) -> tuple[Any, list[str]]:
    """lm-eval's index of tasks, and the names that match those given."""
    from lm_eval.tasks import TaskManager

    if folder is not None:  # alone first: the list of lm-eval's own takes seconds to read
        local = TaskManager(include_path=str(folder), include_defaults=False)
        if set(tasks) <= set(local.all_tasks):
            return local, list(dict.fromkeys(tasks))
    manager = TaskManager(include_path=None if folder is None else str(folder))
    names: dict[str, None] = {}
    for name in tasks:
        matched = manager.match_tasks([name])
        if not matched:
            raise unknown_name("task", name, manager.all_tasks, listed_by="lm-eval ls tasks")
        names |= dict.fromkeys(matched)
    return manager, list(names)


def _prefix(tokenizer: Any) -> int:
    """Token before a text that has nothing before it: a special token, or else a newline."""
    for special in (tokenizer.bos_token_id, tokenizer.eos_token_id):
        if special is not None:
            return int(special)
    return int(tokenizer(default_prompt(tokenizer), add_special_tokens=False)["input_ids"][0])
