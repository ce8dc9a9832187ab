"""The ranking loss against the reference code's figures and plain loops."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fairseq_grounding.criterions.image_text_triplet import triplet_loss
from fairseq_grounding.modules.cross_attention import region_word_scores

FIGURES = Path(__file__).parent / "figures"
CROSS = {"t2i": (9.0, 6.0), "i2t": (4.0, 5.0)}
AGGREGATES = {"LogSumExp": "logsumexp", "Mean": "mean"}
NEGATIVES = {"mv0": "all", "mv1": "hardest"}


@pytest.mark.parametrize("direction", CROSS)
@pytest.mark.parametrize("aggregate", AGGREGATES)
@pytest.mark.parametrize("negatives", NEGATIVES)
def test_loss_and_gradients_are_the_reference_codes(direction, aggregate, negatives):
    figures = np.load(FIGURES / "b_scan_contrastive.npz")
    images, captions = (torch.from_numpy(figures[name]).requires_grad_() for name in ("images", "captions"))
    word_mask = torch.arange(captions.shape[1])[None, :] < torch.from_numpy(figures["cap_lens"])[:, None]
    temperature, lse_temperature = CROSS[direction]
    scores = region_word_scores(
        images,
        captions,
        torch.ones(images.shape[:2], dtype=torch.bool),
        word_mask,
        direction=direction,
        aggregate=AGGREGATES[aggregate],
        temperature=temperature,
        lse_temperature=lse_temperature,
    )
    loss = triplet_loss(scores, float(figures["margin"]), NEGATIVES[negatives])
    of_images, of_captions = torch.autograd.grad(loss, (images, captions))
    for name, ours in (
        ("scores", scores),
        ("loss", loss),
        ("grad_images", of_images),
        ("grad_captions", of_captions),
    ):
        expected = figures[f"{direction}.{aggregate}.{negatives}.{name}"]
        np.testing.assert_allclose(ours.detach().numpy(), expected, rtol=0, atol=1e-9, err_msg=name)


def plain_loss(scores, margin, negatives, image_index):
    """Both hinges of every pair, one number after another."""
    total = 0.0
    for pair in range(len(scores)):
        hinges = [
            (
                max(0.0, margin + float(scores[pair, other]) - float(scores[pair, pair])),
                max(0.0, margin + float(scores[other, pair]) - float(scores[pair, pair])),
            )
            for other in range(len(scores))
            if image_index[other] != image_index[pair]
        ]
        for side in zip(*hinges):
            total += max(side) if negatives == "hardest" else sum(side)
    return total


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**20),
    pairs=st.integers(1, 7),
    margin=st.sampled_from([0.0, 0.2, 1.0]),
    negatives=st.sampled_from(["hardest", "all"]),
    images=st.integers(1, 7),
)
def test_captions_of_one_image_are_no_negatives_of_each_other(seed, pairs, margin, negatives, images):
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(pairs, pairs, generator=generator, dtype=torch.float64)
    image_index = torch.randint(images, (pairs,), generator=generator)
    loss = triplet_loss(scores, margin, negatives, image_index)
    assert float(loss) == pytest.approx(plain_loss(scores, margin, negatives, image_index.tolist()), abs=1e-12)
    alone = triplet_loss(scores, margin, negatives)
    assert float(alone) == pytest.approx(plain_loss(scores, margin, negatives, list(range(pairs))), abs=1e-12)


def test_captions_of_the_same_image_get_no_gradient_from_each_other():
    scores = torch.zeros(3, 3, dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(triplet_loss(scores, 0.2, "all", torch.tensor([4, 4, 9])), scores)
    assert gradient[0, 1] == gradient[1, 0] == 0
    assert gradient[0, 2] > 0
    assert gradient[2, 1] > 0
    only_one_image = triplet_loss(scores, 0.2, "hardest", torch.tensor([4, 4, 4]))
    assert float(only_one_image) == 0
    assert not torch.autograd.grad(only_one_image, scores)[0].any()


@pytest.mark.parametrize("negatives", ["hardest", "all"])
def test_gradients_are_those_of_finite_differences(negatives):
    scores = torch.randn(5, 5, generator=torch.Generator().manual_seed(2), dtype=torch.float64, requires_grad=True)
    index = torch.tensor([0, 1, 1, 2, 3])
    assert torch.autograd.gradcheck(lambda s: triplet_loss(s, 0.2, negatives, index), (scores,))


def test_one_score_for_all_pairs_costs_the_margin_twice_a_pair():
    # what the warning of a collapsed training rests on
    assert float(triplet_loss(torch.full((6, 6), 0.3), 0.2, "hardest")) == pytest.approx(2 * 0.2 * 6)


def test_unknown_negatives_name_those_that_exist():
    with pytest.raises(ValueError, match="negatives is 'some'; it can be hardest, all"):
        triplet_loss(torch.zeros(2, 2), 0.2, "some")
