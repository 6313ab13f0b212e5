"""The methods of the regression study, each with the search for its settings inside.

Every one is a pipeline: features to mean 0 and deviation 1, likewise the target, both by the training points.
Settings are chosen on the training points alone, by the criterion that a method has or by five-fold
cross-validation. Kernels with a period have X in its own unit, in which the period is known.
"""

import warnings
from collections.abc import Callable
from functools import cache
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.compose import TransformedTargetRegressor
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, ExpSineSquared, WhiteKernel
from sklearn.kernel_ridge import KernelRidge
from sklearn.model_selection import GridSearchCV, KFold
from sklearn.neighbors import KNeighborsRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from nadaraya.kernels import ExponentialDecay, Periodic
from nadaraya.regression import MultiHeadKernelRegression, NadarayaWatson

Array = NDArray[np.float64]
Method = Callable[[int, int], BaseEstimator]  # number of features, seed


class StatsmodelsRegression(RegressorMixin, BaseEstimator):
    """statsmodels' KernelReg, Gaussian, bandwidths by least-squares cross-validation, as an estimator.

    Args:
        reg_type: "lc" for local constant, "ll" for local linear.

    Attributes:
        undefined_: of the last prediction, how many points were given the mean of the targets because
            KernelReg gave nothing finite.
    """

    def __init__(self, reg_type: str = "lc") -> None:
        self.reg_type = reg_type

    def fit(self, X: Array, y: Array) -> Self:
        from statsmodels.nonparametric.kernel_regression import KernelReg

        self.n_features_in_ = X.shape[1]
        self._mean = float(y.mean())
        self._fitted = KernelReg(y, X, var_type="c" * X.shape[1], reg_type=self.reg_type, bw="cv_ls")
        return self

    def predict(self, X: Array) -> Array:
        values: Array = np.asarray(self._fitted.fit(X)[0])
        undefined = ~np.isfinite(values)
        self.undefined_ = int(undefined.sum())
        return np.where(undefined, self._mean, values)


def scaled(regressor: BaseEstimator, scale_features: bool = True) -> BaseEstimator:
    """The regressor on standardised features and target."""
    features = StandardScaler() if scale_features else "passthrough"
    return TransformedTargetRegressor(make_pipeline(features, regressor), transformer=StandardScaler())


def _searched(regressor: BaseEstimator, grid: dict[str, Any], seed: int) -> BaseEstimator:
    folds = KFold(5, shuffle=True, random_state=seed)  # the tables are sorted
    return scaled(GridSearchCV(regressor, grid, cv=folds, scoring="neg_mean_squared_error"))


def _adaptive(d: int, seed: int) -> BaseEstimator:
    regressor = NadarayaWatson(bandwidth="loo", adaptive=10, n_starts=1)
    return _searched(regressor, {"adaptive": [5, 10, 20, 40]}, seed)


def _neighbours(d: int, seed: int) -> BaseEstimator:
    grid = {"n_neighbors": [1, 2, 3, 5, 8, 12, 20, 30, 50], "weights": ["uniform", "distance"]}
    return _searched(KNeighborsRegressor(), grid, seed)


def _kernel_ridge(d: int, seed: int) -> BaseEstimator:
    # A curve's detail can be a hundredth of its length; among many features points are far apart.
    gammas = np.logspace(-1, 5, 13) if d == 1 else np.logspace(-3, 1, 9)
    return _searched(KernelRidge(kernel="rbf"), {"alpha": np.logspace(-4, 1, 6), "gamma": gammas}, seed)


def _gaussian_process(d: int, seed: int) -> BaseEstimator:
    lengths = RBF(np.ones(d), (1e-3, 1e3))
    kernel = ConstantKernel(1.0, (1e-3, 1e5)) * lengths + WhiteKernel(0.1, (1e-6, 1e1))
    restarts = 9 if d == 1 else 0  # in one dimension they cost seconds
    return scaled(GaussianProcessRegressor(kernel, n_restarts_optimizer=restarts, random_state=seed))


def _periodic_gaussian_process(d: int, seed: int) -> BaseEstimator:
    trend = ConstantKernel(1.0, (1e-3, 1e5)) * RBF(20.0, (1e-1, 1e4))
    season = (
        ConstantKernel(0.01, (1e-5, 1e3))
        * RBF(50.0, (1.0, 1e5))
        * ExpSineSquared(1.0, 1.0, (1e-2, 1e2), "fixed")
    )
    kernel = trend + season + WhiteKernel(1e-4, (1e-8, 1.0))
    return scaled(GaussianProcessRegressor(kernel, random_state=seed), scale_features=False)


def _multi_head(hold_out: int | float) -> Method:
    def method(d: int, seed: int) -> BaseEstimator:
        regressor = MultiHeadKernelRegression(
            hold_out=hold_out, n_steps=300, per_feature=True, random_state=seed
        )
        return scaled(regressor)

    return method


def _periodic(degree: int) -> Method:
    def method(d: int, seed: int) -> BaseEstimator:
        years = ExponentialDecay(2.0) * Periodic(1.0, period=1)  # years
        regressor = NadarayaWatson(years, bandwidth=1.0, degree=degree, fit_kernel=True, n_starts=1)
        return scaled(regressor, scale_features=False)

    return method


DEFAULT = "NadarayaWatson, default settings"
METHODS: dict[str, Method] = {
    DEFAULT: lambda d, seed: scaled(NadarayaWatson(random_state=seed)),
    "NadarayaWatson, loo": lambda d, seed: scaled(NadarayaWatson(bandwidth="loo", random_state=seed)),
    "NadarayaWatson, loo, one start": lambda d, seed: scaled(NadarayaWatson(bandwidth="loo", n_starts=1)),
    "NadarayaWatson, local linear": lambda d, seed: scaled(NadarayaWatson(degree=1, random_state=seed)),
    "NadarayaWatson, local linear, loo": lambda d, seed: scaled(
        NadarayaWatson(bandwidth="loo", degree=1, random_state=seed)
    ),
    "NadarayaWatson, adaptive, loo": _adaptive,
    "MultiHeadKernelRegression, one held out": _multi_head(hold_out=1),
    "MultiHeadKernelRegression, a tenth held out": _multi_head(hold_out=0.1),
    "NadarayaWatson, periodic": _periodic(degree=0),
    "NadarayaWatson, local linear, periodic": _periodic(degree=1),
    "statsmodels, local constant": lambda d, seed: scaled(StatsmodelsRegression("lc")),
    "statsmodels, local linear": lambda d, seed: scaled(StatsmodelsRegression("ll")),
    "KNeighborsRegressor": _neighbours,
    "KernelRidge": _kernel_ridge,
    "GaussianProcessRegressor": _gaussian_process,
    "GaussianProcessRegressor, periodic": _periodic_gaussian_process,
}
PERIODIC = tuple(name for name in METHODS if "periodic" in name)
STATSMODELS = tuple(name for name in METHODS if "statsmodels" in name)
FOR_MANY_POINTS = (DEFAULT, "NadarayaWatson, loo, one start", "KNeighborsRegressor")
GENERAL = tuple(
    name for name in METHODS if name not in (*PERIODIC, *STATSMODELS, "NadarayaWatson, loo, one start")
)


@cache
def warm_up() -> None:
    """Loads or compiles the loops of ours, once a process, so that no timed fit does."""
    generator = np.random.default_rng(0)
    for d in (1, 2):
        x, y = generator.standard_normal((60, d)), generator.standard_normal(60)
        for degree, bandwidth in ((0, "loo"), (0, "aic"), (1, "loo")):
            NadarayaWatson(bandwidth=bandwidth, degree=degree, n_starts=1).fit(x, y).predict(x)


def quiet() -> None:
    """Silences the rivals: optimisers at the bounds of their search, ill-conditioned matrices of a grid."""
    warnings.filterwarnings("ignore", module="sklearn|scipy|statsmodels|pandas")
