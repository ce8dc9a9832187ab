"""SCAN's encoders against the reference code's figures; what matching models promise; the frozen teacher."""

from __future__ import annotations

import copy
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from fairseq.data import Dictionary
from hypothesis import given, settings
from hypothesis import strategies as st

import fairseq_grounding.models.scan as scan
from fairseq_grounding.errors import GroundingError
from fairseq_grounding.models.scan import ScanConfig, ScanModel, pos_scan
from fairseq_grounding.modules.matching import Encoded
from fairseq_grounding.modules.regions import with_geometry
from fairseq_grounding.modules.teacher import Teacher, word_table
from fairseq_grounding.modules.vocabulary import dictionary_in

FIGURES = Path(__file__).parent / "figures"
WIDTH = 6


def dictionary(words, counts=None) -> Dictionary:
    made = Dictionary()
    for number, word in enumerate(words):
        made.add_symbol(word, n=1 if counts is None else counts[number])
    return made


WORDS = dictionary([f"w{n}" for n in range(12)])


def model_of(words: Dictionary = WORDS, feature_size: int = WIDTH, seed: int = 0, **choices) -> ScanModel:
    torch.manual_seed(seed)
    sizes = {"word_embedding_size": 5, "joint_size": 8, **choices}
    return ScanModel(ScanConfig(feature_size=feature_size, **sizes), words, feature_size).double().eval()


def sample_of(captions, regions, seed=0, image_index=None, words: Dictionary = WORDS):
    """A batch as the data set hands it out: captions as lists of (token, is noun), regions as counts an image."""
    generator = torch.Generator().manual_seed(seed)
    image_index = torch.arange(len(captions)) if image_index is None else torch.tensor(image_index)
    counts = torch.tensor(regions)
    features = torch.rand(len(regions), max(regions), WIDTH, generator=generator, dtype=torch.float64)
    real = torch.arange(max(regions))[None] < counts[:, None]
    corners = torch.rand(len(regions), max(regions), 2, generator=generator, dtype=torch.float64) / 2
    length = max(map(len, captions)) + 1
    target = torch.full((len(captions), length), words.pad())
    nouns = torch.zeros(len(captions), length, dtype=torch.uint8)
    for row, caption in enumerate(captions):
        target[row, : len(caption)] = torch.tensor([token for token, _ in caption])
        target[row, len(caption)] = words.eos()
        nouns[row, : len(caption)] = torch.tensor([noun for _, noun in caption])
    net_input = {
        "src_tokens": torch.full((len(captions), max(regions)), words.pad()).masked_fill(
            real[image_index], words.unk()
        ),
        "src_lengths": counts[image_index],
        "features": features * real[..., None],
        "boxes": torch.cat([corners, corners + 0.3], 2) * real[..., None],
        "image_index": image_index,
    }
    return {"net_input": net_input, "target": target, "noun_mask": nouns}


def encode(model, sample):
    return model(**sample["net_input"], target=sample["target"], noun_mask=sample["noun_mask"])


def attend(model, encoded, readout="normalised"):
    return model.attend(
        encoded.regions, encoded.words, encoded.region_mask, encoded.word_mask, encoded.noun_mask, readout
    )


@pytest.mark.parametrize("both_ways", [0, 1])
@pytest.mark.parametrize("norm", [0, 1])
def test_encoders_are_the_reference_codes(monkeypatch, both_ways, norm):
    figures = np.load(FIGURES / f"c_scan_encoders_bi{both_ways}_norm{norm}.npz")
    state = {name: torch.from_numpy(figures[name]) for name in figures.files if name.startswith(("txt.", "img."))}
    if not norm:
        monkeypatch.setattr(scan, "l2_normalise", lambda vectors: vectors)
    model = model_of(
        dictionary([f"w{n}" for n in range(16)]),
        feature_size=14,
        word_embedding_size=9,
        joint_size=12,
        unidirectional=not both_ways,
    )
    model.region_projection.load_state_dict({name[7:]: t for name, t in state.items() if name.startswith("img.fc.")})
    model.embedding.load_state_dict({"weight": state["txt.embed.weight"]})
    model.gru.load_state_dict({name[8:]: t for name, t in state.items() if name.startswith("txt.rnn.")})
    regions = model.encode_regions(torch.from_numpy(figures["img_feats"]), torch.empty(0))
    np.testing.assert_allclose(regions.detach(), figures["img_emb"], rtol=0, atol=1e-10)
    ids = torch.from_numpy(figures["ids"])
    mask = torch.arange(ids.shape[1])[None] < torch.from_numpy(figures["lengths"])[:, None]
    words = model.encode_words(ids, mask) * mask[..., None]
    np.testing.assert_allclose(words.detach(), figures["cap_emb"], rtol=0, atol=1e-10)
    # the reference wants captions sorted by length; here their order is free
    order = torch.tensor([1, 2, 0])
    moved = model.encode_words(ids[order], mask[order]) * mask[order][..., None]
    np.testing.assert_allclose(moved.detach(), figures["cap_emb"][order], rtol=0, atol=1e-10)


@pytest.mark.parametrize("bidirectional", [0, 1])
def test_weight_norm_is_the_reference_codes(bidirectional):
    figures = np.load(FIGURES / f"c_scan_encoders_bi{bidirectional}_norm1.npz")
    model = model_of(dictionary([f"w{n}" for n in range(20)]), 14, joint_size=12, weight_norm=True)
    # the names of the reference's checkpoints load as they are
    names = {"bias": "imgwn.fc.bias", "weight_g": "imgwn.fc.weight_g", "weight_v": "imgwn.fc.weight_v"}
    weights = {name: torch.from_numpy(np.asarray(figures[figure])) for name, figure in names.items()}
    model.region_projection.load_state_dict(weights)
    features = torch.from_numpy(figures["img_feats"])
    regions = model.encode_regions(features, torch.zeros(*features.shape[:2], 4).double())
    np.testing.assert_allclose(regions.detach(), figures["img_emb_weight_norm"], rtol=0, atol=1e-10)
    # a copy and a checkpoint of ours hold the length as one number
    copied = copy.deepcopy(model)
    state = copied.state_dict()
    assert state["region_projection.parametrizations.weight.original0"].numel() == 1
    other = model_of(dictionary([f"w{n}" for n in range(20)]), 14, seed=1, joint_size=12, weight_norm=True)
    assert not torch.equal(other.encode_regions(features, None), regions)
    other.load_state_dict(state)
    assert torch.equal(other.encode_regions(features, None), regions)
    with pytest.raises(GroundingError, match="reads regions of width 14, this model of width 15"):
        model_of(dictionary([f"w{n}" for n in range(20)]), 15, joint_size=12, weight_norm=True).load_state_dict(state)


CAPTION = st.lists(st.tuples(st.integers(4, 15), st.integers(0, 1)), max_size=6)


@settings(max_examples=30, deadline=None)
@given(
    captions=st.lists(CAPTION, min_size=1, max_size=5),
    regions=st.lists(st.integers(1, 5), min_size=5, max_size=5),
    noun_attention=st.sampled_from(["all", "before", "after"]),
    readout=st.sampled_from(["normalised", "similarity"]),
    seed=st.integers(0, 1000),
)
def test_a_pair_is_the_same_alone_and_in_any_batch(captions, regions, noun_attention, readout, seed):
    model = model_of(noun_attention=noun_attention)
    sample = sample_of(captions, regions[: len(captions)], seed)
    encoded = encode(model, sample)
    scores = model.scores(encoded)
    similarity, attention = attend(model, encoded, readout)
    for row, caption in enumerate(captions):
        alone = sample_of([caption], [regions[row]])
        count = regions[row]
        for name in ("features", "boxes"):
            alone["net_input"][name] = sample["net_input"][name][row : row + 1, :count]
        own = encode(model, alone)
        torch.testing.assert_close(model.scores(own)[0, 0], scores[row, row], rtol=0, atol=1e-12)
        by_itself = attend(model, own, readout)
        length = len(caption) + 1
        torch.testing.assert_close(by_itself[0][0], similarity[row, :length], rtol=0, atol=1e-12)
        torch.testing.assert_close(by_itself[1][0], attention[row, :length, :count], rtol=0, atol=1e-12)
        assert not attention[row, :, count:].any()
        assert not attention[row, len(caption) :].any()
        looks = model.attending(encoded.word_mask, encoded.noun_mask)[row]
        torch.testing.assert_close(attention[row].sum(1), looks.double(), rtol=0, atol=1e-12)
        if not caption:
            assert float(scores[:, row].abs().max()) == 0


@pytest.mark.parametrize("noun_attention", ["all", "before", "after"])
def test_gradients_are_finite_with_captions_of_no_words(noun_attention):
    model = model_of(noun_attention=noun_attention)
    for captions in ([[], [(5, 1), (6, 0)]], [[], []]):
        model.zero_grad()
        model.scores(encode(model, sample_of(captions, [2, 4]))).sum().backward()
        for name, parameter in model.named_parameters():
            assert torch.isfinite(parameter.grad).all(), name
    # nothing was said, so nothing is learnt
    assert all(not parameter.grad.any() for parameter in model.parameters())


def test_several_captions_share_an_image():
    captions = [[(5, 1)], [(6, 1), (7, 0)], [(8, 0), (9, 1), (5, 1)]]
    model = model_of()
    encoded = encode(model, sample_of(captions, [3, 2], image_index=[1, 0, 1]))
    assert encoded.regions.shape[:2] == (2, 3)
    assert encoded.region_mask.tolist() == [[True, True, True], [True, True, False]]
    assert not encoded.regions[1, 2].any()
    assert model.scores(encoded).shape == (2, 3)


def test_without_a_noun_all_words_attend():
    word_mask = torch.tensor([[1, 1, 1, 0], [1, 1, 0, 0], [0, 0, 0, 0]]).bool()
    noun_mask = torch.tensor([[0, 1, 0, 1], [0, 0, 1, 0], [1, 0, 0, 0]]).bool()
    expected = torch.tensor([[0, 1, 0, 0], [1, 1, 0, 0], [0, 0, 0, 0]]).bool()
    assert torch.equal(model_of(noun_attention="before").attending(word_mask, noun_mask), expected)
    for choice in ("all", "after"):
        assert torch.equal(model_of(noun_attention=choice).attending(word_mask, noun_mask), word_mask)


def test_nouns_after_attention_are_averaged_over_what_all_words_attend_to():
    sample = sample_of([[(5, 0), (6, 1), (7, 0), (8, 1)], [(9, 0), (5, 0)]], [4, 3])
    after, every = model_of(noun_attention="after"), model_of(noun_attention="all")
    encoded = encode(every, sample)
    similarity, _ = attend(every, encoded)
    scores = after.scores(encode(after, sample)).diagonal()
    torch.testing.assert_close(scores[0], similarity[0, [1, 3]].mean(), rtol=0, atol=1e-12)
    # no noun: all words count
    torch.testing.assert_close(scores[1], similarity[1, :2].mean(), rtol=0, atol=1e-12)
    before = model_of(noun_attention="before")
    assert abs(float(before.scores(encoded)[0, 0] - scores[0])) > 1e-6


def test_the_similarity_readout_is_the_softmax_of_cosines():
    model = model_of(temperature=7.0)
    sample = sample_of([[(5, 0), (6, 1)]], [3])
    encoded = encode(model, sample)
    _, attention = attend(model, encoded, "similarity")
    cosine = torch.nn.functional.cosine_similarity(encoded.words[0, :2, None], encoded.regions[0, None], dim=2)
    torch.testing.assert_close(attention[0, :2], (7.0 * cosine).softmax(1), rtol=0, atol=1e-7)
    with pytest.raises(ValueError, match="readout is 'loud'; it can be normalised, similarity"):
        attend(model, encoded, "loud")


def test_box5_appends_place_and_area():
    features = torch.tensor([[[7.0, 8.0]]], dtype=torch.float64)
    boxes = torch.tensor([[[0.25, 0.5, 0.75, 1.0]]], dtype=torch.float64)
    expected = torch.tensor([[[7.0, 8.0, -0.5, 0.0, 0.5, 1.0, -0.5]]], dtype=torch.float64)
    assert torch.equal(with_geometry(features, boxes, "box5"), expected)
    assert with_geometry(features, boxes, "none") is features
    model = model_of(region_geometry="box5")
    sample = sample_of([[(5, 1)]], [2])
    moved = {**sample["net_input"], "boxes": sample["net_input"]["boxes"] / 2}
    assert not torch.allclose(encode(model, sample).regions, encode(model, {**sample, "net_input": moved}).regions)


def test_the_architectures():
    config = ScanConfig()
    pos_scan(config)
    assert config.noun_attention == "before"
    config.noun_attention = "after"
    pos_scan(config)
    assert config.noun_attention == "after"
    with pytest.raises(GroundingError, match=r"--noun-attention after averages words, but --direction i2t"):
        model_of(direction="i2t", noun_attention="after")
    with pytest.raises(GroundingError, match=r"ScanModel is a matching model and writes no captions"):
        model_of()(**sample_of([[(5, 1)]], [1])["net_input"])


def test_the_dictionary_is_in_the_state_and_another_is_refused():
    model = model_of()
    state = model.state_dict()
    assert dictionary_in(state).symbols == WORDS.symbols
    twin = model_of(seed=1)
    twin.load_state_dict(dict(state), strict=True)
    assert torch.equal(twin.gru.weight_hh_l0, model.gru.weight_hh_l0)
    swapped = model_of(dictionary([WORDS.symbols[n] for n in (5, 4, *range(6, 16))]))
    message = r"the checkpoint was trained with another dictionary \(12 words\) than the prepared folder's \(12 words\)"
    with pytest.raises(GroundingError, match=message):
        swapped.load_state_dict(dict(state), strict=True)
    with pytest.raises(GroundingError, match=r"\(12 words\) than the prepared folder's \(2 words\)"):
        model_of(dictionary(["é", "ü"])).load_state_dict(dict(state), strict=True)
    assert dictionary_in({}) is None
    assert dictionary_in(model_of(dictionary([])).state_dict()).symbols == Dictionary().symbols
    assert dictionary_in(model_of(dictionary(["naïve", "犬"])).state_dict()).symbols[4:] == ["naïve", "犬"]


def test_word_table_goes_by_word():
    student = dictionary(["a", "dog", "zebra", "cat"], counts=[50, 30, 15, 5])
    teacher = dictionary(["cat", "a", "dog"])
    table, coverage = word_table(student, teacher)
    assert coverage == 0.85
    assert table[student.index("dog")] == teacher.index("dog")
    assert table[student.index("cat")] == teacher.index("cat")
    assert table[student.index("zebra")] == teacher.unk()
    for special in ("pad", "eos", "unk", "bos"):
        assert table[getattr(student, special)()] == getattr(teacher, special)()


def test_a_teacher_that_does_not_fit_is_refused():
    known = [f"w{n}" for n in range(12)]
    rare = dictionary([*known, "zebra"], counts=[10] * 12 + [6])
    teacher = Teacher(model_of(), rare, WIDTH, "--teacher-path scan.pt")
    assert teacher.coverage == 120 / 126
    common = dictionary([*known, "zebra"], counts=[10] * 12 + [7])
    with pytest.raises(GroundingError, match=r"^--teacher-path scan.pt: its dictionary covers 94.5% of the training"):
        Teacher(model_of(), common, WIDTH, "--teacher-path scan.pt")
    with pytest.raises(GroundingError, match=r"scan.pt: was trained on features of width 6, the region store has 9"):
        Teacher(model_of(), rare, 9, "--teacher-path scan.pt")


def test_the_teacher_reads_the_students_batch_by_its_own_words():
    own = dictionary([f"w{n}" for n in reversed(range(12))])
    model = model_of(own, noun_attention="before")
    teacher = Teacher(model, WORDS, WIDTH, "teacher")
    # float32 is what a teacher reads
    teacher.model.float()
    captions = [[(5, 1), (6, 0), (7, 1)], [(8, 0), (9, 0)]]
    sample = sample_of(captions, [3, 2], image_index=[1, 0])
    attention, grounded = teacher.attention(sample, "normalised")
    assert attention.shape == (2, 4, 3)
    assert grounded.tolist() == [[True, False, True, False], [False] * 4]
    assert not attention.requires_grad
    theirs = [[(own.index(WORDS[token]), noun) for token, noun in caption] for caption in captions]
    same = sample_of(theirs, [3, 2], image_index=[1, 0])
    same["net_input"] = {name: t.float() if t.is_floating_point() else t for name, t in same["net_input"].items()}
    encoded = encode(model, same)
    for row, image in enumerate([1, 0]):
        pair = Encoded(*(t[[image]] for t in encoded[:2]), *(t[[row]] for t in encoded[2:]))
        expected = attend(model, pair)[1][0]
        torch.testing.assert_close(attention[row], expected.detach())
    # only nouns attend in the first; in the second, without any, both words
    assert attention.sum(2).gt(0.5).tolist() == [[True, False, True, False], [True, True, False, False]]
    assert not isinstance(teacher, torch.nn.Module)


def test_sizes_come_from_the_task():
    task = SimpleNamespace(target_dictionary=WORDS, model_feature_size=lambda cfg: 9)
    assert (
        ScanModel.build_model(ScanConfig(joint_size=4, region_geometry="box5"), task).region_projection.in_features
        == 14
    )
