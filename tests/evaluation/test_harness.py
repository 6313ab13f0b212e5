"""lm-evaluation-harness on our models and those of transformers: the same decisions, errors in one line."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import core_folders as folders
import pytest
import torch
import yaml
from core_for_lm_eval import write_lm_eval_tasks
from transformers import LlamaConfig, LlamaForCausalLM

from nadaraya.data import train_byte_pair_tokenizer
from nadaraya.errors import InputError
from nadaraya.evaluation import evaluate_lm_eval
from nadaraya.evaluation.core import CoreTask, TaskResult, evaluate_core, read_core
from nadaraya.evaluation.language import CausalModel
from nadaraya.models import KernelGPTConfig, KernelGPTForCausalLM

CONTEXT = 512


def causal_model(kind: str, text: str) -> CausalModel:
    """A random model, with weights so large that its preferences are clear."""
    tokenizer = train_byte_pair_tokenizer(text, 400)
    shape: Any = {
        "vocab_size": tokenizer.vocab_size,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "max_position_embeddings": CONTEXT,
        "initializer_range": 0.3,
    }
    torch.manual_seed(0)
    if kind == "KernelGPT":
        model: Any = KernelGPTForCausalLM(KernelGPTConfig(**shape, variant="gpa-mul"))
    else:
        model = LlamaForCausalLM(LlamaConfig(**shape, intermediate_size=64))
    return CausalModel(kind, model.eval(), tokenizer, CONTEXT)


def check_agreement(found: dict[str, Any], task: CoreTask, ours: TaskResult) -> None:
    """One decision after the other, and both accuracies."""
    samples = sorted(found["samples"][f"core_{task.label}"], key=lambda sample: sample["doc_id"])
    assert len(samples) == ours.examples
    if task.kind == "language_modeling":
        greedy = [0 if sample["filtered_resps"][0][1] else -1 for sample in samples]
        assert greedy == [decision.acc for decision in ours.decisions]
        return
    likelihoods = [[response[0] for response in sample["filtered_resps"]] for sample in samples]
    assert [row.index(max(row)) for row in likelihoods] == [decision.acc for decision in ours.decisions]
    assert found["results"][f"core_{task.label}"]["acc,none"] == pytest.approx(ours.acc)
    assert found["results"][f"core_{task.label}"]["acc_norm,none"] == pytest.approx(ours.acc_norm)


@pytest.mark.slow
@pytest.mark.skipif(not folders.SHARED.is_dir(), reason="needs ../shared/data/core_tasks")
@pytest.mark.parametrize("kind", ["KernelGPT", "Llama"])
def test_every_decision_is_that_of_the_harness(kind: str, tmp_path: Path) -> None:
    pytest.importorskip("lm_eval")
    tasks = read_core(folders.SHARED, ["hellaswag_zeroshot", "copa", "winograd"])
    causal = causal_model(kind, " ".join(row["continuation"] for row in tasks[2].rows) * 3)
    names = write_lm_eval_tasks(tasks, tmp_path, limit=50)
    found = evaluate_lm_eval(causal, names, folder=tmp_path)
    for task in tasks:
        (ours,) = evaluate_core(causal.model, causal.tokenizer, [task], context=CONTEXT, limit=50).results
        check_agreement(found, task, ours)
        assert len({decision.acc for decision in ours.decisions}) > 1
        assert any(decision.acc != decision.core for decision in ours.decisions)  # the rules do differ


@pytest.mark.slow
def test_decisions_with_shots_and_of_every_kind_are_those_of_the_harness(tmp_path: Path) -> None:
    pytest.importorskip("lm_eval")
    answer = CoreTask("jeopardy", "language_modeling", 2, "\nAnswer: ", 0.0, tmp_path / "jeopardy.jsonl")
    folders.write_rows(answer.path, folders.ENDING)
    tasks = [*read_core(folders.flat_folder(tmp_path)), answer]
    causal = causal_model("KernelGPT", "apples and pears, cats and dogs, green or red. " * 9)
    found = evaluate_lm_eval(causal, write_lm_eval_tasks(tasks, tmp_path), folder=tmp_path)
    for task in tasks:
        (ours,) = evaluate_core(causal.model, causal.tokenizer, [task], context=CONTEXT).results
        check_agreement(found, task, ours)


def test_without_lm_eval_its_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lm_eval", None)
    with pytest.raises(InputError, match=r'lm-eval needs lm_eval: pip install "nadaraya\[lm-eval\]"'):
        evaluate_lm_eval(causal_model("Llama", "any text " * 99), ["copa"])


def test_options_out_of_range_are_refused_before_lm_eval_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lm_eval", None)
    causal = causal_model("Llama", "any text " * 99)
    for options, words in (
        ({"shots": -1}, "shots must be an integer of at least 0"),
        ({"limit": 0}, "limit must be an integer of at least 1"),
        ({"batch_size": 0}, "batch_size must be an integer of at least 1"),
        ({"folder": "absent"}, "the folder of tasks must be one that exists"),
    ):
        with pytest.raises(InputError, match=words):
            evaluate_lm_eval(causal, ["copa"], **options)  # type: ignore[arg-type]


@pytest.mark.slow
def test_texts_are_generated_without_an_end_of_text_token(tmp_path: Path) -> None:
    pytest.importorskip("lm_eval")
    (tmp_path / "texts.jsonl").write_text('{"question": "any", "answer": "text"}\n' * 3)
    options: Any = {
        "data_files": {"test": str(tmp_path / "texts.jsonl")},
        "cache_dir": str(tmp_path / "cache"),
    }
    task = {
        "task": "written",
        "dataset_path": "json",
        "dataset_kwargs": options,
        "test_split": "test",
        "output_type": "generate_until",
        "doc_to_text": "{{question}}",
        "doc_to_target": "{{answer}}",
        "generation_kwargs": {"until": ["\n"], "max_gen_toks": 8},
        "metric_list": [{"metric": "exact_match"}],
    }
    (tmp_path / "written.yaml").write_text(yaml.safe_dump(task))
    causal = causal_model("KernelGPT", "any text " * 99)
    assert causal.tokenizer.eos_token_id is None
    found = evaluate_lm_eval(causal, ["written"], folder=tmp_path)
    texts = [sample["filtered_resps"][0] for sample in found["samples"]["written"]]
    assert len(texts) == 3
    assert texts[0]
    assert len(set(texts)) == 1


@pytest.mark.slow
def test_an_answer_longer_than_the_context_is_one_line(tmp_path: Path) -> None:
    pytest.importorskip("lm_eval")
    causal = causal_model("Llama", "any text " * 99)
    folder = folders.flat_folder(tmp_path)
    write_lm_eval_tasks(read_core(folder, ["piqa"]), tmp_path)
    with pytest.raises(InputError, match=r"at least the \d+ tokens of the longest answer, got 4"):
        evaluate_lm_eval(replace(causal, context=4), ["core_piqa"], folder=tmp_path)


@pytest.mark.slow
def test_an_unknown_task_and_one_without_data_are_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks = pytest.importorskip("lm_eval.tasks")

    class WithoutDefaults(tasks.TaskManager):  # type: ignore[misc, name-defined]
        """Does not read lm-eval's own 14,000 tasks, which takes seconds."""

        def __init__(self, **options: Any) -> None:
            super().__init__(**{**options, "include_defaults": False})

    monkeypatch.setattr(tasks, "TaskManager", WithoutDefaults)
    causal = causal_model("Llama", "any text " * 99)
    (name,) = write_lm_eval_tasks(read_core(folders.flat_folder(tmp_path), ["piqa"]), tmp_path)
    with pytest.raises(InputError, match="task must be one of 'core_piqa', got 'core_pica': did you mean"):
        evaluate_lm_eval(causal, ["core_pica"], folder=tmp_path)
    (tmp_path / f"{name}.jsonl").unlink()
    with pytest.raises(InputError, match=f"lm-eval has no data for {name}"):
        evaluate_lm_eval(causal, [name], folder=tmp_path)
