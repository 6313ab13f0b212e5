"""The faults that tests must notice are where faults.yaml says: code that moved takes its faults along."""

from pathlib import Path

import pytest
import yaml

FAULTS = yaml.safe_load((Path(__file__).parent / "faults.yaml").read_text(encoding="utf-8"))


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault["name"])
def test_a_fault_replaces_text_that_its_file_has_once(fault: dict[str, str]) -> None:
    root = Path(__file__).resolve().parents[1]
    assert (root / "src/nadaraya" / fault["file"]).read_text(encoding="utf-8").count(fault["old"]) == 1
    assert fault["new"] != fault["old"]
    assert all((root / test).exists() for test in fault["tests"].split())
