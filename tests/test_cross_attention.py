"""SCAN's scores against the reference code's figures and a plain float64 reading of the equations."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fairseq_grounding.modules import cross_attention
from fairseq_grounding.modules.cross_attention import (
    AGGREGATES,
    DIRECTIONS,
    NORMS,
    attend_pairs,
    l2_normalise,
    region_word_scores,
)

FIGURES = Path(__file__).parent / "figures"
REFERENCE_NORMS = {
    "softmax": "softmax",
    "l2norm": "l2",
    "clipped_l2norm": "clipped_l2",
    "clipped": "clipped",
    "no_norm": "none",
    "ALIASED_l1norm": "l1",
    "ALIASED_clipped_l1norm": "clipped_l1",
}
REFERENCE_AGGREGATES = {"LogSumExp": "logsumexp", "Max": "max", "Sum": "sum", "Mean": "mean"}
TEMPERATURES = {
    "t2i": {"temperature": 9.0, "lse_temperature": 6.0},
    "i2t": {"temperature": 4.0, "lse_temperature": 5.0},
}


def plain_normalised(numbers: Tensor, norm: str) -> Tensor:
    """One vector of dot products, over the queries."""
    if norm == "softmax":
        return numbers.exp() / numbers.exp().sum()
    if norm == "paper":
        numbers = torch.where(numbers > 0, numbers, torch.zeros_like(numbers))
    elif norm.startswith("clipped"):
        numbers = torch.where(numbers > 0, numbers, 0.1 * numbers)
    if norm in ("clipped_l2", "l2", "paper"):
        square = (numbers * numbers).sum()
        return numbers / (square.sqrt() + 1e-8) if square > 0 else numbers * 0
    if norm in ("l1", "clipped_l1"):
        return numbers / (numbers.abs().sum() + 1e-8)
    return numbers


def plain_score(
    regions: Tensor,
    words: Tensor,
    direction: str,
    norm: str,
    aggregate: str,
    temperature: float,
    lse_temperature: float,
    counts: Tensor | None = None,
) -> Tensor:
    """One image (R,H) with one caption (W,H), all real; the attended vectors are formed."""
    queries, keys = (words, regions) if direction == "t2i" else (regions, words)
    if not len(words) or not len(regions):
        return regions.sum() * 0 + words.sum() * 0
    normed = torch.stack([plain_normalised(queries @ key, norm) for key in keys], 1)
    cosines = []
    for number, query in enumerate(queries):
        weights = (temperature * normed[number]).exp()
        weights = weights / weights.sum()
        attended = sum(weight * key for weight, key in zip(weights, keys))
        length = (query @ query).sqrt() * (attended @ attended).sqrt() if bool(query.any()) else query.sum() * 0
        cosines.append((query @ attended) / length.clamp(min=1e-8))
    pooled = torch.stack(cosines)
    if counts is not None:
        pooled = pooled[counts]
        if not len(pooled):
            return regions.sum() * 0 + words.sum() * 0
    if aggregate == "mean":
        return pooled.sum() / len(pooled)
    if aggregate == "sum":
        return pooled.sum()
    if aggregate == "max":
        return pooled.max()
    return (lse_temperature * pooled).exp().sum().log() / lse_temperature


def plain_scores(regions, words, region_mask, word_mask, aggregate_mask=None, **choices) -> Tensor:
    """All pairs, one after another."""
    rows = []
    for region_row, real in zip(regions, region_mask):
        row = []
        for caption, word_row in enumerate(words):
            counts = None if aggregate_mask is None else aggregate_mask[caption][word_mask[caption]]
            row.append(plain_score(region_row[real], word_row[word_mask[caption]], **choices, counts=counts))
        rows.append(torch.stack(row))
    return torch.stack(rows)


@pytest.fixture(scope="module")
def figures():
    return np.load(FIGURES / "a_scan_xattn.npz")


def tensors(figures):
    images, captions = torch.from_numpy(figures["images"]), torch.from_numpy(figures["captions"])
    lengths = torch.from_numpy(figures["cap_lens"])
    word_mask = torch.arange(captions.shape[1])[None, :] < lengths[:, None]
    return images, captions, torch.ones(images.shape[:2], dtype=torch.bool), word_mask


def close(ours: Tensor, theirs, tolerance: float = 1e-10) -> None:
    theirs = theirs if isinstance(theirs, Tensor) else torch.from_numpy(np.asarray(theirs))
    assert ours.shape == theirs.shape
    assert torch.isfinite(ours).all()
    assert float((ours - theirs).detach().abs().max()) <= tolerance


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("norm", REFERENCE_NORMS)
@pytest.mark.parametrize("aggregate", REFERENCE_AGGREGATES)
def test_scores_are_the_reference_codes(figures, direction, norm, aggregate):
    scores = region_word_scores(
        *tensors(figures),
        direction=direction,
        norm=REFERENCE_NORMS[norm],
        aggregate=REFERENCE_AGGREGATES[aggregate],
        **TEMPERATURES[direction],
    )
    close(scores, figures[f"{direction}.{norm}.{aggregate}.scores"])


@pytest.mark.parametrize("norm", [norm for norm in REFERENCE_NORMS if not norm.startswith("ALIASED")])
def test_attention_of_pairs_is_the_reference_codes(figures, norm):
    images, captions, _, word_mask = tensors(figures)
    pairs = [(image, caption) for image in range(len(images)) for caption in range(len(captions))]
    rows = torch.tensor(pairs)
    similarity, attention = attend_pairs(
        images[rows[:, 0]],
        captions[rows[:, 1]],
        torch.ones(len(rows), images.shape[1], dtype=torch.bool),
        word_mask[rows[:, 1]],
        norm=REFERENCE_NORMS[norm],
        temperature=9.0,
    )
    expected = figures[f"t2i.{norm}.attn"]
    close(attention, expected.reshape(attention.shape))
    close(similarity, figures[f"t2i.{norm}.row_sim"].reshape(similarity.shape))


def noun_mask(figures) -> Tensor:
    """Nouns attend; in a sentence without any, all words."""
    word_mask = tensors(figures)[3]
    nouns = torch.from_numpy(figures["pos.tag_mask"]).bool() & word_mask
    return torch.where(nouns.any(1, keepdim=True), nouns, word_mask)


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("aggregate", REFERENCE_AGGREGATES)
def test_a_noun_mask_as_word_mask_is_pos_scan(figures, direction, aggregate):
    images, captions, region_mask, _ = tensors(figures)
    scores = region_word_scores(
        images,
        captions,
        region_mask,
        noun_mask(figures),
        direction=direction,
        aggregate=REFERENCE_AGGREGATES[aggregate],
        **TEMPERATURES[direction],
    )
    close(scores, figures[f"pos.{direction}.clipped_l2norm.{aggregate}.scores"])


@pytest.mark.parametrize("pos", [0, 1])
def test_matching_pairs_are_the_reference_codes(figures, pos):
    images, captions, region_mask, word_mask = tensors(figures)
    mask = (noun_mask(figures) if pos else word_mask)[: len(images)]
    similarity, attention = attend_pairs(images, captions[: len(images)], region_mask, mask)
    close(similarity.sum(1) / mask.sum(1), figures[f"pair.pos{pos}.sim"])
    for row in range(len(images)):
        close(attention[row][mask[row]], figures[f"pair.pos{pos}.attn{row}"])
        assert not attention[row][~mask[row]].any()


def random_batch(seed: int, images: int, regions: int, captions: int, words: int, width: int = 5):
    """Vectors with every kind of mask, an image without padding among them or not."""
    generator = torch.Generator().manual_seed(seed)
    batch = [
        torch.randn(*size, width, generator=generator, dtype=torch.float64) / 2
        for size in ((images, regions), (captions, words))
    ]
    region_mask = torch.rand(images, regions, generator=generator) < 0.7
    region_mask[:, 0] |= ~region_mask.any(1)
    word_mask = torch.rand(captions, words, generator=generator) < 0.6
    return batch[0], batch[1], region_mask, word_mask


def gradients(scores: Tensor, *leaves: Tensor) -> tuple[Tensor, ...]:
    """Of a weighted sum, so that no two scores' errors cancel."""
    weights = torch.linspace(0.5, 2.0, scores.numel(), dtype=scores.dtype).view_as(scores)
    return torch.autograd.grad((scores * weights).sum(), leaves, retain_graph=True)


SIZES = {
    "images": st.integers(1, 3),
    "regions": st.integers(1, 5),
    "captions": st.integers(1, 4),
    "words": st.integers(1, 5),
}


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**20),
    direction=st.sampled_from(DIRECTIONS),
    norm=st.sampled_from(NORMS),
    aggregate=st.sampled_from(AGGREGATES),
    temperature=st.sampled_from([1.0, 4.0, 9.0]),
    after=st.booleans(),
    **SIZES,
)
def test_scores_and_gradients_follow_the_equations(
    seed, direction, norm, aggregate, temperature, after, images, regions, captions, words
):
    batch = random_batch(seed, images, regions, captions, words)
    region_vectors, word_vectors = (vectors.requires_grad_() for vectors in batch[:2])
    counted = None
    if after and direction == "t2i":
        counted = torch.rand(captions, words, generator=torch.Generator().manual_seed(seed + 1)) < 0.5
    choices = {
        "direction": direction,
        "norm": norm,
        "aggregate": aggregate,
        "temperature": temperature,
        "lse_temperature": 6.0,
    }
    ours = region_word_scores(region_vectors, word_vectors, *batch[2:], aggregate_mask=counted, **choices)
    plain = plain_scores(region_vectors, word_vectors, *batch[2:], aggregate_mask=counted, **choices)
    close(ours, plain)
    for mine, theirs in zip(
        gradients(ours, region_vectors, word_vectors), gradients(plain, region_vectors, word_vectors)
    ):
        close(mine, theirs, 1e-8 * max(1.0, float(theirs.abs().max())))


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**20), norm=st.sampled_from(NORMS), **SIZES)
def test_pairs_attend_as_the_equations_say(seed, norm, images, regions, captions, words):
    region_vectors, word_vectors, region_mask, word_mask = random_batch(seed, captions, regions, captions, words)
    similarity, attention = attend_pairs(
        region_vectors, word_vectors, region_mask, word_mask, norm=norm, temperature=4.0
    )
    for row in range(captions):
        real, said = region_mask[row], word_mask[row]
        keys, queries = region_vectors[row][real], word_vectors[row][said]
        expected_attention = torch.zeros(words, regions, dtype=torch.float64)
        expected_similarity = torch.zeros(words, dtype=torch.float64)
        if len(queries):
            logits = torch.stack([plain_normalised(queries @ key, norm) for key in keys], 1) * 4.0
            weights = logits.exp() / logits.exp().sum(1, keepdim=True)
            attended = weights @ keys
            lengths = queries.norm(dim=1) * attended.norm(dim=1)
            expected_similarity[said] = (queries * attended).sum(1) / lengths
            expected_attention[said.nonzero(), real.nonzero()[:, 0]] = weights
        close(attention[row], expected_attention)
        close(similarity[row], expected_similarity)


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**20),
    direction=st.sampled_from(DIRECTIONS),
    norm=st.sampled_from(NORMS),
    aggregate=st.sampled_from(AGGREGATES),
    garbage=st.sampled_from([1e3, -1e3, 1e30, float("inf"), float("nan")]),
    **SIZES,
)
def test_padding_changes_nothing_whatever_it_holds(
    seed, direction, norm, aggregate, garbage, images, regions, captions, words
):
    region_vectors, word_vectors, region_mask, word_mask = random_batch(seed, images, regions, captions, words)
    choices = {"direction": direction, "norm": norm, "aggregate": aggregate}
    results = []
    for filling in (0.0, garbage):
        filled = region_vectors.masked_fill(~region_mask[..., None], filling).requires_grad_()
        spoken = word_vectors.masked_fill(~word_mask[..., None], filling).requires_grad_()
        scores = region_word_scores(filled, spoken, region_mask, word_mask, **choices)
        of_regions, of_words = gradients(scores, filled, spoken)
        assert not of_regions[~region_mask].any()
        assert not of_words[~word_mask].any()
        results.append((scores, of_regions, of_words))
    for clean, dirty in zip(*results):
        assert torch.equal(clean, dirty)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**20), norm=st.sampled_from(NORMS), garbage=st.sampled_from([1e30, float("nan")]), **SIZES)
def test_padding_of_pairs_changes_nothing(seed, norm, garbage, images, regions, captions, words):
    region_vectors, word_vectors, region_mask, word_mask = random_batch(seed, captions, regions, captions, words)
    results = []
    for filling in (0.0, garbage):
        filled = region_vectors.masked_fill(~region_mask[..., None], filling).requires_grad_()
        spoken = word_vectors.masked_fill(~word_mask[..., None], filling).requires_grad_()
        similarity, attention = attend_pairs(filled, spoken, region_mask, word_mask, norm=norm)
        sums = attention.sum(2)
        close(sums, word_mask.to(sums.dtype))
        assert not attention[~(word_mask[:, :, None] & region_mask[:, None, :])].any()
        results.append(
            (similarity, attention, *gradients(torch.cat([similarity[..., None], attention], 2), filled, spoken))
        )
    for clean, dirty in zip(*results):
        assert torch.equal(clean, dirty)


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("aggregate", AGGREGATES)
@pytest.mark.parametrize("norm", NORMS)
def test_zero_vectors_and_captions_without_words_are_no_trouble(direction, aggregate, norm):
    region_vectors, word_vectors, region_mask, word_mask = random_batch(3, 2, 3, 3, 4)
    region_mask[0], word_mask[0], word_mask[1] = True, True, False
    region_vectors[0] = 0
    word_vectors[0, 1] = 0
    leaves = region_vectors.requires_grad_(), word_vectors.requires_grad_()
    scores = region_word_scores(*leaves, region_mask, word_mask, direction=direction, aggregate=aggregate, norm=norm)
    assert torch.equal(scores[:, 1], torch.zeros(2, dtype=torch.float64))
    for gradient in gradients(scores, *leaves):
        assert torch.isfinite(gradient).all()
    assert not gradients(scores[:, 1:2], *leaves)[1].any()


def test_a_zero_vector_stays_zero_when_normalised_and_has_a_finite_gradient():
    vectors = torch.tensor([[0.0, 0.0], [3.0, 4.0]], dtype=torch.float64, requires_grad=True)
    normed = l2_normalise(vectors)
    close(normed, torch.tensor([[0.0, 0.0], [0.6, 0.8]], dtype=torch.float64), 1e-8)
    (gradient,) = torch.autograd.grad(normed.sum(), vectors)
    assert torch.isfinite(gradient).all()


def test_one_region_and_one_word_score_their_cosine():
    region_vectors, word_vectors, _, _ = random_batch(1, 2, 1, 3, 1)
    ones = torch.ones(2, 1, dtype=torch.bool), torch.ones(3, 1, dtype=torch.bool)
    expected = torch.nn.functional.cosine_similarity(region_vectors, word_vectors[:, 0][None], dim=2)
    for direction in DIRECTIONS:
        close(region_word_scores(region_vectors, word_vectors, *ones, direction=direction), expected)


def test_an_image_without_regions_scores_nothing():
    region_vectors, word_vectors, region_mask, word_mask = random_batch(2, 2, 3, 2, 3)
    region_mask[1] = False
    word_mask[:] = True
    for direction in DIRECTIONS:
        for aggregate in AGGREGATES:
            leaves = region_vectors.clone().requires_grad_(), word_vectors.clone().requires_grad_()
            scores = region_word_scores(*leaves, region_mask, word_mask, direction=direction, aggregate=aggregate)
            assert not scores[1].any()
            assert scores[0].all()
            assert all(torch.isfinite(gradient).all() for gradient in gradients(scores, *leaves))


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**20), direction=st.sampled_from(DIRECTIONS), **SIZES)
def test_order_means_nothing(seed, direction, images, regions, captions, words):
    region_vectors, word_vectors, region_mask, word_mask = random_batch(seed, images, regions, captions, words)
    scores = region_word_scores(region_vectors, word_vectors, region_mask, word_mask, direction=direction)
    generator = torch.Generator().manual_seed(seed)
    of_regions, of_words, of_captions = (torch.randperm(n, generator=generator) for n in (regions, words, captions))
    moved = region_word_scores(
        region_vectors[:, of_regions],
        word_vectors[of_captions][:, of_words],
        region_mask[:, of_regions],
        word_mask[of_captions][:, of_words],
        direction=direction,
    )
    close(moved, scores[:, of_captions])
    pairs = min(images, captions)
    batch = region_vectors[:pairs], word_vectors[:pairs], region_mask[:pairs], word_mask[:pairs]
    attention = attend_pairs(*batch)[1]
    turned = attend_pairs(batch[0][:, of_regions], batch[1], batch[2][:, of_regions], batch[3])[1]
    close(turned, attention[:, :, of_regions])


@pytest.mark.parametrize(("chunk", "similarities"), [(1, 1), (40, 1 << 24), (100, 120), (1 << 22, 200)])
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("norm", ["clipped_l2", "paper", "softmax"])
def test_chunks_give_what_one_piece_gives(monkeypatch, chunk, similarities, direction, norm):
    region_vectors, word_vectors, region_mask, word_mask = random_batch(5, 5, 4, 6, 5)
    leaves = region_vectors.requires_grad_(), word_vectors.requires_grad_()
    whole = region_word_scores(*leaves, region_mask, word_mask, direction=direction, norm=norm)
    expected = gradients(whole, *leaves)
    monkeypatch.setattr(cross_attention, "CHUNK", chunk)
    monkeypatch.setattr(cross_attention, "SIMILARITIES", similarities)
    pieces = region_word_scores(*leaves, region_mask, word_mask, direction=direction, norm=norm)
    close(pieces, whole.detach(), 1e-12)
    for mine, theirs in zip(gradients(pieces, *leaves), expected):
        close(mine, theirs, 1e-12)


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_scores_do_not_depend_on_whether_gradients_are_wanted(direction):
    region_vectors, word_vectors, region_mask, word_mask = random_batch(7, 3, 4, 5, 6)
    wanted = region_word_scores(
        region_vectors.clone().requires_grad_(), word_vectors, region_mask, word_mask, direction=direction
    )
    unwanted = region_word_scores(region_vectors, word_vectors, region_mask, word_mask, direction=direction)
    assert wanted.requires_grad
    assert not unwanted.requires_grad
    assert torch.equal(wanted, unwanted)


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_gradients_are_those_of_finite_differences(direction):
    region_vectors, word_vectors, region_mask, word_mask = random_batch(11, 2, 3, 3, 3, width=3)
    leaves = region_vectors.requires_grad_(), word_vectors.requires_grad_()

    def scores(regions, words):
        return region_word_scores(regions, words, region_mask, word_mask, direction=direction, aggregate="logsumexp")

    assert torch.autograd.gradcheck(scores, leaves, eps=1e-6, atol=1e-6)


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_single_precision_is_close_to_double(direction):
    region_vectors, word_vectors, region_mask, word_mask = random_batch(13, 4, 8, 5, 9, width=64)
    batch = l2_normalise(region_vectors), l2_normalise(word_vectors)
    double = region_word_scores(*batch, region_mask, word_mask, direction=direction)
    single = region_word_scores(*(vectors.float() for vectors in batch), region_mask, word_mask, direction=direction)
    assert single.dtype == torch.float32
    close(single.double(), double, 1e-5)


def test_unknown_choices_name_those_that_exist():
    batch = random_batch(0, 1, 2, 1, 2)
    for choice in ({"direction": "both"}, {"norm": "l3"}, {"aggregate": "median"}):
        with pytest.raises(ValueError, match=f"{next(iter(choice))} is '{next(iter(choice.values()))}'; it can be"):
            region_word_scores(*batch, **choice)
    with pytest.raises(ValueError, match="aggregate_mask is for t2i"):
        region_word_scores(*batch, direction="i2t", aggregate_mask=batch[3])
