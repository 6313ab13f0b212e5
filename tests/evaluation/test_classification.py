"""Top-1, top-5 and cross-entropy agree with scikit-learn, whatever the batches."""

import pytest
import torch
from sklearn.metrics import accuracy_score, log_loss, top_k_accuracy_score
from torch import Tensor, nn

from nadaraya.errors import InputError
from nadaraya.evaluation import evaluate_images
from nadaraya.evaluation.classification import evaluate_side_by_side


def _batches(count: int, size: int) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(count, 1, 2, 3, generator=generator)
    labels = torch.arange(count) % 8
    return list(zip(inputs.split(size), labels.split(size), strict=True))


def _classifier(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Flatten(), nn.Linear(6, 8), nn.Dropout(0.5))


@pytest.mark.parametrize("size", [1, 7, 100])
def test_figures_agree_with_scikit_learn(size: int) -> None:
    model = _classifier(0)
    result = evaluate_images(model, _batches(40, size))
    assert model.training
    (inputs, labels), classes = _batches(40, 40)[0], list(range(8))
    with torch.no_grad():
        scores = model.eval()(inputs).double().softmax(1).numpy()
    assert result.images == 40
    assert result.loss == pytest.approx(log_loss(labels, scores, labels=classes), rel=1e-6)
    assert result.top1 == pytest.approx(accuracy_score(labels, scores.argmax(1)))
    assert result.top5 == pytest.approx(top_k_accuracy_score(labels, scores, k=5, labels=classes))


def test_models_side_by_side_have_the_figures_that_they_have_alone() -> None:
    models = [_classifier(0), _classifier(1)]
    together = evaluate_side_by_side(models, _batches(20, 6))
    assert together == [evaluate_images(model, _batches(20, 6)) for model in models]
    assert together[0] != together[1]


def test_with_fewer_than_five_classes_every_image_is_in_the_top_five() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(6, 3))
    inputs, labels = torch.randn(9, 6), torch.arange(9) % 3
    assert evaluate_images(model, [(inputs, labels)]).top5 == 1.0


def test_no_image_is_refused() -> None:
    with pytest.raises(InputError, match="at least one image"):
        evaluate_images(_classifier(0), [])
