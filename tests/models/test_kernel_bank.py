"""A kernel bank attached to a model changes no bit of it at first, and is then the formula it stands for."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from huggingface_hub.errors import LocalEntryNotFoundError
from other_models import assert_close, logits_and_gradients, make, open_gates, padded, shaken, some_tokens
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import AttentionInterface, Trainer, TrainingArguments
from transformers.masking_utils import AttentionMaskInterface, eager_mask

from nadaraya import InputError
from nadaraya.kernels import Epanechnikov, KernelBank, Matern
from nadaraya.models import (
    KernelBankAdapter,
    attach_attention,
    attach_kernel_bank,
    extend_context,
    kernel_bank,
)

VIT: dict[str, Any] = {"img_size": 12, "patch_size": 4, "embed_dim": 16, "depth": 2, "num_heads": 2}
_SIZES: dict[str, Any] = {
    "vocab_size": 29, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2,
    "num_attention_heads": 2, "initializer_range": 0.3,
}  # fmt: skip
_GROUPED = {**_SIZES, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "pad_token_id": 0}
_IMAGES = {**_SIZES, "image_size": 12, "patch_size": 4}


def seeded(kind: str, config: Any) -> Any:
    torch.manual_seed(0)
    return shaken(getattr(transformers, kind)(config).eval())


def timm_vit(**options: Any) -> Any:
    timm = pytest.importorskip("timm")
    torch.manual_seed(0)
    return shaken(timm.create_model("vit_tiny_patch16_224", **{**VIT, "num_classes": 5, **options}).eval())


def unfused() -> Any:
    model = timm_vit(class_token=False, global_pool="avg", attn_drop_rate=0.2, proj_drop_rate=0.1)
    for block in model.blocks:
        block.attn.fused_attn = False
    return model


OWN: dict[str, Callable[[], Any]] = {
    "gemma": lambda: seeded("GemmaForCausalLM", transformers.GemmaConfig(**_GROUPED)),
    "neox": lambda: seeded("GPTNeoXForCausalLM", transformers.GPTNeoXConfig(**_SIZES, attention_dropout=0.2)),
    "vit": lambda: seeded("ViTModel", transformers.ViTConfig(**_IMAGES)),
    "dinov2": lambda: seeded(
        "Dinov2WithRegistersModel",
        transformers.Dinov2WithRegistersConfig(**_IMAGES, num_register_tokens=3),
    ),
    "timm": timm_vit,
    "timm unfused": unfused,
    "timm registers": lambda: timm_vit(reg_tokens=3, qk_norm=True),
}
TEXTS = ("llama", "llama4", "qwen3", "mistral", "gemma", "neox", "gpt2", "bert", "t5")
VISION = ("vit", "dinov2", "timm", "timm unfused", "timm registers")
FAMILIES = (*TEXTS, *VISION)


def build(name: str, implementation: str = "eager", exact: bool = False) -> Any:
    model = OWN[name]() if name in OWN else make(name)
    if hasattr(model, "set_attn_implementation"):
        model.set_attn_implementation(implementation)
    return model.double() if exact else model


def logits_of(model: Any, mask: Tensor | None = None, **options: Any) -> Tensor:
    torch.manual_seed(3)
    dtype = next(model.parameters()).dtype
    if getattr(model, "main_input_name", "pixel_values") == "pixel_values":
        images = torch.randn(2, 3, 12, 12, dtype=dtype)
        # A class token has no lag: of the last layer logits would show nothing.
        features = getattr(model, "forward_features", None)
        found: Tensor = features(images) if features else model(images).last_hidden_state
        return found
    if model.config.is_encoder_decoder:
        options |= {"decoder_input_ids": some_tokens(seed=2), "decoder_attention_mask": mask}
    logits: Tensor = model(some_tokens(), attention_mask=mask, **options).logits
    return logits if mask is None else logits[mask.bool()]


CASES = [(name, "eager") for name in FAMILIES]
CASES += [(name, "sdpa") for name in FAMILIES if "timm" not in name]
CASES += [(name, "nadaraya") for name in ("llama", "t5", "vit")]


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize(("name", "implementation"), CASES)
def test_at_first_no_bit_of_the_logits_changes_and_every_gate_has_a_gradient(
    name: str, implementation: str, training: bool
) -> None:
    model = build(name, implementation).train(training).requires_grad_(False)
    masks = [None] if name in VISION else [None, padded("left"), padded("right")]
    want = [logits_of(model, mask) for mask in masks]
    with torch.no_grad():  # other operators compute it
        without_gradients = [logits_of(model, mask) for mask in masks]
    adapter = attach_kernel_bank(model)
    got = [logits_of(model, mask) for mask in masks]
    assert all(map(torch.equal, got, want))
    for logits in got:
        adapter.zero_grad()
        logits.square().sum().backward()
        assert all((bank.gate.grad != 0).all() for bank in adapter.banks)  # type: ignore[union-attr, operator]
    with torch.no_grad():
        assert all(map(torch.equal, [logits_of(model, mask) for mask in masks], without_gradients))


@pytest.mark.parametrize("name", FAMILIES)
def test_at_first_no_gradient_of_the_model_changes(name: str) -> None:
    model = build(name, exact=name in VISION)
    logits_of(model).square().sum().backward()
    want = {
        key: parameter.grad.clone()
        for key, parameter in model.named_parameters()
        if parameter.grad is not None
    }
    model.zero_grad()
    attach_kernel_bank(model, freeze=False)
    logits_of(model).square().sum().backward()
    for key, gradient in want.items():
        torch.testing.assert_close(model.get_parameter(key).grad, gradient, rtol=0, atol=0)


def kernel_of(bank: Any, lags: Tensor) -> Tensor:
    """κ(r) = Σ_m σ² exp(−|r| / l) exp(−2 α² sin²(r / τ)), written out."""
    sigma, length, alpha, tau = (
        getattr(bank, f"log_{name}").exp()[:, :, None, None] for name in ("sigma", "length", "alpha", "tau")
    )
    terms = sigma**2 * torch.exp(-lags.abs() / length) * torch.exp(-2 * alpha**2 * torch.sin(lags / tau) ** 2)
    return terms.sum(1)


def bias_of(bank: Any, length: int, prefix: int | None) -> Tensor:
    """(H, N, N): g κ(i − j), or g κ(Δy) κ(Δx) of patches in three rows."""
    places = torch.arange(length, dtype=bank.gate.dtype)
    if prefix is None:
        values = kernel_of(bank.kernel, places[:, None] - places)
    else:
        patches = places[: length - prefix]
        rows, columns = patches.div(3, rounding_mode="floor"), patches % 3
        values = kernel_of(bank.kernel.rows, rows[:, None] - rows)
        values = values * kernel_of(bank.kernel.columns, columns[:, None] - columns)
        values = nn.functional.pad(values, (prefix, 0, prefix, 0))
    return bank.gate[:, None, None] * values


PREFIX = {"vit": 1, "dinov2": 4, "timm": 1, "timm unfused": 0, "timm registers": 4}


def dense(module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, **options: Any) -> Any:
    """Eager attention with an N × N bias."""
    groups = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    logits = query @ key.transpose(2, 3) * options["scaling"]
    for bias in (mask, options.get("position_bias"), getattr(module, "bias_in_test", lambda _: None)(query)):
        logits = logits if bias is None else logits + bias
    return (logits.softmax(-1) @ value).transpose(1, 2).contiguous(), None


AttentionInterface.register("dense_in_test", dense)
AttentionMaskInterface.register("dense_in_test", eager_mask)


def with_dense_bias(model: Any, names: list[str], banks: Any, prefix: int | None) -> None:
    for name, bank in zip(names, banks, strict=True):
        module = model.get_submodule(name)
        if hasattr(model, "set_attn_implementation"):
            model.set_attn_implementation("dense_in_test")
            module.bias_in_test = lambda query, bank=bank: bias_of(bank, query.shape[2], prefix)
        else:
            own = module.forward
            module.forward = lambda x, own=own, bank=bank, **_: own(
                x, attn_mask=bias_of(bank, x.shape[1], prefix)[None]
            )


_FLOAT64 = ("gpt2", "bert", "t5", *VISION)


@pytest.mark.parametrize(
    ("name", "side"),
    [(name, "none") for name in VISION]
    + [(name, "left") for name in TEXTS]
    + [("t5", "none"), ("bert", "right"), ("mistral", "none")],
)
def test_open_gates_are_a_dense_bias_of_the_formula(name: str, side: str) -> None:
    model, mask = build(name, "sdpa", exact=name in _FLOAT64), padded(side)
    adapter = attach_kernel_bank(model)
    names = [module for module, part in model.named_modules() if hasattr(part, "nadaraya_bank")]
    open_gates(adapter)
    banks = copy.deepcopy(adapter.banks)
    got = logits_of(model, mask)
    (got * torch.linspace(-1, 1, got.numel()).view_as(got)).sum().backward()
    adapter.detach()
    plain = logits_of(model, mask)
    with_dense_bias(model, names, banks, PREFIX.get(name))
    want = logits_of(model, mask)
    (want * torch.linspace(-1, 1, want.numel()).view_as(want)).sum().backward()
    tolerance = 1e-10 if name in _FLOAT64 else 1e-5
    scale = want.abs().max().item()
    torch.testing.assert_close(got, want, rtol=tolerance, atol=tolerance * scale)
    assert (got - plain).abs().max() > 1e-3 * scale
    largest = max(parameter.grad.abs().max().item() for parameter in banks.parameters())
    for ours, theirs in zip(adapter.banks.parameters(), banks.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=tolerance, atol=tolerance * largest)
        assert theirs.grad is not None
        assert theirs.grad.abs().max() > 0


_WRITERS = [(name, "sdpa") for name in ("llama", "qwen3", "mistral", "neox", "gpt2", "t5")]


@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize(
    ("name", "implementation"), [*_WRITERS, ("llama4", "eager"), ("gemma", "eager"), ("t5", "nadaraya")]
)
def test_a_cache_changes_no_text(name: str, implementation: str, cache: str) -> None:
    model = build(name, implementation)
    options: dict[str, Any] = {"max_new_tokens": 6, "do_sample": False, "eos_token_id": None}
    options |= {"no_repeat_ngram_size": 2, "disable_compile": True}
    plain = model.generate(some_tokens(), **options)
    adapter = attach_kernel_bank(model)
    kept = {**options, "cache_implementation": cache}
    assert torch.equal(model.generate(some_tokens(), **kept), plain)
    open_gates(adapter)
    with torch.no_grad():
        for bank in adapter.banks:
            bank.gate *= 8  # type: ignore[operator]
    for mask in (None, padded("left")):
        want = model.generate(some_tokens(), attention_mask=mask, use_cache=False, **options)
        assert torch.equal(model.generate(some_tokens(), attention_mask=mask, **kept), want)
        assert mask is not None or not torch.equal(want, plain)


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@pytest.mark.parametrize("name", ["llama", "qwen3", "mistral", "gemma", "neox"])
@torch.no_grad()
def test_padding_and_packing_are_as_texts_alone(name: str, implementation: str) -> None:
    model = build(name, implementation)
    open_gates(attach_kernel_bank(model))
    tokens = some_tokens()
    alone = model(tokens[:1, 4:]).logits
    padding = padded("left")
    assert padding is not None
    places = (padding.cumsum(-1) - 1).clamp(min=0)
    got = model(tokens, attention_mask=padding, position_ids=places).logits
    torch.testing.assert_close(got[:1, 4:], alone, rtol=1e-4, atol=1e-4)
    packed = torch.tensor([[*range(4), *range(13)]] * 2)
    got = model(tokens, position_ids=packed, use_cache=False).logits
    torch.testing.assert_close(got[:1, 4:], alone, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("open_", [False, True])
@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("name", ["llama", "t5"])
def test_gradient_checkpointing_changes_no_gradient(name: str, reentrant: bool, open_: bool) -> None:
    model = build(name, "sdpa")
    adapter = attach_kernel_bank(model, freeze=False)
    if open_:
        open_gates(adapter)
    want = logits_and_gradients(model, padded("left"))
    assert any("gate" in key for key in want[1])
    model.gradient_checkpointing_enable({"use_reentrant": reentrant})
    model.enable_input_require_grads()
    model.train()
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        if isinstance(getattr(module, "dropout", None), float):
            module.dropout = 0.0
    assert_close(logits_and_gradients(model, padded("left"), use_cache=False), want)


@pytest.mark.parametrize("name", ["llama", "bert", "vit", "timm"])
def test_what_is_saved_is_what_is_loaded(name: str, tmp_path: Path) -> None:
    model = build(name)
    plain = logits_of(model)
    adapter = attach_kernel_bank(model, layers=[1])
    open_gates(adapter)
    want = logits_of(model)
    adapter.save_pretrained(tmp_path)
    other = build(name)
    loaded = KernelBankAdapter.from_pretrained(other, tmp_path)
    assert torch.equal(logits_of(other), want)
    assert {parameter for parameter in other.parameters() if parameter.requires_grad} == {
        *loaded.parameters()
    }
    loaded.detach()
    assert torch.equal(logits_of(other), plain)


@pytest.mark.parametrize("name", FAMILIES)
def test_detaching_gives_back_the_very_model(name: str) -> None:
    model = build(name, "sdpa")
    before = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    kinds = [type(module) for module in model.modules()]
    want = logits_of(model)
    adapter = attach_kernel_bank(model)
    open_gates(adapter)
    assert not torch.equal(logits_of(model), want)
    assert model.state_dict().keys() > before.keys()
    adapter.detach()
    adapter.detach()
    assert torch.equal(logits_of(model), want)
    assert model.state_dict().keys() == before.keys()
    assert all(torch.equal(model.state_dict()[key], tensor) for key, tensor in before.items())
    assert [type(module) for module in model.modules()] == kinds
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_an_adapter_of_twelve_layers_is_a_few_kilobytes_with_the_names_of_peft(tmp_path: Path) -> None:
    config = transformers.GPT2Config(vocab_size=9, n_embd=48, n_layer=12, n_head=12, n_positions=8)
    adapter = attach_kernel_bank(seeded("GPT2LMHeadModel", config))
    adapter.save_pretrained(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"adapter_config.json", "adapter_model.safetensors"}
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 50_000
    tensors = load_file(tmp_path / "adapter_model.safetensors")
    assert tensors["base_model.model.transformer.h.11.attn.nadaraya_bank.gate"].shape == (12,)


def test_a_bank_at_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def download(name: str, file: str, subfolder: str | None = None) -> str:
        found = tmp_path / name / (subfolder or "") / file
        if not found.is_file():
            raise LocalEntryNotFoundError(f"no {file}")
        return str(found)

    monkeypatch.setattr(kernel_bank, "hf_hub_download", download)
    model = build("llama")
    adapter = attach_kernel_bank(model)
    open_gates(adapter)
    want = logits_of(model)
    adapter.save_pretrained(tmp_path / "me" / "alone")
    adapter.save_pretrained(tmp_path / "me" / "model" / "bank")
    adapter.detach()
    adapter = KernelBankAdapter.from_pretrained(model, "hf:me/alone")
    assert torch.equal(logits_of(model), want)
    adapter.detach()
    with pytest.raises(InputError, match="hf:me/none cannot be read as a kernel bank: no adapter_config"):
        KernelBankAdapter.from_pretrained(model, "hf:me/none")
    assert kernel_bank.bank_beside("me/model", local=False) == tmp_path / "me" / "model" / "bank"
    assert kernel_bank.bank_beside("me/alone", local=False) is None


def test_a_window_and_a_bank_go_together_in_either_order() -> None:
    model, ids = build("llama"), torch.randint(3, 9, (2, 12), generator=torch.Generator().manual_seed(0))
    lags = torch.arange(12)[:, None] - torch.arange(12)
    seen = ((lags >= 0) & (lags < 4)).expand(2, 1, 12, 12)

    def logits(**options: Any) -> Tensor:
        with torch.no_grad():
            found: Tensor = model(ids, **options).logits
        return found

    def close_to(want: Tensor, other: Tensor) -> None:
        torch.testing.assert_close(want, other, rtol=1e-5, atol=1e-5)

    plain = logits()
    with extend_context(model, "window", window=4):
        windowed = logits()
        adapter = attach_kernel_bank(model)
        assert torch.equal(logits(), windowed)
        open_gates(adapter)
        inside = logits()
    banked = logits()  # the bank stays where the window ends
    assert (inside - banked).abs().max() > 1e-3
    close_to(inside, logits(attention_mask=seen))
    window = extend_context(model, "window", window=4)
    close_to(logits(), inside)
    adapter.detach()  # the window stays where the bank goes
    close_to(logits(), windowed)
    window.close()
    assert torch.equal(logits(), plain)


def test_kernels_by_expression_or_of_any_kind_and_what_does_not_fit(tmp_path: Path) -> None:
    model = build("llama")
    attach_kernel_bank(model, "2*exponential + rq").save_pretrained(tmp_path / "text")
    with pytest.raises(InputError, match="without a kernel bank: detach it first, got 'LlamaForCausalLM'"):
        attach_kernel_bank(model)
    makes_none: Any = lambda heads: None  # noqa: E731
    for none in (makes_none, None, 3, torch.nn.Linear(2, 2)):
        with pytest.raises(InputError, match="kernel must be text, a kernel, as "):
            attach_kernel_bank(build("bert"), none)
    adapter = KernelBankAdapter.from_pretrained(build("qwen3"), tmp_path / "text")
    assert "ComposedKernel" in repr(adapter.banks[0])
    bert = build("bert")
    for kernel in (Epanechnikov(3.0), lambda heads: KernelBank(heads, 2, periodic=False)):
        adapter = attach_kernel_bank(bert, kernel)
        open_gates(adapter)
        want = logits_of(bert)
        adapter.save_pretrained(tmp_path / "own")
        adapter.detach()
        with pytest.raises(InputError, match="must be loaded with kernel=…"):
            KernelBankAdapter.from_pretrained(bert, tmp_path / "own")
        with pytest.raises(InputError, match=r"of the classes in .*, got \['Matern\(nu=2\.5\)'\]"):
            KernelBankAdapter.from_pretrained(bert, tmp_path / "own", Matern(3.0, nu=2.5))
        adapter = KernelBankAdapter.from_pretrained(bert, tmp_path / "own", kernel)
        assert torch.equal(logits_of(bert), want)
        adapter.detach()
    same = Epanechnikov(3.0)
    adapter = attach_kernel_bank(bert, lambda heads: same)  # each layer has its own
    adapter.save_pretrained(tmp_path / "same")
    adapter.detach()
    want = logits_of(bert)
    with pytest.raises(
        InputError, match=r"layers must be one or more of 0 to 1, or names as .*got \['model\.l"
    ):
        KernelBankAdapter.from_pretrained(bert, tmp_path / "text")
    attach_kernel_bank(build("gpt2")).save_pretrained(tmp_path / "two")
    four = transformers.GPT2Config(vocab_size=9, n_embd=16, n_layer=2, n_head=4, n_positions=8)
    with pytest.raises(InputError, match="another kernel or number of heads than the model"):
        KernelBankAdapter.from_pretrained(seeded("GPT2LMHeadModel", four), tmp_path / "two")
    with pytest.raises(InputError, match="kernel must be a kernel shared by all heads or with one value"):
        attach_kernel_bank(bert, KernelBank(3, 2))
    with pytest.raises(InputError, match="kernel must be text, a kernel, as Gaussian"):
        attach_kernel_bank(bert, Epanechnikov)
    for layers in ([], [2], ["a"], [0, 0], [[0]]):
        with pytest.raises(InputError, match="layers must be one or more of 0 to 1"):
            attach_kernel_bank(bert, layers=layers)  # type: ignore[arg-type]
    with pytest.raises(
        InputError, match="model must be one of transformers, or a vision transformer of timm"
    ):
        attach_kernel_bank(nn.Linear(2, 2))
    with pytest.raises(InputError, match="cannot be read as the configuration of a kernel bank"):
        KernelBankAdapter.from_pretrained(bert, tmp_path)
    assert torch.equal(logits_of(bert), want)
    assert all(parameter.requires_grad for parameter in bert.parameters())


def test_a_bank_is_not_left_out_without_a_word() -> None:
    model = build("llama")
    attach_kernel_bank(model)
    model.set_attn_implementation("sdpa")
    with pytest.raises(InputError, match="'sdpa' would leave the kernel bank out: detach it first"):
        logits_of(model)


def test_the_positions_that_t5_hands_on_are_added_too() -> None:
    model = build("t5", "sdpa")
    adapter = attach_kernel_bank(model)
    open_gates(adapter)
    want = logits_of(model)
    banks = copy.deepcopy(adapter.banks.state_dict())
    adapter.detach()
    with attach_attention(model):
        adapter = attach_kernel_bank(model)
        adapter.banks.load_state_dict(banks)
        torch.testing.assert_close(logits_of(model), want, rtol=1e-10, atol=1e-10)
        adapter.detach()


@pytest.mark.parametrize("name", ["llama", "timm"])
def test_a_copy_of_an_attached_model_stands_alone(name: str) -> None:
    model = build(name)
    open_gates(attach_kernel_bank(model))
    want = logits_of(model)
    other = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    assert torch.equal(logits_of(other), want)


def test_a_bank_that_is_detached_within_a_window_leaves_a_model_for_another() -> None:
    model = build("llama", "sdpa")
    want = logits_of(model)
    adapter = attach_kernel_bank(model)
    with extend_context(model, "window", window=4):
        adapter.detach()
    assert torch.equal(logits_of(model), want)
    attach_kernel_bank(model).detach()
    assert model.config._attn_implementation == "sdpa"


def test_gates_that_close_again_are_the_model_again_whoever_writes_them() -> None:
    model = build("llama", "sdpa")
    want = logits_of(model)
    adapter = attach_kernel_bank(model)
    gates: Any = [bank.gate for bank in adapter.banks]
    assert torch.equal(logits_of(model), want)
    for gate in gates:
        gate.data.fill_(0.3)  # the version that autograd counts stays as it is
    assert not torch.equal(logits_of(model), want)
    with torch.no_grad():
        for gate in gates:
            gate.zero_()
    assert torch.equal(logits_of(model), want)


@pytest.mark.parametrize("first", ["bank", "lora"])
def test_lora_and_a_bank_are_beside_each_other(first: str, tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    model, tokens = build("llama", "sdpa"), some_tokens()
    plain = logits_of(model)
    config = peft.LoraConfig(r=2, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    if first == "bank":
        adapter = attach_kernel_bank(model)
        both = peft.get_peft_model(model, config)
        adapter.requires_grad_(True)
    else:
        both = peft.get_peft_model(model, config)
        adapter = attach_kernel_bank(both, freeze=False)
    both(tokens).logits.square().sum().backward()
    learns = {name for name, parameter in both.named_parameters() if parameter.requires_grad}
    assert (
        learns
        == {name for name, parameter in both.named_parameters() if parameter.grad is not None}
        == {name for name in learns if "lora" in name or "nadaraya_bank" in name}
    )
    open_gates(adapter)
    want = both(tokens).logits
    with extend_context(both, "window", window=2):
        assert (both(tokens).logits - want).abs().max() > 1e-3
    assert torch.equal(both(tokens).logits, want)
    adapter.save_pretrained(tmp_path / "bank")
    both.save_pretrained(tmp_path / "lora")
    assert not any("bank" in name for name in load_file(tmp_path / "lora" / "adapter_model.safetensors"))
    other = build("llama", "sdpa")
    loaded = KernelBankAdapter.from_pretrained(other, tmp_path / "bank")
    assert torch.equal(peft.PeftModel.from_pretrained(other, tmp_path / "lora")(tokens).logits, want)
    merged = both.merge_and_unload()
    torch.testing.assert_close(merged(tokens).logits, want, rtol=1e-4, atol=1e-4)
    loaded.detach()
    adapter.detach()
    assert not torch.allclose(merged(tokens).logits, plain, atol=1e-3)


def test_trainer_trains_a_bank_alone_and_its_checkpoints_have_it(tmp_path: Path) -> None:
    model = build("llama", "sdpa")
    before = copy.deepcopy(model.state_dict())
    adapter = attach_kernel_bank(model)
    starts = copy.deepcopy(adapter.state_dict())
    data: Any = [{"input_ids": row, "labels": row} for row in some_tokens(batch=8)]
    arguments = TrainingArguments(
        output_dir=str(tmp_path / "run"), max_steps=4, per_device_train_batch_size=8, learning_rate=0.02,
        report_to=[], use_cpu=True, save_steps=4, logging_steps=1, disable_tqdm=True,
        lr_scheduler_type="constant",
    )  # fmt: skip
    trainer = Trainer(model=model, args=arguments, train_dataset=data)
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert losses[-1] < losses[0]
    assert all(torch.equal(model.state_dict()[key], tensor) for key, tensor in before.items())
    assert all(not torch.equal(adapter.state_dict()[key], tensor) for key, tensor in starts.items())
    saved = load_file(tmp_path / "run" / "checkpoint-4" / "model.safetensors")
    assert any("nadaraya_bank" in name for name in saved)
    model.save_pretrained(tmp_path / "whole")
    plain = type(model).from_pretrained(tmp_path / "whole", attn_implementation="sdpa").eval()
    adapter.detach()
    assert torch.equal(logits_of(plain), logits_of(model.eval()))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama", "bert", "timm"])
def test_a_compiled_model_is_the_same_with_gates_open_or_closed(name: str) -> None:
    model = build(name, "sdpa")
    adapter = attach_kernel_bank(model)
    compiled: Any = torch.compile(model, backend="aot_eager")
    for _ in range(2):
        want = logits_of(model)
        torch.testing.assert_close(logits_of(compiled), want, rtol=1e-4, atol=1e-4)
        torch.compiler.reset()
        open_gates(adapter)


def test_images_of_another_size_have_their_own_grid() -> None:
    model = timm_vit(dynamic_img_size=True)
    open_gates(attach_kernel_bank(model))
    with torch.no_grad():
        assert model(torch.randn(1, 3, 20, 8)).shape == (1, 5)
        model.patch_drop = nn.Module()
        model.patch_drop.forward = lambda x: x[:, :-2]
        with pytest.raises(InputError, match="8 tokens are not 3 x 3 patches after a few others"):
            model(torch.randn(1, 3, 12, 12))


@pytest.mark.parametrize("bank", [False, True])
@pytest.mark.parametrize("name", ["llama", "qwen3", "mistral", "gemma", "neox", "gpt2", "t5"])
def test_mixed_precision_gives_nearly_the_same_loss(name: str, bank: bool) -> None:
    model = build(name, "sdpa" if bank else "nadaraya")
    if bank:
        open_gates(attach_kernel_bank(model))
    inputs = {"labels": some_tokens()} if name == "t5" else {"labels": some_tokens(), "use_cache": False}
    want = model(some_tokens(), **inputs).loss
    with torch.autocast("cpu", torch.bfloat16):
        got = model(some_tokens(), **inputs).loss
    torch.testing.assert_close(got.to(want.dtype), want, rtol=0.05, atol=0.05)
    got.backward()


def test_a_bank_that_peft_trains_a_copy_of_is_saved_as_trained(tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    model = build("llama")
    adapter = attach_kernel_bank(model)
    settings = {"target_modules": ["q_proj"], "modules_to_save": ["nadaraya_bank"]}
    adapted = peft.get_peft_model(model, peft.LoraConfig(**settings))
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if name.endswith("gate") and parameter.requires_grad:
                parameter.fill_(0.5)
    adapter.save_pretrained(tmp_path / "bank")
    found = load_file(tmp_path / "bank" / "adapter_model.safetensors")
    assert {float(t.mean()) for name, t in found.items() if name.endswith("gate")} == {0.5}
    adapted.save_pretrained(tmp_path / "peft")
    again = build("llama")
    attach_kernel_bank(again)
    loaded = peft.PeftModel.from_pretrained(again, tmp_path / "peft")
    assert torch.equal(logits_of(loaded), logits_of(adapted.eval()))
    with pytest.raises(InputError, match="configuration of a kernel bank"):
        adapter.save_pretrained(tmp_path / "peft")
    assert "q_proj" in (tmp_path / "peft" / "adapter_config.json").read_text(encoding="utf-8")


def test_what_was_frozen_learns_again_beside_a_new_classifier() -> None:
    model = seeded("BertForSequenceClassification", transformers.BertConfig(**_SIZES))
    adapter = attach_kernel_bank(model)
    model.classifier.requires_grad_(True)
    adapter.detach()
    assert all(parameter.requires_grad for parameter in model.parameters())


@pytest.mark.parametrize("name", ["llama", "timm"])
def test_a_copy_of_model_and_adapter_is_detached_alone(name: str) -> None:
    model = build(name)
    adapter = attach_kernel_bank(model)
    open_gates(adapter)
    want = logits_of(model)
    copied, its = copy.deepcopy((model, adapter))
    its.detach()
    assert torch.equal(logits_of(model), want)
    assert not torch.equal(logits_of(copied), want)
    assert torch.equal(logits_of(copied), logits_of(build(name)))


def test_a_bank_of_a_compiled_model_is_that_of_the_model(tmp_path: Path) -> None:
    attach_kernel_bank(torch.compile(build("llama"))).save_pretrained(tmp_path)
    assert len(KernelBankAdapter.from_pretrained(build("llama"), tmp_path).banks) == 2


def test_offloaded_weights_may_have_a_bank_and_one_without_a_device_is_refused() -> None:
    from accelerate import cpu_offload

    model, like = build("llama"), build("llama")
    cpu_offload(model)
    for each in (model, like):
        open_gates(attach_kernel_bank(each))
    assert torch.equal(logits_of(model), logits_of(like))
    attach_kernel_bank(late := build("llama"))
    with pytest.raises(InputError, match="attach it after the model is offloaded"):
        logits_of(cpu_offload(late))


def test_a_hybrid_of_timm_has_the_grid_of_its_patches() -> None:
    timm = pytest.importorskip("timm")
    model = timm.create_model("vit_tiny_r_s16_p8_224", img_size=64, depth=1).eval()
    image = torch.randn(1, 3, 64, 64)
    want = model(image)
    attach_kernel_bank(model)
    assert torch.equal(model(image), want)
