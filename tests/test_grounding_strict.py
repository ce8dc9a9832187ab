"""The strict grounding protocol: worked examples, a slow reference, and where it differs from the published one."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairseq_grounding.scoring.bootstrap import ImageRatios
from fairseq_grounding.scoring.grounding import GroundingScorer
from fairseq_grounding.scoring.strict import match

from .test_grounding_scores import make_row

A, B, C = [0, 0, 9, 9], [20, 0, 29, 9], [0, 20, 9, 29]


def region(box: list[int]) -> list[float]:
    """The region that ends where an annotated box's last pixel does."""
    return [box[0], box[1], box[2] + 1, box[3] + 1]


def make_objects(
    captions: dict[str, list[tuple[str, dict[int, tuple[str, list[list[int]]]]]]], classes: str = "man dog hat"
) -> dict[str, Any]:
    """Objects from (text, {word: (entity, boxes)}) of each caption of each image; all in one split."""
    known = classes.split()
    return {
        "format": "fairseq_grounding.objects",
        "version": 1,
        "classes": sorted(known),
        "lemmas": {f"{name}s": name for name in known},
        "images": {
            image: [
                [
                    {
                        "word": word,
                        "class": text.split()[word] if text.split()[word] in known else None,
                        "boxes": boxes,
                        "types": ["thing"],
                        "entity": entity,
                    }
                    for word, (entity, boxes) in boxed.items()
                ]
                for text, boxed in own
            ]
            for image, own in captions.items()
        },
        "tokens": {image: [text.split() for text, _ in own] for image, own in captions.items()},
        "splits": dict.fromkeys(captions, "test"),
    }


TWO_MEN = make_objects({"1": [("a man beside a man", {1: ("10", [A]), 4: ("11", [B])})]})


@pytest.mark.parametrize(("second", "gvd", "strict"), [(B, 1 / 2, 1), (A, 2 / 3, 1 / 2)])
def test_the_example_of_the_documentation(second: list[int], gvd: float, strict: float) -> None:
    rows = [make_row("1", ["a", "man", "and", "a", "man"], {1: region(A), 4: region(second)})]
    assert GroundingScorer(TWO_MEN, "gvd").score(rows)["f1_all"] == pytest.approx(gvd)
    assert GroundingScorer(TWO_MEN, "strict").score(rows)["f1_all"] == pytest.approx(strict)


def test_by_hand() -> None:
    objects = make_objects(
        {
            "1": [
                ("a man with a dog", {1: ("10", [A]), 4: ("20", [B])}),
                ("a hat and a man", {4: ("10", [A])}),  # the hat is there, without a box
            ],
            "2": [("a dog", {1: ("30", [A, C])})],
            "3": [("a hat", {1: ("40", [B])})],
        }
    )
    rows = [
        # man right; the dog elsewhere; the hat cannot be judged
        make_row("1", ["man", "dog", "hat"], {0: region(A), 1: region(C), 2: region(A)}),
        # the second of its boxes; no man is in image 2
        make_row("2", ["dogs", "man"], {0: region(C), 1: region(A)}),
    ]
    result = GroundingScorer(objects, "strict", bootstrap=0).score(rows)
    counts = {"right": 2, "judged_all": 4, "judged_loc": 3, "entities_all": 4, "entities_loc": 3, "found": 2}
    assert {name: result["counts"][name] for name in counts} == counts
    assert (result["counts"]["predicted"], result["counts"]["not_judged"]) == (5, 1)
    assert (result["precision_all"], result["recall_all"], result["f1_all"]) == (2 / 4, 2 / 4, 1 / 2)
    assert (result["precision_loc"], result["recall_loc"]) == (2 / 3, 2 / 3)
    # man 1/2 and 1/1, dog 1/2 and 1/2, hat none judged and 0/1
    assert result["macro_precision_all"] == 1 / 2
    assert result["macro_recall_all"] == (1 + 1 / 2 + 0) / 3
    assert result["macro_f1_all"] == pytest.approx((2 / 3 + 1 / 2 + 0) / 3)
    assert result["macro_recall_loc"] == (1 + 1 / 2) / 2
    assert result["per_class"]["generated"]["hat"]["not_judged"] == 1
    assert (result["generated"]["images"], result["generated"]["images_missing"]) == (3, 1)
    assert result["confusion"]["generated"] == [
        {"said": "dog", "attended": "(background)", "count": 1},
        {"said": "man", "attended": "dog", "count": 1},
    ]
    assert result["attention_accuracy"] is None
    assert set(result["intervals"].values()) == {None}


def test_an_entity_is_found_by_any_of_its_names_and_counts_once() -> None:
    objects = make_objects(
        {"1": [("a man", {1: ("10", [A])}), ("a hat", {1: ("10", [A])})]},
    )
    result = GroundingScorer(objects, "strict").score([make_row("1", ["hat"], {0: region(A)})])
    assert (result["counts"]["entities_all"], result["counts"]["found"]) == (1, 1)
    assert result["per_class"]["generated"]["man"]["recall_all"] == 1
    assert result["f1_all"] == 1
    # too loosely: the entity was said all the same, by one of its names, and it is its box that was missed
    objects["images"]["1"].append(objects["images"]["1"][0])
    objects["tokens"]["1"].append(["a", "man"])
    result = GroundingScorer(objects, "strict").score([make_row("1", ["hat"], {0: [0, 0, 30, 10]})])
    assert (result["counts"]["entities_loc"], result["recall_loc"]) == (1, 0)
    assert result["confusion"]["generated"] == [{"said": "hat", "attended": "hat", "count": 1}]


def test_attention_on_ground_truth_by_hand() -> None:
    objects = make_objects(
        {
            "1": [
                ("a man with a dog", {1: ("10", [A]), 4: ("20", [B, C])}),
                ("a man and a hat", {1: ("10", [A]), 4: ("40", [C])}),
                ("one man", {1: ("10", [A])}),
            ],
            "2": [("a dog", {1: ("30", [A])})],
        }
    )
    rows = [
        make_row("1", ["a", "man", "with", "a", "dog"], {1: region(A), 4: region(C)}, 0),
        make_row("1", ["a", "man", "and"], {1: region(B)}, 1),
    ]
    result = GroundingScorer(objects, "strict").score(rows)
    assert result["attention_accuracy"] == 2 / 6
    assert result["macro_attention_accuracy"] == (1 / 3 + 1 / 2 + 0) / 3
    assert (result["counts"]["words_past_end"], result["counts"]["words_missing"]) == (1, 2)
    assert result["confusion"]["attention"] == [{"said": "man", "attended": "dog", "count": 1}]
    assert result["f1_all"] is None


def test_nothing_is_ever_nan() -> None:
    rows = [make_row("1", ["of"], {0: region(A)})]
    result = GroundingScorer(TWO_MEN, "strict", bootstrap=50).score(rows)
    for mode in ("all", "loc"):
        for name in ("precision", "recall", "f1", "macro_precision", "macro_recall", "macro_f1"):
            assert result[f"{name}_{mode}"] == 0
            assert result["intervals"][f"{name}_{mode}"] == [0, 0]
    assert (result["counts"]["judged_all"], result["counts"]["entities_all"]) == (0, 2)


def test_confusion_names_what_was_looked_at() -> None:
    objects = make_objects(
        {"1": [("a man with a dog on a lawn", {1: ("10", [A]), 4: ("20", [B]), 7: ("50", [C])})]},
    )
    far, loose = [90.0, 90.0, 99.0, 99.0], [0.0, 0.0, 30.0, 10.0]
    rows = []
    words = ["a", "man", "with", "a", "dog", "on", "a", "lawn"]
    for box in (region(B), region(C), far, loose, None):
        rows.append(make_row("1", words, {} if box is None else {1: box, 0: box}))
    found = []
    for row in rows[:-1]:
        found.append(GroundingScorer(objects, "strict", bootstrap=0).score([row])["confusion"]["generated"][-1])
    assert [entry["attended"] for entry in found if entry["said"] == "man"] == ["dog", "lawn", "(background)", "man"]
    rows[-1]["steps"][0].update(region=0, box=far)
    result = GroundingScorer(objects, "gvd").score([rows[-1]])
    assert {"said": "man", "attended": "(nothing)", "count": 1} in result["confusion"]["all"]
    assert result["wrong_attention"]["all"] == {"same_class": 0, "another": 0, "background": 0, "nothing": 2}
    loose_row = make_row("1", words, {1: loose, 4: region(A)})
    result = GroundingScorer(objects, "strict", bootstrap=0).score([loose_row])
    assert result["wrong_attention"]["generated"] == {"same_class": 1, "another": 1, "background": 0, "nothing": 0}


corner = st.integers(0, 5)


@st.composite
def small_boxes(draw: st.DrawFn) -> list[int]:
    (x0, x1), (y0, y1) = (sorted((draw(corner), draw(corner))) for _ in range(2))
    return [x0, y0, x1, y1]


def pixels(box: list[int]) -> set[tuple[int, int]]:
    return {(x, y) for x in range(box[0], box[2] + 1) for y in range(box[1], box[3] + 1)}


def over_half(first: list[int], second: list[int]) -> bool:
    a, b = pixels(first), pixels(second)
    return 2 * len(a & b) > len(a | b)


def largest_matching(words: list[list[int]], targets: list[list[int]]) -> int:
    best = 0
    places: list[int | None] = [*range(len(targets)), *[None] * len(words)]
    for chosen in itertools.permutations(places, len(words)):
        best = max(best, sum(t is not None and over_half(w, targets[t]) for w, t in zip(words, chosen)))
    return best


@settings(max_examples=60, deadline=None)
@given(st.lists(small_boxes(), max_size=4), st.lists(small_boxes(), max_size=3))
def test_matching_is_the_largest_possible(words: list[list[int]], targets: list[list[int]]) -> None:
    matched = match([*map(region, words), None], targets)
    assert matched.pop() is None
    used = [target for target in matched if target is not None]
    assert len(used) == len(set(used)) == largest_matching(words, targets)
    assert all(over_half(word, targets[target]) for word, target in zip(words, matched) if target is not None)


names = st.sampled_from(["man", "dog", "hat", "of"])
said_word = st.tuples(names, small_boxes())
# a caption's word, with an entity and one or two boxes of its own where it is an object's
caption_word = st.tuples(names, st.booleans(), st.lists(small_boxes(), min_size=1, max_size=2))


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.lists(st.lists(caption_word, min_size=1, max_size=3), min_size=1, max_size=2),
            st.lists(said_word, min_size=1, max_size=3),
        ),
        min_size=1,
        max_size=3,
    )
)
def test_figures_equal_a_slow_reference(images: list[Any]) -> None:
    captions: dict[str, Any] = {}
    rows = []
    right = judged = entities = found = 0
    per_class = {name: [0, 0, 0, 0] for name in ("man", "dog", "hat")}  # right, judged, entities, found
    for image, (own, said) in enumerate(images):
        number = itertools.count()
        texts = []
        for words in own:
            boxed = {
                place: (str(next(number)), boxes)
                for place, (name, has_box, boxes) in enumerate(words)
                if has_box and name != "of"
            }
            texts.append((" ".join(name for name, _, _ in words), boxed))
        captions[str(image)] = texts
        rows.append(make_row(str(image), [w for w, _ in said], {n: region(box) for n, (_, box) in enumerate(said)}))
        for name, counts in per_class.items():
            things = [
                boxes for text, boxed in texts for place, (_, boxes) in boxed.items() if text.split()[place] == name
            ]
            mentioned = any(
                word == name and place not in boxed for text, boxed in texts for place, word in enumerate(text.split())
            )
            attended = [box for word, box in said if word == name]
            distinct = [list(box) for box in sorted({tuple(box) for boxes in things for box in boxes})]
            matched = match([region(box) for box in attended], distinct)
            hit = {tuple(distinct[t]) for t in matched if t is not None}
            counts[2] += len(things)
            counts[3] += sum(any(tuple(box) in hit for box in boxes) for boxes in things)
            if things or not mentioned:
                counts[0] += largest_matching(attended, distinct)
                counts[1] += len(attended)
    right, judged, entities, found = (sum(counts[n] for counts in per_class.values()) for n in range(4))
    result = GroundingScorer(make_objects(captions), "strict", bootstrap=0).score(rows)

    def ratio(part: int, whole: int) -> Fraction:
        return Fraction(part, whole) if whole else Fraction(0)

    def f1(p: Fraction, r: Fraction) -> Fraction:
        return 2 * p * r / (p + r) if p + r else Fraction(0)

    def mean(values: list[Fraction]) -> Fraction:
        return sum(values, Fraction(0)) / len(values) if values else Fraction(0)

    precision, recall = ratio(right, judged), ratio(found, entities)
    assert [result[f"{kind}_all"] for kind in ("precision", "recall", "f1")] == pytest.approx(
        [float(precision), float(recall), float(f1(precision, recall))]
    )
    counts = per_class.values()
    assert [result[f"macro_{kind}_all"] for kind in ("precision", "recall", "f1")] == pytest.approx(
        [
            float(mean([ratio(c[0], c[1]) for c in counts if c[1]])),
            float(mean([ratio(c[3], c[2]) for c in counts if c[2]])),
            float(mean([f1(ratio(c[0], c[1]), ratio(c[3], c[2])) for c in counts if c[1] or c[2]])),
        ]
    )
    assert not any(math.isnan(value) for value in result.values() if isinstance(value, float))


def test_intervals_are_of_whole_images() -> None:
    # all hits are in one of two images: a quarter of the resamples is without it, and a quarter has it twice
    ratios = ImageRatios(2)
    for _ in range(100):
        ratios.add("accuracy", 0, 1, 1)
        ratios.add("accuracy", 1, 0, 1)
    ratios.add("rare", 0, 1, 1)
    assert ratios.ratio("accuracy") == 1 / 2
    intervals = ratios.intervals(400, seed=1)
    # a resample without image 1 has nothing to divide by, and is left out
    assert intervals == {"accuracy": [0, 1], "rare": [1, 1]}

    # many images: the interval is that of the normal approximation
    many = ImageRatios(400)
    for image in range(400):
        many.add("accuracy", image, image % 4 == 0, 1)
    low, high = many.intervals(4000, seed=3)["accuracy"] or (0, 0)
    error = 1.96 * math.sqrt(0.25 * 0.75 / 400)
    assert (low, high) == pytest.approx((0.25 - error, 0.25 + error), abs=0.004)
    assert many.intervals(100, seed=3) == many.intervals(100, seed=3) != many.intervals(100, seed=4)
    assert many.intervals(0, seed=3) == {}


def test_strict_intervals_hold_the_figure_and_follow_the_seed() -> None:
    random = np.random.default_rng(0)
    captions = {str(n): [("a man with a dog", {1: ("1", [A]), 4: ("2", [B])})] for n in range(40)}
    rows = []
    for image in captions:
        boxes = {place: region([A, B, C][random.integers(3)]) for place in (1, 4)}
        rows += [make_row(image, ["a", "man", "with", "a", "dog"], boxes, caption) for caption in (None, 0)]
    scorers = [GroundingScorer(make_objects(captions), "strict", bootstrap=300, seed=seed) for seed in (1, 1, 2)]
    first, again, other = (scorer.score(rows) for scorer in scorers)
    assert first == again
    assert first["intervals"] != other["intervals"]
    for name, bounds in first["intervals"].items():
        assert bounds[0] < first[name] < bounds[1]
