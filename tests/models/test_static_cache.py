"""Caches of fixed size: the same tokens as from caches that grow."""

from itertools import product
from typing import Any

import pytest
import torch
from causal_variants import CAUSAL
from models.test_block import OPTIONS, SOME, assert_close, make
from transformers import CompileConfig
from transformers.cache_utils import DynamicCache, StaticCache

from nadaraya import InputError
from nadaraya.models import KernelGPTForCausalLM

CASES = [
    (option, variant)
    for option, variant in product({"plain": {}, **OPTIONS}, CAUSAL)
    if option == "together" or variant in SOME
]
WINDOWS = {"window_pattern": "SL", "sliding_window": 6}


@pytest.fixture
def tokens() -> torch.Tensor:
    torch.manual_seed(1)
    return torch.randint(23, (2, 20))


@torch.no_grad()
def decoded(model: KernelGPTForCausalLM, tokens: torch.Tensor, pieces: list[int], room: int) -> torch.Tensor:
    """Logits of the tokens, given in pieces of so many."""
    cache, logits = StaticCache(config=model.config, max_cache_len=room), []
    for piece in tokens.split(pieces, 1):
        logits.append(model(piece, past_key_values=cache, use_cache=True).logits)
    return torch.cat(logits, 1)


@pytest.mark.parametrize(("option", "variant"), CASES)
@torch.no_grad()
def test_decoding_from_a_cache_of_fixed_size_gives_the_logits_of_the_full_pass(
    option: str, variant: str, tokens: torch.Tensor
) -> None:
    model = make(variant=variant, **{**WINDOWS, **{"plain": {}, **OPTIONS}[option]})
    full = model(tokens).logits
    for pieces in ([7] + [1] * 13, [1, 1, 2, 5, 1, 10], [3, 2, 4, 1, 1, 4, 5]):
        assert_close(decoded(model, tokens, pieces, room=20), full)
    assert_close(decoded(model, tokens, [4] + [1] * 16, room=29), full)


@pytest.mark.parametrize("options", [{"do_sample": False}, {"do_sample": True, "top_k": 5}, {"num_beams": 3}])
@pytest.mark.parametrize("variant", ["gpa-rope", "gka-loo", "fox"])
def test_generate_gives_the_same_tokens(variant: str, options: dict[str, Any], tokens: torch.Tensor) -> None:
    model = make(variant=variant, **OPTIONS["together"])
    mask = torch.ones(2, 6, dtype=torch.long)
    mask[0, :2] = 0
    generated = []
    for kind in (None, "static"):
        torch.manual_seed(0)
        generated.append(
            model.generate(
                tokens[:, :6], attention_mask=mask, max_new_tokens=9, pad_token_id=0,
                cache_implementation=kind, **options,
            )
        )  # fmt: skip
    assert torch.equal(*generated)


@torch.no_grad()
def test_a_cache_that_was_reset_serves_again(tokens: torch.Tensor) -> None:
    model = make(variant="rope", **OPTIONS["together"])
    cache = StaticCache(config=model.config, max_cache_len=20)
    first = model(tokens, past_key_values=cache).logits
    cache.reset()
    assert_close(model(tokens, past_key_values=cache).logits, first)


def test_generate_does_not_compile_the_model(monkeypatch: pytest.MonkeyPatch, tokens: torch.Tensor) -> None:
    """As it would by itself on a GPU: what is read of the cache changes its size with every token."""
    model = make(variant="gpa")
    everywhere = CompileConfig()
    everywhere._compile_all_devices = True
    monkeypatch.setattr(model, "get_compiled_call", lambda config: pytest.fail("compiled"))
    mask = torch.ones_like(tokens)
    options = {"max_new_tokens": 3, "attention_mask": mask, "compile_config": everywhere}
    assert model.generate(tokens, cache_implementation="static", **options).shape == (2, 23)


def test_a_full_cache_is_named(tokens: torch.Tensor) -> None:
    model = make(**WINDOWS)
    cache = StaticCache(config=model.config, max_cache_len=19)
    with pytest.raises(InputError, match="must have room for 20 tokens, got a StaticCache of 19"):
        model(tokens, past_key_values=cache)


OF_OTHERS: dict[str, dict[str, Any]] = {
    "rope": {"variant": "rope"},
    "window": {"variant": "rope", **WINDOWS},
    "narrower": {"variant": "rope", **WINDOWS, "sliding_window": 3},
    "convolution": {"variant": "rope", "short_convolution": 3},
    "state": {"variant": "linear"},
    "one state": {"variant": ["rope", "linear"]},
    "own window": {"variant": "krause", "variant_options": {"window": 4, "nearest": 3}},
}


@pytest.mark.parametrize("static", [False, True])
@pytest.mark.parametrize("of_model", OF_OTHERS)
@torch.no_grad()
def test_a_cache_of_another_configuration_serves_or_is_refused(
    of_model: str, static: bool, tokens: torch.Tensor
) -> None:
    model, refused = make(**OF_OTHERS[of_model]), {}
    full = model(tokens).logits
    for of_cache, options in OF_OTHERS.items():
        config = make(**options).config
        cache = StaticCache(config=config, max_cache_len=20) if static else DynamicCache(config=config)
        try:
            logits = [model(piece, past_key_values=cache).logits for piece in tokens.split([9, 1, 10], 1)]
        except InputError as error:
            refused[of_cache] = str(error)
        else:
            assert_close(torch.cat(logits, 1), full)
    assert of_model not in refused
    assert all("must be made for the model, as DynamicCache(config=" in said for said in refused.values())


@torch.no_grad()
def test_models_with_a_state_take_no_token_back(tokens: torch.Tensor) -> None:
    options: dict[str, Any] = {"max_new_tokens": 9, "pad_token_id": 0, "do_sample": False}
    for variant in ("gpa-spread", "linear", ["rope", "linear"]):
        model = make(variant=variant, short_convolution=2)
        if variant == "gpa-spread":
            guessed = model.generate(tokens[:1], prompt_lookup_num_tokens=3, **options)
            assert torch.equal(guessed, model.generate(tokens[:1], **options))
            continue
        with pytest.raises(ValueError, match="not supported with stateful models"):
            model.generate(tokens[:1], prompt_lookup_num_tokens=3, **options)
        cache = DynamicCache(config=model.config)
        cache.activate_past_recording()
        with pytest.raises(InputError, match="past_key_values must be one that is not cropped"):
            model(tokens, past_key_values=cache)
