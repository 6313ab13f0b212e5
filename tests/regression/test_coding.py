"""How tables become numbers and codes."""

import numpy as np
import pandas as pd
import pytest
from scipy.sparse import csr_array

from nadaraya.errors import InputError
from nadaraya.regression.categories import MISSING, UNSEEN, Coding


def test_numbers_alone_need_no_coding():
    numbers = np.zeros((3, 2))
    for table in (numbers, numbers.tolist(), pd.DataFrame(numbers), csr_array(numbers), [1.0, 2.0]):
        assert Coding.of(table) is None
        assert Coding.of(table, categorical=None) is None


def test_lists_and_arrays():
    rows = [["b", 1.5], ["a", 2], ["b", 3]]
    for table in (rows, np.array(rows, dtype=object)):
        coding = Coding.of(table, [0])
        np.testing.assert_array_equal(coding.code(table), [[1, 1.5], [0, 2], [1, 3]])
        np.testing.assert_array_equal(coding.code([["c", 1]]), [[UNSEEN, 1]])
    single = np.array([[2, 0.1], [5, 0.2]], np.float32)
    assert Coding.of(single, [0]).code(single).dtype == np.float32


def test_levels_that_are_equal_are_one():
    coding = Coding.of([[1], [1.0], [True], ["1"]], [0])
    assert coding.levels[0].known == (1, "1")
    assert coding.code([[1.0], ["1"]]).tolist() == [[0.0], [1.0]]


def test_types_of_data_frames():
    table = pd.DataFrame(
        {
            "number": [1, 2, 3],
            "truth": [True, False, True],
            "text": ["b", "a", "b"],
            "object": pd.Series(["b", None, "a"], dtype=object),
            "numbers as objects": pd.Series([1, 2.5, 3], dtype=object),
            "nullable": pd.array([1, None, 3], dtype="Int64"),
            "category": pd.Categorical([30, 10, 30], categories=[30, 20, 10]),
            "rank": pd.Categorical(["s", "l", "s"], categories=["s", "m", "l"], ordered=True),
        }
    )
    coding = Coding.of(table, missing="category")
    assert coding.by_name() == {
        "text": ["a", "b"],
        "object": ["a", "b"],
        "category": [30, 20, 10],
        "rank": ["s", "m", "l"],
    }
    assert [levels.ordered for levels in coding.levels] == [False, False, False, True]
    expected = [
        [1, 1, 1, 1, 1.0, 1, 0, 0],
        [2, 0, 0, MISSING, 2.5, np.nan, 2, 2],
        [3, 1, 1, 0, 3.0, 3, 0, 0],
    ]
    coded = coding.code(table)
    np.testing.assert_array_equal(coded, expected)
    assert list(coded.columns) == list(table.columns)
    categories = coding.categories(coded.to_numpy())
    assert [(category.column, category.number, category.num_levels) for category in categories] == [
        (2, None, 2),
        (3, None, 3),
        (6, None, 3),
        (7, None, 3),
        (0, 0, 1),
        (1, 1, 1),
        (4, 2, 1),
        (5, 3, 2),
    ]


def test_what_counts_as_missing():
    values = [None, np.nan, float("nan"), np.float32("nan"), pd.NA, pd.NaT, "nan", 0]
    coding = Coding.of([[value] for value in values], [0], missing="category")
    assert coding.levels[0].known == (0, "nan")
    assert coding.code([[value] for value in values])[:, 0].tolist() == [MISSING] * 6 + [1, 0]


def test_order():
    """Of numbers their own, be they floats; of texts none unless the type says so."""
    coding = Coding.of(np.array([[30.0], [-1.0], [2.5]]), None, [0])
    assert coding.code([[2.5], [30], [-1], [7]])[:, 0].tolist() == [1, 2, 0, UNSEEN]
    with pytest.raises(InputError, match="the order of the levels of feature 0 is not known"):
        Coding.of([["low"], ["high"]], None, [0])


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ([[0, "x"], [1, 2.0]], "feature 1 must be numbers, unless it is listed in categorical, got 'x'"),
        ([[0, 1j], [1, 2.0]], "feature 1 must be numbers"),
        ([[0, "1.5"], [1, 2.0]], "feature 1 must be numbers"),
        ([[0, np.datetime64("2020-01-01")], [1, 2.0]], "feature 1 must be numbers"),
        ([[0, 10**400], [1, 2.0]], "feature 1 must be numbers"),
        ([[[0], 1], [[1], 2.0]], "feature 0 has levels that cannot be compared"),
    ],
)
def test_bad_tables(table, message):
    rows = np.empty((2, 2), dtype=object)
    rows[:] = [[*row] for row in table]
    with pytest.raises(InputError, match=message):
        Coding.of(rows, [0]).code(rows)


def test_dates_and_masked_values_are_no_numbers():
    table = pd.DataFrame({"level": ["a", "b"], "day": pd.to_datetime(["2020-01-01", "2020-01-02"])})
    for days in (table, table.assign(day=table["day"].to_numpy())):
        with pytest.raises(InputError, match="feature 'day' must be numbers"):
            Coding.of(days).code(days)
    dates = np.array([["2020-01-01"], ["2020-01-02"]], dtype="datetime64[D]")
    both = np.concatenate([dates, dates], axis=1)
    with pytest.raises(InputError, match="feature 1 must be numbers"):
        Coding.of(both, [0]).code(both)
    masked = np.ma.masked_array([[0.0, 1.0], [1.0, 2.0]], mask=[[False, True], [False, False]])
    with pytest.raises(InputError, match="X must be without masked values"):
        Coding.of(masked, [0]).code(masked)
