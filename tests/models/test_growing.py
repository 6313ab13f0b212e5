"""Caches that grow in place are transformers' caches, whatever is done to them in between."""

import copy
from collections.abc import Callable
from contextlib import nullcontext

import pytest
import torch
from transformers.cache_utils import Cache, DynamicCache, DynamicLayer

from nadaraya.models import KernelGPTConfig, KernelGPTForCausalLM
from nadaraya.models.growing import GrowingLayer, GrowingLayerWithStates

TOKENS = torch.arange(80)[None].repeat(3, 1) * torch.tensor([[3], [5], [7]]) % 50
CONVOLUTION = {"short_convolution": 4}


def model_of(variant: str = "gpa-rope", **options: object) -> KernelGPTForCausalLM:
    torch.manual_seed(0)
    sizes = {"vocab_size": 50, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = KernelGPTConfig(**sizes, max_position_embeddings=128, variant=variant, **options)
    return KernelGPTForCausalLM(config).double().eval()


def continued(model: KernelGPTForCausalLM, tokens: torch.Tensor, cache: Cache) -> torch.Tensor:
    """Logits of tokens, one at a time."""
    steps = [model(each, past_key_values=cache, use_cache=True).logits for each in tokens.split(1, 1)]
    return torch.cat(steps, 1)


def prefilled(model: KernelGPTForCausalLM, tokens: torch.Tensor) -> Cache:
    return model(tokens, past_key_values=DynamicCache(config=model.config), use_cache=True).past_key_values


@pytest.mark.parametrize(
    ("variant", "options"),
    [
        *((variant, {}) for variant in ("rope", "gpa-rope", "gka")),
        *((variant, {"num_key_value_heads": 2}) for variant in ("rope", "gpa-rope", "fox-loo-gate")),
        ("gpa-spread", CONVOLUTION),
    ],
)
def test_the_logits_of_a_text_that_grows_are_those_of_the_text(variant: str, options: dict[str, int]) -> None:
    model = model_of(variant, **options)
    with torch.no_grad():
        whole = model(TOKENS).logits
        cache = prefilled(model, TOKENS[:, :3])
        found = continued(model, TOKENS[:, 3:], cache)
    torch.testing.assert_close(found, whole[:, 3:])
    kind = GrowingLayerWithStates if options == CONVOLUTION else GrowingLayer
    assert all(type(layer) is kind for layer in cache.layers)


def test_states_of_a_convolution_are_reordered_with_the_keys() -> None:
    model = model_of("gpa-spread", **CONVOLUTION)
    with torch.no_grad():
        cache = prefilled(model, TOKENS[:, :3])
        continued(model, TOKENS[:, 3:], cache)
        cache.reorder_cache(torch.tensor([1, 1, 0]))
        later = continued(model, TOKENS[:, :9] + 1, cache)
        order = torch.cat((TOKENS[[1, 1, 0]], TOKENS[:, :9] + 1), 1)
        torch.testing.assert_close(later, model(order).logits[:, -9:])
    with torch.enable_grad():
        assert continued(model, TOKENS[:, :2], cache).requires_grad


def test_room_is_at_most_a_quarter_and_written_in_place() -> None:
    model = model_of()
    with torch.no_grad():
        cache = prefilled(model, TOKENS[:, :4])
        assert type(cache.layers[0]) is DynamicLayer  # what is not continued takes no room
        continued(model, TOKENS[:, 4:6], cache)
        keys = cache.layers[0].keys
        before = keys.clone()
        continued(model, TOKENS[:, 6:40], cache)
    after = cache.layers[0].keys
    assert after.data_ptr() == keys.data_ptr()
    assert torch.equal(keys, before)  # the earlier view still has its tokens
    rows = after.untyped_storage().nbytes() / after.element_size() / after[:, :, 0].numel()
    assert rows <= 5 + 64


def copied(cache: Cache) -> Cache:
    return DynamicCache([(layer.keys.clone(), layer.values.clone()) for layer in cache.layers])


def reordered(cache: Cache) -> Cache:
    cache.reorder_cache(torch.tensor([2, 0, 0]))
    return cache


def cropped(cache: Cache) -> Cache:
    cache.crop(-2)
    return cache


def emptied(cache: Cache) -> Cache:
    cache.reset()
    return cache


def shallow(cache: Cache) -> Cache:
    twin = copy.copy(cache)
    twin.layers = [copy.copy(layer) for layer in cache.layers]
    return twin


def put_together(cache: Cache) -> Cache:
    twin = DynamicCache()
    twin.layers = [DynamicLayer() for _ in cache.layers]
    for new, layer in zip(twin.layers, cache.layers, strict=True):
        new.lazy_initialization(layer.keys, layer.values)
        new.keys, new.values = layer.keys, layer.values
    return twin


@pytest.mark.parametrize("change", [reordered, cropped, emptied, shallow, put_together, copy.deepcopy])
def test_what_is_done_to_a_cache_means_what_transformers_means(change: Callable[[Cache], Cache]) -> None:
    model = model_of()
    with torch.no_grad():
        ours = prefilled(model, TOKENS[:, :4])
        continued(model, TOKENS[:, 4:10], ours)
        apart, expected, changed = copied(ours), change(copied(ours)), change(ours)
        # The cache and what was made of it go on with different tokens, in turns.
        for start in range(10, 20):
            steps = [(changed, expected, TOKENS[:, start : start + 1])]
            if changed is not ours:
                steps.insert(0, (ours, apart, TOKENS[:, start + 30 : start + 31]))
            for cache, same, tokens in steps:
                found = continued(model, tokens, cache)
                with torch.enable_grad():  # copies, as transformers does
                    torch.testing.assert_close(found, continued(model, tokens, same).detach())


def test_caches_move_between_inference_gradients_and_neither() -> None:
    model = model_of()
    with torch.no_grad():
        whole = model(TOKENS[:, :16]).logits
    with torch.inference_mode():
        cache = prefilled(model, TOKENS[:, :3])
        found = [continued(model, TOKENS[:, 3:6], cache)]
    for start, mode in ((6, torch.no_grad()), (9, nullcontext()), (12, torch.no_grad())):
        with mode:
            found.append(continued(model, TOKENS[:, start : start + 3], cache))
    with torch.no_grad():
        torch.testing.assert_close(torch.cat(found, 1), whole[:, 3:15])
    assert found[2].requires_grad


def test_gradients_reach_keys_that_are_cached() -> None:
    model = model_of()
    cache = prefilled(model, TOKENS[:, :3])
    continued(model, TOKENS[:, 3:6], cache)
    model(TOKENS[:, 6:7], past_key_values=cache).logits.sum().backward()
    assert model.model.embedding.weight.grad[TOKENS[0, 1]].abs().sum() > 0


def test_a_batch_of_another_size_is_refused() -> None:
    model = model_of()
    with torch.no_grad():
        cache = prefilled(model, TOKENS[:, :3])
        continued(model, TOKENS[:, 3:5], cache)
        with pytest.raises(RuntimeError, match="Sizes of tensors must match"):
            model(TOKENS[:1, 5:6], past_key_values=cache)
