"""What importing the models does: Auto classes know them, and each family needs its own extra alone."""

import subprocess
import sys
from pathlib import Path

import pytest

from nadaraya.models import KernelGPTConfig, KernelGPTForCausalLM


def run(program: str) -> str:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_importing_the_models_registers_them_with_the_auto_classes(tmp_path: Path) -> None:
    config = KernelGPTConfig(vocab_size=5, hidden_size=8, num_hidden_layers=1, num_attention_heads=1)
    KernelGPTForCausalLM(config).save_pretrained(tmp_path)
    program = f"""
import nadaraya.models
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM
loaded = [auto.from_pretrained({str(tmp_path)!r}) for auto in (AutoConfig, AutoModel, AutoModelForCausalLM)]
print([type(each).__name__ for each in loaded])
"""
    assert run(program) == "['KernelGPTConfig', 'KernelGPTModel', 'KernelGPTForCausalLM']\n"


@pytest.mark.slow
def test_vision_models_need_timm_alone_and_the_core_neither() -> None:
    program = """
import sys
import nadaraya
assert not {"transformers", "timm"} & set(sys.modules)
sys.modules["transformers"] = None  # importing it now raises
import timm
import nadaraya.models.vit
timm.create_model("gka_tiny_patch16_224", num_classes=2, depth=1)
try:
    nadaraya.models.KernelGPTConfig
except ImportError as error:
    print(error.name)
"""
    assert run(program) == "transformers\n"
