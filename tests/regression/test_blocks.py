"""Queries in Dask collections are answered as those in memory, lazily and block by block."""

import pickle
import sys

import numpy as np
import pandas as pd
import pytest
from sklearn.exceptions import NotFittedError

from nadaraya.errors import InputError
from nadaraya.regression import (
    ChunkedNadarayaWatson,
    NadarayaWatson,
    NadarayaWatsonClassifier,
    NadarayaWatsonDensity,
)

random = np.random.default_rng(0)
X = random.normal(size=(90, 2))
Y = np.column_stack([np.sin(X[:, 0]), X[:, 1]])
LABELS = np.array(["low", "middle", "high"])[np.digitize(Y[:, 0], [-0.5, 0.5])]
ANSWERS = {
    "one target": NadarayaWatson(bandwidth=0.5).fit(X, Y[:, 0]).predict,
    "targets": NadarayaWatson(bandwidth=0.5).fit(X, Y).predict,
    "single precision": NadarayaWatson(bandwidth=0.5).fit(X.astype(np.float32), Y).predict,
    "effects": NadarayaWatson(bandwidth=0.5).fit(X, Y[:, 0]).marginal_effects,
    "effects on targets": NadarayaWatson(bandwidth=0.5, degree=1).fit(X, Y).marginal_effects,
    "chunked": ChunkedNadarayaWatson(bandwidth=0.5).fit(X, Y).predict,
    "classes": NadarayaWatsonClassifier(bandwidth=0.5).fit(X, LABELS).predict,
    "probabilities": NadarayaWatsonClassifier(bandwidth=0.5).fit(X, LABELS).predict_proba,
    "density": NadarayaWatsonDensity(bandwidth=0.5).fit(X).score_samples,
}


@pytest.mark.parametrize("name", ANSWERS)
@pytest.mark.parametrize("chunks", [(20, 2), (37, 1)])
def test_arrays(name, chunks):
    dask_array = pytest.importorskip("dask.array")
    queries = dask_array.from_array(X + 0.1, chunks=chunks)
    lazy, expected = ANSWERS[name](queries), ANSWERS[name](X + 0.1)
    assert isinstance(lazy, dask_array.Array)
    assert (lazy.shape, lazy.dtype, lazy.chunks[0]) == (expected.shape, expected.dtype, queries.chunks[0])
    np.testing.assert_array_equal(lazy.compute(), expected)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(lazy)).compute(), expected)


def test_blocks_without_rows():
    dask_array = pytest.importorskip("dask.array")
    queries = dask_array.from_array(X, chunks=(20, 2))
    some = queries[queries[:, 0] > X[:, 0].max() - 1e-9]  # of unknown size, all but one block empty
    for name in ("targets", "classes"):
        assert len(ANSWERS[name](some).compute()) == 1


def test_nothing_is_computed_before_it_is_asked_for():
    dask_array = pytest.importorskip("dask.array")
    seen = []

    def read(block_info=None):
        seen.append(block_info[None]["chunk-location"])
        return np.zeros((10, 2))

    queries = dask_array.map_blocks(read, chunks=((10,) * 5, (2,)), dtype=float, meta=np.empty((0, 2)))
    lazy = ANSWERS["one target"](queries)
    assert seen == []
    lazy[:10].compute()
    assert seen == [(0, 0)]


def test_files_larger_than_what_is_read(tmp_path):
    dask_array = pytest.importorskip("dask.array")
    np.save(tmp_path / "queries.npy", X)
    mapped = np.load(tmp_path / "queries.npy", mmap_mode="r")
    lazy = ANSWERS["one target"](dask_array.from_array(mapped, chunks=(25, -1)))
    np.testing.assert_array_equal(lazy.compute(), ANSWERS["one target"](X))


def test_tables():
    pytest.importorskip("pyarrow", reason="Dask's tables need it")
    dataframe = pytest.importorskip("dask.dataframe")
    frame = pd.DataFrame(X, columns=["age", "height"])
    queries = dataframe.from_pandas(frame, npartitions=4)
    for target in (Y[:, 0], Y):
        model = NadarayaWatson(bandwidth=0.5).fit(frame, target)
        np.testing.assert_array_equal(model.predict(queries).compute(), model.predict(frame))
    some = queries[queries["age"] > frame["age"].max() - 1e-9]  # all but one partition are empty
    assert model.predict(some).compute().shape == (1, 2)
    with pytest.raises(ValueError, match="feature names"):
        model.predict(queries.rename(columns={"age": "years"})).compute()


def test_bad_input_is_one_line():
    dask_array = pytest.importorskip("dask.array")
    queries = dask_array.from_array(X, chunks=(20, 2))
    model = NadarayaWatson(bandwidth=0.5).fit(X, Y)
    with pytest.raises(InputError, match="predict of a Dask collection gives one array"):
        model.predict(queries, return_std=True)
    with pytest.raises(NotFittedError):
        NadarayaWatson().predict(queries)
    with pytest.raises(ValueError, match="features"):
        model.predict(queries[:, :1]).compute()


def test_dask_is_not_imported_for_other_queries(monkeypatch):
    monkeypatch.setitem(sys.modules, "dask", None)  # importing it now raises
    assert ANSWERS["one target"](X).shape == (90,)
    assert ANSWERS["one target"](X.tolist()).shape == (90,)
