"""Train a small KernelGPT on plain text and run CORE's tasks on it, against guesses at random.

    python experiments/core.py --corpus wiki.txt --tasks ../shared/data/core_tasks --run runs/core

About five minutes of one processor to train and a few to evaluate. The run folder is kept: a second call
evaluates it again. Writes core.json into --out; with --agree N it writes agreement.json instead, for which
lm-eval decides N examples of HellaSwag, COPA and Winograd too, for this model and for a random Llama.
"""

import argparse
import json
import platform
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from core_for_lm_eval import write_lm_eval_tasks
from transformers import LlamaConfig, LlamaForCausalLM

from nadaraya.evaluation import evaluate_lm_eval
from nadaraya.evaluation.core import evaluate_core, read_core
from nadaraya.evaluation.language import CausalModel
from nadaraya.files import write_file
from nadaraya.training import Run, load_recipe, open_causal_model, train

RECIPE = (
    "data.limit=8000000",
    "data.tokenizer=bpe",
    "data.vocabulary=2048",
    "data.context=512",
    "training.steps=600",
    "training.batch_size=4",
    "training.warmup_steps=40",
    "training.evaluate_every=100",
)
COMPARED = ("hellaswag_zeroshot", "copa", "winograd")


def core_of(run: Run, causal: CausalModel, tasks: Path, limit: int) -> dict[str, Any]:
    """CORE's figures of a run, with what they depend on."""
    recipe, final = run.text_recipe(), run.final or {}
    evaluation = evaluate_core(
        causal.model,
        causal.tokenizer,
        read_core(tasks),
        context=causal.context,
        limit=limit,
        progress=lambda task, done, total: print(task, total, flush=True) if done == total else None,
    )
    training_tokens = recipe.training.steps * recipe.training.batch_size * recipe.data.context
    described = {
        "variant": recipe.label,
        "parameters": final["parameters"],
        "training_tokens": training_tokens,
        "context": causal.context,
        "bits_per_byte": final["bits_per_byte"],
    }
    return {"model": described, **evaluation.figures()}


def random_llama(like: CausalModel) -> CausalModel:
    """A model of transformers that has learnt nothing, with clear preferences and the other's tokens."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=like.tokenizer.vocab_size,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=like.context,
        initializer_range=0.2,
    )
    return CausalModel("random Llama", LlamaForCausalLM(config).eval(), like.tokenizer, like.context)


def agreement(causal: CausalModel, folder: Path, limit: int) -> dict[str, dict[str, Any]]:
    """Of each task, how many decisions are those of lm-eval's `acc`, and how many CORE's rule changes."""
    tasks = read_core(folder, COMPARED)
    with tempfile.TemporaryDirectory() as scratch:
        names = write_lm_eval_tasks(tasks, scratch, limit=limit)
        found = evaluate_lm_eval(causal, names, folder=scratch)
    ours = evaluate_core(causal.model, causal.tokenizer, tasks, context=causal.context, limit=limit)
    counts = {}
    for name, result in zip(names, ours.results, strict=True):
        samples = sorted(found["samples"][name], key=lambda sample: sample["doc_id"])
        theirs = [[answer[0] for answer in sample["filtered_resps"]] for sample in samples]
        taken = [row.index(max(row)) for row in theirs]
        counts[result.task] = {
            "examples": result.examples,
            "same": sum(a == d.acc for a, d in zip(taken, result.decisions, strict=True)),
            "core_differs_from_acc": sum(d.core != d.acc for d in result.decisions),
            "lm_eval": {key: found["results"][name][f"{key},none"] for key in ("acc", "acc_norm")},
            "nadaraya": {"acc": result.acc, "acc_norm": result.acc_norm, "core": result.accuracy},
        }
    return counts


def main() -> None:
    """Train where the folder has no run yet, evaluate, write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--corpus", required=True, help="a text file or folder")
    parser.add_argument("--tasks", type=Path, required=True, help="a folder with CORE's tasks")
    parser.add_argument("--run", type=Path, default=Path("runs/core"))
    parser.add_argument("--variant", default="gpa-mul")
    parser.add_argument("--limit", type=int, default=100, help="examples per task")
    parser.add_argument("--agree", type=int, help="examples per task that lm-eval decides")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "core")
    arguments = parser.parse_args()
    recipe = load_recipe(
        "demo", [f"data.corpus={arguments.corpus}", f"model.variant={arguments.variant}", *RECIPE]
    )
    run = train(recipe, arguments.run)
    causal = open_causal_model(arguments.run)
    versions = {"python": platform.python_version()} | {
        name: version(name) for name in ("torch", "transformers", "lm-eval")
    }
    if arguments.agree:
        compared: dict[str, Any] = {
            name: agreement(model, arguments.tasks, arguments.agree)
            for name, model in (
                (f"KernelGPT, {recipe.label}", causal),
                ("Llama, random", random_llama(causal)),
            )
        }
        name, result = "agreement.json", {"models": compared}
    else:
        name, result = "core.json", core_of(run, causal, arguments.tasks, arguments.limit)
    document = json.dumps({"versions": versions, **result}, indent=1)
    write_file(arguments.out / name, document + "\n")
    print(document)


if __name__ == "__main__":
    main()
