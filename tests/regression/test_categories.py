"""Regression on categories beside numbers, with missing values, as users meet it."""

import pickle
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.model_selection import cross_val_score

from nadaraya.errors import InputError
from nadaraya.regression import NadarayaWatson, NadarayaWatsonClassifier, RegressionDisplay

DATA = Path(__file__).resolve().parents[3] / "shared/data/regression"
BANDWIDTH = np.array([0.5, 0.2, 0.3, 0.9])
STATSMODELS = {
    "probability": {"okertype": "wangryzin", "ukertype": "aitchisonaitken"},
    "li-racine": {"okertype": "wangryzin_reg", "ukertype": "aitchison_aitken_reg"},
}


def data(n=60, seed=0):
    """A number, an unordered category of three, an ordered one of four, and a number."""
    random = np.random.default_rng(seed)
    X = np.stack(
        [random.normal(size=n), random.integers(0, 3, n), random.integers(0, 4, n), random.normal(size=n)],
        axis=1,
    )
    return X, np.sin(2 * X[:, 0]) + (X[:, 1] == 1) + 0.3 * X[:, 2] + 0.2 * random.normal(size=n)


def mixed(**options):
    return NadarayaWatson(**{"categorical": [1], "ordered": [2], **options})


def theirs(X, y, bandwidth, kernel, reg_type="lc"):
    kernel_regression = pytest.importorskip("statsmodels.nonparametric.kernel_regression")
    return kernel_regression.KernelReg(y, X, "cuoc", reg_type, bw=bandwidth, rng=0, **STATSMODELS[kernel])


@pytest.mark.parametrize("kernel", STATSMODELS)
def test_local_constant_as_statsmodels(kernel):
    X, y = data()
    reference = theirs(X, y, BANDWIDTH, kernel)
    ours = mixed(bandwidth=BANDWIDTH, category_kernel=kernel).fit(X, y)
    queries = data(25, seed=1)[0]
    np.testing.assert_allclose(ours.predict(queries), reference.fit(queries)[0], rtol=1e-10)
    loo = float(np.squeeze(reference.cv_loo(BANDWIDTH, reference.est["lc"])))
    assert ours.loo_score() == pytest.approx(loo, rel=1e-10)


@pytest.mark.parametrize("kernel", STATSMODELS)
def test_local_linear_as_statsmodels(kernel):
    """With λ = 0: its lines (`_est_loc_linear`) have slopes by the codes of categories as well.

    Li and Racine (2004) have lines in the numbers alone, as here. With λ = 0 only points of equal codes
    count, which leaves no such slope.
    """
    X, y = data(150)
    bandwidth = np.array([0.9, 0.0, 0.0, 1.3])
    reference = theirs(X, y, bandwidth, kernel, "ll")
    ours = mixed(bandwidth=bandwidth, category_kernel=kernel, degree=1).fit(X, y)
    queries = data(25, seed=1)[0]
    mean, slopes = reference.fit(queries)
    np.testing.assert_allclose(ours.predict(queries), mean, rtol=1e-9, atol=1e-10)
    effects = ours.marginal_effects(queries)
    np.testing.assert_allclose(effects[:, [0, 3]], slopes[:, [0, 3]], rtol=1e-8, atol=1e-9)
    assert np.isnan(effects[:, [1, 2]]).all()
    loo = float(np.squeeze(reference.cv_loo(bandwidth, reference.est["ll"])))
    assert ours.loo_score() == pytest.approx(loo, rel=1e-9)


def test_local_lines_in_the_numbers():
    """The least squares line with the weights of the product kernel, in numbers only."""
    X, y = data()
    model = mixed(bandwidth=BANDWIDTH, degree=1).fit(X, y)
    queries = data(9, seed=1)[0]
    for query, prediction in zip(queries, model.predict(queries), strict=True):
        weight = np.exp(
            -((query[0] - X[:, 0]) ** 2) / (2 * 0.5**2) - (query[3] - X[:, 3]) ** 2 / (2 * 0.9**2)
        )
        weight *= np.where(query[1] == X[:, 1], 1.0, 0.2) * 0.3 ** np.abs(query[2] - X[:, 2])
        line = np.stack([np.ones(len(X)), X[:, 0] - query[0], X[:, 3] - query[3]], axis=1)
        root = np.sqrt(weight)[:, None]
        expected = np.linalg.lstsq(root * line, root[:, 0] * y, rcond=None)[0][0]
        assert prediction == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("kernel", STATSMODELS)
def test_aic_as_statsmodels(kernel):
    """Theirs (`aic_hurvich`) forgets which kernels are wanted: the fit in it has the default ones."""
    X, y = data()
    model = mixed(category_kernel=kernel, n_starts=1).fit(X, y)
    smoother = mixed(bandwidth=model.bandwidth_, category_kernel=kernel).fit(X, np.eye(len(X))).predict(X)
    trace = smoother.trace() / len(X)
    expected = np.log(np.mean((y - smoother @ y) ** 2)) + (1 + trace) / (1 - trace - 2 / len(X))
    assert model.selection_.score == pytest.approx(expected, abs=1e-9)
    np.testing.assert_allclose(model.selection_.starts[0].end, model.bandwidth_, rtol=1e-12)
    if kernel == "probability":
        reference = theirs(X, y, model.bandwidth_, kernel).aic_hurvich(model.bandwidth_)
        assert expected == pytest.approx(float(np.squeeze(reference)), abs=1e-9)


@pytest.mark.parametrize("degree", [0, 1])
def test_selection_finds_a_minimum(degree):
    X, y = data()
    model = mixed(bandwidth="loo", degree=degree).fit(X, y)
    assert model.selection_.score == pytest.approx(np.log(model.loo_score() / y.var()), abs=1e-6)
    for place in range(4):
        for factor in (0.8, 1.2):
            bandwidth = model.bandwidth_.copy()
            bandwidth[place] *= factor
            if place in (1, 2):
                bandwidth[place] = min(bandwidth[place], 1.0)
            other = mixed(bandwidth=bandwidth, degree=degree).fit(X, y)
            assert other.loo_score() >= model.loo_score() * (1 - 1e-5)


@pytest.mark.parametrize("bandwidth", ["aic", "loo"])
def test_categories_that_say_nothing_are_smoothed_out(bandwidth):
    """λ goes to its upper bound, as bandwidths of useless numbers go to inf: in most samples, not in all."""
    chosen = []
    for seed in range(5):
        random = np.random.default_rng(seed)
        x, level, rank = random.uniform(-2, 2, 120), random.integers(0, 3, 120), random.integers(0, 3, 120)
        y = np.sin(2 * x) + (level == 2) + 0.2 * random.normal(size=120)
        model = NadarayaWatson(bandwidth=bandwidth, categorical=[1], ordered=[2], n_starts=1)
        chosen.append(model.fit(np.stack([x, level, rank], axis=1), y).bandwidth_)
    _, tells, says_nothing = np.median(chosen, axis=0)
    assert tells < 0.1
    assert says_nothing > {"aic": 0.95, "loo": 0.5}[bandwidth]


def test_at_its_upper_bound_a_category_plays_no_part():
    X, y = data()
    for kernel, greatest in (("li-racine", 1.0), ("probability", 2 / 3)):
        smoothed = NadarayaWatson(bandwidth=[0.5, greatest], categorical=[1], category_kernel=kernel)
        without = NadarayaWatson(bandwidth=0.5).fit(X[:, :1], y)
        smoothed.fit(X[:, :2], y)
        np.testing.assert_allclose(smoothed.predict(X[:, :2]), without.predict(X[:, :1]), rtol=1e-12)


def test_equal_levels_alone():
    """λ = 0 fits every level by itself."""
    X, y = data(150)
    X = X[:, :2]
    model = NadarayaWatson(bandwidth=[0.5, 0.0], categorical=[1]).fit(X, y)
    for level in range(3):
        rows = X[:, 1] == level
        apart = NadarayaWatson(bandwidth=0.5).fit(X[rows, :1], y[rows])
        np.testing.assert_allclose(model.predict(X[rows]), apart.predict(X[rows, :1]), rtol=1e-12)
    refusing = NadarayaWatson(bandwidth=[0.5, 0.0], categorical=[1], empty="raise").fit(X, y)
    with pytest.raises(InputError, match="1 of 1 queries have no point"):
        refusing.predict([[0.0, 7.0]])


def test_categories_alone():
    """Means of levels, drawn to each other by λ."""
    X, y = [["a"], ["a"], ["b"]], [1.0, 3.0, 5.0]
    model = NadarayaWatson(bandwidth=0.5, categorical=[0]).fit(X, y)
    np.testing.assert_allclose(model.predict([["a"], ["b"], ["c"]]), [6.5 / 2.5, 7.0 / 2.0, 3.0])
    assert model.levels_ == {0: ["a", "b"]}
    np.testing.assert_allclose(model.band([["a"]])[0] < model.predict([["a"]]), True)
    line = NadarayaWatson(bandwidth=0.5, categorical=[0], degree=1).fit(X, y)
    np.testing.assert_allclose(line.predict([["a"], ["b"]]), [2.6, 3.5])


def frame(n=80, seed=0):
    random = np.random.default_rng(seed)
    size = pd.Categorical.from_codes(random.integers(0, 3, n), ["small", "middle", "large"], ordered=True)
    table = pd.DataFrame(
        {"x": random.normal(size=n), "city": random.choice(["Rome", "Oslo", "Bern"], n), "size": size}
    )
    return table, table["x"] + (table["city"] == "Oslo") + 0.5 * size.codes + 0.1 * random.normal(size=n)


def test_data_frames():
    """Types say which features are categories; the result is that of codes."""
    table, y = frame()
    model = NadarayaWatson(bandwidth=[0.5, 0.1, 0.3]).fit(table, y)
    assert model.levels_ == {"city": ["Bern", "Oslo", "Rome"], "size": ["small", "middle", "large"]}
    codes = np.stack([table["x"], pd.factorize(table["city"])[0], table["size"].cat.codes], axis=1)
    by_codes = NadarayaWatson(bandwidth=[0.5, 0.1, 0.3], categorical=[1], ordered=[2]).fit(codes, y)
    np.testing.assert_allclose(model.predict(table), by_codes.predict(codes), rtol=1e-12)
    assert model.feature_names_in_.tolist() == ["x", "city", "size"]
    for categorical, ordered in ((["city"], ["size"]), ([False, True, True], None), ([1], [2])):
        said = clone(model).set_params(categorical=categorical, ordered=ordered).fit(table, y)
        np.testing.assert_array_equal(said.predict(table), model.predict(table))
    with pytest.raises(ValueError, match="feature names"):
        model.predict(table.rename(columns={"city": "town"}))
    with pytest.raises(ValueError, match="feature names"):
        model.predict(table[["city", "x", "size"]])


def test_among_the_tools_of_scikit_learn():
    table, y = frame()
    model = NadarayaWatson(bandwidth="loo", n_starts=1).fit(table, y)
    assert model.score(table, y) > 0.95
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(model)).predict(table), model.predict(table))
    assert cross_val_score(NadarayaWatson(bandwidth=[0.5, 0.1, 0.3]), table, y, cv=4).mean() > 0.6


def test_order_of_rows_and_repeats():
    """Copies of a row are one observation, with missing numbers too; the order of rows plays no part."""
    X, y = data()
    X[::7, 0] = np.nan
    model = mixed(bandwidth=BANDWIDTH, missing="category").fit(X, y)
    twice = mixed(bandwidth=BANDWIDTH, missing="category").fit(np.repeat(X, 2, axis=0), np.repeat(y, 2))
    assert twice.loo_score() == pytest.approx(model.loo_score(), rel=1e-12)
    order = np.random.default_rng(0).permutation(len(X))
    shuffled = mixed(bandwidth=BANDWIDTH, missing="category").fit(X[order], y[order])
    np.testing.assert_array_equal(shuffled.predict(X), model.predict(X))


def test_bands_and_scatter():
    """The band of a table of one cell is that of a mean: s √(1/n) z with the variance of residuals."""
    random = np.random.default_rng(0)
    X, y = random.integers(0, 2, (400, 1)).astype(float), random.normal(size=400)
    model = NadarayaWatson(bandwidth=0.0, categorical=[0]).fit(X, y)
    mean, scatter = model.predict([[0.0]], return_std=True)
    own = y[X[:, 0] == 0]
    assert mean == pytest.approx([own.mean()])
    assert scatter == pytest.approx([own.std(ddof=1)], rel=1e-6)
    lower, upper = model.band([[0.0]])
    assert (upper - lower)[0] / 2 == pytest.approx(1.96 * own.std(ddof=1) / np.sqrt(len(own)), rel=0.01)


def test_missing_numbers():
    """Those with and without a number are two levels; the number does not count between them."""
    X = np.array([[0.0], [2.0], [np.nan], [np.nan]])
    y = np.array([1.0, 2.0, 5.0, 7.0])
    model = NadarayaWatson(bandwidth=[1.0, 0.25], missing="category").fit(X, y)
    assert model.bandwidth_.tolist() == [1.0]
    assert model.missing_bandwidth_.tolist() == [0.25]
    far = np.exp(-2.0)
    expected = [(1 + 2 * far + 0.25 * 12) / (1.5 + far), (3 * 0.25 + 12) / 2.5]
    np.testing.assert_allclose(model.predict([[0.0], [np.nan]]), expected, rtol=1e-12)


def test_numbers_missing_in_queries_alone():
    """A fit without missing values predicts from the other features."""
    X, y = data()
    model = NadarayaWatson(bandwidth=[0.5, 0.9], missing="category").fit(X[:, [0, 3]], y)
    assert model.missing_bandwidth_.tolist() == [1.0, 1.0]
    query = np.array([[np.nan, 0.3]])
    expected = NadarayaWatson(bandwidth=0.9).fit(X[:, 3:], y).predict([[0.3]])
    np.testing.assert_allclose(model.predict(query), expected, rtol=1e-12)


@pytest.mark.parametrize("degree", [0, 1])
def test_missing_values_that_tell(degree):
    """Targets differ where a number is missing: λ is chosen small, and the prediction is right."""
    random = np.random.default_rng(0)
    x = random.uniform(-2, 2, 150)
    gone = random.random(150) < 0.3
    y = np.where(gone, 5.0, np.sin(2 * x)) + 0.1 * random.normal(size=150)
    X = np.where(gone, np.nan, x)[:, None]
    model = NadarayaWatson(bandwidth="loo", degree=degree, missing="category", n_starts=1).fit(X, y)
    assert model.missing_bandwidth_[0] < 0.01
    np.testing.assert_allclose(model.predict([[np.nan], [0.0]]), [5.0, 0.0], atol=0.15)


def test_missing_levels():
    table = pd.DataFrame({"x": np.zeros(6), "c": ["a", "a", "b", "b", None, np.nan]})
    y = [1.0, 1.0, 2.0, 2.0, 9.0, 9.0]
    model = NadarayaWatson(bandwidth=[1.0, 0.0], missing="category").fit(table, y)
    np.testing.assert_allclose(model.predict(table), y)


WRONG = {
    "categorical must be 'from_dtype', None or a list": {"categorical": "city"},
    "names in categorical must be one of 'city', 'size', 'x', got 'town'": {"categorical": ["town"]},
    "ordered must be a list of columns from 0 to 2": {"ordered": [3]},
    "the order of the levels of feature 'city' is not known": {"ordered": ["city"]},
    "feature 'city' must be numbers, unless it is listed in categorical, got '": {"categorical": ["size"]},
    "category_kernel must be one of 'li-racine', 'probability', got 'aitchison'": {
        "category_kernel": "aitchison"
    },
    "missing must be one of 'category', 'raise', got 'drop'": {"missing": "drop"},
    "shape of bandwidth must be (3,), one per feature: a λ for each category, got ()": {"bandwidth": 1.0},
    "bandwidth of a category must be between 0 and 1, got 1.5": {"bandwidth": [1.0, 1.5, 0.5]},
    "bandwidth of a category must be between 0 and 0.666667, got 0.8": {
        "bandwidth": [1.0, 0.8, 0.5],
        "category_kernel": "probability",
    },
    "fit_kernel must be left out where features are categories": {"fit_kernel": True},
    "adaptive must be left out where features are categories": {"adaptive": 3},
}


@pytest.mark.parametrize("message", WRONG)
def test_bad_input(message):
    table, y = frame()
    with pytest.raises(InputError) as raised:
        NadarayaWatson(**WRONG[message]).fit(table, y)
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("estimator", [NadarayaWatson, NadarayaWatsonClassifier])
@pytest.mark.parametrize("given", ["aitchison", None, ["li-racine"], {}])
def test_an_unknown_kernel_of_categories_is_refused_where_there_are_none(estimator, given):
    X, y = np.arange(6.0)[:, None], np.array([0, 1, 0, 1, 1, 0])
    with pytest.raises(InputError, match=r"^category_kernel must be one of 'li-racine', 'probability', got "):
        estimator(category_kernel=given).fit(X, y)


@pytest.mark.parametrize("estimator", [NadarayaWatson, NadarayaWatsonClassifier])
@pytest.mark.parametrize(
    ("argument", "given"), [("missing", ["raise"]), ("categorical", 3), ("categorical", "x"), ("ordered", 7)]
)
def test_other_bad_arguments_of_categories_are_refused_where_there_are_none(estimator, argument, given):
    X, y = np.arange(6.0)[:, None], np.array([0, 1, 0, 1, 1, 0])
    with pytest.raises(InputError, match=rf"^{argument} must be "):
        estimator(**{argument: given}).fit(X, y)


def test_missing_values_are_refused_unless_asked_for():
    table, y = frame()
    model = NadarayaWatson(bandwidth=[0.5, 0.1, 0.3]).fit(table, y)
    for column, message in (("city", "makes them a level"), ("x", "NaN")):
        gone = table.copy()
        gone.loc[3, column] = None
        for act in (lambda gone=gone: clone(model).fit(gone, y), lambda gone=gone: model.predict(gone)):
            with pytest.raises(ValueError, match=message):
                act()
    with pytest.raises(InputError, match="number of features of X must be 3, as in fit, got 2"):
        model.predict(np.zeros((2, 2)))


def test_months_of_carbon_dioxide():
    """Whole years are missing: what is known of their months are those of other years."""
    path = DATA / "co2_mauna_loa_monthly.csv"
    if not path.exists():
        pytest.skip("needs the CO2 series of Mauna Loa")
    series = pd.read_csv(path).iloc[:240]
    table = pd.DataFrame({"year": series["decimal_date"], "month": series["date"].str[5:]})
    y, known = series["co2_ppm"], np.arange(240) // 12 % 4 != 2
    error = {}
    for features in (["year"], ["year", "month"]):
        model = NadarayaWatson().fit(table[features][known], y[known])
        error[len(features)] = np.abs(model.predict(table[features][~known]) - y[~known]).mean()
    assert model.bandwidth_[1] < 0.05
    assert error[2] < 0.4 < 1.0 < error[1]


def test_classes():
    """Probabilities are the regression of indicators, with levels that tell and one number that may miss."""
    table, y = frame(200)
    table.loc[::9, "x"] = np.nan
    classes = np.where(y > 1.0, "many", "few")
    options = {"bandwidth": "loo", "missing": "category", "n_starts": 1}
    classifier = NadarayaWatsonClassifier(**options).fit(table, classes)
    regression = NadarayaWatson(**options).fit(table, classes == "many")
    np.testing.assert_allclose(classifier.bandwidth_, regression.bandwidth_, rtol=1e-3)
    same = NadarayaWatson(
        bandwidth=np.append(classifier.bandwidth_, classifier.missing_bandwidth_), missing="category"
    ).fit(table, classes == "many")
    np.testing.assert_allclose(
        classifier.predict_proba(table)[:, 1], same.predict(table), rtol=1e-9, atol=1e-14
    )
    assert classifier.score(table, classes) > 0.85


@pytest.mark.parametrize("degree", [0, 1])
def test_bands_of_categories_and_missing_numbers(degree):
    """One column per feature; fits of every level by itself have the bands of these alone."""
    X, y = data(150)
    both = NadarayaWatson(bandwidth=[0.6, 0.0], categorical=[1], degree=degree).fit(X[:, :2], y)
    rows = X[:, 1] == 1
    alone = NadarayaWatson(bandwidth=0.6, degree=degree).fit(X[rows, :1], y[rows])
    queries = np.stack([np.linspace(-1, 1, 5), np.ones(5)], axis=1)
    for of in ("curve", "smooth"):
        band = both.band(queries, of=of)
        np.testing.assert_allclose(band, alone.band(queries[:, :1], of=of), rtol=1e-6)
    effects, deviations = both.marginal_effects(queries, return_std=True)
    expected = alone.marginal_effects(queries[:, :1], return_std=True)
    np.testing.assert_allclose(effects[:, :1], expected[0], rtol=1e-8)
    np.testing.assert_allclose(deviations[:, :1], expected[1], rtol=1e-6)
    assert np.isnan(effects[:, 1]).all()
    assert np.isnan(deviations[:, 1]).all()
    X[::6, 0] = np.nan
    model = NadarayaWatson(
        bandwidth=[0.6, 0.2, 0.5], categorical=[1], ordered=[2], degree=degree, missing="category"
    ).fit(X[:, :3], y)
    lower, upper = model.band(X[:, :3])
    assert (lower < upper).all()


def test_outliers():
    X, y = data(100)
    y[5] = 50.0
    model = mixed(bandwidth=[0.5, 0.1, 0.3, 2.0], robust_iterations=3).fit(X, y)
    assert model.robust_weight_[5] == 0.0
    assert np.abs(model.predict(X) - y).max() > 45


def test_weights():
    """Rows of weight 0 are as good as absent, and have predictions from the others."""
    X, y = data(80)
    X[::6, 0] = np.nan
    weight = np.random.default_rng(0).uniform(0.5, 2.0, 80)
    weight[::5] = 0.0
    options = {"bandwidth": BANDWIDTH, "missing": "category"}
    model = mixed(**options).fit(X, y, weight)
    counted = weight > 0
    without = mixed(**options).fit(X[counted], y[counted], weight[counted])
    np.testing.assert_allclose(model.predict(X), without.predict(X), rtol=1e-12)
    loo = model.loo_predictions()
    np.testing.assert_allclose(loo[counted], without.loo_predictions(), rtol=1e-10)
    np.testing.assert_allclose(loo[~counted], without.predict(X[~counted]), rtol=1e-10)


def test_summary_and_displays():
    """Summaries show λ; displays, whose axes are numbers, refuse categories."""
    table, y = frame()
    model = NadarayaWatson(bandwidth=[0.5, 0.1, 0.3]).fit(table, y)
    summary = model.summary()
    assert summary.bandwidths == pytest.approx({"x": 0.5, "city": 0.1, "size": 0.3})
    assert summary.relative == {"x": pytest.approx(0.5 / table["x"].std(ddof=0))}
    assert "category" in str(summary)
    with pytest.raises(InputError, match="displays must be of models without categories"):
        RegressionDisplay.from_estimator(model)
