"""The arithmetic of self-critical training against the published code's figures and against slow references."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from fairseq.data import Dictionary
from hypothesis import given, settings
from hypothesis import strategies as st

from fairseq_grounding.criterions.rewards import baselines, entropy, reward_loss, total_reward
from fairseq_grounding.data.noun_files import noun_lookup
from fairseq_grounding.models.scan import ScanConfig, ScanModel
from fairseq_grounding.modules.cross_attention import (
    AGGREGATES,
    DIRECTIONS,
    NORMS,
    l2_normalise,
    pair_scores,
    region_word_scores,
)
from fairseq_grounding.modules.matching import Encoded, MatchingModel
from fairseq_grounding.scoring.cider import CiderD

FIGURES = Path(__file__).parent / "figures"


def through_end(row: np.ndarray) -> list[int]:
    """A caption of the reference code: through the first 0, which ends it."""
    tokens = row.tolist()
    return tokens[: tokens.index(0) + 1] if 0 in tokens else tokens


def test_loss_and_gradient_of_the_published_criterion() -> None:
    figures = np.load(FIGURES / "f_reward_criterion.npz")
    logprobs = torch.from_numpy(figures["sample_logprobs"]).requires_grad_()
    lengths = [len(through_end(row)) for row in figures["seq"]]
    assert lengths == [4, 8, 1, 3, 8]
    mask = torch.arange(8)[None] < torch.tensor(lengths)[:, None]
    total, count = reward_loss(logprobs, torch.from_numpy(figures["reward"][:, 0]), mask)
    (total / count).backward()
    assert float(total.detach() / count) == pytest.approx(float(figures["loss"]), abs=1e-12)
    np.testing.assert_allclose(logprobs.grad.numpy(), figures["grad"], rtol=0, atol=1e-12)


@pytest.mark.parametrize(("name", "scan_weight"), [("cider", 0.0), ("cider_scan", 1.0), ("cider_scan_half", 0.5)])
def test_advantages_of_the_published_rewards(name: str, scan_weight: float) -> None:
    figures = np.load(FIGURES / "f_scst_reward.npz")
    # the published run counts n-grams on other captions than those it compares to
    train = json.loads((FIGURES / "f_ciderd_inputs.json").read_text())["train_refs"]
    grams: dict[tuple[int, ...], int] = {}
    for captions in train:
        ids = [[int(token) for token in caption.split()] for caption in captions]
        here = {tuple(c[i : i + n]) for c in ids for n in range(1, 5) for i in range(len(c) - n + 1)}
        for gram in here:
            grams[gram] = grams.get(gram, 0) + 1
    padded = np.array([[*gram, *[-1] * (4 - len(gram))] for gram in grams])
    references = [[through_end(row) for row in figures[f"gts{n}"]] for n in range(3)]
    scorer = CiderD.from_references(references, (padded, np.array(list(grams.values())), len(train)))
    # two samples an image; the greedy caption stands beside each of them, with a matching score of its own
    captions = [through_end(row) for row in np.concatenate([figures["gen"], figures["greedy"]])]
    cider = torch.from_numpy(scorer.score(captions, [0, 0, 1, 1, 2, 2] * 2))
    reward = total_reward(cider, torch.from_numpy(figures["scan_scores"]), 1.0, scan_weight)
    drawn = reward[:6, None]
    advantage = drawn - baselines(drawn, "greedy", reward[6:])
    np.testing.assert_allclose(advantage[:, 0], figures[f"reward.{name}"][:, 0], rtol=0, atol=1e-10)


numbers = st.floats(-5, 5, allow_nan=False, width=32)


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 7).flatmap(lambda n: st.lists(st.lists(numbers, min_size=n, max_size=n), min_size=1, max_size=4)))
def test_leave_one_out_is_the_mean_of_the_others(rewards: list[list[float]]) -> None:
    reward = torch.tensor(rewards, dtype=torch.float64)
    found = baselines(reward, "leave-one-out")
    for row, values in enumerate(rewards):
        for column in range(len(values)):
            others = values[:column] + values[column + 1 :]
            assert float(found[row, column]) == pytest.approx(sum(others) / len(others), abs=1e-9)
    assert torch.allclose((reward - found).sum(1), torch.zeros(len(rewards), dtype=torch.float64), atol=1e-9)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 5), numbers), min_size=1, max_size=6), st.integers(0, 99))
def test_loss_is_the_sum_over_drawn_tokens(captions: list[tuple[int, float]], seed: int) -> None:
    torch.manual_seed(seed)
    logprobs = -torch.rand(len(captions), 5, dtype=torch.float64)
    mask = torch.arange(5)[None] < torch.tensor([length for length, _ in captions])[:, None]
    # what stands beyond a caption's end is not read, whatever it is
    total, count = reward_loss(
        logprobs.masked_fill(~mask, torch.nan), torch.tensor([a for _, a in captions], dtype=torch.float64), mask
    )
    slow = -sum(float(logprobs[row, t]) * a for row, (length, a) in enumerate(captions) for t in range(length))
    assert float(total) == pytest.approx(slow, abs=1e-9)
    assert int(count) == sum(length for length, _ in captions)


def test_gradient_of_the_loss() -> None:
    torch.manual_seed(0)
    logits = torch.randn(3, 4, 7, dtype=torch.float64, requires_grad=True)
    tokens, advantage = torch.randint(7, (3, 4)), torch.randn(3, dtype=torch.float64)
    mask = torch.tensor([[1, 1, 0, 0], [1, 1, 1, 1], [1, 0, 0, 0]]).bool()

    def loss(logits: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        logprobs = logits.log_softmax(2).gather(2, tokens[:, :, None])[:, :, 0]
        return reward_loss(logprobs, weight, mask)[0]

    assert torch.autograd.gradcheck(lambda x: loss(x, advantage), (logits,))
    (gradient,) = torch.autograd.grad(loss(logits, torch.zeros(3, dtype=torch.float64)), logits)
    assert torch.equal(gradient, torch.zeros_like(gradient))
    # a reward that depends on the model must not be followed
    weight = advantage.clone().requires_grad_()
    assert torch.autograd.grad(loss(logits, weight), weight, allow_unused=True) == (None,)


def test_entropy_of_certain_and_of_even_choices() -> None:
    logarithms = torch.tensor([[0.25, 0.25, 0.25, 0.25, 0.0], [0.0, 1.0, 0.0, 0.0, 0.0]]).log()
    assert entropy(logarithms).tolist() == pytest.approx([float(torch.tensor(4.0).log()), 0.0])


def test_nouns_of_words_that_no_tagger_saw() -> None:
    table = {"dog": (10, 9), "run": (10, 5), "walk": (3, 2), "<unk>": (5, 5)}
    symbols = ["<s>", "<pad>", "</s>", "<unk>", "dog", "run", "walk", "zebra"]
    assert noun_lookup(symbols, table, 4).tolist() == [0, 0, 0, 0, 1, 0, 1, 0]


# ---- the matching score of a pair ----


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("aggregate", AGGREGATES)
@pytest.mark.parametrize("norm", NORMS)
def test_pair_scores_are_the_diagonal_of_all_pairs(direction: str, aggregate: str, norm: str) -> None:
    torch.manual_seed(1)
    regions = l2_normalise(torch.randn(5, 6, 8, dtype=torch.float64))
    words = l2_normalise(torch.randn(5, 7, 8, dtype=torch.float64))
    region_mask = torch.arange(6)[None] < torch.tensor([6, 3, 1, 4, 6])[:, None]
    # the last caption is empty; the words of the third are no prefix
    word_mask = torch.arange(7)[None] < torch.tensor([7, 1, 5, 2, 0])[:, None]
    word_mask[2, 1] = False
    counted = [None, word_mask & (torch.arange(7) % 2 == 0)[None]] if direction == "t2i" else [None]
    for aggregate_mask in counted:
        choices = {"direction": direction, "aggregate": aggregate, "norm": norm, "aggregate_mask": aggregate_mask}
        whole = region_word_scores(regions, words, region_mask, word_mask, **choices)
        assert torch.allclose(pair_scores(regions, words, region_mask, word_mask, **choices), whole.diagonal())
        assert float(whole[4, 4]) == 0


WORDS = Dictionary()
for number in range(9):
    WORDS.add_symbol(f"w{number}")


@pytest.mark.parametrize("noun_attention", ["all", "before", "after"])
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_a_model_scores_pairs_as_it_scores_all(direction: str, noun_attention: str) -> None:
    if (direction, noun_attention) == ("i2t", "after"):
        pytest.skip("is refused: i2t pools regions")
    torch.manual_seed(2)
    cfg = ScanConfig(
        feature_size=5, word_embedding_size=4, joint_size=6, direction=direction, noun_attention=noun_attention
    )
    model = ScanModel(cfg, WORDS, 5).double().eval()
    image_index = torch.tensor([0, 0, 1, 2, 2, 0])
    target = torch.randint(4, 13, (6, 5))
    lengths = torch.tensor([5, 3, 4, 0, 2, 1])
    target[torch.arange(5)[None] >= lengths[:, None]] = WORDS.pad()
    src_tokens = torch.full((6, 4), WORDS.unk())
    src_tokens[image_index == 1, 2:] = WORDS.pad()
    encoded = model.encode(
        src_tokens, torch.rand(3, 4, 5).double(), torch.rand(3, 4, 4).double(), image_index, target, target % 3 == 0
    )
    own = model.pair_scores(encoded, image_index)
    assert torch.allclose(own, model.scores(encoded)[image_index, torch.arange(6)])
    # what a model has that says nothing of pairs
    assert torch.equal(
        MatchingModel.pair_scores(model, encoded, image_index), model.scores(encoded)[image_index, range(6)]
    )
    assert torch.isfinite(own).all()


@pytest.mark.parametrize(("kind", "noun_attention"), [("pos", "before"), ("all", "all")])
def test_scores_and_attention_of_the_published_reward(kind: str, noun_attention: str) -> None:
    """The reference reads <start>, the words, a full stop and <end>; ours reads words. Given all of the reference's
    tokens as words, ours agrees."""
    figures = np.load(FIGURES / "h_ground_reward.npz")
    given_ = json.loads((FIGURES / "h_ground_reward_inputs.json").read_text())
    words = Dictionary()
    for word in list(given_["vocab"])[4:]:
        words.add_symbol(word)
    cfg = ScanConfig(feature_size=14, word_embedding_size=9, joint_size=12, noun_attention=noun_attention)
    model = ScanModel(cfg, words, 14).eval()
    # ours in the reference's order, padding first
    theirs = torch.zeros(len(words), dtype=torch.long)
    special = {"<pad>": words.pad(), "<start>": words.bos(), "<end>": words.eos(), "<unk>": words.unk()}
    place = {word: special.get(word, words.index(word)) for word in given_["vocab"]}
    for word, number in given_["vocab"].items():
        theirs[place[word]] = number
    with torch.no_grad():
        model.region_projection.weight.copy_(torch.from_numpy(figures["img.fc.weight"]))
        model.region_projection.bias.copy_(torch.from_numpy(figures["img.fc.bias"]))
        model.embedding.weight.copy_(torch.from_numpy(figures["txt.embed.weight"])[theirs])
        for name, weights in model.gru.named_parameters():
            weights.copy_(torch.from_numpy(figures[f"txt.rnn.{name}"]))

    captions = [f"<start> {s} . <end>".split() for s in given_["sentences"]]
    longest = max(map(len, captions))
    tokens = torch.full((6, longest), words.pad())
    mask, nouns = torch.zeros(6, longest, dtype=torch.bool), torch.zeros(6, longest, dtype=torch.bool)
    for row, caption in enumerate(captions):
        for column, word in enumerate(caption):
            tokens[row, column] = place.get(word, words.unk())
            mask[row, column] = True
            nouns[row, column] = word not in ("UNK", "unk") and given_["tags"].get(word, "").startswith("NN")
    images = torch.from_numpy(figures["images"])
    with torch.no_grad():
        encoded = Encoded(
            model.encode_regions(images, torch.zeros(6, 5, 4)),
            torch.ones(6, 5, dtype=torch.bool),
            model.encode_words(tokens, mask) * mask[:, :, None],
            mask,
            nouns,
        )
        score = model.reward(encoded, torch.arange(6))
        _, attention = model.attend_own(encoded, torch.arange(6), "normalised")
    np.testing.assert_allclose(score.numpy(), figures[f"{kind}.score"], rtol=0, atol=1e-5)
    for row, caption in enumerate(captions):
        said = len(caption) - 3
        expected = figures[f"{kind}.grd_weight"][row]
        # the reference teaches nothing at a caption without nouns, and its row 0 is the first word
        shown = attention[row, 1 : said + 1] * (nouns[row, 1 : said + 1, None] if kind == "pos" else 1)
        np.testing.assert_allclose(shown.numpy()[:20], expected[: min(said, 20)], rtol=0, atol=1e-5)
        assert not expected[said:].any()
