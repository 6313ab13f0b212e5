"""Hidden tokens say nothing to those that are seen, whatever they are and wherever they lie."""

from typing import Any

import pytest
import torch
from causal_variants import CAUSAL
from small_models import VOCABULARY, moved, small_model
from torch import Tensor
from transformers import DynamicCache

from nadaraya import variants

TOKENS = 12
HOLES = {"left": range(3), "middle": range(4, 7), "right": range(9, 12), "several": (0, 1, 5, 8, 11)}
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "convolution": {"short_convolution": 3},
    "value embeddings": {"value_embeddings": "all", "num_key_value_heads": 2},
    "gate": {"output_gate": True, "embedding_norm": True},
    "window": {"window_pattern": "SL", "sliding_window": 4},
    "all": {
        "short_convolution": 4, "value_embeddings": "alternate", "embedding_norm": True, "logit_cap": 5.0,
        "window_pattern": "SL", "sliding_window": 5, "norm": "rmsnorm", "bias": True,
    },
}  # fmt: skip
SUFFIXED = [f"{name}-{word}" for name in ("rope", "gka", "fox") for word in ("loo", "drop", "xsa", "sink")]
PAIRS = [(name, "all" if number % 2 else "plain") for number, name in enumerate(CAUSAL + SUFFIXED)]
PAIRS += [(name, option) for name in ("fox", "rope") for option in OPTIONS]
EVERY = [(name, option) for name in CAUSAL + SUFFIXED for option in OPTIONS]


def accepted(name: str, changes: dict[str, Any]) -> dict[str, Any]:
    """The options that fit a variant: shared key heads need W_K and no landmarks, and a gate is said once."""
    kept = dict(changes)
    if variants.get(name).get("projections", "qkvo") != "qkvo" or "landmarks" in variants.options(name):
        kept.pop("num_key_value_heads", None)
    if "output_gate" in variants.get(name):
        kept.pop("output_gate", None)
    return kept


def texts(hidden: Any) -> tuple[Tensor, Tensor, Tensor]:
    """A batch of a text with holes and one without, twice with other tokens in the holes; and the mask."""
    generator = torch.Generator().manual_seed(0)
    one, other = torch.randint(VOCABULARY, (2, 2, TOKENS), generator=generator)
    mask = torch.ones(2, TOKENS, dtype=torch.long)
    mask[0, list(hidden)] = 0
    return one, torch.where(mask.bool(), one, other), mask


def assert_holes_say_nothing(name: str, option: str) -> None:
    model = moved(small_model(variant=name, **accepted(name, OPTIONS[option])))
    for where, hidden in HOLES.items():
        one, other, mask = texts(hidden)
        with torch.no_grad():
            at_once, changed = (model(tokens, attention_mask=mask).logits for tokens in (one, other))
            cache, steps = DynamicCache(config=model.config), []
            for part in (slice(0, 6), *(slice(place, place + 1) for place in range(6, TOKENS))):
                seen = mask[:, : part.stop]
                found = model(other[:, part], attention_mask=seen, past_key_values=cache, use_cache=True)
                steps.append(found.logits)
        visible = mask.bool()
        assert torch.equal(at_once[visible], changed[visible]), where
        torch.testing.assert_close(torch.cat(steps, 1)[visible], at_once[visible], atol=2e-4, rtol=2e-4)


@pytest.mark.parametrize(("name", "option"), PAIRS)
def test_tokens_in_holes_say_nothing(name: str, option: str) -> None:
    assert_holes_say_nothing(name, option)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "option"), sorted(set(EVERY) - set(PAIRS)))
def test_tokens_in_holes_say_nothing_to_any_variant_with_any_option(name: str, option: str) -> None:
    assert_holes_say_nothing(name, option)


@pytest.mark.parametrize("name", ["fox", "gka", "gpa-mul"])
def test_tokens_in_holes_have_no_gradient(name: str) -> None:
    model = moved(small_model(variant=name, short_convolution=3))
    tokens, _, mask = texts(HOLES["several"])
    features = model.get_input_embeddings()(tokens).detach().requires_grad_()
    logits = model(inputs_embeds=features, attention_mask=mask).logits
    (gradient,) = torch.autograd.grad(logits[mask.bool()].square().sum(), features)
    assert gradient[~mask.bool()].count_nonzero() == 0
