"""Layers of a trained Llama replaced by a variant, and trained in several ways for as many updates.

    python experiments/distillation.py --json FILE [--updates 1000] [--tuning 300] [--seeds 0]

The teacher has four layers of width 128 with four heads and is trained on 256 characters of Dickens. Every
second layer is replaced, or all of them. "layers, then …" spends the first third of the updates on each
replaced layer alone, on the mean squared difference of its output from the former layer's, for the teacher's
inputs. "fresh weights" starts from random projections. Losses are validation, nats/character.
"""

import argparse
import copy
import json
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from training import train, windows
from transformers import LlamaConfig, LlamaForCausalLM

from nadaraya.attention.layer import KernelSelfAttention
from nadaraya.data import load_corpus, train_character_tokenizer
from nadaraya.data.tokenizer import encode_text
from nadaraya.files import write_file
from nadaraya.interpret.windows import Windows, windows_of
from nadaraya.models import replace_attention

CONTEXT, BATCH, RATE, TUNING_RATE, LAYERS = 256, 8, 1.5e-3, 3e-4, 4
HALF, ALL = tuple(range(1, LAYERS, 2)), tuple(range(LAYERS))
CASES = (("gpa-rope", HALF), ("gka", HALF), ("gka", ALL))
WAYS = {
    "cross-entropy": (),
    "cross-entropy + KL": ("kl",),
    "layers, then cross-entropy": ("layers",),
    "layers, then cross-entropy + KL": ("layers", "kl"),
    "fresh weights, cross-entropy + KL": ("fresh", "kl"),
}


def teacher_of(vocabulary: int, seed: int) -> Any:
    """A Llama with random weights."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=vocabulary, hidden_size=128, intermediate_size=344, num_hidden_layers=LAYERS,
        num_attention_heads=4, max_position_embeddings=CONTEXT,
    )  # fmt: skip
    return LlamaForCausalLM(config)


def own_loss(model: Any, rows: Tensor, step: int) -> Tensor:
    """Cross-entropy of the next character."""
    loss: Tensor = model(rows, labels=rows, use_cache=False).loss
    return loss


def distillation_loss(
    teacher: Any,
    student: Any,
    way: tuple[str, ...],
    layers: tuple[int, ...],
    first: int,
    rows: Tensor,
    step: int,
) -> Tensor:
    """The loss of a way at a step, of which the first few may be of the layers alone."""
    if "layers" in way and step < first:
        calls: list[tuple[Tensor, Tensor]] = []
        hooks = [
            teacher.model.layers[layer].self_attn.register_forward_hook(
                lambda _, args, options, out: calls.append((options["hidden_states"], out[0])),
                with_kwargs=True,
            )
            for layer in layers
        ]
        with torch.no_grad():
            teacher.model(rows, use_cache=False)
        for hook in hooks:
            hook.remove()
        parts = [student.model.layers[layer].self_attn for layer in layers]
        losses = [F.mse_loss(part(x)[0], y) / y.var() for part, (x, y) in zip(parts, calls, strict=True)]
        return torch.stack(losses).mean()
    out = student(rows, labels=rows, use_cache=False)
    loss: Tensor = out.loss
    if "kl" in way:
        with torch.no_grad():
            target = teacher(rows, use_cache=False).logits.log_softmax(-1)
        divergence = F.kl_div(out.logits.log_softmax(-1), target, log_target=True, reduction="none")
        loss = loss + divergence.sum(-1).mean()
    return loss


def student_of(teacher: Any, variant: str, layers: tuple[int, ...], fresh: bool, seed: int) -> Any:
    """A copy of the teacher with replaced layers."""
    torch.manual_seed(seed)
    student = copy.deepcopy(teacher)
    replace_attention(student, variant, layers=layers)
    for part in student.modules():
        if fresh and isinstance(part, KernelSelfAttention):
            for weight in part.projections.parameters():
                torch.nn.init.normal_(weight, std=0.02)
    return student


def main() -> None:
    """Train the teacher, replace, train in every way, write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--corpus", default="dickens")
    parser.add_argument("--updates", type=int, default=1000, help="of the teacher")
    parser.add_argument("--tuning", type=int, default=300, help="updates of each student")
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--json", type=Path, required=True)
    options = parser.parse_args()
    text = load_corpus(options.corpus).text
    tokenizer = train_character_tokenizer(text)
    tokens = encode_text(tokenizer, text)
    border = len(tokens) * 9 // 10
    rows = windows_of(tokens[border:], CONTEXT + 1, 64)
    held_out = Windows(rows[:, :-1], rows[:, 1:])
    rows_of = windows(tokens[:border], CONTEXT, BATCH)
    tune = partial(train, updates=options.tuning, rate=TUNING_RATE, warmup=10)
    settings = {"updates": options.updates, "tuning": options.tuning, "context": CONTEXT, "batch": BATCH}
    found: dict[str, Any] = {"settings": settings, "runs": []}
    for seed in map(int, options.seeds.split(",")):
        teacher = teacher_of(tokenizer.vocab_size, seed)
        train(teacher, rows_of, partial(own_loss, teacher), updates=options.updates, rate=RATE)
        run: dict[str, Any] = {"seed": seed, "teacher": held_out.loss(teacher), "students": []}
        longer = copy.deepcopy(teacher)
        tune(longer, rows_of, partial(own_loss, longer))
        run["teacher, tuned"] = held_out.loss(longer)
        print(seed, run, flush=True)
        for variant, layers in CASES:
            for name, way in WAYS.items():
                student = student_of(teacher, variant, layers, "fresh" in way, seed)
                start = held_out.loss(student)
                loss = partial(distillation_loss, teacher, student, way, layers, options.tuning // 3)
                tune(student, rows_of, loss)
                row = {"variant": variant, "layers": layers, "way": name, "start": start}
                run["students"].append({**row, "loss": held_out.loss(student)})
                print(seed, run["students"][-1], flush=True)
        found["runs"].append(run)
        write_file(options.json, json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
