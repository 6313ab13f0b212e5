"""Fitted estimators as plain values: what pickle, copy, joblib and skops see of them."""

from dataclasses import fields, replace
from typing import Any

import torch
from sklearn.base import BaseEstimator

from nadaraya import kernels
from nadaraya.kernels import Kernel
from nadaraya.kernels.base import Product, Scaled, Sum
from nadaraya.regression.categories import Category, Coding
from nadaraya.regression.sample import NeighbourScale, Sample
from nadaraya.regression.selection import Selection, Start
from nadaraya.regression.smoother import PolynomialSmoother, Smoother

_OF = "type of nadaraya"  # the key that tells these dictionaries from others
_RECORDS: dict[str, Any] = {
    record.__name__: record
    for record in (Smoother, PolynomialSmoother, Sample, Selection, Start, Category, Coding)
}
_OTHERS = (Kernel, NeighbourScale, torch.device, *_RECORDS.values())


class PlainState(BaseEstimator):
    """An estimator whose state is made of arrays, numbers, names, lists and dictionaries of them."""

    def __getstate__(self) -> dict[str, Any]:
        return {name: _plain(value) for name, value in super().__getstate__().items()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__({name: _restored(value) for name, value in state.items()})
        smoother = getattr(self, "_smoother", None)
        if smoother is not None and getattr(self, "verbose", False):
            self._smoother = replace(smoother, sample=replace(smoother.sample, report=self._report))


def _plain(value: Any) -> Any:
    if isinstance(value, Kernel):
        return _plain_kernel(value)
    if isinstance(value, torch.device):
        return {_OF: "device", "name": str(value)}
    if isinstance(value, NeighbourScale):
        return {_OF: "NeighbourScale", "sample": _plain(value.sample), "k": value.k}
    if type(value) in _RECORDS.values():
        parts = {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
        return parts | {_OF: type(value).__name__} | ({"report": None} if "report" in parts else {})
    if type(value) is tuple and any(isinstance(part, _OTHERS) for part in value):
        return tuple(map(_plain, value))
    return value


def _restored(value: Any) -> Any:
    if type(value) is tuple:
        return tuple(map(_restored, value))
    if not (isinstance(value, dict) and _OF in value):
        return value
    name = value[_OF]
    parts = {key: _restored(part) for key, part in value.items() if key != _OF}
    if name == "device":
        return torch.device(parts["name"])
    if name == "NeighbourScale":
        return NeighbourScale(parts["sample"], parts["k"])
    return _RECORDS[name](**parts) if name in _RECORDS else _restored_kernel(name, parts)


def _plain_kernel(kernel: Kernel) -> Any:
    """A kernel as its name, its settings, its parameters' bits and the kernels that it is made of."""
    name = type(kernel).__name__
    if getattr(kernels, name, None) is not type(kernel):
        return kernel
    inner = [kernel.kernel] if isinstance(kernel, Scaled) else list(getattr(kernel, "kernels", ()))
    own = dict(kernel.named_parameters(recurse=False))
    return {
        _OF: name,
        "settings": {setting: getattr(kernel, setting) for setting in kernel.settings},
        "parameters": {key: value.detach().cpu().numpy().copy() for key, value in own.items()},
        "gradient": any(value.requires_grad for value in own.values()),
        "kernels": tuple(map(_plain_kernel, inner)),
    }


def _restored_kernel(name: str, parts: dict[str, Any]) -> Kernel:
    kind, inner = getattr(kernels, name), parts["kernels"]
    stored = {key: torch.tensor(value) for key, value in parts["parameters"].items()}
    # Constructed from ones of the right shape and type, so that the logarithms keep their last digit.
    ones = {key.removeprefix("log_"): torch.ones_like(value) for key, value in stored.items()}
    made = kind(*inner) if kind in (Sum, Product) else kind(*inner, **ones, **parts["settings"])
    for key, value in stored.items():
        parameter = getattr(made, key)
        parameter.data.copy_(value)
        parameter.requires_grad_(parts["gradient"])
    return made
