"""Ways to read beyond the context that a rotary Llama was trained at: loss and recall, untuned and tuned.

    python experiments/context.py --json FILE [--updates 3000] [--seeds 0,1,2]

Four layers of width 64 with four heads, trained at a context of 256 characters of Dickens, into which values
are put that are asked for later. Then each way alone, and again after the same 300 updates at 256 or at 1,024
tokens. Losses are nats/character of validation text as it is; recall is the share of values that are given.
What the file has is not measured again.
"""

import argparse
import copy
import json
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, get_args

import torch
import torch.nn.functional as F
from torch import Tensor
from training import begun, train, windows
from transformers import LlamaConfig, LlamaForCausalLM

from nadaraya.data import load_corpus, train_character_tokenizer
from nadaraya.data.tokenizer import encode_text
from nadaraya.evaluation import length_losses
from nadaraya.evaluation.language import predict
from nadaraya.evaluation.lengths import Extended
from nadaraya.files import write_file
from nadaraya.interpret.conversion import convert_model
from nadaraya.interpret.windows import windows_of
from nadaraya.models import attach_kernel_bank, extend_context

CONTEXT, BATCH, RATE, TUNING = 256, 8, 3e-3, 300
SLOTS, VALUES = 8, 8
LENGTHS = (256, 512, 1024, 2048, 4096)
DISTANCES = (64, 192, 448, 960, 1984, 3968)
SCALED = get_args(Extended)
UNTUNED = ("rotary", *SCALED, "window 128", "window 256")
TUNED = (
    *(f"{way}, 256" for way in ("rotary", "drop", "bank in place", "bank beside")),
    *(f"{way}, 1024" for way in ("rotary", "yarn", "drop", "bank in place", "bank beside")),
)
LONGEST = LENGTHS[-1] / CONTEXT


def with_questions(tokens: Tensor, vocabulary: int, seed: int) -> Tensor:
    """In each 256 tokens, for each slot, one of its values; later its question and the value again."""
    generator = torch.Generator().manual_seed(seed)
    blocks = tokens[: len(tokens) // CONTEXT * CONTEXT].view(-1, CONTEXT).clone()
    rows = torch.arange(len(blocks))
    places = CONTEXT // SLOTS  # each slot asks within a part of its own
    for slot in range(SLOTS):
        first = vocabulary + slot * (VALUES + 1)  # of its values, then its question
        value = first + torch.randint(VALUES, (len(blocks),), generator=generator)
        asked = slot * places + torch.randint(2, places - 1, (len(blocks),), generator=generator)
        # At all scales alike: what is near is learned first.
        distance = (asked.double() ** torch.rand(len(blocks), generator=generator)).long().clamp(min=2)
        blocks[rows, asked - distance] = value
        blocks[rows, asked] = first + VALUES
        blocks[rows, asked + 1] = value
    return blocks.flatten()


def recalled(model: Any, text: Tensor, vocabulary: int, distance: int) -> float:
    """Share of values that are given, so many tokens after they were shown, among all tokens."""
    inputs = windows_of(text, distance + 17, 64)
    slots = torch.arange(len(inputs)) % SLOTS
    first = vocabulary + slots * (VALUES + 1)
    values = first + torch.arange(len(inputs)) // SLOTS
    inputs[:, 16], inputs[:, -1] = values, first + VALUES
    found = [predict(model, rows)[:, -1].argmax(-1) for rows in inputs.split(max(1, 16_384 // distance))]
    return (torch.cat(found) == values).float().mean().item()


def rotary_model(vocabulary: int, seed: int) -> LlamaForCausalLM:
    """A Llama with random weights."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=vocabulary + SLOTS * (VALUES + 1), hidden_size=64, intermediate_size=176,
        num_hidden_layers=4, num_attention_heads=4, max_position_embeddings=CONTEXT,
    )  # fmt: skip
    return LlamaForCausalLM(config)


def with_answers(model: Any, vocabulary: int, rows: Tensor, step: int) -> Tensor:
    """Loss of all tokens and that of answers: few, they would not be learned in this time in one mean."""
    logits, targets = model(input_ids=rows).logits[:, :-1], rows[:, 1:]
    asked = (rows[:, :-1] >= vocabulary) & ((rows[:, :-1] - vocabulary) % (VALUES + 1) == VALUES)
    loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
    return loss + F.cross_entropy(logits[asked], targets[asked])


def measured(model: Any, text: Tensor, vocabulary: int, scaled: Extended | None = None) -> dict[str, Any]:
    """Loss by length and recall by distance; `scaled` changes the angles to fit each of them."""
    found = length_losses(model, text, LENGTHS, windows=64, stride=128, extended=scaled)
    losses = {str(each.length): each.cross_entropy for each in found.lengths}
    recall = {}
    for distance in DISTANCES:
        with extended(model, scaled, distance + 17):
            recall[str(distance)] = recalled(model, text, vocabulary, distance)
    return {"loss": losses, "recall": recall}


def extended(model: Any, method: Extended | None, length: int) -> AbstractContextManager[Any]:
    """The method at this length, or the model as it is."""
    if method is None or length <= CONTEXT:
        return nullcontext()
    return extend_context(model, method, factor=length / CONTEXT)


def tuned(trained: Any, stream: Tensor, way: str, context: int, seed: int) -> tuple[Any, dict[str, float]]:
    """A copy after the updates of one way, and what `convert_model` measured."""
    model, positions, rate = copy.deepcopy(trained), "rotary", 3e-4
    if way in SCALED:
        extend_context(model, way, factor=LONGEST)  # type: ignore[arg-type]
    elif way == "bank beside":
        attach_kernel_bank(model, "bank-4")
        rate = 3e-3
    elif way != "rotary":
        positions = {"drop": "none", "bank in place": "bank"}[way]
    found = convert_model(
        model, stream, context=context, positions=positions, updates=TUNING, seed=seed,  # type: ignore[arg-type]
        batch_size=BATCH * CONTEXT // context, learning_rate=rate,
    )  # fmt: skip
    return model, found.losses


def main() -> None:
    """Train, change in every way, measure, write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--corpus", default="dickens")
    parser.add_argument("--updates", type=int, default=3000)
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--ways", default="", help="only those whose names begin so")
    parser.add_argument("--json", type=Path, required=True)
    options = parser.parse_args()
    settings = {"updates": options.updates, "tuning": TUNING, "context": CONTEXT, "batch": BATCH}
    found = begun(options.json, settings)
    text = load_corpus(options.corpus).text
    tokenizer = train_character_tokenizer(text)
    tokens = encode_text(tokenizer, text)
    border, vocabulary = len(tokens) * 9 // 10, tokenizer.vocab_size
    runs = {run["seed"]: run for run in found["runs"]}
    for seed in map(int, options.seeds.split(",")):
        run = runs.setdefault(seed, {"seed": seed, "untuned": {}, "tuned": {}, "steps": {}})
        missing = [way for way in (*UNTUNED, *TUNED) if way.startswith(options.ways)]
        missing = [way for way in missing if way not in run["untuned"] | run["tuned"]]
        if not missing:
            continue
        stream, held_out = with_questions(tokens[:border], vocabulary, seed), tokens[border:]
        trained = rotary_model(vocabulary, seed)

        def watch(step: int, loss: float) -> None:
            recall = [round(recalled(trained, held_out, vocabulary, each), 2) for each in (64, 192)]  # noqa: B023
            print(f"  {step:5} {loss:.3f}", *recall, flush=True)

        train(
            trained, windows(stream, CONTEXT, BATCH), partial(with_answers, trained, vocabulary),
            updates=options.updates, rate=RATE, seed=seed, watch=watch,
        )  # fmt: skip
        for way in missing:
            if way.startswith("window"):
                with extend_context(trained, "window", window=int(way.split()[1])):
                    run["untuned"][way] = measured(trained, held_out, vocabulary)
            elif way in UNTUNED:
                scaled = way if way in SCALED else None
                run["untuned"][way] = measured(trained, held_out, vocabulary, scaled)
            else:
                name, context = way.split(", ")
                model, run["steps"][way] = tuned(trained, stream, name, int(context), seed)
                run["tuned"][way] = measured(model, held_out, vocabulary)
            print(seed, way, (run["untuned"] | run["tuned"])[way], flush=True)
            found["runs"] = list(runs.values())
            write_file(options.json, json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
