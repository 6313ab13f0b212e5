"""Generation as `nadaraya bench decode` does it: right tokens, and the bytes that a cache has by hand."""

from typing import Any

import pytest
import torch

from nadaraya import InputError
from nadaraya.evaluation.decoding import (
    DecodingSettings,
    generate_once,
    keeps_one_tensor,
    measure_decoding,
    prompts,
)
from nadaraya.models import KernelGPTConfig, KernelGPTForCausalLM

SMALL = DecodingSettings(batch=3, prompt=9, tokens=6, rounds=1)
PADDED = DecodingSettings(batch=3, prompt=9, tokens=6, padded=True)
ROTATED = {"variant": "gka", "variant_options": {"values": "rotated"}}
WINDOWED = {"window_pattern": "SL", "sliding_window": 4}


def make(**changes: Any) -> KernelGPTForCausalLM:
    torch.manual_seed(0)
    sizes = {"vocab_size": 31, "hidden_size": 32, "num_hidden_layers": 2, "max_position_embeddings": 32}
    model = KernelGPTForCausalLM(KernelGPTConfig(**{**sizes, **changes})).eval()
    with torch.no_grad():  # weights at which the likeliest token changes with the context
        for name, parameter in model.named_parameters():
            if "position" not in name and "content" not in name:
                parameter.copy_(0.3 * torch.randn_like(parameter))
    return model


def alone(model: KernelGPTForCausalLM, prompt: torch.Tensor, count: int) -> list[int]:
    """The likeliest continuation, without a cache or padding."""
    tokens = prompt[None]
    with torch.no_grad():
        for _ in range(count):
            following = model(tokens, use_cache=False).logits[:, -1].argmax(-1, keepdim=True)
            tokens = torch.cat((tokens, following), 1)
    return tokens[0, len(prompt) :].tolist()


@pytest.mark.parametrize("one_tensor", [True, False])
@pytest.mark.parametrize("kind", ["dynamic", "static"])
@pytest.mark.parametrize("windows", [{}, WINDOWED], ids=["full", "windowed"])
@pytest.mark.parametrize(
    "form",
    [ROTATED, *({"variant": name} for name in ("gka-loo-bank", "kv-shared", "rope", "linear-bank"))],
    ids=["rotated", "bank", "shared", "rope", "state"],
)
def test_prompts_padded_on_the_left_go_on_as_each_does_alone(
    form: dict[str, Any], windows: dict[str, Any], kind: str, one_tensor: bool
) -> None:
    model = make(**form, **windows)
    tokens, mask = prompts(31, PADDED)
    assert mask is not None
    assert mask.sum(1).tolist() == [9, 7, 5]
    generated = generate_once(model, kind, one_tensor, PADDED).tokens
    expected = [
        alone(model, row[present.bool()], PADDED.tokens + 1)
        for row, present in zip(tokens, mask, strict=True)
    ]
    assert generated.tolist() == expected
    assert len({token for row in expected for token in row}) > 2


@pytest.mark.parametrize(
    ("form", "shared"),
    [
        (ROTATED, True),
        ({"variant": "gka-bank"}, True),
        ({"variant": "gka"}, False),
        ({"variant": "rope"}, False),
    ],
)
def test_one_tensor_is_half_the_bytes_of_two_and_only_where_keys_are_values(
    form: dict[str, Any], shared: bool
) -> None:
    model = make(**form)
    assert keeps_one_tensor(model) is shared
    for kind in ("dynamic", "static"):
        rows = measure_decoding({"it": model}, [kind], SMALL)
        both = 2 * 4 * 2 * 3 * (9 + 6) * 32  # keys and values, float32, layers, prompts, tokens, channels
        assert [row.cache_bytes for row in rows] == ([both, both // 2] if shared else [both])
        assert [row.cache_ratio for row in rows] == ([None, 0.5] if shared else [None])
    assert keeps_one_tensor(model) is shared  # as it was before


def test_caches_of_windowed_layers_hold_their_window() -> None:
    full, windowed = (
        generate_once(make(variant="rope", **windows), "dynamic", True, SMALL).cache_bytes
        for windows in ({}, WINDOWED)
    )
    one_layer = full // 2
    assert windowed == one_layer + one_layer * 4 // 15


@pytest.mark.parametrize("convolution", [None, 4])
def test_a_state_has_as_many_bytes_after_512_tokens_as_after_64(convolution: int | None) -> None:
    model = make(variant="linear-bank", num_attention_heads=4, short_convolution=convolution)
    states = 2 * 4 * 3 * 4 * 8 * 8 * (8 + 1)  # layers, float32, prompts, heads, decays, m, d + 1
    columns = 2 * 4 * 3 * 32 * (convolution or 1) - 2 * 4 * 3 * 32  # K - 1 earlier tokens of all channels
    counters = 2 * 4  # one number per layer stands for all tokens
    for length in (64, 512):
        settings = DecodingSettings(batch=3, prompt=length - 2, tokens=2, rounds=1)
        held = generate_once(model, "dynamic", True, settings).cache_bytes
        assert held == states + columns + counters


def test_half_precision_halves_the_cache_and_keeps_kernels() -> None:
    model = make(variant="gka-bank")
    settings = DecodingSettings(batch=1, prompt=3, tokens=2, rounds=1, precision="bfloat16")
    rows = measure_decoding({"it": model}, ["dynamic"], settings)
    assert rows[0].cache_bytes == 2 * 2 * 2 * 5 * 32
    assert {parameter.dtype for _, parameter in model.kernel_parameters()} == {torch.float32}


def test_rows_have_speeds_between_their_quartiles() -> None:
    models = {"bank": make(variant="gka-bank"), "rope": make(variant="rope")}
    settings = DecodingSettings(batch=2, prompt=4, tokens=2, rounds=3)
    rows = measure_decoding(models, ["dynamic", "static"], settings)
    assert [(row.model, row.cache, row.one_tensor) for row in rows] == [
        ("bank", "dynamic", False), ("bank", "dynamic", True),
        ("bank", "static", False), ("bank", "static", True),
        ("rope", "dynamic", False), ("rope", "static", False),
    ]  # fmt: skip
    for row in rows:
        assert 0 < row.low <= row.tokens_per_second <= row.high
        assert row.prompt_seconds > 0
    assert rows[1].speed_ratio == rows[1].tokens_per_second / rows[0].tokens_per_second


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"batch": 0}, "batch must be a positive integer, got 0"),
        ({"tokens": -1}, "tokens must be a positive integer, got -1"),
        ({"precision": "fp8"}, "precision must be one of 'bfloat16', 'float32', got 'fp8'"),
    ],
)
def test_bad_settings_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as caught:
        DecodingSettings(**change)
    assert str(caught.value) == message


def test_no_models_and_unknown_caches_are_refused() -> None:
    with pytest.raises(InputError, match="models must be at least one"):
        measure_decoding({}, ["dynamic"], SMALL)
    with pytest.raises(InputError, match="did you mean 'static'"):
        measure_decoding({"it": make()}, ["statik"], SMALL)
