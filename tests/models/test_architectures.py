"""Every architecture of transformers gives with our attention what it gives with its own, or is refused.

The models are tiny and random, with every parameter away from zero, so that whatever a model does with masks,
indices, sinks or positions is felt. None may be different without a word.
"""

import inspect
import re
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from architectures import VOCABULARY, architectures, build
from torch import Tensor
from transformers import AttentionInterface, PreTrainedModel

from nadaraya import InputError
from nadaraya.models.attach import interface

N = 12
KINDS = architectures()
TOO_LARGE = {"Gemma3nForConditionalGeneration"}  # its vision tower is timm's
GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "other-models.md"
# Their hidden states at padding, which are rounding in eager attention, go into patches of real tokens.
READS_PADDING = {"blt"}
# Their weights leave the sink out, while their outputs have it.
SINKS_LEFT_OUT = {"granite_swa", "granitemoe_swa"}
PADDING = torch.ones(4, N, dtype=torch.long)
PADDING[1, :4] = 0
PADDING[2, -4:] = 0
PADDING[3, 4:7] = 0
PLACES = torch.tensor([[*range(5), *range(N - 5)]])
BOUNDS = torch.tensor([0, 5, N], dtype=torch.int32)
PACKED: dict[str, dict[str, Any]] = {
    "cu_seq_lens_q": {"cu_seq_lens_q": BOUNDS, "cu_seq_lens_k": BOUNDS, "max_length_q": 7, "max_length_k": 7},
    "seq_idx": {"seq_idx": torch.tensor([[0] * 5 + [1] * 7], dtype=torch.int32)},
}

OUTCOMES = ("refused", "not served", "not possible", "equal")
GUIDED = f"transformers {transformers.__version__}" in GUIDE.read_text(encoding="utf-8")
Results = dict[str, Tensor]


@pytest.fixture
def received() -> Iterator[set[str]]:
    """The names of the options that the attention was called with."""
    names: set[str] = set()

    def noted(
        module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any, **options: Any
    ) -> Any:
        names.update(["query"], (name for name, given in options.items() if given is not None))
        return interface.attention(module, query, key, value, attention_mask, **options)

    AttentionInterface.register("nadaraya", noted)
    yield names
    AttentionInterface.register("nadaraya", interface.attention)


def tokens(batch: int, seed: int = 1) -> Tensor:
    return torch.randint(3, VOCABULARY - 1, (batch, N), generator=torch.Generator().manual_seed(seed))


def logits(model: PreTrainedModel, batch: int = 4, gradients: bool = True, **inputs: Any) -> Results:
    """Logits where there are tokens, and the gradient of a weighted sum of them for every parameter."""
    mask = inputs.get("attention_mask")
    if model.config.is_encoder_decoder:
        inputs = {"decoder_input_ids": tokens(batch, seed=2), "decoder_attention_mask": mask, **inputs}
    with torch.set_grad_enabled(gradients):
        out = model(input_ids=tokens(batch), **inputs).logits
    if mask is not None and mask.shape == out.shape[:2]:
        out = out[mask.bool()]
    if not gradients:
        return {"logits": out}
    model.zero_grad()
    (out * torch.linspace(-1, 1, out.numel()).view_as(out)).sum().backward()
    grads = {name: each.grad.clone() for name, each in model.named_parameters() if each.grad is not None}
    return {"logits": out.detach(), **grads}


@torch.no_grad()
def text(model: PreTrainedModel) -> Results:
    options: dict[str, Any] = {
        "max_new_tokens": 8,
        "do_sample": False,
        "eos_token_id": None,
        "pad_token_id": 0,
    }
    options |= {"no_repeat_ngram_size": 2, "disable_compile": True, "attention_mask": PADDING[:2]}
    if model.config.is_encoder_decoder:
        options["decoder_start_token_id"] = 0
    return {"text": model.generate(tokens(2), **options)}


@torch.no_grad()
def weights(model: PreTrainedModel, kind: str) -> Results:
    inputs = {"decoder_input_ids": tokens(4, seed=2)} if model.config.is_encoder_decoder else {}
    out = model(input_ids=tokens(4), output_attentions=True, **inputs)
    found = {}
    for name in ("attentions", "encoder_attentions", "decoder_attentions", "cross_attentions"):
        for layer, each in enumerate(out.get(name) or ()):
            if isinstance(each, Tensor):
                total = each.sum(-1, keepdim=True) if kind in SINKS_LEFT_OUT else 1.0
                found[f"{name} {layer}"] = each / total
    return found


def calls(model: PreTrainedModel, kind: str) -> dict[str, Callable[[], Results]]:
    """All that is asked of a model, by name."""
    asked: dict[str, Callable[[], Results]] = {
        "logits": lambda: logits(model),
        "padding": lambda: logits(model, attention_mask=PADDING, gradients=kind not in READS_PADDING),
        "weights": lambda: weights(model, kind),
    }
    if model.can_generate():
        asked["text"] = lambda: text(model)
    if "logits_to_keep" in inspect.signature(model.forward).parameters:
        for count in (1, 3):
            asked[f"logits_to_keep={count}"] = partial(logits, model, logits_to_keep=count)
    if model.config.is_encoder_decoder:
        return asked
    places: dict[str, Any] = {"batch": 1, "gradients": False, "use_cache": False, "position_ids": PLACES}
    asked["position_ids"] = lambda: logits(model, **places)
    for name, inputs in PACKED.items():
        asked[f"position_ids, {name}"] = partial(logits, model, **places, **inputs)
        alone = {**places, **inputs, "position_ids": None}
        asked[name] = partial(logits, model, **alone)
    return asked


def outcome(model: PreTrainedModel, name: str, call: Callable[[], Results], received: set[str]) -> str:
    """'equal', 'refused', 'not served', 'not possible' of the model's own attention, or what is different."""
    model.set_attn_implementation("eager")
    try:
        want = call()
    except Exception:
        return "not possible"
    model.set_attn_implementation("nadaraya")
    received.clear()
    try:
        got = call()
    except InputError as error:
        return "refused" if str(error).isprintable() else "refused in more than one line"
    if not received:
        return "not served"
    if name in PACKED and name in received:  # eager attention itself reads the documents as one text
        return f"different: {name} had no effect"
    return difference(got, want)


def difference(got: Results, want: Results) -> str:
    if got.keys() != want.keys():
        return f"different: {sorted(got.keys() ^ want.keys())[:3]}"
    # Some gradients are 0 but for rounding, as of a bias of keys: that of the others is their scale.
    scale = max(each.abs().max().item() for each in want.values() if each.numel()) if want else 0.0
    for name, each in want.items():
        if got[name].shape != each.shape or not each.isfinite().all():
            return f"different: {name} {tuple(got[name].shape)}, not {tuple(each.shape)}, or not finite"
        if each.numel():
            allowed = 1e-3 * each.abs().max().item() + 1e-5 * scale if each.is_floating_point() else 0
            if not (got[name] - each).abs().max() <= allowed:
                return f"different: {name} by {(got[name] - each).abs().max():.1e}, allowed {allowed:.1e}"
    return "equal"


@pytest.mark.slow
@pytest.mark.parametrize("name", KINDS)
def test_a_model_is_equal_or_refused(name: str, received: set[str]) -> None:
    every, found = walked(name, received)
    assert not {check: each for check, each in found.items() if each not in OUTCOMES}
    if GUIDED:
        assert every == next((each for each in OUTCOMES if KINDS[name] in guide()[each]), "equal"), found
    if every == "equal":
        assert {found["padding"], found.get("text", "equal")} <= {"equal", "not possible"}


def walked(name: str, received: set[str]) -> tuple[str, dict[str, str]]:
    """What a model is altogether, and in each check."""
    found = {"logits": "not possible"}
    try:
        assert name not in TOO_LARGE
        model = build(name)
    except Exception:
        pass
    else:
        asked = calls(model, KINDS[name])
        found = {check: outcome(model, check, call, received) for check, call in asked.items()}
    owns = not getattr(transformers, name)._can_set_attn_implementation()
    return "not served" if owns and found["logits"] == "not possible" else found["logits"], found


def guide() -> dict[str, list[str]]:
    """The model types that the guide names, by outcome."""
    rows = re.findall(r"^\| ([^|]+?) +\| +(\d+) \| (.+?) +\|$", GUIDE.read_text(encoding="utf-8"), re.M)
    return {outcome: re.findall(r"`([\w-]+)`", names) for outcome, _, names in rows if outcome in OUTCOMES}


@pytest.mark.skipif(not GUIDED, reason="the guide is about another transformers")
def test_the_guide_counts_every_architecture() -> None:
    page = GUIDE.read_text(encoding="utf-8")
    counts = Counter(KINDS.values())
    for each, names in sorted(guide().items(), key=lambda row: not row[1]):  # equal are all others
        assert names == sorted(set(names))
        want = sum(counts.pop(name) for name in names) if names else counts.total()
        assert f"| {each} | {want} |" in re.sub(" +", " ", page)
