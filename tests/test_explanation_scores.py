"""Scores of explanations, from rows alone: against plain counting."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairseq_grounding.errors import GroundingError
from fairseq_grounding.scoring.auc import WeightedAuc
from fairseq_grounding.scoring.controlled import ControlledMeans, write_figures
from fairseq_grounding.scoring.correctness import mass_inside, score_correctness
from fairseq_grounding.scoring.deletions import Amount, Deletion, most_relevant, score_deletions
from fairseq_grounding.scoring.detection import STATISTICS, score_detection
from fairseq_grounding.scoring.explained import ExplainedWord, read_explanations
from fairseq_grounding.scoring.iou import shares_inside
from fairseq_grounding.scoring.unreferenced import UnreferencedWords

from .test_grounding_scores import make_row
from .test_grounding_strict import make_objects


def explained_row(image: str, text: str, regions: dict[int, list[float]], caption: int | None = None, method="lrp"):
    """A row of a file of explanations; words without *regions* are not explained."""
    row = make_row(image, text.split(), {}, caption, explained={"method": method, "word": None})
    for place, step in enumerate(row["steps"]):
        step["logprob"] = -0.5 * place
        step["relevance"] = None
        if place in regions:
            own = regions[place]
            words = [0.25 * (n - 1) for n in range(place)]
            parts = dict.fromkeys(("global", "sentinel", "inputs", "bias", "epsilon", "rest"), 0.0)
            step["relevance"] = {"regions": own, "words": words, "start": -0.5, "logit": sum(own), **parts}
    return row


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


items = st.lists(st.tuples(st.integers(0, 4), st.booleans(), st.integers(0, 3), st.sampled_from("ab")), min_size=1)


@settings(max_examples=60, deadline=None)
@given(items, st.lists(st.integers(0, 3), min_size=4, max_size=4), st.booleans())
def test_auc_is_the_share_of_pairs(found, drawn, grouped):
    scores, positive, images, groups = zip(*found)
    won = pairs = 0.0
    for score, right, image, group in found:
        for other, other_right, other_image, other_group in found:
            if right and not other_right and (not grouped or group == other_group):
                times = drawn[image] * drawn[other_image]
                pairs += times
                won += times * (1 if score > other else 0.5 if score == other else 0)
    auc = WeightedAuc(scores, positive, images, groups if grouped else None)
    (twice, ours) = auc(np.array([[2.0] * 4, drawn]))
    if pairs:
        assert ours == pytest.approx(won / pairs, abs=1e-12)
        assert 0 <= twice <= 1
    else:
        assert math.isnan(ours)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_mass_inside_is_that_of_the_best_box(data):
    regions, boxes = data.draw(st.integers(1, 5)), data.draw(st.integers(1, 3))
    number = st.floats(-2, 2).map(lambda x: round(x, 2))
    relevance = data.draw(st.lists(number, min_size=regions, max_size=regions))
    share = st.lists(st.floats(0, 1), min_size=boxes, max_size=boxes)
    shares = data.draw(st.lists(share, min_size=regions, max_size=regions))
    thresholds = (0.0, 0.35, 0.9)
    found = mass_inside(np.array([relevance, relevance]), np.array(shares), thresholds)
    assert found.shape == (2, 3)
    for number, threshold in enumerate(thresholds):
        kept = [r if r > 0 and r >= threshold * max(relevance) else 0.0 for r in relevance]
        inside = [sum(r * share[box] for r, share in zip(kept, shares)) for box in range(boxes)]
        expected = max(inside) / sum(kept) if sum(kept) else 0.0
        assert found[0, number] == found[1, number] == pytest.approx(expected, abs=1e-12)


def test_shares_inside_counts_the_annotated_last_pixel():
    # the annotated box covers pixels 0 to 9
    shares = shares_inside([[0, 0, 20, 10], [5, 5, 15, 15], [3, 3, 3, 8]], [[0, 0, 9, 9], [30, 30, 40, 40]])
    np.testing.assert_allclose(shares, [[0.5, 0], [0.25, 0], [0, 0]])


def test_amounts():
    assert [Amount.parse(text, "--x").of(36) for text in ("1", "8", "50", "25%", "1%", "100%")] == [1, 8, 36, 9, 1, 36]
    assert Amount.parse("30%", "--x").of(10) == 3
    assert [str(Amount.parse(text, "--x")) for text in ("3", "2.5%")] == ["3", "2.5%"]
    for text in ("0", "-1", "x", "0%", "101%", "1.5", "nan%", "inf%"):
        with pytest.raises(GroundingError, match=f"--x {text}: give a number from 1 on"):
            Amount.parse(text, "--x")


def test_equals_are_deleted_in_random_order():
    relevance = np.array([0.0, 2.0, 0.0, -1.0, 0.0])
    orders = {tuple(most_relevant(relevance, np.random.default_rng(seed)).tolist()) for seed in range(60)}
    assert {order[0] for order in orders} == {1}
    assert {order[-1] for order in orders} == {3}
    assert len(orders) == 6


def test_deletions_are_means_over_words():
    words = [
        Deletion("a", "object words", 0.9, [0.5, 0.1], [0.9, 0.8], [False, True], [False, False]),
        Deletion("a", "other words", 0.4, [0.4, 0.4], [0.3, 0.2]),
        Deletion("b", "object words", 0.2, [0.1, 0.3], [0.2, 0.2], [True, True], [False, True]),
    ]
    found = score_deletions(words, [Amount.parse("1", ""), Amount.parse("50%", "")], 40, 3)["figures"]
    by_name = {(each["group"], each["at"], each["measure"]): each for each in found}
    assert len(by_name) == len(found) == 10  # words that are not decoded are in no group's gone
    fall = by_name["all", "50%", "fall"]
    assert fall["value"] == pytest.approx((0.8 + 0.0 - 0.1) / 3)
    assert fall["control"] == pytest.approx((0.1 + 0.2 + 0.0) / 3)
    assert fall["difference"] == pytest.approx(fall["value"] - fall["control"])
    assert fall["words"] == 3
    low, high = fall["value_interval"]
    assert low == pytest.approx(-0.1)  # image b alone
    assert high == pytest.approx(0.4)  # image a alone
    gone = by_name["object words", "1", "gone"]
    assert (gone["value"], gone["control"], gone["words"]) == (0.5, 0.0, 2)
    assert by_name["all", "1", "gone"]["words"] == 2
    assert ("other words", "1", "gone") not in by_name


def test_differences_are_drawn_together():
    means = ControlledMeans(["a", "b", "c"])
    for image, value in (("a", 0.1), ("b", 0.5), ("c", 0.9)):
        means.add({"measure": "x"}, image, value, value - 0.05)
    (found,) = means.figures(200, 1)
    assert found["difference_interval"] == pytest.approx([0.05, 0.05])
    assert found["value_interval"][1] - found["value_interval"][0] > 0.2


OBJECTS = make_objects(
    {
        "a": [("a dog by a man", {1: ("1", [[0, 0, 9, 9]])}), ("one dog", {1: ("2", [[10, 0, 19, 9]])})],
        "b": [("a hat", {1: ("1", [[0, 0, 9, 9]])})],
    }
)
STORE = SimpleNamespace(
    path="store",
    has_boxes=True,
    image_sizes=np.array([[20, 10], [40, 10]]),
    index=lambda image: "ab".index(image),
    boxes=lambda n, limit: np.array([[0, 0, 10, 10], [10, 0, 20, 10], [5, 0, 15, 10]], np.float32)[:limit],
)


def test_correctness_by_hand(tmp_path):
    rows = [
        explained_row("a", "the dog and the dogs", {1: [3, -2, 1], 4: [0, 5, 0]}),
        explained_row("a", "a dog by a man", {1: [-1, -1, -2], 4: [1, 1, 1]}, 0),
        explained_row("z", "a dog", {1: [1, 1, 1]}),
    ]
    found = score_correctness(read_explanations(write(tmp_path / "x", rows)), OBJECTS, STORE, 100, 20, 1)
    mass = {each["at"]: each for each in found["figures"] if each["measure"] == "mass"}
    # first word: 3 in the first box and half of 1; the second: all in the second; the third has nothing positive
    assert mass[0.0]["value"] == pytest.approx((3.5 / 4 + 1 + 0) / 3)
    assert mass[0.3]["value"] == mass[0.0]["value"]
    assert mass[0.4]["value"] == pytest.approx((1 + 1 + 0) / 3)
    assert 0 < mass[0.0]["control"] < 1
    others = {each["measure"]: each for each in found["figures"] if each["measure"] != "mass"}
    # of the third word two regions share the highest relevance, and one of them is the dog's of that caption
    assert others["pointing"]["value"] == pytest.approx((1 + 1 + 0.5) / 3)
    # regions 0 and 1 are right for the generated words, region 0 for the given one
    assert others["pointing"]["control"] == pytest.approx((2 / 3 + 2 / 3 + 1 / 3) / 3)
    # the third region's centre, 10, is the first pixel of the second box
    assert others["pointing_centre"]["control"] == pytest.approx((1 + 1 + 1 / 3) / 3)
    assert others["box_area"]["value"] == 0.5
    assert found["per_class"] == {
        "dog": {
            "words": 3,
            **{k: pytest.approx(v) for k, v in (("mass", 1.875 / 3), ("pointing", 2.5 / 3), ("box_area", 0.5))},
        }
    }
    assert (found["words_without_box"], found["words_without_positive"], found["images_not_annotated"]) == (1, 1, 1)


def test_the_control_of_correctness_knows_nothing_of_places(tmp_path):
    # relevance that is the same everywhere is its own control
    rows = [explained_row("a", "the dog", {1: [2, 2, 2]})]
    figures = score_correctness(read_explanations(write(tmp_path / "x", rows)), OBJECTS, STORE, 100, 0, 1)["figures"]
    for each in figures:
        assert each["difference"] == pytest.approx(0, abs=1e-12)
        assert each["value_interval"] is None


def test_detection_by_hand(tmp_path):
    rows = [
        explained_row("a", "a dog in a hat", {1: [4, 0, 0], 4: [1, 1, 0]}),  # a dog is there, a hat is not
        explained_row("a", "a man", {1: [9, 9, 9]}),  # no first caption
        explained_row("b", "a hat and a dog", {1: [2, -2, -3], 4: [3, -1, -1]}),
        explained_row("b", "a hat", {1: [9, 9, 9]}, 0),
    ]
    explanations = read_explanations(write(tmp_path / "x", rows))
    found = score_detection(explanations, UnreferencedWords(OBJECTS), 0, 50, 1)
    assert (found["referenced"], found["unreferenced"], found["images"]) == (2, 2, 2)
    auc = {(each["measure"], each["at"]): each for each in found["figures"]}
    # right 4 and -3, wrong 2 and 1
    assert auc["auc", "region_sum"]["value"] == 0.5
    # right 4 and 2, wrong 1 and 3
    assert auc["auc", "region_max"]["value"] == 0.75
    # dog: right 4, wrong 3; hat: right 2, wrong 1
    assert auc["auc_same_word", "region_max"]["value"] == 1
    assert auc["auc", "logprob"]["value"] == 1  # the right ones come first
    assert ("auc", "attention_max") not in auc  # there is none
    assert ("auc", "sentinel") not in auc  # says the same of all
    control = {each["control"] for each in found["figures"] if each["measure"] == "auc"}
    assert len(control) == 1
    only = score_detection(explanations, UnreferencedWords(OBJECTS), 1, 0, 1)
    assert only["referenced"] + only["unreferenced"] == 2


def test_statistics_by_hand():
    word = ExplainedWord(
        2, "dog", np.array([1.0, -3.0, 2.0, 0.0]), np.array([0.5, -1.0]), -0.5, 7.0, 0.2, np.array([0.1, 0.9]), -0.3
    )
    expected = {
        **{"region_sum": 0, "region_mean": 0, "region_max": 2, "region_positive": 3, "region_absolute": 6},
        **{"region_median": 0.5, "region_quantile_90": 1.7, "region_share": 6 / 8, "word_sum": -1, "sentinel": 0.2},
        **{"explained": 7, "attention_max": 0.9, "logprob": -0.3},
    }
    assert {name: statistic(word) for name, statistic in STATISTICS.items()} == pytest.approx(expected)


def test_figures_as_csv(tmp_path):
    means = ControlledMeans(["a"])
    means.add({"measure": "fall", "at": "3"}, "a", 0.5, 0.25)
    result = {"explanations": "x", "method": "lrp", "experiments": {"regions": {"figures": means.figures(10, 1)}}}
    write_figures(tmp_path / "f.csv", [result])
    (line,) = csv.DictReader((tmp_path / "f.csv").open())
    assert (line["experiment"], line["group"]) == ("regions", "")
    assert {name: float(line[name]) for name in ("value", "control_low", "difference_high", "words")} == {
        **{"value": 0.5, "control_low": 0.25, "difference_high": 0.25, "words": 1}
    }


def spoiled(change) -> list[dict[str, Any]]:
    rows = [explained_row("a", "the dog", {0: [1, 2, 3], 1: [1, 2, 3]}) for _ in range(2)]
    change(rows[1])
    return rows


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda row: row.pop("explained"), "line 2: holds no relevance; write them with fairseq-grounding explain"),
        (lambda row: row["explained"].update(method="gradient"), "line 2: is explained by gradient, lines before by"),
        (lambda row: row["explained"].update(word="cat"), "line 2: explains 'cat' in place of the caption's words"),
        (lambda row: row["steps"][1]["relevance"].pop("start"), "line 2: step 1: its relevance cannot be read"),
        (lambda row: row["steps"][1]["relevance"].update(words=[]), "relevance of 3 regions and 0 words, and 1 words"),
        (lambda row: row["steps"][0]["relevance"].update(regions=[1, float("1e999")]), "not valid JSON|not finite"),
    ],
)
def test_files_that_are_no_explanations(change, message, tmp_path):
    with pytest.raises(GroundingError, match=message):
        read_explanations(write(tmp_path / "x.jsonl", spoiled(change)))


def test_nothing_to_score(tmp_path):
    def read(*rows):
        return read_explanations(write(tmp_path / "x.jsonl", list(rows)))

    with pytest.raises(GroundingError, match=r"x\.jsonl: holds no relevance"):
        read(explained_row("a", "a dog", {}))
    words = UnreferencedWords(OBJECTS)
    with pytest.raises(GroundingError, match="holds only ground-truth captions"):
        score_detection(read(explained_row("a", "a dog", {1: [1.0]}, 0)), words, 0, 0, 1)
    with pytest.raises(GroundingError, match="0 of its 1 images are annotated"):
        score_detection(read(explained_row("z", "a dog", {1: [1.0]})), words, 0, 0, 1)
    with pytest.raises(GroundingError, match=r"explains no object word that objects\.json has a box of"):
        score_correctness(read(explained_row("a", "a man", {1: [1.0] * 3})), OBJECTS, STORE, 100, 0, 1)
    with pytest.raises(GroundingError, match=r"has relevance of 2 regions, and store has 3; give the --regions"):
        score_correctness(read(explained_row("a", "a dog", {1: [1.0] * 2})), OBJECTS, STORE, 100, 0, 1)
    with pytest.raises(GroundingError, match=r"caption_index is 7, and objects\.json has 2 captions"):
        score_correctness(read(explained_row("a", "a dog", {1: [1.0] * 3}, 7)), OBJECTS, STORE, 100, 0, 1)
    pieces = explained_row("a", "a d og", {1: [1.0] * 3})
    pieces["text"] = "a dog"
    with pytest.raises(GroundingError, match="explains pieces of words"):
        score_detection(read(pieces), words, 0, 0, 1)
