"""Retrieval recall against the published evaluation's figures and against sorting everything."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fairseq_grounding.errors import GroundingError
from fairseq_grounding.scoring.retrieval import recall_at_k

FIGURES = Path(__file__).parent / "figures"


def sort_everything(scores: np.ndarray, image: np.ndarray) -> dict[str, float]:
    ranks: dict[str, list[int]] = {"i2t": [], "t2i": []}
    for number, row in enumerate(scores):
        places = [place for place, c in enumerate(np.argsort(row)[::-1]) if image[c] == number]
        if places:
            ranks["i2t"].append(places[0])
    for caption, own in enumerate(image):
        ranks["t2i"].append(list(np.argsort(scores[:, caption])[::-1]).index(own))
    result = {}
    for way, values in ranks.items():
        for k in (1, 5, 10):
            result[f"{way}_r{k}"] = 100 * sum(v < k for v in values) / len(values)
        result[f"{way}_medr"] = float(int(np.median(values)) + 1)
    result["rsum"] = sum(v for key, v in result.items() if "medr" not in key)
    return result


@pytest.mark.parametrize(("scores", "prefix"), [("sims", ""), ("sims_with_ties", "ties_")])
def test_published_evaluation(scores: str, prefix: str) -> None:
    figures = np.load(FIGURES / "i_scan_retrieval.npz")
    image = np.arange(60) // 5
    result = recall_at_k(figures[scores], image)
    slow = sort_everything(figures[scores], image)
    assert result == pytest.approx(slow, abs=1e-9)
    if prefix and not np.isclose(slow["t2i_r1"], figures["ties_t2i"][0]):
        pytest.skip("this processor's sort orders equal scores unlike the one that the figures come from")
    for way in ("i2t", "t2i"):
        mine = [result[f"{way}_{name}"] for name in ("r1", "r5", "r10", "medr")]
        np.testing.assert_allclose(mine, figures[prefix + way][:4], rtol=1e-12)
    if not prefix:
        assert result["rsum"] == pytest.approx(float(figures["rsum"]), abs=1e-9)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 40), st.integers(1, 90), st.integers(1, 30), st.integers(0, 10**6))
def test_sorting_everything(images: int, captions: int, levels: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    scores = rng.integers(0, levels, (images, captions)) / 7
    image = rng.integers(0, images, captions)
    assert recall_at_k(scores, image) == pytest.approx(sort_everything(scores, image), abs=1e-9)


def test_more_captions_than_one_block() -> None:
    rng = np.random.default_rng(3)
    image = rng.integers(0, 20, 1300)
    scores = rng.normal(size=(20, 1300)) + 2 * (image == np.arange(20)[:, None])
    assert recall_at_k(scores, image) == pytest.approx(sort_everything(scores, image), abs=1e-9)


def test_tensors_of_any_precision() -> None:
    scores = torch.tensor([[3.0, 1.0, 2.0], [1.0, 2.0, 0.0]], requires_grad=True)
    expected = recall_at_k([[3.0, 1.0, 2.0], [1.0, 2.0, 0.0]], [0, 1, 0])
    assert expected["rsum"] == 600
    for kind in (torch.float64, torch.float16, torch.bfloat16):
        assert recall_at_k(scores.to(kind), torch.tensor([0, 1, 0])) == expected


def test_equal_scores_are_no_success() -> None:
    image = np.arange(500) // 5
    result = recall_at_k(np.zeros((100, 500)), image)
    assert result["t2i_r1"] <= 5
    assert result["i2t_r1"] <= 5


def test_bad_input_is_one_line() -> None:
    for scores, image, message in [
        (np.zeros((2, 3)), [0, 1], r"\(2, 3\) and \(2,\)"),
        (np.zeros((0, 0)), [], "needs scores"),
        (np.zeros((2, 3)), [0, 1, 2], "from 0 to 1"),
        (np.array([[0.0, np.nan], [1.0, 2.0]]), [0, 1], "NaN"),
        (np.array([[np.nan, 1.0], [np.nan, 1.0]]), [1, 1], "NaN"),
    ]:
        with pytest.raises(GroundingError, match=message):
            recall_at_k(scores, image)
