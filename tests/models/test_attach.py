"""Models of transformers with our attention give what they give with their own: values, gradients, texts."""

import copy
import math
from typing import Any

import pytest
import torch
from other_models import (
    ALL,
    CAUSAL,
    ENCODER_DECODERS,
    RELATIVE,
    assert_close,
    logits_and_gradients,
    make,
    padded,
    some_tokens,
)
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import (
    AttentionInterface,
    XLNetConfig,
    XLNetLMHeadModel,
)
from transformers.masking_utils import AttentionMaskInterface

from nadaraya import InputError
from nadaraya.attention import MixedLogits
from nadaraya.models import attach_attention, attach_kernel_bank
from nadaraya.models.attach import interface


@pytest.mark.parametrize("padding", ["none", "left", "right"])
@pytest.mark.parametrize("name", ALL)
def test_an_attached_model_has_the_logits_and_every_gradient_of_its_own_attention(
    name: str, padding: str
) -> None:
    model, mask = make(name), padded(padding)
    want = logits_and_gradients(model, mask)
    with attach_attention(model):
        assert_close(logits_and_gradients(model, mask), want)


# Inkling's own eager attention fails with a static cache.
_WRITERS = [(name, "dynamic") for name in ALL if name != "bert"]
_WRITERS += [(name, "static") for name in (*CAUSAL, *ENCODER_DECODERS)]


@pytest.mark.parametrize(("name", "cache"), _WRITERS)
def test_an_attached_model_writes_the_same_text(name: str, cache: str) -> None:
    model = make(name)
    options: dict[str, Any] = {"max_new_tokens": 12, "do_sample": False, "eos_token_id": None}
    options |= {"attention_mask": padded("left"), "disable_compile": True, "cache_implementation": cache}
    options["no_repeat_ngram_size"] = 2  # a model that repeats one token would show nothing
    want = model.generate(some_tokens(), **options)
    with attach_attention(model):
        assert torch.equal(model.generate(some_tokens(), **options), want)


@pytest.mark.parametrize("name", ["llama", "mistral", "inkling", "inkling2"])
def test_packed_documents_are_those_of_the_library(name: str) -> None:
    model = make(name)
    documents = torch.tensor([[*range(7), *range(10)], [*range(3), *range(4), *range(10)]])
    want = logits_and_gradients(model, position_ids=documents, use_cache=False)
    with attach_attention(model):
        assert_close(logits_and_gradients(model, position_ids=documents, use_cache=False), want)
    alone = logits_and_gradients(model, use_cache=False)
    assert not torch.allclose(alone[0], want[0], atol=1e-3)


@pytest.mark.parametrize("name", RELATIVE)
def test_relative_positions_are_handed_on_unwritten(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    positions = []

    def noted(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Any:
        positions.append(options.get("position"))
        return interface_kernel_attention(query, key, value, **options)

    interface_kernel_attention = interface.kernel_attention
    monkeypatch.setattr(interface, "kernel_attention", noted)
    model = make(name)
    with attach_attention(model) as attached:
        logits_and_gradients(model)
    kinds = [type(position) for position in positions]
    if name in ENCODER_DECODERS:  # two layers of the encoder, two of the decoder, two across
        assert kinds.count(Tensor) == 4
        assert kinds.count(type(None)) == 2
        assert len(attached.relative) == 6
    else:
        assert kinds == [MixedLogits] * 2
        assert len(attached.relative) == 2


class Largest(TorchDispatchMode):
    """The largest number of elements of any tensor made, as far as they are stored."""

    size = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        result = function(*args, **(kwargs or {}))
        for each in result if isinstance(result, (tuple, list)) else [result]:
            if isinstance(each, Tensor):
                stored = (size for size, stride in zip(each.shape, each.stride(), strict=True) if stride)
                self.size = max(self.size, math.prod(stored))
        return result


@pytest.mark.parametrize("name", ["llama", "llama4", "mistral", "t5", "inkling", "inkling2"])
def test_no_tensor_of_all_pairs_is_made(name: str) -> None:
    model, length = make(name), 600
    mask = torch.ones(1, length, dtype=torch.long)
    mask[:, -5:] = 0
    inputs: dict[str, Any] = {"input_ids": some_tokens(length, 1), "attention_mask": mask}
    if model.config.is_encoder_decoder:
        inputs["decoder_input_ids"] = some_tokens(length, 1)
    sizes = {}
    for attached in (False, True):
        handle = attach_attention(model) if attached else None
        with Largest() as largest:
            model(**inputs).logits.sum().backward()
        sizes[attached] = largest.size
        if handle:
            handle.remove()
    assert sizes[False] >= length**2
    assert sizes[True] < length**2


@pytest.mark.parametrize("name", ["llama", "mistral"])
def test_a_bank_with_open_gates_makes_no_tensor_of_all_pairs(name: str) -> None:
    model, length = make(name), 600
    model.set_attn_implementation("sdpa")
    mask = torch.ones(1, length, dtype=torch.long)
    mask[:, :5] = 0
    adapter: Any = attach_kernel_bank(model)
    with torch.no_grad():
        for bank in adapter.banks:
            bank.gate.fill_(0.5)
    with Largest() as largest:
        model(some_tokens(length, 1), attention_mask=mask).logits.sum().backward()
    assert largest.size < length**2


@pytest.mark.parametrize("name", ["llama", "t5", "inkling", "inkling2"])
def test_weights_are_not_touched_and_all_is_taken_back(name: str) -> None:
    model = make(name)
    before = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    want = logits_and_gradients(model)
    attached = attach_attention(model)
    assert model.config._attn_implementation == "nadaraya"
    assert model.state_dict().keys() == before.keys()
    attached.remove()
    attached.remove()
    assert model.config._attn_implementation == "eager"
    got = logits_and_gradients(model)
    assert torch.equal(got[0], want[0])
    assert all(torch.equal(model.state_dict()[key], tensor) for key, tensor in before.items())


@pytest.mark.parametrize("name", ["t5", "inkling"])
def test_a_copy_of_an_attached_model_stands_alone(name: str) -> None:
    model = make(name)
    want = logits_and_gradients(model)
    with attach_attention(model):
        other = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    assert_close(logits_and_gradients(other), want)


@pytest.mark.parametrize("name", ["t5", "inkling"])
def test_an_attached_model_may_be_given_another_attention(name: str) -> None:
    model = make(name)
    want = logits_and_gradients(model)
    with attach_attention(model):
        model.set_attn_implementation("sdpa")
        assert_close(logits_and_gradients(model), want)


@pytest.mark.parametrize("name", ["llama", "mistral", "t5", "inkling"])
@pytest.mark.parametrize("reentrant", [False, True])
def test_gradient_checkpointing_changes_no_gradient(name: str, reentrant: bool) -> None:
    model, mask = make(name), padded("left")
    want = logits_and_gradients(model, mask)
    model.gradient_checkpointing_enable({"use_reentrant": reentrant})
    model.enable_input_require_grads()
    model.train()
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        if isinstance(getattr(module, "dropout", None), float):
            module.dropout = 0.0
    with attach_attention(model):
        assert_close(logits_and_gradients(model, mask, use_cache=False), want)


def test_dropout_is_for_training_and_keeps_the_mean() -> None:
    torch.manual_seed(0)
    module = torch.nn.Module()
    query, key = torch.randn(2, 1, 2, 64, 8)
    value = torch.ones_like(key)
    module.train()
    out, _ = interface.attention(module, query, key, value, None, dropout=0.4)
    assert out.std() > 0.05
    assert abs(out.mean().item() - 1.0) < 0.1
    module.eval()
    out, _ = interface.attention(module, query, key, value, None, dropout=0.4)
    torch.testing.assert_close(out, torch.ones_like(out))


@pytest.mark.parametrize("name", ["llama", "gpt-oss", "gpt2", "bert", "t5", "inkling2"])
@torch.no_grad()
def test_the_weights_that_are_asked_for_are_those_of_the_library(name: str) -> None:
    model, tokens = make(name), some_tokens()
    inputs = {"decoder_input_ids": tokens} if model.config.is_encoder_decoder else {}
    key = "encoder_attentions" if model.config.is_encoder_decoder else "attentions"
    want = model(tokens, output_attentions=True, **inputs)[key]
    with attach_attention(model):
        got = model(tokens, output_attentions=True, **inputs)[key]
    assert len(got) == len(want) == 2
    for ours, theirs in zip(got, want, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama", "mistral", "t5"])
def test_a_compiled_model_gives_the_same(name: str) -> None:
    model, mask = make(name), padded("right")
    with attach_attention(model):
        want = logits_and_gradients(model, mask)
        compiled: Any = torch.compile(model, backend="aot_eager")
        assert_close(logits_and_gradients(compiled, mask), want)


def test_importing_the_models_makes_the_name_known() -> None:
    assert "nadaraya" in AttentionInterface().valid_keys()
    assert "nadaraya" in AttentionMaskInterface().valid_keys()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_capped_logits_are_those_of_the_formula(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    query, key, value = (3 * torch.randn(2, heads, 5, 4, dtype=dtype) for heads in (4, 2, 2))
    module = torch.nn.Module().eval()
    out, _ = interface.attention(module, query, key, value, None, scaling=0.7, softcap=2.0)
    query, key, value = (tensor.double() for tensor in (query, key, value))
    scores = 0.7 * torch.einsum("bghic,bgjc->bghij", query.unflatten(1, (2, 2)), key)
    hidden = torch.ones(5, 5, dtype=torch.bool).triu(1)
    weights = (2 * torch.tanh(scores / 2)).masked_fill(hidden, -torch.inf).softmax(-1)
    want = torch.einsum("bghij,bgjc->bighc", weights, value).flatten(2, 3)
    torch.testing.assert_close(out.double(), want, rtol=1e-5, atol=1e-5 if dtype.itemsize == 4 else 0.03)


@pytest.mark.parametrize("name", ["block_indices", "cache", "head_mask", "an_option_of_tomorrow"])
def test_an_option_that_is_not_known_is_refused_by_name(name: str) -> None:
    query = torch.randn(1, 2, 5, 4)
    module = torch.nn.Module().eval()
    unknown: dict[str, Any] = {name: torch.ones(2)}
    with pytest.raises(InputError, match=f"^{name} must be None for attn_implementation='nadaraya'"):
        interface.attention(module, query, query, query, None, **unknown)
    plain, _ = interface.attention(module, query, query, query, None)
    known: dict[str, Any] = {
        "sliding_window": 3,
        "use_cache": True,
        "position_ids": torch.arange(5),
        name: None,
    }
    assert torch.equal(interface.attention(module, query, query, query, None, **known)[0], plain)


@pytest.mark.parametrize("kind", [bool, float])
def test_indices_narrow_the_mask(kind: type) -> None:
    torch.manual_seed(0)
    query, key, value = torch.randn(3, 2, 2, 5, 4)
    indices = torch.rand(2, 5, 5).topk(3).indices
    seen = torch.zeros(2, 5, 5, dtype=torch.bool).scatter(-1, indices, True)[:, None]
    mask = torch.rand(2, 1, 5, 5) < 0.8
    given = (
        mask if kind is bool else torch.zeros(2, 1, 5, 5).masked_fill(~mask, torch.finfo(torch.float32).min)
    )
    module = torch.nn.Module().eval()
    out, _ = interface.attention(module, query, key, value, given, indices=indices)
    want, _ = interface.attention(module, query, key, value, mask & seen)
    some = (mask & seen).any(-1)[:, 0]
    torch.testing.assert_close(out[some], want[some])


_BOUNDS = torch.tensor([0, 7, 17], dtype=torch.int32)
_DOCUMENTS = {
    "cu_seq_lens_q": (_BOUNDS, torch.tensor([0, 6, 17], dtype=torch.int32), torch.tensor([0, 17])),
    "cu_seq_lens_k": (_BOUNDS, torch.tensor([0, 7, 16], dtype=torch.int32), torch.tensor([0, 17])),
    "seq_idx": tuple(torch.tensor([[3] * n + [4] * (17 - n)]) for n in (7, 5, 17)),
}


@pytest.mark.parametrize("keyword", _DOCUMENTS)
@torch.no_grad()
def test_packed_documents_by_any_keyword_are_those_of_the_positions_or_refused(keyword: str) -> None:
    model, tokens = make("llama"), some_tokens(batch=1)
    model.set_attn_implementation("nadaraya")
    same, other, one = _DOCUMENTS[keyword]
    packed = {"position_ids": torch.tensor([[*range(7), *range(10)]]), "use_cache": False}
    apart = torch.cat([model(part).logits for part in tokens.split([7, 10], dim=1)], 1)
    torch.testing.assert_close(model(tokens, **packed, **{keyword: same}).logits, apart)
    torch.testing.assert_close(model(tokens, **{keyword: one}).logits, model(tokens).logits)
    for inputs in ({**packed, keyword: other}, {keyword: same}, {**packed, "use_cache": True, keyword: same}):
        with pytest.raises(InputError, match=f"^{keyword} must be that of position_ids that begin again"):
            model(tokens, **inputs)


def test_what_cannot_be_attached_is_refused_in_one_line() -> None:
    with pytest.raises(InputError, match=r"model must be a model of transformers \(PreTrainedModel\), got"):
        attach_attention(torch.nn.Linear(2, 2))
    xlnet = XLNetLMHeadModel(XLNetConfig(vocab_size=9, d_model=8, n_layer=1, n_head=2, d_inner=8))
    with pytest.raises(InputError, match="AttentionInterface, got 'XLNetLMHeadModel'"):
        attach_attention(xlnet)
    model = make("t5")
    with attach_attention(model), pytest.raises(InputError, match="must not be attached already"):
        attach_attention(model)
    attach_attention(model).remove()


def test_causal_models_need_no_attachment() -> None:
    for name in CAUSAL:
        model = make(name)
        want = logits_and_gradients(model, padded("right"))
        model.set_attn_implementation("nadaraya")
        assert_close(logits_and_gradients(model, padded("right")), want)
