"""What KernelGPT takes beside tokens: honoured as by transformers' own models, or refused by name."""

from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from nadaraya import InputError
from nadaraya.models import KernelGPTConfig, KernelGPTForCausalLM

VOCABULARY = 23
SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 32,
}
LEFT_PADDED = torch.tensor([[0, 0, 0, 1, 1, 1, 1, 1], [1] * 8])
COUNTED = torch.tensor([[1, 1, 1, 0, 1, 2, 3, 4], list(range(8))])  # as generate counts them


@pytest.fixture(scope="module")
def model() -> KernelGPTForCausalLM:
    torch.manual_seed(0)
    return KernelGPTForCausalLM(KernelGPTConfig(**SIZES, variant="gpa-rope")).eval()


@pytest.fixture(scope="module")
def llama() -> LlamaForCausalLM:
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(**SIZES, intermediate_size=64)).eval()


@pytest.fixture
def tokens() -> torch.Tensor:
    return torch.randint(VOCABULARY, (2, 8), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("positions", [torch.arange(8), torch.arange(8)[None], torch.arange(8).repeat(2, 1)])
@torch.no_grad()
def test_positions_that_count_tokens_change_nothing(
    model: KernelGPTForCausalLM, tokens: torch.Tensor, positions: torch.Tensor
) -> None:
    assert torch.equal(model(tokens, position_ids=positions).logits, model(tokens).logits)


@torch.no_grad()
def test_positions_go_on_from_the_cache(model: KernelGPTForCausalLM, tokens: torch.Tensor) -> None:
    cache = model(tokens[:, :5], use_cache=True).past_key_values
    with pytest.raises(InputError, match=r"position_ids must be consecutive, from 5 .* got 0"):
        model(tokens[:, 5:], past_key_values=cache, position_ids=torch.arange(3))
    out = model(tokens[:, 5:], past_key_values=cache, position_ids=torch.arange(5, 8))
    torch.testing.assert_close(out.logits, model(tokens).logits[:, 5:], rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_positions_may_count_from_the_end_of_the_padding(
    model: KernelGPTForCausalLM, tokens: torch.Tensor
) -> None:
    expected = model(tokens, attention_mask=LEFT_PADDED).logits
    for positions in (COUNTED, torch.arange(8)):
        out = model(tokens, attention_mask=LEFT_PADDED, position_ids=positions, use_cache=True)
        assert torch.equal(out.logits, expected)
    longer = torch.cat([LEFT_PADDED, torch.ones(2, 1, dtype=torch.long)], 1)
    after = {"past_key_values": out.past_key_values, "attention_mask": longer}
    with pytest.raises(InputError, match="from 8 or from the end of the padding"):
        model(tokens[:, :1], position_ids=torch.tensor([[4], [7]]), **after)
    model(tokens[:, :1], position_ids=torch.tensor([[5], [8]]), **after)


@torch.no_grad()
def test_positions_that_start_again_are_documents_of_their_own(
    model: KernelGPTForCausalLM, tokens: torch.Tensor
) -> None:
    packed = torch.tensor([[0, 1, 2, 0, 1, 0, 1, 2], [0, 0, 1, 2, 3, 4, 5, 6]])
    out = model(tokens, position_ids=packed)
    for row, lengths in enumerate(([3, 2, 3], [1, 7])):
        alone = [model(part[None]).logits[0] for part in tokens[row].split(lengths)]
        torch.testing.assert_close(out.logits[row], torch.cat(alone), rtol=1e-4, atol=1e-5)
    assert out.past_key_values is None
    with pytest.raises(InputError, match="position_ids must be consecutive, from 0 or"):
        model(tokens, attention_mask=LEFT_PADDED, position_ids=packed)


@pytest.mark.parametrize(
    ("positions", "message"),
    [
        ([0, 1, 2, 3, 1, 2, 3, 4], r"from 0 again where a new document begins, got \[3, 1\]"),
        ([3, 4, 5, 6, 7, 8, 9, 10], "consecutive, from 0, .* got 3"),
        ([[0, 1, 2, 3, 4, 5, 6, 7], [0, 1, 2, 4, 5, 6, 7, 8]], r"got \[2, 4\]"),
        ([0, 1, 2], r"position_ids must be of shape \(2, 8\), got \(3,\)"),
    ],
)
def test_positions_that_leave_some_out_are_refused(
    model: KernelGPTForCausalLM, tokens: torch.Tensor, positions: list[Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        model(tokens, position_ids=torch.tensor(positions))


def test_positions_within_padded_rows_must_be_those_of_one_count(
    model: KernelGPTForCausalLM, tokens: torch.Tensor
) -> None:
    mixed = COUNTED.clone()
    mixed[0, 5:] = torch.arange(5, 8)  # by token, then by place
    with pytest.raises(InputError, match="position_ids must be consecutive"):
        model(tokens, attention_mask=LEFT_PADDED, position_ids=mixed)


@pytest.mark.parametrize("shape", [(2, 7), (2, 9), (1, 8), (8,), (2, 1, 8, 8)])
@pytest.mark.parametrize("value", [0, 1])
def test_attention_masks_of_another_shape_are_refused(
    model: KernelGPTForCausalLM, tokens: torch.Tensor, shape: tuple[int, ...], value: int
) -> None:
    with pytest.raises(
        InputError, match=r"attention_mask must be of shape \(batch, tokens\) = \(2, 8\), got"
    ):
        model(tokens, attention_mask=torch.full(shape, value))


def test_a_mask_covers_the_cache(model: KernelGPTForCausalLM, tokens: torch.Tensor) -> None:
    cache = model(tokens[:, :5], use_cache=True).past_key_values
    with pytest.raises(InputError, match=r"= \(2, 8\), got \(2, 3\)"):
        model(tokens[:, 5:], past_key_values=cache, attention_mask=torch.ones(2, 3))


@torch.no_grad()
def test_a_tuple_on_request(
    model: KernelGPTForCausalLM, llama: LlamaForCausalLM, tokens: torch.Tensor
) -> None:
    for each in (model, llama):
        expected = each(tokens, labels=tokens)
        out = each(tokens, labels=tokens, return_dict=False)
        assert [type(part) for part in out] == [type(part) for part in expected.to_tuple()]
        assert torch.equal(out[0], expected.loss)
        assert torch.equal(out[1], expected.logits)
        assert isinstance(each.model(tokens, return_dict=False), tuple)


@torch.no_grad()
def test_a_tuple_by_configuration(
    model: KernelGPTForCausalLM, tokens: torch.Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = model(tokens).logits
    monkeypatch.setattr(model.config, "return_dict", False)
    assert torch.equal(model(tokens)[0], expected)
    assert isinstance(model.model(tokens), tuple)


@pytest.mark.parametrize("kept", [3, torch.tensor([1, 4, 6])])
@torch.no_grad()
def test_labels_are_those_of_the_logits_that_are_kept(
    model: KernelGPTForCausalLM, llama: LlamaForCausalLM, tokens: torch.Tensor, kept: Any
) -> None:
    chosen = tokens[:, -kept:] if isinstance(kept, int) else tokens[:, kept]
    for each in (model, llama):
        with pytest.raises(ValueError, match="batch"):
            each(tokens, labels=tokens, logits_to_keep=kept)
        out = each(tokens, labels=chosen, logits_to_keep=kept)
        log_p = out.logits[:, :-1].log_softmax(-1).gather(2, chosen[:, 1:, None])
        torch.testing.assert_close(out.loss, -log_p.mean())
    with pytest.raises(
        InputError, match=r"labels must be of shape \(batch, tokens with logits\) = \(2, 3\), got \(2, 8\)"
    ):
        model(tokens, labels=tokens, logits_to_keep=kept)


PACKING = {
    "position_ids": {"position_ids": torch.tensor([[0, 1, 2, 0, 1, 2, 3, 4]])},
    "lengths": {
        "cu_seq_lens_q": torch.tensor([0, 3, 8], dtype=torch.int32),
        "cu_seq_lens_k": torch.tensor([0, 3, 8], dtype=torch.int32),
        "max_length_q": 5,
        "max_length_k": 5,
    },
    "numbers": {"seq_idx": torch.tensor([[0, 0, 0, 1, 1, 1, 1, 1]], dtype=torch.int32)},
}
PACKING["all"] = {**PACKING["position_ids"], **PACKING["lengths"], **PACKING["numbers"]}


@pytest.mark.parametrize("packing", PACKING.values(), ids=PACKING)
@pytest.mark.parametrize("variant", ["gpa-rope", "gka-loo-bank", "fox", "mixed-bank"])
@torch.no_grad()
def test_packed_rows_are_as_their_documents_alone(
    variant: str, packing: dict[str, Any], tokens: torch.Tensor
) -> None:
    torch.manual_seed(0)
    config = KernelGPTConfig(**SIZES, variant=variant, initializer_range=0.3, short_convolution=3)
    model, row = KernelGPTForCausalLM(config).eval(), tokens[:1]
    alone = torch.cat((model(row[:, :3]).logits, model(row[:, 3:]).logits), 1)
    torch.testing.assert_close(model(row, **packing).logits, alone, rtol=1e-4, atol=1e-5)
    assert not torch.allclose(model(row).logits, alone, atol=1e-3)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"seq_idx": torch.zeros(1, 8, dtype=torch.int32)}, r"seq_idx must be numbers of documents \(2, 8\)"),
        ({"cu_seq_lens_q": torch.tensor([0, 8])}, "cu_seq_lens_q must be 0 … 8 for one row"),
        ({"seq_idxs": torch.zeros(2, 8)}, "did you mean 'seq_idx'"),
        ({"head_mask": None}, "argument of the model must be one of"),
        ({"labels_": torch.zeros(2, 8)}, "argument of the model must be one of"),
        (
            {"seq_idx": torch.zeros(2, 8), "attention_mask": LEFT_PADDED},
            "seq_idx must be left out where there is padding or a cache",
        ),
    ],
)
def test_packing_that_does_not_fit_and_unknown_arguments_are_refused(
    model: KernelGPTForCausalLM, tokens: torch.Tensor, given: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        model(tokens, **given)


@pytest.mark.parametrize("lengths", [[0, 3, 7], [1, 3, 8], [0, 5, 3, 8], [0, 9, 8], [8], [[0, 8]]])
def test_lengths_of_another_row_are_refused(
    model: KernelGPTForCausalLM, tokens: torch.Tensor, lengths: list[Any]
) -> None:
    with pytest.raises(InputError, match="cu_seq_lens_k must be 0 … 8 for one row"):
        model(tokens[:1], cu_seq_lens_k=torch.tensor(lengths))


def test_documents_that_differ_are_refused(model: KernelGPTForCausalLM, tokens: torch.Tensor) -> None:
    with pytest.raises(InputError, match="seq_idx must be of the documents that the other arguments say"):
        model(tokens[:1], **PACKING["lengths"], seq_idx=torch.tensor([[0, 0, 1, 1, 1, 1, 1, 1]]))


@pytest.mark.parametrize("token", [VOCABULARY + 1, 10**6, -1])
def test_tokens_that_the_model_does_not_have_are_refused(model: KernelGPTForCausalLM, token: int) -> None:
    with pytest.raises(InputError, match=f"input_ids must be from 0 to {VOCABULARY - 1}, got {token}"):
        model(torch.tensor([[0, token]]))
    with pytest.raises(InputError, match=r"input_ids must be of shape \(batch, tokens\), got \(2,\)"):
        model(torch.tensor([0, token]))
