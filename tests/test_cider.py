"""CIDEr-D on token ids against the published tool's figures and a slow reference on dictionaries."""

from __future__ import annotations

import copy
import json
import math
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairseq_grounding.errors import GroundingError
from fairseq_grounding.scoring.cider import CiderD

FIGURES = Path(__file__).parent / "figures"


def ids(text: str) -> list[int]:
    return [int(token) for token in text.split()]


def slow_grams(sequence: list[int]) -> Counter[tuple[int, ...]]:
    return Counter(tuple(sequence[i : i + n]) for n in range(1, 5) for i in range(len(sequence) - n + 1))


def slow_document_frequency(refs: list[list[list[int]]]) -> Counter[tuple[int, ...]]:
    return Counter(gram for captions in refs for gram in {g for c in captions for g in slow_grams(c)})


def slow_cider_d(
    hypothesis: list[int], references: list[list[int]], frequency: dict[tuple[int, ...], float], images: float
) -> float:
    def vector(sequence: list[int]) -> dict[tuple[int, ...], float]:
        grams = slow_grams(sequence)
        return {g: t * (math.log(images) - math.log(max(1.0, frequency.get(g, 0)))) for g, t in grams.items()}

    mine = vector(hypothesis)
    total = 0.0
    for reference in references:
        theirs = vector(reference)
        gap = max(len(hypothesis) - 1, 0) - max(len(reference) - 1, 0)
        for n in range(1, 5):
            value = sum(min(w, theirs[g]) * theirs[g] for g, w in mine.items() if len(g) == n and g in theirs)
            norm = math.sqrt(sum(w * w for g, w in mine.items() if len(g) == n))
            norm *= math.sqrt(sum(w * w for g, w in theirs.items() if len(g) == n))
            if norm > 0:
                value /= norm
            total += value * math.exp(-(gap**2) / (2 * 6.0**2)) / 4
    return 10 * total / len(references)


def as_arrays(frequency: dict[tuple[int, ...], float], images: int) -> tuple[Any, Any, Any]:
    ngrams = np.full((len(frequency), 4), -1, dtype=np.int32)
    for row, gram in enumerate(frequency):
        ngrams[row, : len(gram)] = gram
    return ngrams, np.array(list(frequency.values())), np.int64(images)


@pytest.fixture(scope="module")
def figures() -> tuple[dict[str, Any], Any]:
    return json.loads((FIGURES / "f_ciderd_inputs.json").read_text()), np.load(FIGURES / "f_ciderd_outputs.npz")


def test_published_tool_with_cached_frequencies(figures: tuple[dict[str, Any], Any]) -> None:
    inputs, outputs = figures
    refs = [[ids(c) for c in captions] for captions in inputs["refs"].values()]
    hypotheses = [ids(text) for text in inputs["hyps"].values()]
    frequency = {tuple(ids(gram)): count for gram, count in inputs["document_frequency"].items()}
    scorer = CiderD.from_references(refs, as_arrays(frequency, len(inputs["train_refs"])))
    np.testing.assert_allclose(scorer.score(hypotheses, range(6)), outputs["ciderd_cached"], rtol=0, atol=1e-10)
    # frequencies counted on the training references are the same table
    train = [[ids(c) for c in captions] for captions in inputs["train_refs"]]
    counted = CiderD.from_references(train)
    np.testing.assert_allclose(counted.score(hypotheses, range(6)), outputs["ciderd_cached"], rtol=0, atol=1e-10)


def test_published_tool_with_frequencies_of_the_references(figures: tuple[dict[str, Any], Any]) -> None:
    inputs, outputs = figures
    scorer = CiderD.from_references([[ids(c) for c in captions] for captions in inputs["refs"].values()])
    scores = scorer.score([ids(text) for text in inputs["hyps"].values()], range(6))
    np.testing.assert_allclose(scores, outputs["ciderd_corpus"], rtol=0, atol=1e-10)


# ids beyond 2**31 would break an encoding that packs four ids into 64 bits
token = st.sampled_from([0, 1, 2, 3, 40_000, 70_000, 2**31 + 5])
caption = st.lists(token, max_size=9)
references = st.lists(st.lists(caption, min_size=1, max_size=4), min_size=1, max_size=5)


@settings(max_examples=150, deadline=None)
@given(references, st.lists(st.tuples(caption, st.integers(0, 4)), max_size=6), st.booleans(), st.integers(5, 9))
def test_slow_reference(
    refs: list[list[list[int]]], queries: list[tuple[list[int], int]], cached: bool, images: int
) -> None:
    hypotheses = [hypothesis for hypothesis, _ in queries]
    index = [image % len(refs) for _, image in queries]
    frequency: dict[tuple[int, ...], float] = dict(slow_document_frequency(refs))
    if cached:
        # a pruned table, as after a threshold, over more images than are scored
        frequency = {g: c for g, c in list(frequency.items())[::2] if max(g) < 2**31}
        scorer = CiderD.from_references(refs, as_arrays(frequency, images))
    else:
        images = len(refs)
        scorer = CiderD.from_references(refs)
    expected = [slow_cider_d(h, refs[i], frequency, images) for h, i in zip(hypotheses, index)]
    np.testing.assert_allclose(scorer.score(hypotheses, index), expected, rtol=0, atol=1e-10)


def test_a_perfect_caption_scores_ten_and_an_empty_one_nothing() -> None:
    refs = [[[5, 6, 7, 8, 2]], [[9, 10, 11, 12, 2]]]
    scores = CiderD.from_references(refs).score([[5, 6, 7, 8, 2], [], [2], [9]], [0, 0, 0, 1])
    np.testing.assert_allclose(scores[:3], [10, 0, 0], atol=1e-12)
    assert 0 < scores[3] < 10


def test_scoring_changes_nothing() -> None:
    rng = np.random.default_rng(0)
    refs = [[rng.integers(0, 9, 6).tolist() for _ in range(3)] for _ in range(4)]
    scorer = CiderD.from_references(refs)
    before = copy.deepcopy(scorer)
    first = scorer.score([[1, 2, 99, 98], [3, 3]], [0, 1])
    np.testing.assert_array_equal(scorer.score([[1, 2, 99, 98], [3, 3]], [0, 1]), first)

    def arrays(value: Any) -> list[Any]:
        if isinstance(value, np.ndarray):
            return [value]
        parts = value if isinstance(value, list) else vars(value).values() if hasattr(value, "__dict__") else []
        return [array for part in parts for array in arrays(part)]

    assert len(arrays(scorer)) > 10
    for mine, former in zip(arrays(scorer), arrays(before)):
        np.testing.assert_array_equal(mine, former)


def test_a_thousand_captions_are_quick() -> None:
    rng = np.random.default_rng(1)
    draw = lambda: np.minimum(rng.zipf(1.3, rng.integers(7, 16)), 7000).tolist()  # noqa: E731
    refs = [[draw() for _ in range(5)] for _ in range(1000)]
    hypotheses = [draw() for _ in range(1000)]
    scorer = CiderD.from_references(refs)
    took = []
    for _ in range(3):
        start = time.perf_counter()
        scorer.score(hypotheses, np.arange(1000))
        took.append(time.perf_counter() - start)
    assert min(took) < 0.2


def test_bad_input_is_one_line() -> None:
    scorer = CiderD.from_references([[[1, 2]]])
    for call, message in [
        (lambda: CiderD.from_references([]), "no references"),
        (lambda: CiderD.from_references([[[1]], []]), "image number 1 has no reference"),
        (lambda: CiderD.from_references([[[-1]]]), "negative"),
        (lambda: CiderD.from_references([[[1]]], (np.zeros((2, 3)), np.zeros(2), 1)), r"\(2, 3\)"),
        (
            lambda: CiderD.from_references([[[1]]], (np.array([[1, -1, 2, -1]]), np.ones(1), 1)),
            "may only follow",
        ),
        (
            lambda: CiderD.from_references([[[1]]], (np.array([[1, 2, -1, -1]]), np.ones(1), 0)),
            "over 0 images",
        ),
        (lambda: scorer.score([[1]], [1]), "from 0 to 0"),
        (lambda: scorer.score([[1]], [0, 0]), "1 hypotheses but 2"),
    ]:
        with pytest.raises(GroundingError, match=message):
            call()
    assert scorer.score([], []).shape == (0,)
