"""Stored files have the form that their schema says, or are refused in one line."""

from pathlib import Path

import pytest

from nadaraya.errors import InputError
from nadaraya.stored import Stored, read_stored


class _Figures(Stored):
    steps: int
    interval: tuple[float, float] = (0.0, 1.0)


def test_what_has_the_form_is_read_and_fields_that_are_not_known_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "figures.json"
    path.write_text('{"steps": 3, "interval": [1, 2.5], "of a later version": {}}')
    assert read_stored(path, _Figures, "figures") == _Figures(steps=3, interval=(1.0, 2.5))
    path.write_text('{"a": {"steps": 3}}')
    assert read_stored(path, dict[str, _Figures], "figures")["a"].steps == 3
    as_yaml = tmp_path / "figures.yaml"
    as_yaml.write_text("steps: 3\ninterval: [1, 2.5]\n")
    assert read_stored(as_yaml, _Figures, "figures").interval == (1.0, 2.5)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"steps": "3"}', "steps must be an integer, got '3'"),
        ('{"steps": true}', "steps must be an integer, got True"),
        ('{"steps": 1, "interval": [1, "2"]}', "interval.1 must be a number, got '2'"),
        ("{}", "steps must be there"),
        ("[]", "its content must be"),
        ("[", "Invalid JSON"),
        ("[" * 100_000, "Invalid JSON"),
        ('{"steps": 1' + "0" * 5000 + "}", "Invalid JSON"),
        ('"\\ud800"', "Invalid JSON"),
    ],
)
def test_another_form_is_one_line_that_names_the_place(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "figures.json"
    path.write_text(content)
    with pytest.raises(InputError, match="figures.json cannot be read as figures: .*" + message) as refused:
        read_stored(path, _Figures, "figures")
    assert "\n" not in str(refused.value)


def test_yaml_with_references_is_no_stored_file(tmp_path: Path) -> None:
    path = tmp_path / "figures.yaml"
    path.write_text("a: &a [1]\nb: [*a, *a]\n")
    with pytest.raises(InputError, match="not plain YAML"):
        read_stored(path, _Figures, "figures")
    with pytest.raises(InputError, match=r"absent\.json cannot be read as figures"):
        read_stored(tmp_path / "absent.json", _Figures, "figures")
