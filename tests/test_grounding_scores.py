"""Grounding scores: the published evaluation's figures, counted pixels, and dumps made by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairseq_grounding.data.flickr30k_entities import read_annotation, read_sentences
from fairseq_grounding.data.regions import RegionStore, RegionWriter
from fairseq_grounding.dump import DumpWriter
from fairseq_grounding.errors import GroundingError
from fairseq_grounding.scoring.grounding import GroundingScorer, floors, hits_inclusive, hits_region
from fairseq_grounding.scoring.iou import points_inside, region_overlaps

GVD = Path(__file__).parent / "figures" / "g_gvd"


def load(name: str) -> Any:
    return json.loads((GVD / name).read_text())


def make_row(
    image: str, words: list[str], boxes: dict[int, list[float]], caption: int | None = None, **changes: Any
) -> dict[str, Any]:
    steps = [
        {
            "token": word,
            "region": 0 if position in boxes else None,
            "box": boxes.get(position),
            "attention": None,
            "logprob": None,
        }
        for position, word in enumerate(words)
    ]
    row = {
        "id": 0,
        "image_id": image,
        "caption_index": caption,
        "model": "by hand",
        "reference": caption is not None,
        "text": " ".join(words),
        "tokens": words,
        "steps": steps,
    }
    return {**row, **changes}


def gvd_objects() -> dict[str, Any]:
    """The published tool's reference file as our objects."""
    split_of = {image: split for split, images in load("split.json").items() for image in images}
    annotations = load("reference.json")["annotations"]
    names = {name for a in annotations for caption in a["captions"] for name in caption["process_clss"]}
    results = load("submission_gen.json")["results"].values()
    names |= {name for captions in results for caption in captions for name in caption["clss"]}
    objects: dict[str, Any] = {
        "format": "fairseq_grounding.objects",
        "version": 1,
        "classes": sorted(names),
        "lemmas": {word: entry["lemma"] for word, entry in load("lemmas.json").items()},
        "images": {},
        "tokens": {},
        "splits": {},
    }
    for annotation in annotations:
        image = str(annotation["image_id"])
        objects["splits"][image] = split_of[image]
        objects["tokens"][image] = [caption["tokens"] for caption in annotation["captions"]]
        objects["images"][image] = [
            [
                {"word": word, "class": name, "boxes": [box], "types": ["thing"], "span": [word, word + 1]}
                for name, word, box in zip(*(caption[f"process_{key}"] for key in ("clss", "idx", "bnd_box")))
            ]
            for caption in annotation["captions"]
        ]
    return objects


def gvd_rows(name: str, reference: bool) -> list[dict[str, Any]]:
    rows = []
    for image, captions in load(name)["results"].items():
        if image == "99":  # outside the split that the expected figures are of
            continue
        for number, caption in enumerate(captions):
            words = ["of"] * (max(caption["idx_in_sent"], default=0) + 1)
            for place, said in zip(caption["idx_in_sent"], caption["clss"]):
                words[place] = said
            boxes = dict(zip(caption["idx_in_sent"], caption["bbox"]))
            rows.append(make_row(image, words, boxes, number if reference else None))
    return rows


def test_published_f1_on_generated_captions() -> None:
    result = GroundingScorer(gvd_objects()).score(gvd_rows("submission_gen.json", reference=False))
    for mode in ("all", "loc"):
        expected = load("expected.json")[f"gen_{mode}"]
        for ours, theirs in (("precision", "prec"), ("recall", "recall"), ("f1", "f1")):
            assert result[f"{ours}_{mode}"] == pytest.approx(expected[theirs], abs=1e-12)
        per_class = result["per_class"][mode]
        assert set(per_class) == set(expected["per_class"])
        for name, figures in expected["per_class"].items():
            assert [per_class[name]["predicted"], per_class[name]["annotated"]] == figures["n"]
            assert per_class[name]["precision"] == pytest.approx(figures["prec"], abs=5.1e-5)
            assert per_class[name]["recall"] == pytest.approx(figures["rec"], abs=5.1e-5)
    assert result["attention_accuracy"] is None
    assert (result["generated"]["images"], result["generated"]["images_missing"]) == (10, 1)


def test_a_class_that_no_published_word_leads_to_is_never_predicted() -> None:
    objects = gvd_objects()
    name = "dog"
    before = GroundingScorer(objects).score(gvd_rows("submission_gen.json", reference=False))["per_class"]["all"][name]
    unreachable = GroundingScorer({**objects, "unreachable_classes": [name]})
    after = unreachable.score(gvd_rows("submission_gen.json", reference=False))["per_class"]["all"][name]
    assert before["predicted"] > 0 == after["predicted"]
    assert after["annotated"] == before["annotated"]
    assert after["recall"] == 0


def test_published_attention_accuracy_on_ground_truth() -> None:
    result = GroundingScorer(gvd_objects()).score(gvd_rows("submission_gt.json", reference=True))
    expected = load("expected.json")["gt_attention_accuracy"]
    assert result["attention_accuracy"] == pytest.approx(expected["acc"], abs=1e-12)
    per_class = result["per_class"]["attention"]
    assert set(per_class) == set(expected["per_class"])
    for name, figures in expected["per_class"].items():
        assert per_class[name]["annotated"] == figures["n"]
        assert per_class[name]["accuracy"] == pytest.approx(figures["acc"], abs=5.1e-5)
    assert result["f1_all"] is None


def test_published_edges() -> None:
    scorer = GroundingScorer(gvd_objects())
    # the tool's NaN is None here; an extra row whose word is no class makes the dump one with attention
    rows = gvd_rows("submission_gen_empty.json", reference=False)
    rows[0] = make_row("1", ["of"], {0: [0, 0, 9, 9]})
    result = scorer.score(rows)
    for mode in ("all", "loc"):
        figures = [result[f"{name}_{mode}"] for name in ("precision", "recall", "f1")]
        assert figures == load("expected.json")[f"edge_empty_predictions_{mode}"]["result"]
    with pytest.raises(GroundingError, match="image 1: 4 of its 5 ground-truth captions"):
        scorer.score(gvd_rows("submission_gt_four_captions.json", reference=True))


def test_only_the_first_generated_row_of_an_image_counts() -> None:
    rows = gvd_rows("submission_gen.json", reference=False)
    scorer = GroundingScorer(gvd_objects())
    more = scorer.score([*rows, make_row("4", ["horse"], {0: [20, 20, 69, 169]})])
    assert more.pop("rows_ignored") == 1
    once = scorer.score(rows)
    assert once.pop("rows_ignored") == 0
    assert more == once


corner = st.integers(0, 7)


@st.composite
def boxes(draw: st.DrawFn) -> list[int]:
    (x0, x1), (y0, y1) = (sorted((draw(corner), draw(corner))) for _ in range(2))
    return [x0, y0, x1, y1]


@given(boxes(), st.lists(boxes(), max_size=3))
def test_overlap_is_counted_pixels(box: list[int], targets: list[list[int]]) -> None:
    def pixels(of: list[int]) -> set[tuple[int, int]]:
        return {(x, y) for x in range(of[0], of[2] + 1) for y in range(of[1], of[3] + 1)}

    mine = pixels(box)
    over_half = [2 * len(mine & pixels(t)) > len(mine | pixels(t)) for t in targets]
    # a region's far edges are where an inclusive box's last pixel ends
    assert hits_region([box[0], box[1], box[2] + 1, box[3] + 1], targets) == any(over_half)
    bigger = [hit and len(mine) > 1 and len(pixels(t)) > 1 for hit, t in zip(over_half, targets)]
    assert hits_inclusive(box, targets) == any(bigger)
    areas = region_overlaps([[box[0], box[1], box[2] + 1, box[3] + 1]], targets)
    exact = [len(mine & pixels(t)) / len(mine | pixels(t)) for t in targets]
    np.testing.assert_allclose(areas, [exact], rtol=1e-12)
    # a point in the middle of a pixel is in the boxes that have this pixel
    held = [any((x, y) in pixels(t) for t in targets) for x, y in sorted(mine)]
    assert points_inside([[x + 0.5, y + 0.5] for x, y in sorted(mine)], targets).tolist() == held
    assert not hits_region(None, targets)
    assert not hits_inclusive(None, targets)


OBJECTS: dict[str, Any] = {
    "format": "fairseq_grounding.objects",
    "version": 1,
    "classes": ["dog"],
    "lemmas": {"dogs": "dog"},
    "images": {
        "a": [
            [
                {"word": 0, "class": "dog", "boxes": [[0, 0, 9, 9], [50, 50, 59, 59]], "types": ["animals"]},
                {"word": 3, "class": None, "boxes": [[20, 20, 29, 29]], "types": ["clothing", "other"]},
            ],
            [{"word": 1, "class": "dog", "boxes": [[0, 0, 9, 9]], "types": ["animals"]}],
        ],
        "b": [[{"word": 0, "class": "dog", "boxes": [[0, 0, 9, 9]], "types": ["animals"]}]],
        "other": [[{"word": 0, "class": "dog", "boxes": [[0, 0, 9, 9]], "types": ["animals"]}]],
    },
    "tokens": {
        "a": [["dogs", "in", "a", "hat"], ["a", "dog"]],
        "b": [["dog"]],
        "other": [["dog"]],
    },
    "splits": {"a": "test", "b": "test", "other": "train"},
}


def test_phrases_by_hand(tmp_path: Path) -> None:
    rows = [
        make_row("a", ["dogs", "in", "a"], {0: [50, 50, 60, 60]}, 0),  # the second box is hit, the hat cut off
        make_row("a", ["a", "dog"], {1: [0, 0, 10, 5]}, 1),  # exactly half
        make_row("unknown", ["dog"], {0: [0, 0, 10, 10]}, 0),
        make_row("b", ["dog"], {0: [0, 0, 10, 10]}),  # written by the model: not for this protocol
    ]
    path = tmp_path / "dump.jsonl"
    with DumpWriter(path) as writer:
        for row in rows:
            writer.write(row)
    result = GroundingScorer(OBJECTS, "phrase").score(path)
    assert result["accuracy"] == 1 / 4
    assert (result["phrases_past_end"], result["phrases_missing"]) == (1, 1)
    assert (result["images"], result["images_missing"], result["images_not_annotated"]) == (2, 1, 1)
    types = {name: (entry["hits"], entry["phrases"]) for name, entry in result["per_type"].items()}
    assert types == {"animals": (1, 3), "clothing": (0, 1), "other": (0, 1)}


def test_objects_come_from_a_file_too(tmp_path: Path) -> None:
    path = tmp_path / "objects.json"
    path.write_text(json.dumps(OBJECTS))
    rows = [make_row("b", ["dog"], {0: [0, 0, 9, 9]})]
    assert GroundingScorer(path).score(rows) == GroundingScorer(OBJECTS).score(rows)


def test_bad_input_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(GroundingError, match="protocol 'loose' is unknown"):
        GroundingScorer(OBJECTS, "loose")
    with pytest.raises(GroundingError, match="--bootstrap -1"):
        GroundingScorer(OBJECTS, "strict", bootstrap=-1)
    with pytest.raises(GroundingError, match="is not an objects"):
        GroundingScorer({"classes": []})
    with pytest.raises(GroundingError, match="lacks images, tokens"):
        GroundingScorer({k: v for k, v in OBJECTS.items() if k not in ("images", "tokens")})
    phrase, gvd = GroundingScorer(OBJECTS, "phrase"), GroundingScorer(OBJECTS)
    box = {0: [0, 0, 9, 9]}
    for scorer, rows, message in [
        (gvd, [], "has no rows"),
        (gvd, [make_row("x", ["dog"], box), make_row("y", ["dog"], box)], "0 of its 2 images"),
        (gvd, [make_row("a", ["dog"], {})], "gives no attention"),
        (gvd, [make_row("a", ["do", "gs"], box, text="dogs")], "image a: 2 tokens for 1 words"),
        (phrase, [make_row("a", ["dog"], box)], "holds no ground-truth captions"),
        (phrase, [make_row("b", ["dog"], box, 1)], "image b: the ground-truth caption_index is 1"),
        (phrase, [make_row("b", ["dog"], box, None, reference=True)], "caption_index is None"),
    ]:
        with pytest.raises(GroundingError, match=message):
            scorer.score(rows)


def test_floors_by_hand(tmp_path: Path) -> None:
    path = tmp_path / "regions.h5"
    with RegionWriter(path, source="by hand") as writer:
        large = [[0, 0, 10, 10], [20, 20, 30, 30], [0, 0, 60, 60], [0, 0, 5, 5]]
        small = [[0, 0, 10, 10], [0, 0, 5, 5], [5, 5, 12, 12], [0, 0, 12, 1]]
        scores = np.array([0.1, 0.9, 0.3, 0.2], np.float32)
        for image, regions, side in (("a", large, 60), ("b", small, 12), ("other", large, 60)):
            writer.add(image, np.zeros((4, 2), np.float32), np.array(regions), (side, side), scores=scores)

    def masks(image: str) -> list[np.ndarray]:
        return [np.isin(words, ("dogs", "dog", "hat")) for words in OBJECTS["tokens"][image]]

    spans = {"a": [[0, 1], [0, 4]]}  # two nouns are in the hat's
    objects = {**OBJECTS, "images": json.loads(json.dumps(OBJECTS["images"]))}
    for image, captions in objects["images"].items():
        for caption in captions:
            for place, entry in enumerate(caption):
                entry["span"] = spans[image][place] if len(caption) > 1 else [0, entry["word"] + 1]
    result = floors(objects, RegionStore(path), ["test"], nouns=masks, bootstrap=200)
    expected = {
        "best_possible": 1.0,
        "top_detection": 1 / 4,
        "largest_region": 1 / 4,
        "whole_image": 1 / 4,
        "random_region": 1 / 4,
    }
    assert {name: result[name] for name in expected} == expected
    assert result["phrases"] == 4
    # a: the dogs' boxes hold the centres of the first and last region, the hat's that of the second; b: all are held
    pointing = {"best_possible": 1, "top_detection": 2 / 4, "largest_region": 1 / 4, "whole_image": 1 / 4}
    assert {name: result["measures"]["pointing"][name] for name in pointing} == pointing
    assert result["measures"]["pointing"]["random_region"] == (2 / 4 + 1 / 4 + 2 / 4 + 4 / 4) / 4
    assert result["measures"]["nouns"]["top_detection"] == 2 / 5  # the hat counts twice
    assert result["per_type"]["clothing"]["last_noun"]["top_detection"] == 1
    # image a has 1 of 3 at the second region, b 0 of 1
    assert result["intervals"]["top_detection"] == [0, 1 / 3]
    assert floors(OBJECTS, path)["phrases"] == 5


def test_floors_of_real_photographs(shared: Path) -> None:
    folder = shared / "data" / "flickr8k"
    objects = {**OBJECTS, "images": {}}
    for sentences in sorted((folder / "entities" / "Sentences").glob("*.txt")):
        known = read_annotation(folder / "entities" / "Annotations" / f"{sentences.stem}.xml").boxes
        objects["images"][sentences.stem] = [
            [{"boxes": known[p.entity]} for p in sentence.phrases if p.entity in known]
            for sentence in read_sentences(sentences)
        ]
    result = floors(objects, folder / "regions.h5")
    known_figures = {"best_possible": 0.79, "random_region": 0.07, "whole_image": 0.25, "top_detection": 0.32}
    assert {name: round(result[name], 2) for name in known_figures} == known_figures
