"""lm-evaluation-harness on our models and those of transformers: the same decisions, errors in one line."""

import sys
from pathlib import Path
from typing import Any

import core_folders as folders
import pytest
import torch
import yaml
from transformers import LlamaConfig, LlamaForCausalLM

from nadaraya.data import train_byte_pair_tokenizer
from nadaraya.errors import InputError
from nadaraya.evaluation import CausalModel, evaluate_lm_eval
from nadaraya.evaluation.core import CoreTask, evaluate_task, read_core
from nadaraya.evaluation.core.prompts import shuffled_rows
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


def harness_task(task: CoreTask, folder: Path, limit: int | None) -> str:
    """Write a task of CORE as one of lm-eval with the same prompts; its name."""
    name = f"local_{task.label}"
    folders.write_rows(folder / f"{name}.jsonl", shuffled_rows(task, limit))
    asked = {"doc_to_text": "query", "doc_to_choice": "choices", "doc_to_target": "gold"}
    if task.kind == "schema":
        asked = {
            "doc_to_text": "gold",
            "doc_to_choice": "context_options",
            "doc_to_target": "continuation",
        }
    settings = {
        "task": name,
        "dataset_path": "json",
        "dataset_kwargs": {
            "data_files": {"test": str(folder / f"{name}.jsonl")},
            "cache_dir": str(folder / "cache"),
        },
        "test_split": "test",
        "output_type": "multiple_choice",
        "metric_list": [{"metric": "acc"}, {"metric": "acc_norm"}],
        **asked,
    }
    (folder / f"{name}.yaml").write_text(yaml.safe_dump(settings))
    return name


@pytest.mark.slow
@pytest.mark.skipif(not folders.SHARED.is_dir(), reason="needs ../shared/data/core_tasks")
@pytest.mark.parametrize("kind", ["KernelGPT", "Llama"])
def test_every_decision_is_that_of_the_harness(kind: str, tmp_path: Path) -> None:
    pytest.importorskip("lm_eval")
    tasks = read_core(folders.SHARED, ["hellaswag_zeroshot", "copa", "winograd"])
    causal = causal_model(kind, " ".join(row["continuation"] for row in tasks[2].rows) * 3)
    limits = {"hellaswag_zeroshot": 60, "copa": None, "winograd": None}
    names = [harness_task(task, tmp_path, limits[task.label]) for task in tasks]
    found = evaluate_lm_eval(causal, names, folder=tmp_path)
    for name, task in zip(names, tasks, strict=True):
        ours = evaluate_task(causal.model, causal.tokenizer, task, context=CONTEXT, limit=limits[task.label])
        samples = sorted(found["samples"][name], key=lambda sample: sample["doc_id"])
        assert len(samples) == ours.examples == (limits[task.label] or len(task.rows))
        likelihoods = [[response[0] for response in sample["filtered_resps"]] for sample in samples]
        assert [row.index(max(row)) for row in likelihoods] == [decision.acc for decision in ours.decisions]
        assert found["results"][name]["acc,none"] == pytest.approx(ours.acc)
        assert found["results"][name]["acc_norm,none"] == pytest.approx(ours.acc_norm)
        assert len({decision.acc for decision in ours.decisions}) > 1  # not one answer for all
        assert any(decision.acc != decision.core for decision in ours.decisions)  # the rules do differ


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
def test_an_unknown_task_and_one_without_data_are_one_line(tmp_path: Path) -> None:
    pytest.importorskip("lm_eval")
    causal = causal_model("Llama", "any text " * 99)
    with pytest.raises(InputError, match="did you mean 'hellaswag'"):
        evaluate_lm_eval(causal, ["helaswag"])
    name = harness_task(read_core(folders.flat_folder(tmp_path))[0], tmp_path, None)
    (tmp_path / f"{name}.jsonl").unlink()
    with pytest.raises(InputError, match=f"lm-eval has no data for {name}"):
        evaluate_lm_eval(causal, [name], folder=tmp_path)
