"""What is saved loads again: every variant and what changes a model, equal before and after."""

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import peft
import pytest
import timm
import torch
from causal_variants import CAUSAL, causal_options
from other_models import make as make_other
from safetensors.torch import load_file, save_file
from transformers import AutoModel, AutoModelForCausalLM, PreTrainedModel

from nadaraya import InputError, variants
from nadaraya.models import (
    KernelGPTConfig,
    KernelGPTForCausalLM,
    attach_attention,
    from_nanochat,
    prune_heads,
    prune_units,
    to_nanochat,
)
from nadaraya.models.vit.attention import VISION_VARIANTS

VARIANTS = [
    *CAUSAL,
    *variants.hybrids(),
    "gpa-rope-loo-gate",
    "rope-sink",
    "fox-drop",
    "gpa-mul-xsa",
    "gka of 2*rq",
]
FAST = ["rope", "gpa-rope", "gka-loo-bank", "inkling", "mixed-bank", "fox", "gka of 2*rq"]
SIZES: dict[str, Any] = {
    "vocab_size": 23, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
    "max_position_embeddings": 32, "initializer_range": 0.2,
}  # fmt: skip
PLAIN: dict[str, Any] = {"value_embeddings": None, "window_pattern": None}
DTYPES = {torch.float32: 1e-5, torch.float64: 1e-4, torch.bfloat16: 0.1, torch.float16: 0.02}
TOKENS = torch.randint(23, (2, 9), generator=torch.Generator().manual_seed(1))


def _variants(*fast: str) -> list[Any]:
    """Every variant; those that are not named are left to the exhaustive run."""
    return [pytest.param(name, marks=() if name in fast else pytest.mark.slow) for name in VARIANTS]


def _model(variant: str, **changes: Any) -> KernelGPTForCausalLM:
    torch.manual_seed(0)
    name, _, content = variant.partition(" of ")
    options = {"variant_options": {"content": content} if content else causal_options(name)}
    return KernelGPTForCausalLM(KernelGPTConfig(**{**SIZES, **options, **changes}, variant=name)).eval()


def _resized(model: Any) -> Any:
    model.resize_token_embeddings(31)
    return model


CHANGES: dict[str, Callable[[Any], Any]] = {
    "as it is": lambda model: model,
    "more tokens": _resized,
    "fewer heads": lambda model: prune_heads(model, {0: [1], 1: [0, 3]}),
    "fewer units": lambda model: prune_units(model, {1: range(100)}),
    "all": lambda model: prune_units(prune_heads(_resized(model), {1: [2]}), {0: [0, 5]}),
}


@torch.no_grad()
def _logits(model: Any) -> torch.Tensor:
    return model(TOKENS).logits


def _saved(model: PreTrainedModel, folder: Path, dtype: torch.dtype) -> Any:
    model.save_pretrained(folder)
    return AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)


def _assert_same(found: torch.Tensor, expected: torch.Tensor, share: float) -> None:
    """Logits that differ by at most a share of the largest."""
    assert found.isfinite().all()
    assert (found.double() - expected.double()).abs().max() <= share * expected.abs().max()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("variant", _variants(*FAST))
def test_every_variant_loads_in_every_dtype(variant: str, dtype: torch.dtype, tmp_path: Path) -> None:
    model = _model(variant)
    loaded = _saved(model, tmp_path, dtype)
    assert loaded.lm_head.weight.dtype == dtype
    # Lines are solved for, which loses digits.
    _assert_same(_logits(loaded), _logits(model), DTYPES[dtype] * (10 if variant == "local-linear" else 1))
    again = _saved(loaded, tmp_path / "again", dtype)
    _assert_same(_logits(again), _logits(loaded), 1e-5)
    weights = again.state_dict()
    assert all(torch.equal(weight, weights[name]) for name, weight in loaded.state_dict().items())


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("variant", _variants("gpa-rope", "gka-loo-bank"))
def test_every_variant_loads_after_every_change(variant: str, change: str, tmp_path: Path) -> None:
    model = CHANGES[change](_model(variant))
    loaded = _saved(model, tmp_path, torch.float32)
    _assert_same(_logits(loaded), _logits(model), 1e-5)
    assert loaded.config.to_diff_dict() == model.config.to_diff_dict()
    bare = AutoModel.from_pretrained(tmp_path)
    with torch.no_grad():
        _assert_same(bare(TOKENS).last_hidden_state, model.model(TOKENS).last_hidden_state, 1e-5)


BLOCKS: list[dict[str, Any]] = [
    {"value_embeddings": "all", "short_convolution": 3},
    {"window_pattern": "SL", "norm": "rmsnorm", "head_norm": True, "logit_cap": 4.0},
    {"num_key_value_heads": 2, "tie_word_embeddings": True, "output_gate": True, "bias": True},
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "change", "dtype"), [*itertools.product(BLOCKS, CHANGES, (torch.float32, torch.bfloat16))]
)
def test_options_of_the_block_load_after_every_change(
    options: dict[str, Any], change: str, dtype: torch.dtype, tmp_path: Path
) -> None:
    model = _model("gpa-rope", **options)
    if "num_key_value_heads" in options and change in ("fewer heads", "all"):
        change = "more tokens"
    model = CHANGES[change](model)
    _assert_same(_logits(_saved(model, tmp_path, dtype)), _logits(model), DTYPES[dtype])


ADAPTERS: dict[str, Callable[[], peft.PeftConfig]] = {
    "prefix": lambda: peft.PrefixTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3),
    "prompt": lambda: peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3),
    "embedding": lambda: peft.LoraConfig(task_type="CAUSAL_LM", target_modules=["embedding"]),
    "all linear": lambda: peft.LoraConfig(task_type="CAUSAL_LM", target_modules="all-linear"),
}


# Their caches keep gates beside the keys, or what is key and value at once.
KEPT_OTHERWISE = ("fox", "fox-drop", "gka-bank", "gka-loo-bank")
# Theirs keep a state and no keys.
KEPT_OTHERWISE += ("linear", "linear-bank", "performer", "skyformer", "gka-nystrom", "gka-features")
KEPT_OTHERWISE += ("kernelized-rpe",)  # and its keys are features


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("adapter", ADAPTERS)
@pytest.mark.parametrize("variant", _variants("gpa-rope"))
def test_every_variant_is_adapted_trained_and_loaded(variant: str, adapter: str, tmp_path: Path) -> None:
    model = _model(variant)
    before = _logits(model)
    adapted: Any = peft.get_peft_model(model, ADAPTERS[adapter]())
    if adapter == "prefix" and variant in KEPT_OTHERWISE:
        with pytest.raises(InputError, match=r"past_key_values must be made (by this|for the) model"):
            adapted(input_ids=TOKENS, labels=TOKENS)
        return
    optimizer = torch.optim.SGD([p for p in adapted.parameters() if p.requires_grad], lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        adapted(input_ids=TOKENS, labels=TOKENS).loss.backward()
        optimizer.step()
    adapted.eval()
    adapted.save_pretrained(tmp_path)
    loaded: Any = peft.PeftModel.from_pretrained(_model(variant), tmp_path).eval()
    with torch.no_grad():
        expected = adapted(input_ids=TOKENS, attention_mask=torch.ones_like(TOKENS)).logits
        found = loaded(input_ids=TOKENS, attention_mask=torch.ones_like(TOKENS)).logits
    torch.testing.assert_close(found, expected)
    assert not torch.equal(found[:, -9:], before)
    if adapter in ("embedding", "all linear"):
        merged = loaded.merge_and_unload()
        share = 2e-3 if variant == "local-linear" else 1e-4  # which solves for its lines
        torch.testing.assert_close(_logits(merged), expected, rtol=1e-3, atol=share)


def test_conversion_to_nanochat_and_back_is_saved_like_any_model(tmp_path: Path) -> None:
    model = KernelGPTForCausalLM(KernelGPTConfig.preset("nano-d2", vocab_size=23, **PLAIN))
    there = to_nanochat(model.eval())
    _assert_same(_logits(_saved(there, tmp_path, torch.float32)), _logits(there), 1e-5)
    _assert_same(_logits(from_nanochat(tmp_path)), _logits(model), 1e-5)


@pytest.mark.parametrize("variant", ["gpa", "gpa-rope-loo", ["gpa-rope", "rope"], "gpa-hybrid"])
def test_what_was_saved_before_names_changed_keeps_its_start(variant: Any, tmp_path: Path) -> None:
    config = KernelGPTConfig(**SIZES, variant=variant)
    config.save_pretrained(tmp_path)
    assert KernelGPTConfig.from_pretrained(tmp_path).variant == variant
    old = {name: value for name, value in config.to_dict().items() if name != "variant_names"}
    found = KernelGPTConfig.from_dict(old)
    starts = [options.get("position") for _, options in variants.by_layer(found.variant, 2)]
    assert len(starts) == 2
    paper = {"gpa-paper", "gpa-rope-paper", "gpa-rope-paper-loo"} & set(found.layer_variants)
    assert bool(paper) == (variant != "gpa-hybrid")
    assert KernelGPTConfig.from_dict(found.to_dict()).variant == found.variant


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"variant": "gpa-rope", "init": "unit"}, r"init must be given as variant_options={'init': …}"),
        ({"window": 64}, "did you mean 'window_pattern'"),
        ({"n_layers": 3}, "did you mean 'num_hidden_layers'"),
        ({"num_kv_heads": 2}, "did you mean 'num_key_value_heads'"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers must be less than or equal to 4096"),
        ({"layer_types": ["full_attention"]}, "layer_types must be left out"),
        ({"dtype": "load"}, "dtype must be one of 'bfloat16', 'float16', 'float32', 'float64'"),
    ],
)
def test_fields_that_nothing_reads_are_refused_wherever_they_come_from(
    given: dict[str, Any], message: str
) -> None:
    base = {**SIZES, "variant": "rope"}
    for make in (
        lambda: KernelGPTConfig(**{**base, **given}),
        lambda: KernelGPTConfig.from_dict({**base, **given}),
        lambda: KernelGPTConfig.preset("demo", **given),
    ):
        with pytest.raises(InputError, match=message):
            make()


def test_fields_of_transformers_stay(tmp_path: Path) -> None:
    given = {
        "architectures": ["KernelGPTForCausalLM"], "attn_implementation": "sdpa", "id2label": {0: "a"},
        "output_attentions": True, "quantization_config": None, "torch_dtype": "bfloat16",
        "_commit_hash": "a",
    }  # fmt: skip
    config = KernelGPTConfig(**SIZES, **given)
    assert (config.dtype, config.output_attentions) == (torch.bfloat16, True)
    _model("rope").save_pretrained(tmp_path)
    with pytest.raises(InputError, match="unexpected keyword argument 'windows_pattern'"):
        AutoModelForCausalLM.from_pretrained(tmp_path, windows_pattern="S")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("variant", VISION_VARIANTS)
def test_every_vision_variant_loads_in_every_dtype(variant: str, dtype: torch.dtype, tmp_path: Path) -> None:
    def make() -> Any:
        options = {"num_classes": 5, "depth": 2, "variant": variant}
        return timm.create_model("gka_tiny_patch16_224", img_size=32, **options)

    torch.manual_seed(0)
    model, images = make(), torch.randn(2, 3, 32, 32)
    save_file(model.to(dtype).state_dict(), tmp_path / "model.safetensors")
    loaded = make()
    loaded.load_state_dict({name: t.float() for name, t in load_file(tmp_path / "model.safetensors").items()})
    with torch.no_grad():
        _assert_same(loaded.eval()(images), model.float().eval()(images), 1e-5)


@pytest.mark.parametrize("name", ["llama", "bert", "t5", "gpt2"])
def test_an_attached_model_is_saved_as_it_was_and_attached_anew(name: str, tmp_path: Path) -> None:
    model = make_other(name).eval()
    tokens = {"input_ids": torch.randint(3, 29, (2, 7), generator=torch.Generator().manual_seed(0))}
    if model.config.is_encoder_decoder:
        tokens["decoder_input_ids"] = tokens["input_ids"]
    with torch.no_grad():
        expected = model(**tokens).logits
        with attach_attention(model):
            model.save_pretrained(tmp_path)
        loaded = type(model).from_pretrained(tmp_path).eval()
        _assert_same(loaded(**tokens).logits, expected, 1e-5)
        with attach_attention(loaded):
            _assert_same(loaded(**tokens).logits, expected, 1e-4)
