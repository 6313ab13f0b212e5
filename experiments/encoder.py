"""A pretrained sentence encoder of BERT's kind from inside, and a kernel bank that is tuned in it alone.

    python experiments/encoder.py --model FOLDER --json FILE [--updates 80] [--seeds 0,1,2]

FOLDER has weights and tokenizer as transformers writes them; embeddings are means over tokens. The task is
made from Dickens: 20 words of a paragraph have to find the next 20 among those of 512 paragraphs. The first
eight tenths of the text are trained on, the last tenth, other books, is held out. There is no dropout.
"""

import argparse
import copy
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, inject_adapter_in_model
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import AutoModel, AutoTokenizer

from nadaraya.attention import reference
from nadaraya.attention.functional import watching_calls
from nadaraya.data import load_corpus
from nadaraya.files import write_file
from nadaraya.interpret.heads import rank_correlation
from nadaraya.models import attach_attention, attach_kernel_bank

WORDS, BATCH, TEMPERATURE, LONGEST, HELD_OUT = 20, 16, 0.05, 32, 512
Pairs = list[tuple[Any, Any]]


def pairs_of(text: str, tokenizer: Any, count: int) -> Pairs:
    """Tokens of two adjacent passages of paragraphs that are long enough, evenly spaced."""
    long = [words for part in text.split("\n\n") if len(words := part.split()) >= 2 * WORDS]
    chosen = [long[i * len(long) // count] for i in range(count)]
    halves = ([" ".join(words[at : at + WORDS]) for words in chosen] for at in (0, WORDS))
    first, second = (tokenizer(half, truncation=True, max_length=LONGEST)["input_ids"] for half in halves)
    return list(zip(first, second, strict=True))


def embedded(model: Any, rows: Sequence[list[int]]) -> Tensor:
    """Unit vectors of texts, (B, D)."""
    tokens = nn.utils.rnn.pad_sequence([torch.tensor(row) for row in rows], batch_first=True)  # with 0
    kept = (tokens != 0).float()
    out = model(input_ids=tokens, attention_mask=kept.long()).last_hidden_state
    return F.normalize((out * kept[..., None]).sum(1), dim=-1)


def similarities(model: Any, pairs: Pairs) -> Tensor:
    """Cosines of first and second passages, (pairs, pairs)."""
    chunks = [pairs[at : at + BATCH] for at in range(0, len(pairs), BATCH)]
    first, second = (torch.cat([embedded(model, [p[i] for p in chunk]) for chunk in chunks]) for i in (0, 1))
    return first @ second.T


def loss_of(cosines: Tensor) -> Tensor:
    """InfoNCE loss in nats."""
    return F.cross_entropy(cosines / TEMPERATURE, torch.arange(len(cosines)))


@torch.no_grad()
def score(model: Any, pairs: Pairs) -> dict[str, float]:
    """The loss, and the share of passages whose nearest is their own."""
    cosines = similarities(model, pairs)
    found = cosines.argmax(1) == torch.arange(len(pairs))
    return {"loss": loss_of(cosines).item(), "top1": found.float().mean().item()}


@torch.no_grad()
def heads_by_lag(model: Any, rows: list[list[int]]) -> list[dict[str, Any]]:
    """Share that the signed lag explains of the logits' variance within queries, as `implied_kernels`.

    That takes causal models alone. The special tokens at both ends of a text are left out.
    """
    length, calls = LONGEST - 2, []
    lags = (torch.arange(length)[:, None] - torch.arange(length) + length - 1).flatten()

    def add(arguments: Any) -> None:
        logits = reference.logits(arguments)[0, :, 1:-1, 1:-1].double()
        centred = (logits - logits.mean(-1, keepdim=True)).flatten(1)
        by_lag = centred.new_zeros(len(centred), 2 * length - 1).index_add_(1, lags, centred)
        calls.append(torch.cat([by_lag, centred.square().sum(1, keepdim=True)], 1))

    with attach_attention(model), watching_calls(add):
        for row in rows:
            model(input_ids=torch.tensor([row]))
    sums = torch.stack(calls).unflatten(0, (len(rows), -1)).sum(0)  # (layers, heads, lags and squares)
    seen = F.one_hot(lags.view(length, length), 2 * length - 1).sum(1).double()  # (queries, lags)
    gram = len(rows) * (seen.sum(0).diag() - seen.T @ seen / length)
    r2 = (sums[..., :-1] @ torch.linalg.pinv(gram) * sums[..., :-1]).sum(-1) / sums[..., -1]
    places = [(layer, head) for layer in range(len(r2)) for head in range(len(r2[0]))]
    return [{"layer": layer, "head": head, "r2": r2[layer, head].item()} for layer, head in places]


def loss_without(model: Any, layer: int, head: int, pairs: Pairs) -> float:
    """The loss where the output of a head is zero."""
    keep = torch.arange(model.config.num_attention_heads)[:, None] != head
    handle = model.encoder.layer[layer].attention.output.dense.register_forward_pre_hook(
        lambda _, given: ((given[0].unflatten(-1, (len(keep), -1)) * keep).flatten(-2), *given[1:])
    )
    loss = score(model, pairs)["loss"]
    handle.remove()
    return loss


def tuned(model: Any, way: str, pairs: Pairs, updates: int, seed: int) -> tuple[Any, int]:
    """A copy in which a few parameters were tuned, by AdamW with a linear decay, and how many these are."""
    torch.manual_seed(seed)
    model = copy.deepcopy(model).requires_grad_(False)
    if way == "kernel bank":
        learned = list(attach_kernel_bank(model).parameters())
    elif way == "norm gains":  # after attention, in the last half of the layers
        half = model.encoder.layer[len(model.encoder.layer) // 2 :]
        learned = [layer.attention.output.LayerNorm.weight.requires_grad_() for layer in half]
    else:  # of rank 1 beside W_V
        inject_adapter_in_model(LoraConfig(r=1, lora_alpha=1, target_modules=["value"]), model)
        learned = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(learned, WAYS[way], weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, updates)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(updates):
        rows = torch.randint(len(pairs), (BATCH,), generator=generator).tolist()
        optimizer.zero_grad()
        loss_of(similarities(model, [pairs[row] for row in rows])).backward()
        optimizer.step()
        schedule.step()
    return model, sum(parameter.numel() for parameter in learned)


# Rates: the best of three or four after 20 updates with another seed, on 256 pairs of the text trained on.
WAYS = {"kernel bank": 3e-1, "norm gains": 3e-2, "LoRA": 3e-2}


def main() -> None:
    """Attach, look, tune, write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--updates", type=int, default=80)
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--json", type=Path, required=True)
    options = parser.parse_args()
    tokenizer, model = AutoTokenizer.from_pretrained(options.model), AutoModel.from_pretrained(options.model)
    text = load_corpus("dickens").text
    known = pairs_of(text[: len(text) * 8 // 10], tokenizer, 8192)
    held_out = pairs_of(text[len(text) * 9 // 10 :], tokenizer, HELD_OUT)
    some = [first for first, _ in held_out[:BATCH]]
    before, adapter = embedded(model.eval(), some), attach_kernel_bank(model)
    change = (embedded(model, some) - before).abs().max().item()
    adapter.detach()
    found: dict[str, Any] = {"updates": options.updates, "change by closed banks": change, "runs": []}
    ids = tokenizer(text[-20_000:], add_special_tokens=False)["input_ids"][: 64 * (LONGEST - 2)]
    pieces = [ids[at : at + LONGEST - 2] for at in range(0, len(ids), LONGEST - 2)]
    rows = [[tokenizer.cls_token_id, *piece, tokenizer.sep_token_id] for piece in pieces]
    heads, few = heads_by_lag(model, rows), held_out[::8]
    whole = score(model, few)["loss"]
    for row in heads:
        row["loss_increase"] = loss_without(model, row["layer"], row["head"], few) - whole
    rank = rank_correlation([(row["r2"], row["loss_increase"]) for row in heads])
    found |= {"heads": heads, "rank correlation": rank, "untuned": score(model, held_out)}
    print(found, flush=True)
    for seed in map(int, options.seeds.split(",")):
        for way in WAYS:
            other, parameters = tuned(model, way, known, options.updates, seed)
            row = {"seed": seed, "way": way, "parameters": parameters, **score(other, held_out)}
            found["runs"].append(row)
    write_file(options.json, json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
