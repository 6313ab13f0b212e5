"""Odd data and odd options of the estimators: finite results and no warning, or one line that says why.

600 estimators of odd data, and each of 99 options with each of some 100 odd values.
"""

import functools
import random
import traceback
import warnings
from collections import Counter
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
import scipy.sparse
import torch

from nadaraya.errors import InputError
from nadaraya.kernels import Boxcar, Gaussian, KernelBank, Periodic, RationalQuadratic
from nadaraya.regression import (
    ChunkedNadarayaWatson,
    ClassifierDisplay,
    DensityDisplay,
    GridMeans,
    KernelQuantileRegressor,
    MultiHeadKernelRegression,
    NadarayaWatson,
    NadarayaWatsonClassifier,
    NadarayaWatsonConditionalDensity,
    NadarayaWatsonDensity,
    RegressionDisplay,
    masked_training,
)

pytestmark = pytest.mark.slow
pandas = pytest.importorskip("pandas")
pytest.importorskip("matplotlib").use("agg")

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


class Nameless:
    """Has no text, no truth, no length and no numbers, and equals nothing."""

    def refuse(self, *_args, **_options):
        raise RuntimeError("no")

    __repr__ = __bool__ = __len__ = __eq__ = __array__ = refuse
    __hash__ = object.__hash__


# By name, so that each test has its own: some are used up.
ODD_OPTIONS = {
    "numbers": lambda: ODD,
    "numpy's": lambda: (
        np.True_, np.False_, -(10**400), np.float64(0.5), np.float16(0.5), np.longdouble(0.5), np.int64(2),
        np.uint64(2**63), np.str_("loo"), np.str_("gaussian"), np.bytes_(b"x"), np.datetime64("2020-01-01"),
        np.timedelta64(1, "s"), np.ma.masked, np.ma.array([1.0], mask=[True]), np.dtype(float),
        np.array(1), np.array([2]), np.array([]), np.array([[]]), np.array([True, False]),
        np.random.RandomState(0), np.random.default_rng(0),
    ),
    "others'": lambda: (
        pandas.NA, pandas.NaT, pandas.Series([1.0]), pandas.Series([1.0, 2.0]),
        pandas.Series([], dtype=float), pandas.DataFrame({"a": [1.0]}), pandas.Index([0]),
        pandas.Timestamp("2020"), torch.tensor(1.0),
        torch.tensor([1.0, 2.0]), torch.tensor(2), torch.tensor(True), torch.ones(1, requires_grad=True),
        torch.device("cpu"), Gaussian(1.0), Periodic(1.0, 2.0), KernelBank(2, 2),
    ),
    "Python's": lambda: (
        Decimal("0.5"), "a\nb", "x" * 5000, [2, 3], [None], {"a": 1}, {1}, frozenset(), iter([1.0]),
        (x for x in (1, 2)), memoryview(b"ab"), float, Ellipsis, slice(0, 1), "meta", Nameless(),
    ),
}  # fmt: skip
X, Y = normal(14, 2), np.sin(np.arange(14))
USUAL = {MultiHeadKernelRegression: {"n_heads": 2, "n_steps": 2}, ChunkedNadarayaWatson: {"bandwidth": 1.0}}


def unfitted(estimator):
    return estimator(**USUAL.get(estimator, {"bandwidth": "scott", "n_starts": 1}))


def fitted(estimator, weight=None, **options):
    model = unfitted(estimator)
    model.set_params(**options)
    data = (X, Y > 0 if estimator is NadarayaWatsonClassifier else Y)
    return model.fit(*data) if weight is None else model.fit(*data, sample_weight=weight)


def answer(estimator, **options):
    model = fitted(estimator, **options)
    if estimator is NadarayaWatsonConditionalDensity:
        return model.score_samples(X, Y)
    return model.score_samples(X) if estimator is NadarayaWatsonDensity else model.predict(X)


def trained(**options):
    return masked_training(X=X, y=Y, **{"bandwidth": 1.0, "n_steps": 2, **options})


def asked(estimator, asks, *arguments, **usual):
    return lambda **options: getattr(fitted(estimator), asks)(*arguments, **usual, **options)


def shown(display, estimator, **usual):
    return lambda **options: display.from_estimator(fitted(estimator), **usual, **options)


# What is called, and the options of which each is odd in turn.
CALLS = {
    **{
        estimator.__name__: (functools.partial(answer, estimator), tuple(unfitted(estimator).get_params()))
        for estimator in (*ESTIMATORS, ChunkedNadarayaWatson)
    },
    **{
        f"weights, {estimator.__name__}": (functools.partial(answer, estimator), ("weight",))
        for estimator in (*ESTIMATORS[:-1], ChunkedNadarayaWatson)
    },
    "band": (asked(NadarayaWatson, "band", X), ("level", "method", "of")),
    "bootstrap": (asked(NadarayaWatson, "band", X, method="bootstrap"), ("n_bootstrap",)),
    "predict": (asked(NadarayaWatson, "predict", X), ("return_std",)),
    "marginal_effects": (asked(NadarayaWatson, "marginal_effects", X), ("return_std",)),
    "plot": (asked(NadarayaWatson, "plot"), ("feature", "level", "method", "ax")),
    "curve": (shown(RegressionDisplay, NadarayaWatson, level=None), ("target", "grid_resolution")),
    "contours": (shown(DensityDisplay, NadarayaWatsonDensity), ("grid_resolution", "ax")),
    "map": (shown(ClassifierDisplay, NadarayaWatsonClassifier), ("grid_resolution", "ax")),
    "draws": (asked(NadarayaWatsonDensity, "sample"), ("n_samples", "random_state")),
    "draws of the target": (
        asked(NadarayaWatsonConditionalDensity, "sample", X), ("n_samples", "random_state"),
    ),
    "quantiles": (asked(NadarayaWatsonConditionalDensity, "predict_quantiles", X), ("q",)),
    "interval": (asked(NadarayaWatsonConditionalDensity, "predict_interval", X), ("level",)),
    "quantile": (asked(KernelQuantileRegressor, "predict", X), ("quantile",)),
    "cells": (lambda side: GridMeans(side).add(X), ("side",)),
    "weights of cells": (lambda **options: GridMeans(1.0).add(X, **options), ("sample_weight",)),
    "masked_training": (
        trained, ("bandwidth", "kernel", "hold_out", "n_steps", "learning_rate", "n_splits", "average",
        "combination", "sample_weight", "random_state", "device", "verbose"),
    ),
}  # fmt: skip
# Great numbers of these take for ever.
COUNTS = (
    "n_steps", "n_heads", "n_starts", "n_splits", "n_bootstrap", "n_samples", "grid_resolution",
    "robust_iterations",
)  # fmt: skip


def kind_of(ask, option):
    """ "answered", "refused" in one line, or by "scikit-learn"; anything else is raised."""
    try:
        ask(**option)
    except InputError as error:
        if "\n" not in str(error) and len(str(error)) < 1200:
            return "refused"
        raise
    except (ValueError, TypeError) as error:
        if "sklearn" in traceback.extract_tb(error.__traceback__)[-1].filename:
            return "scikit-learn"
        raise
    return "answered"


@pytest.mark.parametrize("values", ODD_OPTIONS)
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.filterwarnings("ignore")
def test_odd_options(call, values, capsys):
    ask, names = CALLS[call]
    counts = Counter()
    for name in names:
        for place, value in enumerate(ODD_OPTIONS[values]()):
            if name in COUNTS and isinstance(value, int | np.integer) and value > 1000:
                continue
            try:
                counts[kind_of(ask, {name: value})] += 1
            except Exception as error:
                raise AssertionError(f"{name}: value {place} of {values}, {type(value)}") from error
    pytest.importorskip("matplotlib.pyplot").close("all")
    assert counts["refused"] > 0
    assert counts["scikit-learn"] <= 0.2 * counts.total()
