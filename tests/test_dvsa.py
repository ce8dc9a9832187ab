"""DVSA: its scores and its phrases against figures and slow references, and the commands that it works in."""

from __future__ import annotations

import itertools
import logging
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fairseq_grounding.criterions.image_text_triplet import triplet_loss
from fairseq_grounding.errors import GroundingError
from fairseq_grounding.models.dvsa import DvsaConfig, DvsaModel, alignment_scores, smooth_alignment
from fairseq_grounding.modules import alignment
from fairseq_grounding.modules.alignment import own_alignment_scores
from fairseq_grounding.scoring.retrieval import recall_at_k

from .test_scan import WIDTH, WORDS, dictionary, encode, sample_of

FIGURES = Path(__file__).parent / "figures"
KINDS = {"max": "S_eq8", "relu-sum": "S_eq7", "region-max": "S_regionwise_max"}


def model_of(words=WORDS, feature_size=WIDTH, seed=0, **choices) -> DvsaModel:
    torch.manual_seed(seed)
    sizes = {"word_embedding_size": 5, "joint_size": 8, "hidden_size": 7, **choices}
    return DvsaModel(DvsaConfig(feature_size=feature_size, **sizes), words, feature_size).double().eval()


@pytest.fixture(scope="module")
def figures():
    with np.load(FIGURES / "dvsa_alignment.npz") as file:
        return {name: torch.from_numpy(file[name]) for name in file.files}


def test_encoders_scores_and_loss_are_the_formulas(figures):
    words = dictionary([f"w{n}" for n in range(5)])
    assert len(words) == len(figures["p_Ww"])
    model = model_of(words, feature_size=7, word_embedding_size=4, hidden_size=5, joint_size=6, whole_image="none")
    state = model.state_dict()
    for name, figure in {
        "region_projection": "m",
        "word_projection": "e",
        "brnn.forward_layer": "f",
        "brnn.backward_layer": "b",
        "output_projection": "d",
    }.items():
        state[f"{name}.weight"], state[f"{name}.bias"] = figures[f"p_W{figure}"], figures[f"p_b{figure}"]
    state["embedding.weight"] = figures["p_Ww"]
    model.load_state_dict(state)
    regions = model.encode_regions(figures["cnn"], torch.empty(0))
    torch.testing.assert_close(regions, figures["v"], rtol=0, atol=1e-10)
    word_mask = torch.arange(5)[None] < figures["lengths"][:, None]
    inputs = model.word_projection(model.embedding(figures["tokens"])).relu()
    ahead, back = model.brnn(inputs, word_mask)
    spoken = model.encode_words(figures["tokens"], word_mask)
    for found, name in ((inputs, "e"), (ahead, "h_f"), (back, "h_b"), (spoken, "s")):
        torch.testing.assert_close(found[word_mask], figures[name][word_mask], rtol=0, atol=1e-10)
    region_mask = torch.ones(4, 5, dtype=torch.bool)
    for kind, name in KINDS.items():
        scores = alignment_scores(regions, spoken, region_mask, word_mask, kind=kind)
        torch.testing.assert_close(scores, figures[name], rtol=0, atol=1e-6)
        own = own_alignment_scores(regions, spoken, region_mask, word_mask, kind=kind)
        torch.testing.assert_close(own, figures[name].diagonal(), rtol=0, atol=1e-6)
    # its first two numbers count the pair itself, with a constant 1 each
    expected = figures["loss_eq9"][2:].sum()
    scores = alignment_scores(regions, spoken, region_mask, word_mask)
    torch.testing.assert_close(triplet_loss(scores, 1.0, "all"), expected, rtol=0, atol=1e-6)
    best = torch.einsum("ird,cwd->icwr", regions, spoken).argmax(3)
    for image, caption in itertools.product(range(4), range(4)):
        length = int(figures["lengths"][caption])
        assert best[image, caption, :length].tolist() == figures["argmax_region"][image, caption, :length].tolist()


def test_the_loss_and_the_ranks_are_the_formulas(figures):
    for matrix, loss, gradient in zip(figures["mats"], figures["mats_loss"], figures["mats_grad"]):
        scores = matrix.clone().requires_grad_()
        found = triplet_loss(scores, 1.0, "all")
        torch.testing.assert_close(found, loss[2:].sum(), rtol=0, atol=1e-6)
        torch.testing.assert_close(torch.autograd.grad(found, scores)[0], gradient, rtol=0, atol=1e-6)
    recalls = recall_at_k(figures["ret_scores"].numpy(), figures["ret_owner"].numpy())
    for way in ("i2t", "t2i"):
        found = [recalls[f"{way}_{name}"] for name in ("r1", "r5", "r10", "medr")]
        assert found == pytest.approx(figures[f"ret_{way}_R1_R5_R10_medr"].tolist(), abs=1e-6)


def slow_score(regions, words, kind) -> float:
    table = [[float(region @ word) for region in regions] for word in words]
    if not table or not table[0]:
        return 0.0
    if kind == "max":
        return sum(max(row) for row in table)
    if kind == "relu-sum":
        return sum(max(0.0, number) for row in table for number in row)
    return sum(max(column) for column in zip(*table))


@settings(max_examples=40, deadline=None)
@given(
    region_mask=st.lists(st.lists(st.booleans(), min_size=3, max_size=3), min_size=1, max_size=4),
    word_mask=st.lists(st.lists(st.booleans(), min_size=4, max_size=4), min_size=1, max_size=4),
    kind=st.sampled_from(sorted(KINDS)),
    held=st.sampled_from([1, 40, 1 << 24]),
    seed=st.integers(0, 1000),
)
def test_scores_are_the_slow_ones_in_any_block_and_padding_counts_nothing(region_mask, word_mask, kind, held, seed):
    generator = torch.Generator().manual_seed(seed)
    region_mask, word_mask = torch.tensor(region_mask), torch.tensor(word_mask)
    regions = torch.randn(len(region_mask), 3, 2, generator=generator, dtype=torch.float64)
    words = torch.randn(len(word_mask), 4, 2, generator=generator, dtype=torch.float64)
    regions[~region_mask], words[~word_mask] = torch.nan, torch.inf
    regions.requires_grad_()
    words.requires_grad_()
    before, alignment.SIMILARITIES = alignment.SIMILARITIES, held
    try:
        scores = alignment_scores(regions, words, region_mask, word_mask, kind=kind)
    finally:
        alignment.SIMILARITIES = before
    with torch.no_grad():
        expected = [
            [slow_score(image[own], caption[said], kind) for caption, said in zip(words, word_mask)]
            for image, own in zip(regions, region_mask)
        ]
    torch.testing.assert_close(scores, torch.tensor(expected, dtype=torch.float64), rtol=0, atol=1e-12)
    gradients = torch.autograd.grad(scores.sum(), (regions, words))
    assert all(bool(torch.isfinite(gradient).all()) for gradient in gradients)
    assert not gradients[0][~region_mask].any()
    assert not gradients[1][~word_mask].any()


def test_gradients_are_numerical_ones():
    generator = torch.Generator().manual_seed(3)
    regions = torch.randn(3, 4, 5, generator=generator, dtype=torch.float64, requires_grad=True)
    words = torch.randn(2, 3, 5, generator=generator, dtype=torch.float64, requires_grad=True)
    region_mask, word_mask = torch.ones(3, 4).bool(), torch.tensor([[1, 1, 1], [1, 0, 0]]).bool()
    for kind in KINDS:
        assert torch.autograd.gradcheck(
            lambda r, w, kind=kind: alignment_scores(r, w, region_mask, word_mask, kind=kind), (regions, words)
        )
    with pytest.raises(ValueError, match="kind is 'loud'; it can be max, relu-sum, region-max"):
        alignment_scores(regions, words, region_mask, word_mask, kind="loud")


# ---- phrases ----


def test_phrases_are_the_exhaustive_maxima():
    with np.load(FIGURES / "mrf_bruteforce.npz") as file:
        assert int(file["n_cases"]) == 27
        for case, (number, beta) in itertools.product(range(27), enumerate(file["betas"].tolist())):
            scores = torch.from_numpy(file[f"score_{case:02d}"]).t()[None]
            words, regions = scores.shape[1:]
            path, energy = smooth_alignment(scores, torch.ones(1, words).bool(), torch.ones(1, regions).bool(), beta)
            assert path[0].tolist() == file[f"path_{case:02d}"][number].tolist()
            assert float(energy) == pytest.approx(float(file[f"best_{case:02d}"][number]), abs=1e-6)


@settings(max_examples=60, deadline=None)
@given(
    word_mask=st.lists(st.lists(st.booleans(), min_size=5, max_size=5), min_size=1, max_size=4),
    regions=st.lists(st.integers(0, 3), min_size=4, max_size=4),
    beta=st.sampled_from([0.0, 0.25, 0.5, 1.0, 3.0, 1e6]),
    ties=st.booleans(),
    dtype=st.sampled_from([torch.float32, torch.float64]),
    seed=st.integers(0, 1000),
)
def test_phrases_are_maxima_of_each_caption_alone(word_mask, regions, beta, ties, dtype, seed):
    generator = torch.Generator().manual_seed(seed)
    word_mask = torch.tensor(word_mask)
    region_mask = torch.arange(3)[None] < torch.tensor(regions[: len(word_mask)])[:, None]
    scores = torch.randn(len(word_mask), 5, 3, generator=generator, dtype=dtype)
    if ties:
        scores = (scores * 2).round() / 2
    dirty = scores.masked_fill(~(word_mask[:, :, None] & region_mask[:, None]), torch.nan)
    paths, energies = smooth_alignment(dirty, word_mask, region_mask, beta)
    assert paths.dtype == torch.int64
    assert energies.dtype == dtype

    def energy_of(table, path):
        own = sum(row[place] for row, place in zip(table, path))
        return own + beta * sum(a == b for a, b in zip(path, path[1:]))

    for row, (said, own) in enumerate(zip(word_mask, region_mask)):
        count = int(own.sum())
        if not count or not said.any():
            assert paths[row].tolist() == [-1] * 5
            assert float(energies[row]) == 0
            continue
        assert (paths[row] >= 0).tolist() == said.tolist()
        table = scores[row, said][:, :count].tolist()
        best = max(energy_of(table, path) for path in itertools.product(range(count), repeat=len(table)))
        found = paths[row, said].tolist()
        tolerance = 1e-12 * max(1.0, abs(best))
        assert energy_of(table, found) == pytest.approx(best, abs=tolerance)
        assert float(energies[row]) == pytest.approx(best, rel=1e-6 if dtype == torch.float32 else 1e-12, abs=1e-6)
        if beta == 0:
            assert found == [numbers.index(max(numbers)) for numbers in table]
        if beta == 1e6:
            assert len(set(found)) == 1


def test_what_cannot_be_smoothed_is_refused():
    scores, word_mask, region_mask = torch.zeros(2, 3, 2), torch.ones(2, 3).bool(), torch.ones(2, 2).bool()
    for beta in (-0.5, float("nan"), float("inf")):
        with pytest.raises(GroundingError, match=r"^beta (-0.5|nan|inf): give a finite number of 0 or more"):
            smooth_alignment(scores, word_mask, region_mask, beta)
    scores[1, 2, 0] = torch.nan
    with pytest.raises(GroundingError, match=r"^the scores of caption 1 of the batch hold NaN or infinity$"):
        smooth_alignment(scores, word_mask, region_mask, 1.0)
    word_mask[1, 2] = False
    assert smooth_alignment(scores, word_mask, region_mask, 1.0)[0][1].tolist() == [0, 0, -1]


# ---- the model ----

CAPTION = st.lists(st.tuples(st.integers(4, 15), st.integers(0, 1)), max_size=6)


@settings(max_examples=30, deadline=None)
@given(
    captions=st.lists(CAPTION, min_size=1, max_size=5),
    regions=st.lists(st.integers(1, 5), min_size=5, max_size=5),
    word_rnn=st.sampled_from(["relu", "gru"]),
    kind=st.sampled_from(sorted(KINDS)),
    readout=st.sampled_from(["normalised", "similarity"]),
    seed=st.integers(0, 1000),
)
def test_a_pair_is_the_same_alone_and_in_any_batch(captions, regions, word_rnn, kind, readout, seed):
    model = model_of(word_rnn=word_rnn, alignment=kind)
    sample = sample_of(captions, regions[: len(captions)], seed)
    encoded = encode(model, sample)
    index = torch.arange(len(captions))
    scores, own_scores = model.scores(encoded), model.pair_scores(encoded, index)
    _, attention = model.attend_own(encoded, index, readout)
    assert attention.shape == (len(captions), encoded.words.shape[1], max(regions[: len(captions)]))
    torch.testing.assert_close(own_scores, scores.diagonal(), rtol=0, atol=1e-12)
    for row, caption in enumerate(captions):
        count, length = regions[row], len(caption) + 1
        alone = sample_of([caption], [count])
        for name in ("features", "boxes"):
            alone["net_input"][name] = sample["net_input"][name][row : row + 1, :count]
        own = encode(model, alone)
        torch.testing.assert_close(model.scores(own)[0, 0], scores[row, row], rtol=0, atol=1e-12)
        by_itself = model.attend_own(own, torch.tensor([0]), readout)[1]
        torch.testing.assert_close(by_itself[0], attention[row, :length, :count], rtol=0, atol=1e-12)
        assert not attention[row, :, count:].any()
        torch.testing.assert_close(attention[row].sum(1), encoded.word_mask[row].double(), rtol=0, atol=1e-12)
        if not caption:
            assert not scores[:, row].any()
        divisor = count + 1 if kind == "region-max" else max(1, len(caption))
        reward = float(model.reward(encoded, index)[row])
        assert reward == pytest.approx(float(scores[row, row]) / divisor, abs=1e-12)


def test_the_whole_image_is_a_region_where_the_store_has_none():
    sample = sample_of([[(5, 0), (6, 1)], [(7, 1)]], [3, 2])
    net_input = sample["net_input"]
    net_input["boxes"][1, 1] = torch.tensor([0.0, 0.004, 1.0, 0.996])
    model = model_of(region_geometry="box5")
    encoded = encode(model, sample)
    assert encoded.region_mask.tolist() == [[True, True, True, True], [True, True, False, False]]
    mean = net_input["features"][:1].mean(1, keepdim=True)
    expected = model.encode_regions(mean, torch.tensor([[[0.0, 0.0, 1.0, 1.0]]], dtype=torch.float64))
    torch.testing.assert_close(encoded.regions[0, 3], expected[0, 0])
    assert not encoded.regions[1, 2:].any()
    plain = model_of(region_geometry="box5", whole_image="none")
    assert encode(plain, sample).region_mask.shape == (2, 3)
    torch.testing.assert_close(encode(plain, sample).regions, encoded.regions[:, :3])


def test_a_long_caption_neither_explodes_nor_vanishes():
    torch.manual_seed(1)
    model = model_of(hidden_size=64, joint_size=32, word_embedding_size=16)
    tokens = torch.randint(4, 16, (8, 60))
    embedded = model.embedding(tokens).detach().requires_grad_()
    ahead, back = model.brnn(model.word_projection(embedded).relu(), torch.ones(8, 60).bool())
    ratio = float((ahead + back)[:, 30].norm() / (ahead + back)[:, :1].norm())
    assert 0.05 < ratio < 20
    (gradient,) = torch.autograd.grad((ahead + back).sum(), embedded)
    assert 0 < float(gradient.abs().max()) < 1e3


def test_word_vectors_start_the_words(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    path = tmp_path / "vectors.txt"
    path.write_text("3 2\nw0 1 2\nother 9 9\nw3 -0.5 4e-1\n")
    model = model_of(word_vectors=str(path), word_embedding_size=None)
    weight = model.embedding.weight
    assert weight[WORDS.index("w0")].tolist() == [1, 2]
    assert weight[WORDS.index("w3")].tolist() == pytest.approx([-0.5, 0.4])
    assert weight[WORDS.index("w1")].abs().min() > 0
    assert not weight[WORDS.pad()].any()
    assert not weight.requires_grad
    assert model.settled == {"word_embedding_size": 2, "word_vectors": None}
    assert "width 2, has 2 of 12 words, 16.7% of the training words" in caplog.text
    assert model_of(
        word_vectors=str(path), word_embedding_size=2, train_word_vectors=True
    ).embedding.weight.requires_grad
    # GloVe's form: the same without the first line
    path.write_text("w0 1 2\nw3 -0.5 4e-1\n")
    again = model_of(word_vectors=str(path), word_embedding_size=None)
    torch.testing.assert_close(again.embedding.weight[[4, 7]], weight[[4, 7]])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("w0 1 2\nw1 3 4\nw0 5 6\n", r"line 3: the word 'w0' is there twice; remove one$"),
        ("w0 1 2 3\n", r"has vectors of width 3, not 2; give --word-embedding-size 3$"),
        ("7 3\nw0 1 2 3\n", r"has vectors of width 3, not 2; give --word-embedding-size 3$"),
        ("w0 1 2\nw1 3\n", r"line 2 has 1 numbers after its word, those before it 2; is the file cut short"),
        ("w0 1 2\nw1 3 x\n", r"line 2 does not hold numbers alone \(could not convert string to float"),
        ("w0 1 nan\n", r"line 1 holds NaN or a number too large for float32$"),
        ("dog 1 2\ncat 3 4\n", r"holds none of the dictionary's 16 words; is it of this language"),
        ("", r"is empty; give word vectors in word2vec's text form or GloVe's$"),
        ("w0\n", r"is no word2vec or GloVe text: line 1 is neither COUNT WIDTH nor a word's vector$"),
        (None, r"cannot be read \(No such file or directory\)$"),
    ],
)
def test_word_vectors_that_do_not_fit_are_refused(tmp_path, text, message):
    path = tmp_path / "vectors.txt"
    if text is not None:
        path.write_text(text)
    with pytest.raises(GroundingError, match=rf"^{path}: {message}"):
        model_of(word_vectors=str(path), word_embedding_size=2)
