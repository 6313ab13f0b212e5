"""CORE's decisions: batches agree with one prompt at a time, the three rules, greedy endings, the metric."""

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import core_folders as folders
import pytest
import torch
from torch import Tensor, nn

from nadaraya.data import byte_tokenizer, train_byte_pair_tokenizer, train_character_tokenizer
from nadaraya.errors import InputError
from nadaraya.evaluation.core import CoreEvaluation, CoreTask, TaskResult, evaluate_core, read_core
from nadaraya.evaluation.core_tasks import core_prompts, few_shot_rows, shuffled_rows
from nadaraya.models import KernelGPTConfig, KernelGPTForCausalLM

PAIRS = train_byte_pair_tokenizer("apples and pears, cats and dogs, green and red: none ran. " * 9, 300)


class Bigram(nn.Module):
    """Logits that depend on the current token alone; keeps what it has read."""

    def __init__(self, table: Tensor) -> None:
        super().__init__()
        self.table = nn.Parameter(table)
        self.config: Any = SimpleNamespace(vocab_size=len(table))
        self.config.get_text_config = lambda: self.config
        self.seen: list[Tensor] = []

    def forward(self, input_ids: Tensor, use_cache: bool = True) -> SimpleNamespace:
        assert not use_cache
        self.seen.append(input_ids)
        return SimpleNamespace(logits=self.table[input_ids])


def tiny(vocabulary: int, seed: int = 0) -> KernelGPTForCausalLM:
    """A random model whose predictions depend on all that it has read."""
    torch.manual_seed(seed)
    config = KernelGPTConfig(
        vocab_size=vocabulary,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        initializer_range=0.5,
    )
    return KernelGPTForCausalLM(config).eval()


def evaluate_task(model: nn.Module, tokenizer: Any, task: CoreTask, **options: Any) -> TaskResult:
    return evaluate_core(model, tokenizer, [task], **options).results[0]


def task_of(folder: Path, rows: list[dict[str, Any]], kind: str, delimiter: str = " ") -> CoreTask:
    folders.write_rows(folder / "rows.jsonl", rows)
    return CoreTask("rows", kind, 0, delimiter, 0.0, folder / "rows.jsonl")


def one_at_a_time(model: nn.Module, task: CoreTask, row: dict[str, Any], shots: Any, context: int) -> int:
    """The rule of CORE, for one example, one prompt at a time, in float64."""
    prompts = core_prompts(task, row, shots)
    tokens = [PAIRS(prompt.text)["input_ids"] for prompt in prompts]
    fewest = min(map(len, tokens))
    if task.kind == "language_modeling":
        start = len(PAIRS(prompts[0].context.rstrip())["input_ids"])
    elif task.kind == "multiple_choice":
        start = next(i for i in range(fewest) if len({ids[i] for ids in tokens}) > 1)
    else:
        end = next(i for i in range(1, fewest) if len({ids[-i] for ids in tokens}) > 1) - 1
    means, greedy = [], []
    for ids in tokens:
        first = len(ids) - end if task.kind == "schema" else start
        cut = max(0, len(ids) - context)
        ids, first = ids[cut:], max(1, first - cut)
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([ids])).logits[0].double().log_softmax(-1)
        targets = torch.tensor(ids[first:])
        predicted = logits[first - 1 : -1]
        means.append(-predicted.gather(1, targets[:, None]).mean().item())
        greedy.append(bool((predicted.argmax(-1) == targets).all()))
    return greedy[0] - 1 if task.kind == "language_modeling" else means.index(min(means))


@pytest.mark.parametrize("context", [12, 512])
@pytest.mark.parametrize("batch_size", [1, 5])
def test_batches_decide_as_one_prompt_at_a_time(tmp_path: Path, context: int, batch_size: int) -> None:
    model = tiny(PAIRS.vocab_size)
    for task in read_core(folders.flat_folder(tmp_path)):
        result = evaluate_task(model, PAIRS, task, context=context, batch_size=batch_size)
        rows = shuffled_rows(task, None)
        expected = [
            one_at_a_time(model, task, row, few_shot_rows(rows, index, task.shots), context)
            for index, row in enumerate(rows)
        ]
        assert [decision.core for decision in result.decisions] == expected
        right = sum(a == row.get("gold", 0) for a, row in zip(expected, rows, strict=True))
        assert result.accuracy == right / len(rows)


def test_an_ending_is_found_when_every_byte_of_it_is_the_likeliest(tmp_path: Path) -> None:
    table = torch.zeros(256, 256)
    table[torch.arange(255), torch.arange(1, 256)] = 9.0  # after every byte the next one
    rows = [{"context": "ab", "continuation": ending} for ending in ("cde", "cdf", "d", "c")]
    task = task_of(tmp_path, rows, "language_modeling", delimiter="")
    result = evaluate_task(Bigram(table), byte_tokenizer(), task, context=64)
    endings = [row["continuation"] for row in shuffled_rows(task, None)]
    assert [decision.core for decision in result.decisions] == [
        0 if ending in ("cde", "c") else -1 for ending in endings
    ]
    assert result.accuracy == result.acc == 0.5


def test_the_three_rules_are_a_mean_a_sum_and_a_sum_per_character(tmp_path: Path) -> None:
    logits = torch.full((256,), -9.0)
    for letters, nats in (("a", 1.0), ("b", 1.5), ("é", 1.2)):  # nats per byte
        logits[list(letters.encode())] = -nats
    model = Bigram(logits.repeat(256, 1))
    # Sums (up to a constant per byte): 3 and 3; 2.4 and 4.5; per character 2.4 and 1.5; per byte 1.2 and 1.5.
    row = {"query": "?", "choices": ["é", "bbb"], "gold": 0}
    (decision,) = evaluate_task(
        model, byte_tokenizer(), task_of(tmp_path, [row], "multiple_choice", ""), context=64
    ).decisions
    constant = logits.logsumexp(0).item()
    assert 2 * (1.2 + constant) < 3 * (1.5 + constant)
    assert 2 * (1.2 + constant) > 1.5 + constant
    assert decision == (0, 0, 1)
    row = {"query": "?", "choices": ["b", "aaaa"], "gold": 0}
    (decision,) = evaluate_task(
        model, byte_tokenizer(), task_of(tmp_path, [row], "multiple_choice", ""), context=64
    ).decisions
    assert decision == (1, 0, 1)


def test_a_schema_is_scored_from_the_common_end_by_core_and_from_the_ending_by_lm_eval(
    tmp_path: Path,
) -> None:
    table = torch.zeros(256, 256)
    table[ord("b"), ord("a")] = 5.0  # "ab c", which both end in, is likelier after b than after a
    table[ord("x"), ord("b")] = -9.0  # the letter before it, which differs, does not count
    row = {"context_options": ["xaab", "xbab"], "continuation": "c", "gold": 0}
    task = task_of(tmp_path, [row], "schema")
    (decision,) = evaluate_task(Bigram(table), byte_tokenizer(), task, context=64).decisions
    assert decision == (1, 0, 0)


@pytest.mark.parametrize(("choices", "taken"), [(["ab", "abc"], 0), (["abc", "ab"], 0)])
def test_an_option_that_begins_the_other_is_taken_by_core_only_where_it_comes_first(
    tmp_path: Path, choices: list[str], taken: int
) -> None:
    task = task_of(tmp_path, [{"query": "?", "choices": choices, "gold": 0}], "multiple_choice")
    (decision,) = evaluate_task(Bigram(torch.zeros(256, 256)), byte_tokenizer(), task, context=64).decisions
    assert decision.core == taken
    assert decision.acc == choices.index("ab")


def test_every_prompt_begins_with_the_token_that_begins_a_text(tmp_path: Path) -> None:
    tokenizer = byte_tokenizer()
    task = task_of(tmp_path, [{"context": "ab", "continuation": "c"}], "language_modeling")
    model = Bigram(torch.zeros(256, 256))
    evaluate_task(model, tokenizer, task, context=64)
    tokenizer.bos_token = tokenizer.convert_ids_to_tokens(254)
    evaluate_task(model, tokenizer, task, context=64)
    assert [batch.tolist() for batch in model.seen] == [[[*b"ab c"]], [[254, *b"ab c"]]]


def test_the_first_examples_are_those_of_a_fixed_order(tmp_path: Path) -> None:
    model = tiny(PAIRS.vocab_size)
    (task,) = read_core(folders.flat_folder(tmp_path), ["winograd"])
    shown: list[tuple[str, int, int]] = []
    part = evaluate_task(model, PAIRS, task, context=64, limit=3, progress=lambda *step: shown.append(step))
    whole = evaluate_task(model, PAIRS, task, context=64)
    assert part.decisions == whole.decisions[:3]  # without shots what comes after does not matter
    assert shown == [("winograd", 1, 3), ("winograd", 2, 3), ("winograd", 3, 3)]


def result_of(task: str, accuracy: float, baseline: float, chance: float = 0.25) -> TaskResult:
    return TaskResult(
        task, "multiple_choice", 0, 100, accuracy, accuracy, accuracy, baseline, chance, 1.0, ()
    )


def test_the_metric_is_the_mean_of_accuracies_between_chance_and_one() -> None:
    evaluation = CoreEvaluation((result_of("copa", 0.6, 0.5), result_of("boolq", 0.62, 0.62)), None)
    assert [result.centred for result in evaluation.results] == pytest.approx([0.2, 0.0])
    assert evaluation.core == pytest.approx(0.1)
    assert evaluation.core_over_chance == pytest.approx(((0.6 - 0.25) / 0.75 + (0.62 - 0.25) / 0.75) / 2)
    assert len(evaluation.missing) == 20
    assert not {"copa", "boolq"} & set(evaluation.missing)
    assert result_of("copa", 1.0, 0.5).centred == 1
    errors = [math.sqrt(0.24 / 100), math.sqrt(0.62 * 0.38 / 100)]
    assert [result.standard_error for result in evaluation.results] == pytest.approx(errors)
    assert evaluation.standard_error == pytest.approx(math.hypot(errors[0] / 0.5, errors[1] / 0.38) / 2)


def test_a_limit_that_leaves_too_few_for_the_shots_is_refused_before_anything_runs(tmp_path: Path) -> None:
    tasks = read_core(folders.flat_folder(tmp_path))
    model = Bigram(torch.zeros(256, 256))
    with pytest.raises(InputError, match="at least 4 examples of bigbench_operators, which has 3 shots"):
        evaluate_core(model, byte_tokenizer(), tasks, context=64, limit=3)
    assert not model.seen
    for options in ({"limit": 0}, {"batch_size": 0}, {"context": 1}):
        with pytest.raises(InputError, match="must be an integer of at least"):
            evaluate_core(model, byte_tokenizer(), tasks, **{"context": 64, **options})
    with pytest.raises(InputError, match="one or more"):
        evaluate_core(model, byte_tokenizer(), [], context=64)


def test_a_model_that_diverged_and_a_character_that_is_unknown_are_refused(tmp_path: Path) -> None:
    (task,) = read_core(folders.flat_folder(tmp_path), ["winograd"])
    with pytest.raises(InputError, match="finite"):
        evaluate_task(Bigram(torch.full((256, 256), math.nan)), byte_tokenizer(), task, context=64)
    with pytest.raises(InputError, match=r"winograd: the character .* bytes or byte pairs know every text"):
        evaluate_task(Bigram(torch.zeros(9, 9)), train_character_tokenizer("catsdog"), task, context=64)


def test_dropout_does_not_act_and_the_model_is_left_as_it_was(tmp_path: Path) -> None:
    tasks = read_core(folders.flat_folder(tmp_path))
    config = KernelGPTConfig(
        vocab_size=256, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, dropout=0.9
    )
    model = KernelGPTForCausalLM(config).train()
    first, second = (evaluate_core(model, byte_tokenizer(), tasks, context=128) for _ in range(2))
    assert [a.decisions for a in first.results] == [b.decisions for b in second.results]
    assert model.training


def test_large_vocabularies_get_small_batches_and_many_examples_come_in_groups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (task,) = read_core(folders.flat_folder(tmp_path), ["piqa"])
    table = torch.randn(256, 256, generator=torch.Generator().manual_seed(0))
    model = Bigram(table)
    expected = evaluate_task(model, byte_tokenizer(), task, context=64).decisions
    assert max(len(batch) for batch in model.seen) == 14  # two options of seven examples
    monkeypatch.setattr("nadaraya.evaluation.language.LARGEST_LOGITS", 3 * 64 * 256)
    monkeypatch.setattr("nadaraya.evaluation.core.EXAMPLES", 2)
    model = Bigram(table)
    assert evaluate_task(model, byte_tokenizer(), task, context=64).decisions == expected
    assert [len(batch) for batch in model.seen] == [3, 1, 3, 1, 3, 1, 2]
