"""Hundreds of odd inputs to the estimators: finite results and no warning, or one line that says why."""

import random
import warnings
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
import scipy.sparse

from nadaraya.kernels import Boxcar, Gaussian, KernelBank, Periodic, RationalQuadratic
from nadaraya.regression import (
    KernelQuantileRegressor,
    MultiHeadKernelRegression,
    NadarayaWatson,
    NadarayaWatsonClassifier,
    NadarayaWatsonConditionalDensity,
    NadarayaWatsonDensity,
    masked_training,
)

pytestmark = pytest.mark.slow
pandas = pytest.importorskip("pandas")

# Of a fit that leaves no residuals: documented, with the NaN that it announces.
ANNOUNCED = "the fit goes through every observation"
# scikit-learn's, of its checks.
THEIRS = (
    "does not have valid feature names",
    "A column-vector y was passed",
    "The number of unique classes is greater than 50%",
)
RAISED = (ValueError, TypeError)


def normal(n, d):
    return np.random.default_rng(n + d).normal(size=(n, d))


def spoilt(value):
    x = normal(12, 2)
    x[3, 1] = value
    return x


READ_ONLY = normal(20, 2)
READ_ONLY.flags.writeable = False
POINTS = {
    "usual": normal(20, 2), "line": normal(25, 1), "one row": normal(1, 2), "two rows": normal(2, 1),
    "wide": normal(5, 20), "very wide": normal(4, 200), "empty": np.zeros((0, 2)),
    "no feature": np.zeros((5, 0)), "flat": normal(20, 1)[:, 0], "cube": np.zeros((3, 2, 2)),
    "scalar": np.float64(1.0), "none": None, "text": "points", "dictionary": {"a": [1, 2]},
    "list": normal(10, 2).tolist(), "ragged": [[1.0], [1.0, 2.0]], "set": {1, 2, 3},
    "constant": np.ones((15, 2)), "half constant": np.c_[normal(15, 1), np.full(15, 7.0)],
    "copies": np.repeat(normal(4, 2), 5, axis=0), "two places": np.repeat([[0.0], [1e9]], 8, axis=0),
    "float16": normal(20, 2).astype(np.float16), "float32": normal(20, 2).astype(np.float32),
    "int8": np.arange(20, dtype=np.int8).reshape(10, 2), "uint64": np.full((6, 1), 2**64 - 1, np.uint64),
    "bool": normal(20, 2) > 0, "object": normal(10, 2).astype(object),
    "fractions": np.array([[Fraction(i, 7)] for i in range(9)], dtype=object),
    "huge integers": np.array([[10**400], [1], [2]], dtype=object), "texts": normal(10, 2).astype(str),
    "bytes": normal(10, 2).astype("S"), "complex": normal(10, 2) + 1j,
    "dates": normal(10, 2).astype("datetime64[s]"), "longdouble": normal(10, 2).astype(np.longdouble),
    "long overflow": normal(10, 2).astype(np.longdouble) * np.longdouble("1e4000"),
    "masked": np.ma.masked_greater(normal(20, 2), 1.0), "masked nowhere": np.ma.array(normal(20, 2)),
    "frame": pandas.DataFrame(normal(20, 2), columns=["a", "b"]),
    "mixed frame": pandas.DataFrame({"a": [1, 2, 3], "b": ["x", "y", "z"]}),
    "missing": pandas.DataFrame({"a": pandas.array([1, None, 3], dtype="Int64")}),
    "levels and missing": pandas.DataFrame({"a": ["x", None, "y"] * 5, "b": [1, 2, np.nan, 4, 5] * 3}),
    "ranks": pandas.DataFrame({"a": pandas.Categorical([1, 3, 1, 2] * 4, ordered=True), "b": range(16)}),
    "all missing": np.full((9, 2), np.nan),
    "many levels": np.array([[i, str(i)] for i in range(30)], dtype=object),
    "sparse": scipy.sparse.csr_matrix(normal(10, 2)), "read-only": READ_ONLY,
    "columns first": np.asfortranarray(normal(20, 2)), "backwards": normal(20, 2)[::-1, ::-1],
    "strided": normal(40, 4)[::2, ::2], "big-endian": normal(20, 2).astype(">f8"),
    "nan": spoilt(np.nan), "infinite": spoilt(np.inf), "one far": spoilt(1e300), "one close": spoilt(1e-310),
    "huge": 1e307 * normal(20, 2), "greatest": np.sign(normal(20, 2)) * np.finfo(float).max,
    "tiny": 1e-200 * normal(20, 2), "subnormal": 1e-318 * normal(20, 2), "zero": np.zeros((8, 1)),
    "huge offset": 1e16 + normal(20, 2), "units apart": normal(20, 2) * [1e200, 1e-200],
    "huge float32": np.float32(1e37) * normal(20, 2).astype(np.float32),
    "tiny float32": np.float32(1e-37) * normal(20, 2).astype(np.float32),
}  # fmt: skip
TARGETS = {
    "usual": lambda n: np.sin(np.arange(n)), "labels": lambda n: np.arange(n) % 2,
    "two columns": lambda n: np.c_[np.arange(n), np.ones(n)], "constant": lambda n: np.full(n, 3.0),
    "huge": lambda n: 1e307 * np.sin(np.arange(n)), "tiny": lambda n: 1e-160 * np.sin(np.arange(n)),
    "subnormal": lambda n: 1e-315 * np.sin(np.arange(n)), "nan": lambda n: np.full(n, np.nan),
    "offset": lambda n: 1e15 + np.arange(n), "text": lambda n: np.array(["a", "b"] * n)[:n],
    "texts of numbers": lambda n: np.arange(n).astype(str), "complex": lambda n: np.arange(n) + 1j,
    "object": lambda n: np.arange(n).astype(object), "bool": lambda n: np.arange(n) % 2 == 0,
    "none": lambda n: None, "longer": lambda n: np.zeros(n + 1), "column": lambda n: np.arange(n)[:, None],
    "masked": lambda n: np.ma.masked_less(np.arange(n), 1), "no columns": lambda n: np.zeros((n, 0)),
    "float16": lambda n: np.arange(n).astype(np.float16), "one outlier": lambda n: np.eye(1, n)[0] * 1e200,
}  # fmt: skip
WEIGHTS = {
    "none": lambda n: None, "ones": np.ones, "zeros": np.zeros, "one": lambda n: np.eye(1, n)[0],
    "subnormal": lambda n: np.full(n, 5e-324), "huge": lambda n: np.full(n, 1.7e308),
    "mixed": lambda n: 10.0 ** np.linspace(-300, 300, n), "negative": lambda n: -np.ones(n),
    "nan": lambda n: np.full(n, np.nan), "bool": lambda n: np.arange(n) % 3 > 0, "number": lambda n: 2.0,
    "text": lambda n: "balanced", "texts": lambda n: ["1"] * n, "complex": lambda n: np.ones(n) + 0j,
    "longer": lambda n: np.ones(n + 1), "integers": lambda n: np.arange(n), "object": lambda n: [None] * n,
}  # fmt: skip
ENDLESS = 10**400
ODD = (
    None, True, False, 0, -1, 1, 2, ENDLESS, 0.5, 1e-310, 1e300, -0.0, np.nan, np.inf, "", "1", "aic", "loo",
    "scott", "nearest", "gaussian", b"loo", 1j, [], [1.0], [1.0, 2.0], [[1.0], [1.0, 2.0]], ["loo"], {}, (),
    np.array("loo"), np.array(1.0), np.ones((2, 2)), np.array([True]), Fraction(1, 3), np.float32(0.5),
    np.int8(1), object(), print, range(3), Gaussian, "cpu", "cuda:99",
)  # fmt: skip
KERNELS = (
    "gaussian", "exponential", "matern32", "epanechnikov", "tricube", "boxcar", Gaussian(1e-30), Boxcar(1e30),
    RationalQuadratic(1.0, 0.3), Periodic(1.0, 2.0), 2.0 * Gaussian(1.0), KernelBank(2, 2), "", 3,
)  # fmt: skip
BANDWIDTHS = (
    "aic",
    "loo",
    "scott",
    "silverman",
    "sheather-jones",
    0.7,
    1e-300,
    1e300,
    1e-10,
    1e10,
    [1e-200, 1e200],
)
MIXED = (
    {}, {}, {"missing": "category"}, {"categorical": [0]}, {"categorical": [0], "missing": "category"},
    {"ordered": [0], "category_kernel": "probability"}, {"categorical": [0, 1], "bandwidth": 0.5},
)  # fmt: skip
ESTIMATORS = (
    NadarayaWatson, NadarayaWatsonClassifier, NadarayaWatsonDensity, NadarayaWatsonConditionalDensity,
    KernelQuantileRegressor, MultiHeadKernelRegression,
)  # fmt: skip


def chosen(random, table, usual, odds):
    """Mostly the usual entry, so that one thing at a time is odd."""
    return random.choice(list(table)) if random.random() < odds else usual


def odd_case(seed):
    """An estimator with parameters, points, targets and weights; one or several of them odd."""
    generator = random.Random(seed)
    estimator = generator.choice((*ESTIMATORS, NadarayaWatson, masked_training))
    odds = generator.choice((0.1, 0.5))
    points = chosen(generator, POINTS, "usual", 0.7)
    targets = chosen(generator, TARGETS, "labels" if estimator is NadarayaWatsonClassifier else "usual", odds)
    weights = chosen(generator, WEIGHTS, "none", odds)
    if estimator is masked_training:
        parameters = {"n_steps": 3, "random_state": 0}
        names = ("kernel", "hold_out", "n_steps", "learning_rate", "n_splits", "average", "combination",
            "random_state", "device", "verbose")  # fmt: skip
    elif estimator is MultiHeadKernelRegression:
        parameters = {"n_heads": 2, "n_steps": 3, "random_state": 0}
        names = list(estimator().get_params())
    else:
        parameters = {"n_starts": 1, "kernel": chosen(generator, KERNELS, "gaussian", odds)}
        parameters["bandwidth"] = generator.choice(BANDWIDTHS)
        names = list(estimator().get_params())
        if "kernel" not in names:
            del parameters["kernel"]
        if "categorical" in names:
            parameters |= generator.choice(MIXED)
        if estimator is NadarayaWatson:
            parameters["degree"] = generator.choice((0, 0, 1, 2))
            parameters["adaptive"] = chosen(generator, (1, 3, 50), None, odds)
    if generator.random() < odds:
        parameters[generator.choice(list(names))] = generator.choice(ODD)
    # Numbers of steps that take for ever are no question of robustness.
    slow = ("n_steps", "n_heads", "n_starts", "n_splits")
    parameters = {
        name: value for name, value in parameters.items() if not (name in slow and value is ENDLESS)
    }
    return estimator, parameters, points, targets, weights, generator


def outcome(case):
    """ "finite", "announced" NaN, or "refused" in one line; anything else fails."""
    estimator, parameters, points, targets, weights, generator = case
    X = POINTS[points]
    n = len(X) if hasattr(X, "__len__") and not scipy.sparse.issparse(X) else 10
    y, weight = TARGETS[targets](n), WEIGHTS[weights](n)
    with warnings.catch_warnings(record=True) as leaked:
        warnings.simplefilter("always")
        try:
            results = results_of(estimator, parameters, X, y, weight, generator)
        except RAISED as error:
            line = str(error)
            assert line
            if type(error).__module__.startswith("nadaraya"):
                assert "\n" not in line
                assert len(line) < 1200
            return "refused", leaked
    announced = any(ANNOUNCED in str(warning.message) for warning in leaked)
    for name, (result, shape, may_be) in results.items():
        result = np.asarray(result)
        assert result.shape == shape, (name, result.shape, shape)
        if may_be == "inf":  # squares of the greatest numbers
            result = np.where(result == np.inf, np.nan, result)
        unknown = np.isnan(result) if may_be in ("nan", "inf") or announced else np.zeros(shape, bool)
        if may_be == "any inf":  # bandwidths beyond float32
            result = np.where(np.isinf(result), 0.0, result)
        fine = np.isfinite(result) | unknown | ((result == -np.inf) & (may_be == "-inf"))
        assert fine.all(), (name, result)
    return "announced" if announced else "finite", leaked


def results_of(estimator, parameters, X, y, weight, generator):
    """Every result by name, with its documented shape, and what it may be beside finite."""
    if estimator is masked_training:
        parameters = {"bandwidth": 1.0, "sample_weight": weight} | parameters
        found = masked_training(parameters.pop("bandwidth"), X, y, **parameters)
        shape = (len(found.losses),)
        return {"bandwidths": (found.bandwidths, (1,), ""), "losses": (found.losses, shape, "inf")}
    model = estimator(**parameters)
    if estimator is MultiHeadKernelRegression:
        model.fit(X, y)
    else:
        model.fit(X, y, sample_weight=weight)
    query = X if generator.random() < 0.7 else 3.0 * np.asarray(model.X_ / 4)
    m, outputs = len(query), np.shape(getattr(model, "y_", ()))[1:]
    if estimator is NadarayaWatsonDensity:
        return {"scores": (model.score_samples(query), (m,), "-inf")}
    if estimator is NadarayaWatsonConditionalDensity:
        low, high = model.predict_interval(query)
        scores = model.score_samples(query, np.resize(model.y_, m))
        return {
            "low": (low, (m,), "any inf"),
            "high": (high, (m,), "any inf"),
            "scores": (scores, (m,), "-inf"),
        }
    if estimator is NadarayaWatsonClassifier:
        shape = (m, len(model.classes_))
        return {"probabilities": (model.predict_proba(query), shape, "")}
    results = {"predictions": (model.predict(query), (m, *outputs), "")}
    if estimator is NadarayaWatson:
        mean, deviation = model.predict(query, return_std=True)
        lower, upper = model.band(query)
        results |= {
            "deviations": (deviation, mean.shape, ""),
            "lower": (lower, mean.shape, "nan"),
            "upper": (upper, mean.shape, "nan"),
            "left out": (model.loo_predictions(), np.shape(model.y_), ""),
        }
    return results


@pytest.mark.parametrize("part", range(12))
def test_odd_inputs(part, capsys):
    counts = Counter()
    for seed in range(50 * part, 50 * part + 50):
        case = odd_case(seed)
        try:
            kind, leaked = outcome(case)
            leaked = [
                warning
                for warning in leaked
                if not any(text in str(warning.message) for text in (ANNOUNCED, *THEIRS))
            ]
            assert not leaked, [f"{warning.filename}: {warning.message}" for warning in leaked]
        except Exception as error:
            raise AssertionError(f"seed {seed}: {case[:5]}") from error
        counts[kind] += 1
    assert counts["finite"] >= 5
    assert counts["refused"] >= 5
