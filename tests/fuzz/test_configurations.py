"""Configurations that others could have written: refused in one line, or built, saved and loaded."""

import json
import random
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from fuzz.hostile import YAML
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from nadaraya import InputError, variants
from nadaraya.models import KernelGPTConfig, KernelGPTForCausalLM

pytestmark = pytest.mark.slow
CASES = 1500
BASE = {"vocab_size": 11, "hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2}
# Fields of transformers and names that it or libraries on it write or would follow.
FOREIGN = (
    "_attn_implementation", "_attn_implementation_internal", "_commit_hash", "_name_or_path", "architectures",
    "attn_implementation", "auto_map", "dtype", "experts_implementation", "id2label", "init",
    "is_encoder_decoder", "label2id", "model_type", "num_labels", "output_attentions",
    "output_hidden_states", "per_layer_config", "problem_type", "quantization_config", "return_dict",
    "rope_parameters", "rope_scaling", "to_dict", "top_k", "torch_dtype", "transformers_version", "window",
)  # fmt: skip
NAMED = (
    "kernels-community/flash-attn", "someone/kernel", "flash_attention_2", "eager", "sdpa", "paged|eager",
    "rope", "gpa-rope-loo", "gpa-hybrid", "float16", "bfloat16", "int8", "load", "nn", "../elsewhere",
    {"AutoModelForCausalLM": "someone/code--modeling.Model"}, {"quant_method": "bitsandbytes"}, 10**9, 2**31,
    [], {},
)  # fmt: skip


def _hostile() -> list[Any]:
    """The hostile values that JSON can hold."""
    found: list[Any] = list(NAMED)
    for text in YAML:
        try:
            value = yaml.safe_load(text)
            json.loads(json.dumps(value))
            found.append(value)
        except (yaml.YAMLError, AttributeError, LookupError, TypeError, ValueError, RecursionError):
            found.append(text)
    return found


@pytest.fixture
def no_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is fetched: what would ask the Hub for code or weights fails the test."""

    def fetched(*args: Any, **options: Any) -> None:
        raise AssertionError(f"code is fetched: {args}")

    monkeypatch.setattr("transformers.integrations.hub_kernels.load_and_register_attn_kernel", fetched)
    monkeypatch.setattr("transformers.dynamic_module_utils.get_cached_module_file", fetched)


def test_a_hostile_configuration_is_one_line_or_a_model(no_code: None, tmp_path: Path) -> None:
    draw, outcomes, values = random.Random(0), Counter(), _hostile()
    fields = [*KernelGPTConfig.__annotations__, *FOREIGN]
    options = sorted({option for name in variants.names() for option in variants.options(name)})
    KernelGPTForCausalLM(KernelGPTConfig(**BASE)).save_pretrained(tmp_path)
    saved = json.loads((tmp_path / "config.json").read_text())
    for number in range(CASES):
        field, value = draw.choice(fields), draw.choice(values)
        changes = {field: value}
        if number % 5 == 0:
            name = draw.choice(variants.names())
            changes = {"variant": name, "variant_options": {draw.choice(options): value}}
        path = tmp_path / "config.json"
        path.write_text(json.dumps({**saved, **changes}))
        case = f"{number}: {str(changes)[:200]}"
        try:
            config = KernelGPTConfig.from_pretrained(tmp_path)
            with torch.device("meta"):
                KernelGPTForCausalLM(config)
            model = KernelGPTForCausalLM.from_pretrained(tmp_path)
            assert isinstance(model, PreTrainedModel), case
            outcomes["loaded"] += 1
        except InputError as refused:
            message = str(refused)
            if not message.isprintable() or len(message) > 2000:
                pytest.fail(f"{case}: not one line: {message}")
            outcomes["refused"] += 1
        except Exception as error:
            pytest.fail(f"{case}: {type(error).__name__}: {error}")
        else:
            with tempfile.TemporaryDirectory() as again:
                model.save_pretrained(again)
                found = KernelGPTConfig.from_pretrained(again)
                for name in KernelGPTConfig.__annotations__:
                    assert getattr(found, name) == getattr(config, name), f"{case}: {name}"
    assert min(outcomes.values()) > CASES // 50
    print(f"{CASES} configurations: {outcomes['refused']} refused, {outcomes['loaded']} loaded")


@pytest.mark.parametrize(
    "name", ["../weights.safetensors", "/weights.safetensors", "a/b.safetensors", "w.bin", 3]
)
def test_an_index_of_weights_stays_in_its_folder(name: Any, tmp_path: Path) -> None:
    KernelGPTForCausalLM(KernelGPTConfig(**BASE)).save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").rename(tmp_path / "w.bin")
    index = {"metadata": {}, "weight_map": {"lm_head.weight": name}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(InputError, match="cannot be read as an index of weights: weight_map"):
        AutoModelForCausalLM.from_pretrained(tmp_path)


@pytest.mark.parametrize("name", ["kernels-community/flash-attn", "someone/kernel", "flash_attention_2"])
def test_an_attention_that_a_file_names_is_not_fetched(no_code: None, name: str, tmp_path: Path) -> None:
    KernelGPTForCausalLM(KernelGPTConfig(**BASE)).save_pretrained(tmp_path)
    saved = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**saved, "attn_implementation": name}))
    assert AutoConfig.from_pretrained(tmp_path)._attn_implementation == name
    with pytest.raises(InputError, match="attn_implementation must be 'eager', 'sdpa' or left out"):
        AutoModelForCausalLM.from_pretrained(tmp_path)
