"""The figures of attention maps show the numbers that they are drawn from."""

import base64
from typing import Any

import numpy as np
import pytest
import torch
from made_maps import attention, image_figures, text_figures
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from nadaraya.errors import InputError
from nadaraya.interpret.attention_maps import AttentionMaps, LayerMaps
from nadaraya.interpret.rollout import Query, query_rows, rollout
from nadaraya.report import maps_text
from nadaraya.report.bandwidths import bandwidth_heatmap, bandwidth_lines, sigma_limits
from nadaraya.report.maps_image import ImageFigures
from nadaraya.report.maps_text import TextFigures, printable
from nadaraya.report.style import limits, number


def test_bandwidths_share_one_axis_with_their_start_on_it() -> None:
    sigma = np.array([[1.02, 1.01], [1.03, 1.0]])
    start = np.full((2, 2), 0.9)
    (axes,) = bandwidth_lines(sigma, start).axes
    low, high = axes.get_ylim()
    assert high / low == pytest.approx(2)  # a change of a hundredth does not fill the axis
    assert low < 0.9
    dashed = axes.lines[0]
    assert dashed.get_linestyle() == "--"
    np.testing.assert_array_equal(np.asarray(dashed.get_ydata()), start[0])
    assert sigma_limits(sigma, start) == pytest.approx(
        bandwidth_heatmap(sigma, start).axes[0].images[0].get_clim()
    )
    assert sigma_limits(np.array([[0.1, 10.0]]))[0] < 0.1


def test_many_heads_stand_in_bands() -> None:
    names = set(panels(image_figures(heads=7).heads(0)))
    assert names == {"image", *(f"{kind} {head}" for kind in ("grid", "overlay") for head in range(7))}


@pytest.mark.parametrize(
    ("query", "words"),
    [
        (0, "prefix token 0"),
        (1, "row 0, column 0"),
        (8, "row 1, column 3"),
        ((1, 3), "row 1, column 3"),
        ("last", "row 2, column 3"),
    ],
)
def test_queries_are_named_by_their_patch(query: Query, words: str) -> None:
    figures = image_figures()
    assert words in ImageFigures(figures.maps, np.zeros((24, 32, 3)), query).query_name


def test_token_labels_name_prefix_and_patches() -> None:
    figures = image_figures(num_prefix_tokens=3)
    assert figures.token_labels(np.array([0, 1, 2, 3, 9])) == ["CLS", "reg 1", "reg 2", "0,0", "1,2"]
    registers = image_figures(num_prefix_tokens=2, class_token=False, reads="mean")
    assert registers.token_labels(np.array([0, 2])) == ["reg 0", "0,0"]


def panels(figure: Figure) -> dict[str, Any]:
    """The panels of a mosaic by name."""
    return {axes.get_label(): axes for axes in figure.axes}


def test_figures_show_the_numbers_they_are_drawn_from() -> None:
    figures = image_figures()
    drawn = panels(figures.heads(1))
    assert list(drawn) == ["image", "grid 0", "grid 1", "overlay 0", "overlay 1"]
    ends = figures.scale("heads")
    for head in range(2):
        row = figures.maps.weights[1][0, head, 0, 1:] * figures.maps.num_tokens
        for axes in (drawn[f"grid {head}"], drawn[f"overlay {head}"]):
            image = axes.images[-1]
            np.testing.assert_array_equal(np.asarray(image.get_array()), row.reshape(3, 4).numpy())
            assert image.get_clim() == (ends.vmin, ends.vmax)
        title = drawn[f"grid {head}"].get_title(loc="left")
        assert f"1.{head}, patches {float(row.sum()) / 13:.1%}\n" in title
        assert f"{number(float(row.min()))} … {number(float(row.max()))} × 1/N" in title
    assert len(figures.queries(0).axes) == 1 + 2 * 4


def test_rollout_and_layers_show_the_numbers_they_are_drawn_from() -> None:
    figures = image_figures()
    evolution = np.reshape(figures.evolution().axes, (2, 3))
    for layer, (matrix, *_) in enumerate(evolution):
        fused = figures.maps.weights[layer][0].mean(0)
        drawn = np.asarray(matrix.images[0].get_array())
        np.testing.assert_allclose(drawn, fused.numpy() * figures.maps.num_tokens, rtol=1e-6)
    flows = [query_rows(rollout(figures.maps.weights, ratio), figures.maps)[0] for ratio in (0.0, 0.9)]
    drawn = figures.rollout().axes
    titles = [axes.get_title(loc="left") for axes in drawn if "discard" in axes.get_title(loc="left")]
    for ratio, flow, title in zip(("0", "0.9"), flows, (titles[0], titles[2]), strict=True):
        seen = flow[figures.maps.num_prefix_tokens :] * figures.maps.num_tokens
        assert title.startswith(f"discard {ratio}")
        assert f"{number(float(seen.min()))} … {number(float(seen.max()))} × 1/N" in title


def test_the_query_patch_is_boxed_where_it_is() -> None:
    figure = panels(image_figures().queries(0))
    assert [len(axes.patches) for axes in figure.values()] == [4] + 8 * [1]
    box, large = figure["grid 1"].patches[0], figure["overlay 1"].patches[0]  # row 1, column 2 of 3 x 4
    assert (box.get_x(), box.get_y(), box.get_width()) == (1.5, 0.5, 1)
    assert (large.get_x(), large.get_y(), large.get_width(), large.get_height()) == (16, 8, 8, 8)
    assert figure["grid 1"].get_title(loc="left").startswith("patch 1, 2, self ")
    fused = image_figures().maps.weights[0][0].mean(0)[1 + 6, 1:].numpy() * 13  # after the class token
    image = figure["overlay 1"].images[-1]
    np.testing.assert_allclose(np.asarray(image.get_array()), fused.reshape(3, 4), rtol=1e-6)
    title = figure["grid 1"].get_title(loc="left")
    others = np.delete(fused, 6)
    assert f"self {number(float(fused[6]))}\n{number(float(others.min()))} … " in title


def test_matrices_have_no_diagonal_and_at_most_fifty_tokens() -> None:
    figures = ImageFigures(
        attention(82, num_prefix_tokens=1, class_token=True, grid=(9, 9)), np.zeros((18, 18, 3))
    )
    ends = figures.scale("matrices")
    axes = figures.matrix(0, 1).axes[0]
    drawn = np.asarray(axes.images[0].get_array())
    assert drawn.shape == (50, 50)
    assert not drawn.diagonal().any()
    assert axes.images[0].get_clim() == (0, ends.vmax)
    assert 0.5 * drawn.max() < ends.vmax < drawn.max()
    assert axes.get_xticklabels()[0].get_text() == "CLS"
    (all_of_them,) = figures.matrices().axes
    assert len(all_of_them.images) == 4
    corner = {(round(tile.get_extent()[0], 2), round(tile.get_extent()[3], 2)) for tile in all_of_them.images}
    assert corner == {(layer - 0.46, head - 0.36) for layer in (0, 1) for head in (0, 1)}
    np.testing.assert_array_equal(np.asarray(all_of_them.images[1].get_array()), drawn)


def test_bandwidths_are_written_into_their_cells_and_gaps_stay_gaps() -> None:
    sigma = np.array([[1.25, np.nan, 3.5], [0.5, np.nan, 2.0]])
    texts = [text.get_text() for text in bandwidth_heatmap(sigma).axes[0].texts]
    assert texts == ["1.25", "–", "3.50", "0.50", "–", "2.00"]
    lines = bandwidth_lines(sigma).axes[0].lines
    for line, row in zip(lines, sigma, strict=True):
        np.testing.assert_array_equal(np.asarray(line.get_ydata()), row)
    bandwidth_heatmap(np.ones((2, 3)))  # all alike: still a colour


def test_the_overlay_shows_the_values_of_its_patches_and_leaves_the_image_where_there_is_none() -> None:
    """The interpolation passes through the weights: the centre of a patch has the colour of its weight."""
    over = panels(image_figures().heads(0))["overlay 0"].images[1]
    pixels, _, _, _ = over.make_image(FigureCanvasAgg(over.figure).get_renderer(), unsampled=False)
    height, width = pixels.shape[:2]
    rows, columns = (np.arange(3) * 2 + 1) * height // 6, (np.arange(4) * 2 + 1) * width // 8
    centres = pixels[::-1][np.ix_(rows, columns)]  # Agg draws from the bottom up
    expected = over.cmap(over.norm(np.asarray(over.get_array())))
    assert np.abs(centres / 255 - expected).max() < 0.12
    assert over.cmap(0.0)[3] == 0
    assert over.cmap(1.0)[3] > 0.8
    for share in np.linspace(0, 1, 11):  # over a grey image: never darker than two thirds of it
        *colour, opacity = over.cmap(share)
        assert 0.5 * (1 - opacity) + opacity * np.dot(colour, (0.299, 0.587, 0.114)) > 0.33


def test_two_extreme_weights_do_not_set_the_colours_and_panels_share_them() -> None:
    values = np.linspace(0, 1, 1000)
    ends = limits([values, np.array([1e6, -1e6])])
    assert (ends.vmin, ends.vmax) == pytest.approx((0.01, 0.99), abs=0.01)
    assert ends(1e6) == 1
    assert limits([values], low=0).vmin == 0
    alike = limits([np.ones(50)])
    assert alike.vmax > alike.vmin
    lonely = limits([np.append(np.zeros(999), 5.0)])  # a single weight above zero is still seen
    assert lonely(5.0) == 1


def test_the_views_of_a_text_are_its_weights_in_every_layer_and_head() -> None:
    figures = text_figures()
    views, size = figures.views(), 19
    assert "".join(figures.tokens) == "to·be,·or·not⏎to·be"
    assert figures.query_name == "token 18, the last (e)"
    assert figures.token_labels(np.array([0, 2, 13])) == ["t", "·", "⏎"]
    assert views["names"] == {
        "layer 0": ["mean over heads", "0.0", "0.1"],
        "layer 1": ["mean over heads", "1.0", "1.1"],
        "all, by rollout": ["discard 0", "discard 0.5", "discard 0.9"],
    }
    shares = np.frombuffer(base64.b64decode(views["weights"]), "<u2") / 65535
    drawn = np.zeros((9, size, size))
    drawn[:, *np.tril_indices(size)] = shares.reshape(9, -1)
    for layer, weights in enumerate(figures.maps.weights):
        expected = np.concatenate([weights[0].mean(0, keepdim=True), weights[0]])
        np.testing.assert_allclose(drawn[3 * layer : 3 * layer + 3], expected, atol=1e-5)
    flow = rollout(figures.maps.weights, 0.5)[0]
    np.testing.assert_allclose(drawn[7], flow, atol=1e-5)


def test_single_heads_are_left_out_where_a_page_would_be_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maps_text, "_MOST", 4 * 19**2 - 1)
    views = text_figures().views()
    assert views["names"]["layer 1"] == ["mean over heads"]
    assert not views["heads"]
    assert len(base64.b64decode(views["weights"])) == 2 * 5 * 19 * 20 // 2


def test_tokens_are_made_printable() -> None:
    assert [printable(token) for token in (" ", "\n", "\t", "\x07", "", "\u4e2d", " the")] == [
        "·", "⏎", "→", "□", "∅", "□", "·the"
    ]  # fmt: skip
    assert printable("incomprehensible") == "incompr…"
    assert printable("$x_2$") == "$x_2$"


def test_maps_without_patches_or_tokens_are_refused() -> None:
    with pytest.raises(InputError, match="grid"):
        ImageFigures(attention(5), np.zeros((8, 8, 3)))
    with pytest.raises(InputError, match="tokenizer"):
        TextFigures(attention(5, reads="last"))


def test_a_strong_own_weight_hides_nothing() -> None:
    weights = 0.9 * torch.eye(20) + 0.1 * torch.rand(20, 20).softmax(-1)
    layer = LayerMaps("attn", weights.expand(1, 2, 20, 20), None, 0.0)
    maps = AttentionMaps((layer,), None, "last", grid=(4, 5))
    figures = ImageFigures(maps, np.zeros((8, 10, 3)))
    for kind in ("heads", "layers", "rollout"):
        assert figures.panels(kind)[0].query == 19
        assert figures.scale(kind).vmax < 1
    matrix = figures.evolution().axes[0].images[0]
    assert matrix.get_clim()[1] < 1
