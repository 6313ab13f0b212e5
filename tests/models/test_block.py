"""What a configuration may put into a block, in every variant: decoded, packed, padded, saved and trained."""

from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from causal_variants import CAUSAL, causal_options
from small_models import in_enough_digits
from transformers import AutoModelForCausalLM
from transformers.cache_utils import DynamicCache

from nadaraya import InputError
from nadaraya.attention.gates import OutputGate
from nadaraya.models import KernelGPTConfig, KernelGPTForCausalLM
from nadaraya.models.block import ShortConvolution
from nadaraya.training import load_recipe

VOCABULARY = 23
OPTIONS: dict[str, dict[str, Any]] = {
    "convolution": {"short_convolution": 4},
    "gate": {"output_gate": True},
    "values": {"value_embeddings": "all"},
    "alternate": {"value_embeddings": "alternate", "num_hidden_layers": 3},
    "prune_tol": {"prune_tol": 1e-9},
    "together": {
        "short_convolution": 3, "output_gate": True, "value_embeddings": "all", "prune_tol": 1e-9,
        "window_pattern": "SL", "sliding_window": 6,
    },
}  # fmt: skip
SOME = ("rope", "gka-loo-bank", "fox", "inkling")
FEW = list(product(OPTIONS, SOME))
# Each option with some variants, all options together with all.
GRID = [
    (option, variant)
    for option, variant in product(OPTIONS, CAUSAL)
    if option == "together" or variant in SOME
]


def fresh(**changes: Any) -> KernelGPTForCausalLM:
    torch.manual_seed(0)
    config = KernelGPTConfig(
        **{
            "vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
            "max_position_embeddings": 32,
            "variant_options": causal_options(changes.get("variant")), **changes,
        }
    )  # fmt: skip
    return in_enough_digits(KernelGPTForCausalLM(config).eval())


def make(**changes: Any) -> KernelGPTForCausalLM:
    """A model that is no longer where it starts, with convolutions that are not the identity."""
    model = fresh(**changes)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "convolution" in name or "output_gate" in name:
                parameter.normal_(std=0.5)
            if "value_embedding" in name:
                parameter.fill_(1.0) if parameter.dim() == 0 else parameter.normal_()
    return model


@pytest.fixture
def tokens() -> torch.Tensor:
    torch.manual_seed(1)
    return torch.randint(VOCABULARY, (2, 20))


def assert_close(actual: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=2e-5)


@torch.no_grad()
def decoded(
    model: KernelGPTForCausalLM, tokens: torch.Tensor, pieces: list[int], **options: Any
) -> torch.Tensor:
    """Logits of the tokens, given in pieces of so many."""
    cache, logits, seen = None, [], 0
    mask = options.get("attention_mask")
    for piece in tokens.split(pieces, 1):
        seen += piece.shape[1]
        if mask is not None:
            options["attention_mask"] = mask[:, :seen]
        out = model(piece, past_key_values=cache, use_cache=True, **options)
        logits.append(out.logits)
        cache = out.past_key_values
    return torch.cat(logits, 1)


@pytest.mark.parametrize(("option", "variant"), GRID)
@torch.no_grad()
def test_cached_decoding_gives_the_logits_of_the_full_pass(
    option: str, variant: str, tokens: torch.Tensor
) -> None:
    model = make(variant=variant, **OPTIONS[option])
    full = model(tokens).logits
    assert_close(decoded(model, tokens, [7] + [1] * 13), full)
    assert_close(decoded(model, tokens, [1, 1, 2, 5, 1, 10]), full)


@pytest.mark.parametrize(("option", "variant"), FEW)
@torch.no_grad()
def test_packed_documents_are_texts_of_their_own(option: str, variant: str, tokens: torch.Tensor) -> None:
    model = make(variant=variant, **OPTIONS[option])
    lengths = torch.tensor([[2, 1, 9, 8], [11, 4, 4, 1]])
    places = torch.stack([torch.cat([torch.arange(n) for n in row]) for row in lengths])
    packed = model(tokens, position_ids=places).logits
    for row in range(2):
        alone = [model(text[None]).logits for text in tokens[row].split(lengths[row].tolist())]
        assert_close(packed[row], torch.cat(alone, 1)[0])


@pytest.mark.parametrize(("option", "variant"), FEW)
@torch.no_grad()
def test_padding_on_the_left_changes_nothing(option: str, variant: str, tokens: torch.Tensor) -> None:
    model = make(variant=variant, **OPTIONS[option])
    mask = torch.ones(2, 20)
    mask[0, :5] = 0.0
    full = model(tokens, attention_mask=mask).logits
    assert_close(full[:1, 5:], model(tokens[:1, 5:]).logits)
    assert_close(full[1:], model(tokens[1:]).logits)
    assert_close(decoded(model, tokens, [7, 1, 3, 9], attention_mask=mask)[:1, 5:], full[:1, 5:])
    marked = tokens.clone()
    marked[0, :5] = VOCABULARY  # the number that stands for padding
    assert_close(model(marked, attention_mask=mask).logits[:1, 5:], full[:1, 5:])


@pytest.mark.parametrize(("option", "variant"), GRID)
def test_gradients_reach_every_parameter_from_the_start(
    option: str, variant: str, tokens: torch.Tensor
) -> None:
    model = fresh(variant=variant, **OPTIONS[option]).train()
    model(tokens, labels=tokens).loss.backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        if any(part in name for part in ("convolution", "value_embedding", "output_gate")):
            assert parameter.grad.count_nonzero() > 0, name


@pytest.mark.parametrize(("option", "variant"), FEW)
def test_saved_models_come_back(option: str, variant: str, tokens: torch.Tensor, tmp_path: Path) -> None:
    model = make(variant=variant, **OPTIONS[option])
    model.save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert loaded.config.layer_types == model.config.layer_types
    torch.testing.assert_close(loaded(tokens).logits, model(tokens).logits, rtol=0, atol=0)


@pytest.mark.parametrize(("option", "variant"), FEW)
def test_beams_keep_their_own_past(option: str, variant: str, tokens: torch.Tensor) -> None:
    model = make(variant=variant, **OPTIONS[option])
    options = {"max_new_tokens": 9, "num_beams": 3, "pad_token_id": 0}
    cached = model.generate(tokens[:, :3], **options)
    assert torch.equal(cached, model.generate(tokens[:, :3], use_cache=False, **options))


@torch.no_grad()
def test_the_convolution_is_a_sum_over_earlier_tokens_that_starts_as_the_identity() -> None:
    convolution = ShortConvolution(5, 3)
    x = torch.randn(2, 7, 5)
    assert torch.equal(convolution(x), x)
    convolution.weight.normal_()
    expected = x.clone()
    for t in range(7):
        for k in range(min(3, t + 1)):
            expected[:, t] += convolution.weight[:, 0, 2 - k] * x[:, t - k]
    torch.testing.assert_close(convolution(x), expected)


@pytest.mark.parametrize("tokens", [2, 7])
@pytest.mark.parametrize("packed", [False, True])
def test_the_convolution_has_the_gradients_of_its_sum(tokens: int, packed: bool) -> None:
    convolution = ShortConvolution(3, 4).double()
    x = torch.randn(2, tokens, 3, dtype=torch.float64, requires_grad=True)
    documents = torch.tensor([0, 0, 1, 2, 2, 2, 2])[:tokens].expand(2, -1) if packed else None

    def convolved(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(convolution, {"weight": weight}, (x, None, documents))

    weight = torch.randn(3, 1, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(convolved, (x, weight))


def test_parts_that_a_checkpoint_lacks_start_where_a_new_model_starts(
    tokens: torch.Tensor, tmp_path: Path
) -> None:
    plain = fresh()
    plain.save_pretrained(tmp_path)
    with_more = AutoModelForCausalLM.from_pretrained(tmp_path, short_convolution=4, value_embeddings="all")
    for block in with_more.model.blocks:
        assert not block.convolution.weight.any()
        assert block.value_embedding.scale.item() == pytest.approx(0.1)
        assert block.value_embedding.table.weight.std().item() == pytest.approx(0.02, rel=0.2)
    convolved = AutoModelForCausalLM.from_pretrained(tmp_path, short_convolution=4)
    assert torch.equal(convolved(tokens).logits, plain(tokens).logits)


def test_only_kernels_are_kernel_parameters() -> None:
    plain = {name for name, _ in fresh(variant="gka-bank").kernel_parameters()}
    assert {name for name, _ in fresh(variant="gka-bank", **OPTIONS["together"]).kernel_parameters()} == plain


def test_alternate_layers_have_value_embeddings_the_last_among_them() -> None:
    for layers in (1, 2, 5):
        blocks = fresh(value_embeddings="alternate", num_hidden_layers=layers).model.blocks
        has = [block.value_embedding is not None for block in blocks]
        assert has == [(layers - 1 - layer) % 2 == 0 for layer in range(layers)]


def test_gates_and_the_negligible_share_are_in_every_layer() -> None:
    for block in fresh(variant=["rope", "gpa-mul"], output_gate=True, prune_tol=0.01).model.blocks:
        assert isinstance(block.attention.output_gate, OutputGate)
        assert block.attention.prune_tol == 0.01


@torch.no_grad()
def test_tokens_that_are_added_later_have_values_too(tokens: torch.Tensor) -> None:
    model = make(value_embeddings="all", num_key_value_heads=2)
    before = model(tokens).logits
    model.resize_token_embeddings(VOCABULARY + 4)
    assert_close(model(tokens).logits[..., :VOCABULARY], before)
    assert model(tokens + 4).logits.isfinite().all()


def test_gradient_checkpointing_gives_the_same_gradients(tokens: torch.Tensor) -> None:
    model = make(variant="gpa-rope", **OPTIONS["together"]).train()
    model(tokens, labels=tokens).loss.backward()
    expected = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
    model.zero_grad()
    model.gradient_checkpointing_enable()
    model(tokens, labels=tokens).loss.backward()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, expected[name], msg=lambda m, name=name: f"{name}: {m}")


@pytest.mark.slow
def test_torch_compile_gives_the_same_loss(tokens: torch.Tensor) -> None:
    model = make(variant="gka-loo-bank", **OPTIONS["together"]).train()
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    assert_close(compiled(tokens, labels=tokens).loss, model(tokens, labels=tokens).loss)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"short_convolution": 1}, "short_convolution must be at least 2, got 1"),
        ({"value_embeddings": "alternating"}, "did you mean 'alternate'"),
        ({"prune_tol": 1.0}, "prune_tol must be less than 1, got 1.0"),
        ({"prune_tol": float("nan")}, "prune_tol must be less than 1, got nan"),
        ({"short_convolutions": 4}, "did you mean 'short_convolution'"),
    ],
)
def test_bad_options_are_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        fresh(**changes)


def test_inputs_that_options_cannot_do_without_are_named(tokens: torch.Tensor) -> None:
    with pytest.raises(InputError, match="input_ids must be given to a model with value_embeddings"):
        fresh(value_embeddings="all")(inputs_embeds=torch.randn(1, 3, 32))
    with pytest.raises(InputError, match="past_key_values must be made for the model, as Dyn"):
        fresh(short_convolution=4)(tokens, past_key_values=DynamicCache())


@pytest.mark.parametrize("layers", [1, 4, 7, 10])
def test_recipes_set_the_options_and_their_memory_is_counted(
    layers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    extra = "{short_convolution: 4, value_embeddings: alternate, output_gate: true, prune_tol: 0.01}"
    counted: list[int] = []
    monkeypatch.setattr(
        "nadaraya.training.text_recipe.text_training_bytes",
        lambda _, parameters, __: counted.append(parameters) or 1,
    )
    model = load_recipe("demo", [f"model.num_hidden_layers={layers}", f"model.extra={extra}"]).build_model(50)
    assert model.config.short_convolution == 4
    table = 50 * model.config.hidden_size + 1
    assert model.num_parameters() - counted[0] in (0, table if layers > 1 else 0)
