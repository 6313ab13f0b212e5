"""The help of all verbs: three panels, short summaries, and one wording for what verbs share."""

import re
from collections import defaultdict
from typing import Any

import pytest

pytest.importorskip("typer")
SHARED = (
    "--json", "--force", "--quiet", "--device", "--precision", "--temperature", "--seed", "--windows",
    "--preset", "--image-size", "--workers", "--hours", "--dry-run", "--summarise",
)  # fmt: skip
# An option of another meaning than in the other verbs.
OWN = {
    ("train", "--device"), ("train", "--dry-run"), ("bench vit", "--precision"), ("evaluate", "--windows"),
    ("banks", "--windows"), ("data tokenize", "--workers"),
}  # fmt: skip


def verbs(group: Any = None, words: str = "") -> list[tuple[str, Any]]:
    """Every verb by its words; groups are opened."""
    from typer.main import get_command

    from nadaraya.cli.app import app

    group = get_command(app) if group is None else group
    found = []
    for name, command in group.commands.items():
        inner = f"{words} {name}".strip()
        found += verbs(command, inner) if hasattr(command, "commands") else [(inner, command)]
    return found


def test_the_help_has_three_panels(nadaraya: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    out = nadaraya("--help").out
    assert re.findall(r"^╭─ (\w+) ─", out, re.MULTILINE) == ["Options", "Start", "Look", "Research"]
    panels = out.split("╭─ Start")[1]
    lines = re.findall(r"^│ (\S*) ", panels, re.MULTILINE)
    assert len(lines) <= 2 * len([line for line in lines if line])


def test_a_verb_explains_itself_by_the_short_option_too(nadaraya: Any) -> None:
    assert nadaraya("bench", "decode", "-h").out == nadaraya("bench", "decode", "--help").out != ""


def test_a_summary_is_short_and_begins_with_a_verb() -> None:
    for name, command in verbs():
        summary = command.help.split("\n\n")[0]
        assert len(summary) <= 132, name
        assert re.match(r"[A-Z][a-z]+ (?!of\b)", summary), name
        assert summary.endswith("."), name


def test_shared_options_are_worded_alike() -> None:
    said: dict[str, set[str]] = defaultdict(set)
    for name, command in verbs():
        for parameter in command.params:
            for option in {*parameter.opts} & {*SHARED}:
                if (name, option) not in OWN:
                    said[option].add(parameter.help)
    assert set(said) == set(SHARED)
    assert {option: texts for option, texts in said.items() if len(texts) > 1} == {}


def test_numbers_are_called_results_or_metrics() -> None:
    """A figure is a picture, or one of a paper."""
    for name, command in verbs():
        texts = [command.help, *(parameter.help or "" for parameter in command.params)]
        assert not [text for text in texts if re.search(r"[Pp]rint (the )?figures", text)], name
        assert all(text.rstrip().endswith((".", ")")) for text in texts if text), name


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("trian", "No such command 'trian'. Did you mean 'train'?"),
        ("evaluate x --context 0", "'--context': Input should be greater than or equal to 1, got '0'"),
        ("generate x --tokens five", "unable to parse string as an integer, got 'five'"),
        ("compare", "Missing argument 'runs'."),
        ("count rope --nope", "No such option: --nope"),
    ],
)
def test_words_that_no_verb_takes_are_one_line(nadaraya: Any, words: str, line: str) -> None:
    outcome = nadaraya(*words.split())
    outcome.refuses(line)
    assert (outcome.out, outcome.err.count("\n")) == ("", 1)
