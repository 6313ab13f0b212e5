"""The kernel that attention implies: least squares of the logits on the lag, with a level for each query."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from other_models import CAUSAL, make, some_tokens
from small_models import small_model
from torch import Tensor, nn

from nadaraya import InputError, kernel_attention
from nadaraya.attention.layer import KernelSelfAttention
from nadaraya.interpret import fit_implied, implied_kernels
from nadaraya.interpret.implied import ImpliedKernel, fitted_kernels, implied_summary
from nadaraya.models import KernelGPTForCausalLM

TOKENS = torch.randint(11, (3, 20), generator=torch.Generator().manual_seed(1))


def language_model(variant: str = "rope", **changes: Any) -> KernelGPTForCausalLM:
    sizes = {"num_attention_heads": 2, "max_position_embeddings": 32, "initializer_range": 0.4}
    return small_model(**{**sizes, "variant": variant, **changes})


def without_content(model: KernelGPTForCausalLM) -> KernelGPTForCausalLM:
    """The same model with W_Q = 0: its logits depend on the lag alone."""
    for module in model.modules():
        if isinstance(module, KernelSelfAttention):
            nn.init.zeros_(module.projections.q_proj.weight)
    return model


def dense(logits: np.ndarray) -> tuple[np.ndarray, float]:
    """Curve and R² of (W, N, N) logits, −inf where unseen, with a column for each level and each lag."""
    windows, n, _ = logits.shape
    places = np.argwhere(np.isfinite(logits))
    design = np.zeros((len(places), windows * n + n))
    design[np.arange(len(places)), places[:, 0] * n + places[:, 1]] = 1
    design[np.arange(len(places)), windows * n + places[:, 1] - places[:, 2]] = 1
    seen = logits[tuple(places.T)]
    levels_alone = design[:, : windows * n]
    errors = []
    for columns in (design, levels_alone):
        solution = np.linalg.lstsq(columns, seen, rcond=None)[0]
        errors.append(np.square(seen - columns @ solution).sum())
        if columns is design:
            curve = solution[windows * n :]
    return curve, 1 - errors[0] / errors[1]


def logits_of(model: nn.Module, tokens: Tensor) -> Iterator[np.ndarray]:
    """(W, H, N, N) logits of each layer up to a level: the logs of weights, which `transformers` returns."""
    with torch.no_grad():
        for weights in model(tokens, output_attentions=True, use_cache=False).attentions:
            yield weights.double().log().numpy()


def test_where_logits_are_the_lag_alone_the_curve_is_the_bank() -> None:
    for variant in ("gpa-mul", "gpa", "alibi"):
        model = without_content(language_model(variant))
        for (layer, kernel), found in zip(model.lag_kernels(), implied_kernels(model, TOKENS), strict=True):
            logits = kernel.lag_logits(20).detach().double().numpy()
            difference = found.curve - logits
            assert found.layer == layer
            np.testing.assert_allclose(difference - difference[:, :1], 0, atol=1e-5)
            np.testing.assert_allclose(found.r2, 1, atol=1e-9)
            np.testing.assert_array_equal(found.pairs, 3 * (20 - np.arange(20)))
            np.testing.assert_allclose(found.curve @ found.pairs, 0, atol=1e-9)


@pytest.mark.parametrize(
    ("variant", "changes"),
    [
        ("rope", {}), ("gka", {}), ("fox", {}), ("inkling", {}), ("fire", {}), ("mixed-bank", {}),
        ("rope", {"num_key_value_heads": 1}),
        ("rope", {"window_pattern": "SL", "sliding_window": 6}),
        ("gka-loo", {}),
        ("rope-xsa", {}),
    ],
)  # fmt: skip
def test_it_is_the_dense_least_squares_solution(variant: str, changes: dict[str, Any]) -> None:
    model = language_model(variant, **changes)
    for found, logits in zip(implied_kernels(model, TOKENS), logits_of(model, TOKENS), strict=True):
        for head in range(2):
            curve, r2 = dense(logits[:, head])
            known = np.isfinite(found.curve[head])
            assert known.sum() >= 6
            difference = (found.curve[head] - curve)[known]
            np.testing.assert_allclose(difference - difference[0], 0, atol=1e-3)
            assert found.r2[head] == pytest.approx(r2, abs=1e-4)


def test_lags_that_say_nothing_have_no_value() -> None:
    window = implied_kernels(language_model(window_pattern="SL", sliding_window=6), TOKENS)[0]
    np.testing.assert_array_equal(np.isfinite(window.curve[0]), np.arange(20) < 6)
    excluded = implied_kernels(language_model("gka-loo"), TOKENS)[0]
    np.testing.assert_array_equal(np.isfinite(excluded.curve[0]), np.arange(20) > 0)
    assert excluded.pairs[0] == 3  # the first token of each window, which sees nothing else


def test_blocks_of_queries_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    model = language_model()
    whole = implied_kernels(model, TOKENS)
    monkeypatch.setattr("nadaraya.interpret.implied._BLOCK", 2 * 20 * 3)
    for found, expected in zip(implied_kernels(model, TOKENS), whole, strict=True):
        np.testing.assert_allclose(found.curve, expected.curve, atol=1e-5)
        np.testing.assert_allclose(found.r2, expected.r2, atol=1e-6)


@pytest.mark.parametrize("name", [*CAUSAL, "inkling"])
def test_models_of_transformers_have_the_curves_of_their_own_attention(name: str) -> None:
    model, tokens = make(name), some_tokens()
    expected = list(logits_of(model, tokens))
    found = implied_kernels(model, tokens)
    assert model.config._attn_implementation == "eager"
    assert len(found) == len(expected) == 2
    for kernel, logits in zip(found, expected, strict=True):
        curve, r2 = dense(logits[:, 1])
        known = np.isfinite(kernel.curve[1])
        difference = (kernel.curve[1] - curve)[known]
        np.testing.assert_allclose(difference - difference[0], 0, atol=1e-3)
        assert kernel.r2[1] == pytest.approx(r2, abs=1e-4)


def test_packed_documents_are_windows_of_their_own() -> None:
    model = language_model()
    positions = torch.arange(20)[None] % 10
    packed = implied_kernels(model, TOKENS[:1], position_ids=positions)
    apart = implied_kernels(model, TOKENS[:1].view(2, 10))
    for one, two in zip(packed, apart, strict=True):
        np.testing.assert_allclose(one.curve[:, :10], two.curve, atol=1e-5)
        assert np.isnan(one.curve[:, 10:]).all()


def test_the_model_is_left_as_it_was() -> None:
    model = language_model(dropout=0.5).train()
    model.model.blocks[0].eval()
    before = implied_kernels(model, TOKENS)
    assert model.training
    assert not model.model.blocks[0].training
    np.testing.assert_array_equal(implied_kernels(model, TOKENS)[1].curve, before[1].curve)
    query = torch.randn(1, 1, 3, 4)
    kernel_attention(query, query, query)  # no one watches any more


class OneLayer(nn.Module):
    """A model that is one attention layer."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 8)
        self.layer = KernelSelfAttention(8, 2, **options)
        self.mask: Tensor | None = None

    def forward(self, input_ids: Tensor, use_cache: bool) -> Tensor:
        out = self.layer(self.embedding(input_ids), attn_mask=self.mask)
        assert isinstance(out, Tensor)
        return out


def test_what_has_no_such_kernel_is_refused() -> None:
    with pytest.raises(InputError, match="layer 0 must be causal, but its queries see later tokens"):
        implied_kernels(OneLayer(), TOKENS)
    model = OneLayer(causal=True)
    model.mask = torch.ones(20, 20, dtype=torch.bool)
    model.mask[:, 3] = False
    with pytest.raises(InputError, match="an unbroken range of lags from 0 or 1"):
        implied_kernels(model, TOKENS)
    model.mask = None
    nn.init.constant_(model.embedding.weight, torch.inf)
    with pytest.raises(InputError, match="the logits of layer 0 must be finite"):
        implied_kernels(model, TOKENS)
    for tokens in (None, TOKENS[0], TOKENS[:, :1], TOKENS[:0]):
        with pytest.raises(InputError, match=r"tokens must be of shape \(windows, tokens\)"):
            implied_kernels(language_model(), tokens)


def test_flat_logits_have_no_share_to_explain() -> None:
    found = implied_kernels(without_content(language_model("nope")), TOKENS)
    assert np.isnan(found[0].r2).all()
    np.testing.assert_array_equal(found[0].curve, 0)
    summary = implied_summary(found, fit_implied(found, num_terms=1))
    assert summary["layers"][0]["heads"][0]["r2"] is None
    assert summary["layers"][0]["heads"][0]["fits"]["periodic"]["r2"] is None


def test_fits_to_one_half_of_the_windows_are_scored_on_the_other() -> None:
    model, tokens = language_model("rope"), TOKENS[:4]
    kernels, fits = fitted_kernels(model, tokens, num_terms=1)
    for found, known in zip(kernels, implied_kernels(model, tokens), strict=True):
        np.testing.assert_allclose(found.curve, known.curve, atol=1e-9)
        np.testing.assert_allclose(found.r2, known.r2, atol=1e-9)
        np.testing.assert_array_equal(found.pairs, known.pairs)
    first, second = (implied_kernels(model, tokens[half::2]) for half in (0, 1))
    for pair, expected, other in zip(fits, fit_implied(first, num_terms=1), second, strict=True):
        for fit, alone in zip(pair, expected, strict=True):
            np.testing.assert_allclose(fit.r2, alone.on(other.curve, other.pairs).r2)
    with pytest.raises(InputError, match="windows must be 2 or more where banks are fitted, got 1"):
        fitted_kernels(model, tokens[:1])


def test_the_summary_has_the_figures_of_the_layers() -> None:
    found = implied_kernels(language_model("gka-loo"), TOKENS)
    fits = fit_implied(found, num_terms=1)
    layer = implied_summary(found, fits)["layers"][1]
    assert (layer["layer"], layer["pairs"]) == (1, found[1].pairs.tolist())
    head = layer["heads"][1]
    assert head["curve"][0] is None
    assert head["curve"][1:] == found[1].curve[1, 1:].tolist()
    assert (head["r2"], head["deviation"]) == (found[1].r2[1], found[1].deviation[1])
    decay = head["fits"]["decay"]
    assert (len(decay["length"]), len(head["fits"]["periodic"]["tau"])) == (2, 1)
    assert decay["r2"] == fits[1][1].r2[1]
    assert isinstance(found[0], ImpliedKernel)
