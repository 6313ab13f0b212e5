"""What a new process does first: no compilation for small problems, one announced line for large ones."""

import os
import subprocess
import sys

import numpy as np
import pytest

from nadaraya.errors import InputError
from nadaraya.kernels import ExponentialDecay, Gaussian
from nadaraya.kernels.base import Sum
from nadaraya.regression import sums, warm_up
from nadaraya.regression.requests import BandwidthGradients, Request, Sums

numba = pytest.importorskip("numba")


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    """As in a process that has asked for nothing yet, where nothing is compiled."""
    from nadaraya.regression.compiled import dispatch

    monkeypatch.undo()
    monkeypatch.setattr(sums, "_WORTH_LOADING", 3e7)
    monkeypatch.setattr(sums, "_WORTH_COMPILING", 5e8)
    monkeypatch.setattr(sums._Work, "done", 0.0)
    monkeypatch.setattr(dispatch, "is_ready", lambda request: False)


def request(n, quantity=Sums, kernel=None):
    points = np.random.default_rng(0).normal(size=(n, 2))
    return Request(quantity, points, points, np.ones((2, n)), kernel or Gaussian(1.0), np.ones(2))


def test_small_problems_compile_nothing(caplog):
    assert sums._compiled_for(request(100)) is None
    assert sums._compiled_for(request(700, BandwidthGradients)) is None
    assert not caplog.records


def test_large_problems_are_compiled_and_say_so(caplog):
    assert sums._compiled_for(request(20_000)) is not None
    (record,) = caplog.records
    assert record.name == "nadaraya.regression"
    assert "warm_up" in record.getMessage()
    assert "\n" not in record.getMessage()


def test_a_search_announces_its_evaluations(caplog):
    assert sums._compiled_for(request(2_000, BandwidthGradients)) is not None
    assert caplog.records


def test_many_small_problems_are_compiled_in_the_end():
    some = request(1000)
    answers = [sums._compiled_for(some) is not None for _ in range(1000)]
    assert not answers[0]
    assert answers[-1]


def test_code_on_disk_is_loaded_earlier(monkeypatch, caplog):
    from nadaraya.regression.compiled import dispatch

    monkeypatch.setattr(dispatch, "is_ready", lambda request: True)
    assert sums._compiled_for(request(100)) is None
    assert sums._compiled_for(request(3000)) is not None
    assert not caplog.records


def test_kernels_that_are_never_compiled():
    assert sums._compiled_for(request(20_000, kernel=Sum(ExponentialDecay(1.0)))) is None


def test_without_numba(monkeypatch):
    monkeypatch.setattr(sums, "_numba_is_installed", lambda: False)
    assert sums._compiled_for(request(20_000)) is None
    with pytest.raises(InputError, match="warm_up needs numba"):
        warm_up()


SMALL_FIT = """
import sys, logging, numpy as np
from nadaraya.regression import NadarayaWatson
random = np.random.default_rng(0)
X = random.normal(size=(100, 2))
y = np.sin(X[:, 0]) + 0.1 * random.normal(size=100)
for degree in (0, 1):
    NadarayaWatson(degree=degree).fit(X, y).predict(X, return_std=True)
print("numba" in sys.modules)
"""


def test_a_small_fit_does_not_import_numba(tmp_path):
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-W", "error::RuntimeWarning", "-c", SMALL_FIT],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "False\n"
    assert "compiling" not in done.stderr
    assert not list(tmp_path.rglob("*.nbi"))


@pytest.mark.slow
def test_warm_up_leaves_nothing_to_compile():
    """In a new process, `warm_up` brings the code of every later call, from wherever it comes."""
    code = """
import sys
import numpy as np
from numba.core import event
from nadaraya.kernels import *
from nadaraya.regression import warm_up, NadarayaWatson
from nadaraya.regression.compiled import dispatch
from nadaraya.regression.requests import *

def signatures():
    modules = [module for name, module in sys.modules.items() if name.startswith(dispatch.__package__)]
    functions = [function for module in modules for function in vars(module).values()]
    return {(str(each), *each.signatures) for each in functions if hasattr(each, "signatures")}

warm_up()
ready = signatures()
with event.install_recorder("numba:compile") as record:
    for dtype in (np.float32, np.float64):
        for kernel in (Gaussian(1.0), ExponentialDecay(1.0), Matern(1.0, 1.5), Tricube(1.0)):
            for shape in ((300, 2), (1100, 1)):
                x = np.random.default_rng(0).normal(size=shape).astype(dtype)
                for quantity in (Sums, BandwidthGradients):
                    for query in (x, x[:1100] + np.array(1e4, dtype)):
                        columns = np.ones((2, len(x)))
                        request = Request(quantity, query, x, columns, kernel, np.ones(shape[1]))
                        assert dispatch.is_ready(request)
                        dispatch.compute(request)
assert sum(len(each) > 1 for each in ready) >= 4, ready
print(len(record.buffer), signatures() - ready)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "0 set()\n", done.stderr
