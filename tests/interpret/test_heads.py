"""Scores of heads: the loss without them, known patterns, banks, rank correlation; which go first."""

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import rankdata, spearmanr
from small_models import moved, random_windows, small_model
from transformers import AutoConfig, AutoModelForCausalLM

from nadaraya import InputError
from nadaraya.interpret.ablation import ablated
from nadaraya.interpret.banks import BankShape
from nadaraya.interpret.heads import (
    HeadReport,
    HeadScore,
    bank_scores,
    head_report,
    pattern_scores,
    pooled_correlations,
)
from nadaraya.interpret.pruning import choose_heads
from nadaraya.models import KernelGPTForCausalLM, prune_heads


def make(**changes: Any) -> KernelGPTForCausalLM:
    sizes = {"max_position_embeddings": 12, "variant": "gpa-mul"}
    return moved(small_model(**{**sizes, **changes}))


@torch.no_grad()
def test_ablating_heads_is_what_removing_them_does() -> None:
    model = make()
    before = model(random_windows().inputs).logits
    with ablated(model, {0: [1, 3], 1: [2]}):
        ablated_logits = model(random_windows().inputs).logits
    pruned = prune_heads(model, {0: [1, 3], 1: [2]})(random_windows().inputs).logits
    torch.testing.assert_close(ablated_logits, pruned, rtol=1e-4, atol=1e-5)
    assert torch.equal(model(random_windows().inputs).logits, before)
    with (
        pytest.raises(InputError, match="heads must be heads that the model has, got"),
        ablated(model, {0: [1], 1: [4]}),
    ):
        pass
    assert torch.equal(model(random_windows().inputs).logits, before)


def test_the_loss_of_a_head_is_that_of_the_model_without_it() -> None:
    model = prune_heads(make(), {0: [1]})
    report = head_report(model, random_windows())
    names = [(score.layer, score.head) for score in report.heads]
    assert names == [(0, 0), (0, 2), (0, 3), (1, 0), (1, 1), (1, 2), (1, 3)]
    assert report.tokens == 36
    for score in (report.heads[1], report.heads[5]):
        without = random_windows().loss(prune_heads(model, {score.layer: [score.head]}))
        assert score.loss_increase == pytest.approx(without - report.loss, abs=1e-5)
    increases = [score.loss_increase for score in report.ranked()]
    assert increases == sorted(increases)
    assert increases[0] < increases[-1]


class Attending:
    """A model of one head that looks `lag` tokens back, or at the first token."""

    config = SimpleNamespace(max_position_embeddings=20, vocab_size=50)
    device = "cpu"

    def __init__(self, lag: int) -> None:
        self.lag = lag

    def __call__(self, tokens: torch.Tensor, **options: Any) -> Any:
        n = tokens.shape[1]
        weights = torch.zeros(n, n)
        weights[torch.arange(n), (torch.arange(n) - self.lag).clamp(min=0)] = 1.0
        return SimpleNamespace(attentions=(weights[None, None],))


@pytest.mark.parametrize(
    ("lag", "expected"), [(1, [1, 0, 0]), (10, [0, 1, 0]), (9, [0, 0, 1]), (2, [0, 0, 0])]
)
def test_a_head_that_looks_one_way_has_that_score_alone(lag: int, expected: list[int]) -> None:
    [[scores]] = pattern_scores(Attending(lag))
    assert [scores[name] for name in ("previous_token", "duplicate_token", "induction")] == expected


class Completing(Attending):
    """A model of one head that looks alike at every token which came after the same token as the last."""

    config = SimpleNamespace(max_position_embeddings=64, vocab_size=20)

    def __call__(self, tokens: torch.Tensor, **options: Any) -> Any:
        same = (tokens[0, :, None] == tokens[0]).roll(1, 1).tril(-1).float()
        same[:, 0] = same[:, 1:].sum(1) == 0
        return SimpleNamespace(attentions=((same / same.sum(1, keepdim=True))[None, None],))


def test_induction_is_whole_however_few_tokens_the_vocabulary_has() -> None:
    [[scores]] = pattern_scores(Completing(0))
    assert scores == {"previous_token": 0, "duplicate_token": 0, "induction": 1}


def test_pattern_scores_are_means_of_the_weights_that_the_model_gives() -> None:
    model = make(variant="rope")
    scores = pattern_scores(model, sequences=1, seed=3)
    once = torch.randperm(11, generator=torch.Generator().manual_seed(3))[None, :6]
    weights = model(once.repeat(1, 2), output_attentions=True).attentions[1][0, 2]
    for name, lag in (("previous_token", 1), ("duplicate_token", 6), ("induction", 5)):
        expected = np.mean([weights[i, i - lag].item() for i in range(6, 12)])
        assert scores[1][2][name] == pytest.approx(expected, rel=1e-5)


def test_bank_scores_of_known_shapes() -> None:
    logits = np.array(
        [[0.0, -1.0, -2.0], [1.0, 0.0, -1.0], [0.0, 1.0, 0.0], [2.0, 2.0, 2.0], [0, 1, -np.inf]]
    )
    multiplied = bank_scores(BankShape(0, added=False, initial=None, trained=logits))
    added = bank_scores(BankShape(0, added=True, initial=None, trained=logits))
    assert [score["bank_range"] for score in added] == [2, 2, 1, 0, 1]
    assert [score["bank_max"] for score in added] == [2, 1, 1, 2, 1]
    assert multiplied[0]["bank_max"] == pytest.approx(1.0)
    assert multiplied[1]["bank_max"] == pytest.approx(np.e)
    assert added[0]["bank_similarity"] == pytest.approx(1.0)
    assert added[3]["bank_similarity"] is None
    alone = bank_scores(BankShape(0, added=True, initial=None, trained=logits[:1]))
    assert alone[0]["bank_similarity"] is None


def test_correlations_are_those_of_the_ranks() -> None:
    generator = np.random.default_rng(0)
    values, worth = generator.normal(size=(2, 9))
    heads = [
        HeadScore(0, head, float(w), 0, 0, 0, bank_max=float(v), bank_range=1.0)
        for head, (v, w) in enumerate(zip(values, worth, strict=True))
    ]
    expected = np.corrcoef(rankdata(values), rankdata(worth))[0, 1]
    assert HeadReport(1.0, 9, tuple(heads)).correlations() == {"bank_max": pytest.approx(expected)}
    assert HeadReport(1.0, 9, tuple(heads[:2])).correlations() == {}


def test_the_cheapest_head_goes_first_and_its_loss_is_that_of_the_pruned_model() -> None:
    model, sample = make(), random_windows()
    report = head_report(model, sample)
    chosen = choose_heads(model, sample, budget=math.inf)
    assert (chosen[0].layer, chosen[0].head) == (report.ranked()[0].layer, report.ranked()[0].head)
    assert len(chosen) == 6  # of 8 heads, one of each layer remains
    second = prune_heads(
        prune_heads(model, {chosen[0].layer: [chosen[0].head]}), {chosen[1].layer: [chosen[1].head]}
    )
    assert chosen[1].loss == pytest.approx(sample.loss(second), rel=1e-5)


@pytest.mark.parametrize("by", ["loss", "bank", "random"])
def test_no_removal_goes_over_the_budget_and_the_next_one_would(by: str) -> None:
    model, sample = make(), random_windows()
    whole = sample.loss(model)
    everything = choose_heads(model, sample, math.inf, by=by)
    budget = max(sorted(removal.loss for removal in everything)[-2] - whole, 0.0) + 1e-9
    chosen = choose_heads(model, sample, budget, by=by)
    assert 0 < len(chosen) < len(everything)
    assert all(removal.loss <= whole + budget for removal in chosen)
    assert chosen == everything[: len(chosen)]
    assert everything[len(chosen)].loss > whole + budget


def test_a_random_order_is_that_of_its_seed() -> None:
    model, sample = make(), random_windows()
    orders = [choose_heads(model, sample, 99.0, by="random", seed=seed) for seed in (0, 0, 1)]
    assert orders[0] == orders[1] != orders[2]


def test_flat_banks_go_first() -> None:
    model = make()
    with torch.no_grad():
        for block, head in ((0, 2), (1, 1)):
            # One decay of a million tokens: the same for all lags.
            bank = model.model.blocks[block].attention.position
            bank.log_alpha[head], bank.log_length[head] = -9.0, 14.0
    chosen = choose_heads(model, random_windows(), budget=math.inf, by="bank")
    assert {(removal.layer, removal.head) for removal in chosen[:2]} == {(0, 2), (1, 1)}


def test_orders_that_a_model_has_not_are_refused() -> None:
    with pytest.raises(InputError, match="by must be 'loss' or 'random' for a model without a kernel"):
        choose_heads(make(variant="rope"), random_windows(), budget=1.0, by="bank")
    with pytest.raises(InputError, match="by must be one of 'bank', 'loss', 'random', got 'los'"):
        choose_heads(make(), random_windows(), budget=1.0, by="los")
    with pytest.raises(InputError, match="budget must be at least 0 nats/token, got nan"):
        choose_heads(make(), random_windows(), budget=math.nan)


def other(kind: str, **changes: Any) -> Any:
    """A model of transformers."""
    torch.manual_seed(0)
    sizes = {"vocab_size": 11, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2}
    plain = {**sizes, "num_attention_heads": 4, "bos_token_id": 0, "eos_token_id": None}
    config = AutoConfig.for_model(kind, **{**plain, "max_position_embeddings": 16, **changes})
    model = AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model


@pytest.mark.parametrize(
    ("kind", "changes"),
    [("llama", {"num_key_value_heads": 4}), ("llama", {"attn_implementation": "eager"}), ("gpt2", {})],
)
def test_heads_of_models_of_transformers_are_scored(kind: str, changes: dict[str, Any]) -> None:
    model, sample = other(kind, **changes), random_windows()
    before = model.config._attn_implementation
    report = head_report(model, sample)
    assert model.config._attn_implementation == before
    assert [(score.layer, score.head) for score in report.heads] == [(i, j) for i in (0, 1) for j in range(4)]
    for score in (report.heads[1], report.heads[6]):
        without = sample.loss(prune_heads(model, {score.layer: [score.head]}))
        assert score.loss_increase == pytest.approx(without - report.loss, abs=1e-5)
        assert score.bank_range is None
    assert report.correlations() == {}

    model.set_attn_implementation("eager")
    generator = torch.Generator().manual_seed(0)
    once = torch.stack([torch.randperm(11, generator=generator)[:8] for _ in range(4)])
    weights = model(once.repeat(1, 2), output_attentions=True).attentions[1][:, 2]
    for name, lag in (("previous_token", 1), ("duplicate_token", 8), ("induction", 7)):
        expected = np.mean([weights[:, i, i - lag].mean().item() for i in range(8, 16)])
        assert getattr(report.heads[6], name) == pytest.approx(expected, rel=1e-4)

    chosen = choose_heads(model, sample, math.inf)
    assert len(chosen) == 6
    assert (chosen[0].layer, chosen[0].head) == (report.ranked()[0].layer, report.ranked()[0].head)


def test_heads_of_a_pruned_model_of_transformers_keep_their_numbers() -> None:
    model = prune_heads(other("llama", attn_implementation="nadaraya", num_key_value_heads=2), {1: [0, 2, 3]})
    report = head_report(model, random_windows())
    assert [(score.layer, score.head) for score in report.heads] == [*((0, j) for j in range(4)), (1, 1)]


def test_models_with_attention_of_another_kind_are_refused() -> None:
    sizes = {"ffn_dim": 16, "word_embed_proj_dim": 16}
    with pytest.raises(InputError, match="with q_proj, k_proj, v_proj and o_proj"):
        head_report(other("opt", **sizes), random_windows())


def scored(values: Any, worth: Any) -> HeadReport:
    heads = [
        HeadScore(0, i, float(w), 0, 0, 0, bank_range=float(v))
        for i, (v, w) in enumerate(zip(values, worth, strict=True))
    ]
    return HeadReport(1.0, 9, tuple(heads))


def test_a_pooled_correlation_is_that_of_ranks_within_models() -> None:
    generator = np.random.default_rng(0)
    samples = [generator.normal(size=(2, count)) for count in (16, 16, 9, 3)]
    reports = [scored(*sample) for sample in samples]
    pooled = pooled_correlations(reports)["bank_range"]
    z, weights = zip(
        *((np.arctanh(spearmanr(*sample).statistic), sample.shape[1] - 3) for sample in samples[:3]),
        strict=True,
    )
    mean, half = np.average(z, weights=weights), 1.959964 * np.sqrt(1.06 / 32)
    assert (pooled.low, pooled.value, pooled.high) == pytest.approx(np.tanh([mean - half, mean, mean + half]))
    assert (pooled.heads, pooled.runs) == (41, 3)  # three heads say nothing of an interval
    shifted = [scored(100 * place + v, 7 * place + w) for place, (v, w) in enumerate(samples)]
    assert pooled_correlations(shifted)["bank_range"] == pooled
    again = pooled_correlations(reports * 4)["bank_range"]
    assert again.value == pytest.approx(pooled.value)
    narrower = math.atanh(again.high) - math.atanh(again.low)
    assert narrower == pytest.approx(half, rel=1e-5)  # half as wide


def test_a_perfect_correlation_has_an_interval() -> None:
    pooled = pooled_correlations([scored(range(4), range(4)), scored(range(4), range(4))])["bank_range"]
    assert 0.0 < pooled.low < pooled.value == pytest.approx(0.9)
    assert pooled.value < pooled.high < 1.0
    both = pooled_correlations([scored(range(4), range(4)), scored(range(4), range(4, 0, -1))])["bank_range"]
    assert both.value == pytest.approx(0.0)
    assert pooled_correlations([scored([1] * 5, range(5)), scored(range(3), range(3))]) == {}
    with pytest.raises(InputError, match="level must be between 0 and 1, got 95"):
        pooled_correlations([], level=95)


def test_intervals_cover_the_correlation_as_often_as_they_say() -> None:
    """Of ranks of normal values, whose rank correlation is (6/π) arcsin(ρ/2)."""
    generator, rho = np.random.default_rng(1), 0.5
    true, covered = 6 / np.pi * np.arcsin(rho / 2), 0
    for _ in range(300):
        draws = generator.multivariate_normal([0, 0], [[1, rho], [rho, 1]], size=(3, 16))
        pooled = pooled_correlations([scored(*draw.T) for draw in draws])["bank_range"]
        covered += pooled.low <= true <= pooled.high
    assert 0.90 <= covered / 300 <= 0.99
