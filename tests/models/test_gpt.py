"""KernelGPT behaves as a transformers model: saving, Auto classes, generation, caching, compilation."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from causal_variants import CAUSAL, causal_options
from grids import covering
from small_models import in_enough_digits
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM

from nadaraya import InputError, variants
from nadaraya.models import KernelGPTConfig, KernelGPTForCausalLM

VOCABULARY = 23
VARIANTS = [*CAUSAL, "rope-xsa", "fox-xsa", "mixed-bank-loo", "gka-bank-xsa", "kv-shared-loo"]
VARIANTS += ["gka-loo-bank-sink", "gpa-mul-sink-gate", *variants.hybrids()]


def make(**changes: Any) -> KernelGPTForCausalLM:
    torch.manual_seed(0)
    config = KernelGPTConfig(
        **{
            "vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
            "max_position_embeddings": 32,
            "variant_options": causal_options(changes.get("variant")), **changes,
        }
    )  # fmt: skip
    return in_enough_digits(KernelGPTForCausalLM(config).eval())


def moved(model: KernelGPTForCausalLM) -> KernelGPTForCausalLM:
    """The model with every parameter off its start: some start where a part does nothing."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


@pytest.fixture
def tokens() -> torch.Tensor:
    torch.manual_seed(1)
    return torch.randint(VOCABULARY, (2, 20))


def decode_stepwise(model: KernelGPTForCausalLM, tokens: torch.Tensor, prefix: int) -> torch.Tensor:
    out = model(tokens[:, :prefix], use_cache=True)
    logits = [out.logits]
    for n in range(prefix, tokens.shape[1]):
        out = model(tokens[:, [n]], past_key_values=out.past_key_values, use_cache=True)
        logits.append(out.logits)
    return torch.cat(logits, 1)


@pytest.mark.parametrize("variant", VARIANTS)
@torch.no_grad()
def test_cached_decoding_gives_the_logits_of_the_full_pass(variant: str, tokens: torch.Tensor) -> None:
    model = moved(make(variant=variant))
    torch.testing.assert_close(decode_stepwise(model, tokens, 7), model(tokens).logits, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("variant", VARIANTS)
def test_gradients_reach_every_parameter(variant: str, tokens: torch.Tensor) -> None:
    model = moved(make(variant=variant))
    model(tokens, labels=tokens).loss.backward()
    still = [name for name, p in model.named_parameters() if p.grad is None or not p.grad.any()]
    assert still == []


@pytest.mark.parametrize(
    ("variant", "tensors"),
    [
        ("gka", 2), ("gka-bank", 1), ("gka-loo-bank", 1), ("kv-shared", 2), ("vlt", 2), ("rope", 2),
    ],
)  # fmt: skip
@torch.no_grad()
def test_what_is_key_and_value_at_once_is_cached_once(
    variant: str, tensors: int, tokens: torch.Tensor
) -> None:
    options = {"rotary": "static", "values": "rotated"} if variant == "gka" else None
    for layer in make(variant=variant)(tokens, use_cache=True).past_key_values.layers:
        assert layer.keys.shape == (2, 4, 20, 8)
        assert layer.values.shape == (2, 4, 20, 8 * (tensors - 1))
    if options is not None:
        rotated = make(variant=variant, variant_options=options)(tokens, use_cache=True).past_key_values
        assert {layer.values.shape for layer in rotated.layers} == {(2, 4, 20, 0)}


@pytest.mark.parametrize(
    "variant", ["rope", "gpa", "gka", "gka-loo-bank", "fox", "mixed-bank", "inkling", "fire"]
)
@torch.no_grad()
def test_windowed_layers_decode_from_a_window_of_the_cache(variant: str, tokens: torch.Tensor) -> None:
    model = make(variant=variant, window_pattern="SL", sliding_window=6, num_hidden_layers=3)
    assert [block.attention.window for block in model.model.blocks] == [6, None, None]
    torch.testing.assert_close(decode_stepwise(model, tokens, 9), model(tokens).logits, rtol=1e-4, atol=1e-5)
    out = model(tokens, use_cache=True)
    assert out.past_key_values.layers[0].keys.shape[2] == 5
    assert out.past_key_values.layers[1].keys.shape[2] == 20


@pytest.mark.parametrize("variant", VARIANTS)
def test_saved_models_come_back_through_the_auto_classes(
    variant: str, tokens: torch.Tensor, tmp_path: Path
) -> None:
    model = moved(make(variant=variant))
    model.save_pretrained(tmp_path)
    assert (tmp_path / "model.safetensors").exists()
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert isinstance(loaded, KernelGPTForCausalLM)
    assert AutoConfig.from_pretrained(tmp_path).variant == variant
    torch.testing.assert_close(loaded(tokens).logits, model(tokens).logits, rtol=0, atol=0)


@pytest.mark.parametrize(
    "variant",
    ["gpa", "gpa-mul", "gka", "learned-rope", "t5", "alibi", "rope-norm", "mixed-bank", "inkling", "fire"],
)
def test_kernels_that_a_checkpoint_lacks_start_where_a_new_model_starts(variant: str, tmp_path: Path) -> None:
    make(variant="rope", bias=True).save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path, variant=variant)
    fresh = make(variant=variant, bias=True)
    expected = {**dict(fresh.kernel_parameters()), **dict(fresh.named_buffers())}
    actual = {**dict(loaded.kernel_parameters()), **dict(loaded.named_buffers())}
    assert expected
    for name, tensor in expected.items():
        if name.endswith("profiles"):  # drawn at random
            torch.testing.assert_close(actual[name].std(), tensor.std(), rtol=0.1, atol=0.0)
        else:
            assert torch.equal(actual[name], tensor), name


@pytest.mark.parametrize("variant", ["mixed-bank", "fox"])
def test_linear_maps_of_parts_start_as_the_part_says(variant: str, tmp_path: Path) -> None:
    make(variant="rope", bias=True).save_pretrained(tmp_path)
    with torch.device("meta"):
        empty = make(variant=variant)
    assert {p.device.type for p in empty.parameters()} == {"meta"}
    empty.to_empty(device="cpu").init_weights()
    for model in (
        make(variant=variant, bias=True), empty,
        AutoModelForCausalLM.from_pretrained(tmp_path, variant=variant),
    ):  # fmt: skip
        for block in model.model.blocks:
            if variant == "fox":
                assert (block.attention.gate.gate.bias == 4.0).all()
                assert block.attention.gate.gate.weight.any()
            else:
                assert not block.attention.position.weights.weight.any()


def test_kernel_parameters_that_a_checkpoint_has_are_kept(tmp_path: Path) -> None:
    model = make(variant="decay")
    with torch.no_grad():
        for _, parameter in model.kernel_parameters():
            parameter.add_(0.1)
    model.save_pretrained(tmp_path)
    loaded = dict(AutoModelForCausalLM.from_pretrained(tmp_path, variant="gpa-mul").kernel_parameters())
    for name, parameter in model.kernel_parameters():
        assert torch.equal(loaded[name], parameter), name


def test_half_precision_models_keep_their_kernels_in_float32(tokens: torch.Tensor, tmp_path: Path) -> None:
    model = make(variant=["gka-loo-bank", "learned-rope"])
    model.save_pretrained(tmp_path)
    half = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.bfloat16)
    assert {parameter.dtype for _, parameter in half.kernel_parameters()} == {torch.float32}
    assert half.lm_head.weight.dtype == torch.bfloat16
    difference = half(tokens).logits.float() - model(tokens).logits
    assert difference.norm() / model(tokens).logits.norm() < 0.05


def test_fields_changed_at_loading_are_checked_and_followed(tmp_path: Path) -> None:
    make(window_pattern="SL", num_hidden_layers=3).config.save_pretrained(tmp_path)
    deeper = AutoConfig.from_pretrained(tmp_path, num_hidden_layers=5)
    assert [kind[0] for kind in deeper.layer_types] == ["s", "f", "s", "f", "f"]
    assert deeper.sliding_window == 16  # half of the context
    assert deeper.variant == "rope"
    with pytest.raises(InputError, match="did you mean 'rope'"):
        AutoConfig.from_pretrained(tmp_path, variant="ropee")


@pytest.mark.parametrize("options", [{"do_sample": False}, {"do_sample": True, "top_k": 5}, {"num_beams": 3}])
@pytest.mark.parametrize("variant", ["gpa-rope", "gka-loo"])
def test_generate(variant: str, options: dict[str, Any], tokens: torch.Tensor) -> None:
    model = make(variant=variant)
    torch.manual_seed(0)
    with_cache = model.generate(tokens[:, :6], max_new_tokens=9, pad_token_id=0, **options)
    torch.manual_seed(0)
    without = model.generate(tokens[:, :6], max_new_tokens=9, pad_token_id=0, use_cache=False, **options)
    assert with_cache.shape == (2, 15)
    assert torch.equal(with_cache, without)


@pytest.mark.parametrize("variant", ["rope", "gpa-mul", "gka-loo-bank"])
def test_left_padding_does_not_change_what_is_generated(variant: str, tokens: torch.Tensor) -> None:
    model = make(variant=variant)
    alone = model.generate(tokens[:1, :5], max_new_tokens=6, do_sample=False, pad_token_id=0)
    padded = torch.cat((torch.zeros(1, 3, dtype=torch.long), tokens[:1, :5]), 1)
    mask = torch.cat((torch.zeros(1, 3), torch.ones(1, 5)), 1).long()
    beside = model.generate(padded, attention_mask=mask, max_new_tokens=6, do_sample=False, pad_token_id=0)
    assert torch.equal(beside[:, 3:], alone)


def test_loss_is_the_mean_cross_entropy_of_the_next_token(tokens: torch.Tensor) -> None:
    model = make()
    out = model(tokens, labels=tokens)
    log_p = out.logits[:, :-1].log_softmax(-1).gather(2, tokens[:, 1:, None])
    torch.testing.assert_close(out.loss, -log_p.mean())
    shared = model(tokens, labels=tokens, num_items_in_batch=100).loss
    torch.testing.assert_close(shared, -log_p.sum() / 100)
    labels = tokens.masked_fill(tokens == tokens[0, 1], -100)
    kept = (labels[:, 1:] != -100)[:, :, None]
    torch.testing.assert_close(model(tokens, labels=labels).loss, -log_p[kept].mean())


@pytest.mark.parametrize("tied", [False, True])
def test_embeddings_can_be_resized(tied: bool, tokens: torch.Tensor) -> None:
    model = make(tie_word_embeddings=tied)
    before = model.model.embedding.weight.detach().clone()
    model.resize_token_embeddings(VOCABULARY + 4)
    assert model(tokens).logits.shape == (2, 20, VOCABULARY + 4)
    assert torch.equal(model.get_input_embeddings().weight[:VOCABULARY], before)
    assert (model.lm_head.weight is model.model.embedding.weight) == tied


@pytest.mark.parametrize("variant", ["rope", "gpa-rope", "gka-loo-bank"])
def test_gradient_checkpointing_gives_the_same_gradients(variant: str, tokens: torch.Tensor) -> None:
    model = make(variant=variant).train()
    model(tokens, labels=tokens).loss.backward()
    expected = {name: p.grad.clone() for name, p in model.named_parameters()}
    model.zero_grad()
    model.gradient_checkpointing_enable()
    model(tokens, labels=tokens).loss.backward()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, expected[name], msg=lambda m, name=name: f"{name}: {m}")


@pytest.mark.parametrize("variant", ["gka-loo-bank", pytest.param("gpa-rope", marks=pytest.mark.slow)])
def test_torch_compile_gives_the_same_loss_and_gradients(variant: str, tokens: torch.Tensor) -> None:
    model = make(variant=variant).train()
    model(tokens, labels=tokens).loss.backward()
    expected = {name: p.grad.clone() for name, p in model.named_parameters()}
    model.zero_grad()
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    compiled(tokens, labels=tokens).loss.backward()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(
            parameter.grad, expected[name], rtol=1e-4, atol=1e-6, msg=lambda m, name=name: f"{name}: {m}"
        )


def test_outputs_on_request(tokens: torch.Tensor) -> None:
    model = make(variant="gpa")
    out = model(tokens, output_attentions=True, output_hidden_states=True)
    assert len(out.attentions) == 2
    assert out.attentions[0].shape == (2, 4, 20, 20)
    assert len(out.hidden_states) == 3
    model.config.output_hidden_states = True
    assert len(model(tokens).hidden_states) == 3
    torch.testing.assert_close(out.logits, model(tokens).logits, rtol=1e-4, atol=1e-5)


def test_hybrids_repeat_their_pattern_through_the_depth() -> None:
    model = make(variant=["gka-loo-bank", "rope"], num_hidden_layers=4, variant_options={"num_terms": 3})
    projections = [block.attention.projections.form for block in model.model.blocks]
    assert projections == ["o", "qkvo", "o", "qkvo"]
    assert [(layer, kernel.sigma.shape[1]) for layer, kernel in model.lag_kernels()] == [(0, 3), (2, 3)]


def test_kernel_parameters_are_the_extra_ones_of_gaussian_process_attention() -> None:
    model = KernelGPTForCausalLM(KernelGPTConfig.preset("dickens", variant="gpa-rope"))
    extra = sum(p.numel() for _, p in model.kernel_parameters())
    assert extra == 4096
    baseline = KernelGPTForCausalLM(KernelGPTConfig.preset("dickens", variant="rope"))
    difference = model.num_parameters() - baseline.num_parameters()
    assert difference == extra


@torch.no_grad()
def test_the_model_without_positions_is_the_transformer_of_pytorch(tokens: torch.Tensor) -> None:
    model = make(variant="softmax", bias=True, norm_eps=1e-3)
    hidden = model.model.embedding(tokens)
    mask = nn.Transformer.generate_square_subsequent_mask(20)
    for block in model.model.blocks:
        theirs = nn.TransformerEncoderLayer(
            32, 4, 128, 0.0, "gelu", layer_norm_eps=1e-3, batch_first=True, norm_first=True
        )
        attention = block.attention.projections
        projections = [attention.q_proj, attention.k_proj, attention.v_proj]
        for bias in (*(p.bias for p in (*projections, attention.o_proj)), block.mlp.up_proj.bias):
            bias.normal_()
        theirs.self_attn.in_proj_weight.copy_(torch.cat([p.weight for p in projections]))
        theirs.self_attn.in_proj_bias.copy_(torch.cat([p.bias for p in projections]))
        for ours, copy in (
            (attention.o_proj, theirs.self_attn.out_proj),
            (block.mlp.up_proj, theirs.linear1),
            (block.mlp.down_proj, theirs.linear2),
            (block.attention_norm, theirs.norm1),
            (block.mlp_norm, theirs.norm2),
        ):
            copy.load_state_dict(ours.state_dict())
        hidden = theirs.train()(hidden, src_mask=mask, is_causal=True)
    expected = model.lm_head(model.model.norm(hidden))
    torch.testing.assert_close(model(tokens).logits, expected, rtol=1e-4, atol=1e-5)


def test_dropout_acts_on_embeddings_attention_and_both_branches(tokens: torch.Tensor) -> None:
    model = make(variant="gka", dropout=0.5)
    calls: list[nn.Module] = []
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            assert module.p == 0.5
            module.register_forward_hook(lambda module, *_: calls.append(module))
    assert torch.equal(model(tokens).logits, model(tokens).logits)
    calls.clear()
    model.train()(tokens)
    assert len(calls) == 1 + 2 * 2
    assert [block.attention.dropout for block in model.model.blocks] == [0.5, 0.5]


def test_initialisation() -> None:
    model = make(hidden_size=128, num_hidden_layers=8)
    up, down = model.model.blocks[0].mlp.up_proj.weight, model.model.blocks[0].mlp.down_proj.weight
    assert abs(up.std().item() - 0.02) < 0.001
    assert abs(down.std().item() - 0.02 / 4) < 0.0005
    with torch.no_grad():
        out = model(torch.randint(VOCABULARY, (4, 32)), labels=torch.randint(VOCABULARY, (4, 32)))
    assert abs(out.loss.item() - torch.log(torch.tensor(float(VOCABULARY))).item()) < 0.1


@pytest.mark.parametrize(
    ("norm", "hidden_act", "tied"),
    covering(["layernorm", "rmsnorm"], ["gelu", "relu2", "silu", "relu"], [False, True]),
)
def test_norms_activations_and_tied_embeddings(
    norm: str, hidden_act: str, tied: bool, tokens: torch.Tensor
) -> None:
    model = make(
        norm=norm, hidden_act=hidden_act, tie_word_embeddings=tied, head_norm=True, num_key_value_heads=2
    )
    model(tokens, labels=tokens).loss.backward()
    assert (model.lm_head.weight is model.model.embedding.weight) == tied
    assert all(p.grad is not None for p in model.parameters())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"variant": "ropee"}, "did you mean 'rope'"),
        ({"variant_options": {"num_terms": 3}}, "num_terms"),
        ({"hidden_size": 30}, "hidden_size must be a multiple of num_attention_heads = 4, got 30"),
        ({"norm": "layer"}, "did you mean 'layernorm'"),
        ({"hidden_act": "gellu"}, "did you mean 'gelu'"),
        ({"dropout": 1.0}, "dropout must be less than 1, got 1.0"),
        ({"window_pattern": "SX"}, "window_pattern must be made of S .* got 'SX'"),
        ({"variant": []}, "variant must be at least one name"),
        ({"num_hidden_layers": 0}, "num_hidden_layers must be at least 1, got 0"),
        ({"intermediate_size": -3}, "intermediate_size must be at least 1, got -3"),
        (
            {"num_key_value_heads": 3},
            "num_key_value_heads must be a divisor of num_attention_heads = 4, got 3",
        ),
        ({"window_pattern": "SL", "sliding_window": 0}, "sliding_window must be at least 1, got 0"),
        ({"norm_eps": -1.0}, "norm_eps must be at least 0, got -1.0"),
        ({"varaint": "gpa"}, "did you mean 'variant'"),
        ({"variant": "fox", "variant_options": {"bias": "4"}}, "bias must be a finite number, got '4'"),
        ({"variant": "fox", "variant_options": {"bias": math.nan}}, "bias must be a finite number, got nan"),
    ],
)
def test_bad_configurations_are_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        make(**changes)


def test_bad_presets_and_inputs_are_named(tokens: torch.Tensor) -> None:
    with pytest.raises(InputError, match="did you mean 'dickens'"):
        KernelGPTConfig.preset("dicken")
    with pytest.raises(InputError, match="did you mean 'hidden_size'"):
        KernelGPTConfig.preset("demo", hiden_size=3)
    with pytest.raises(InputError, match="input_ids or inputs_embeds must be given"):
        make()()
    with pytest.raises(
        InputError,
        match=r"attention_mask must be of shape \(batch, tokens\) = \(2, 20\), got \(2, 1, 20, 20\)",
    ):
        make()(tokens, attention_mask=torch.ones(2, 1, 20, 20))
