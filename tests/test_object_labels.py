"""Object boxes: those of published label files, and what becomes of an entity's several boxes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairseq_grounding.cli.prepare_captions import summary
from fairseq_grounding.data.captions import Caption
from fairseq_grounding.data.flickr30k_entities import Annotation, Phrase, Sentence, normalise
from fairseq_grounding.data.object_labels import build_labelled_objects, read_class_labels
from fairseq_grounding.data.objects import build_objects
from fairseq_grounding.data.prepare import prepare_captions
from fairseq_grounding.data.prepared import PreparedFolder
from fairseq_grounding.data.skipped import Skipped
from fairseq_grounding.errors import GroundingError
from fairseq_grounding.scoring.grounding import GroundingScorer

FIGURES = Path(__file__).parent / "figures" / "g_gvd"


def caption(tokens: str, *labels: tuple[int, str, list[float]], **more: Any) -> dict[str, Any]:
    return {
        "tokens": tokens.split(" "),
        "process_idx": [place for place, _, _ in labels],
        "process_clss": [name for _, name, _ in labels],
        "process_bnd_box": [box for _, _, box in labels],
        **more,
    }


def write(folder: Path, *images: dict[str, Any], **more: Any) -> Path:
    path = folder / "labels.json"
    path.write_text(json.dumps({"annotations": list(images), "vocab": [], **more}))
    return path


def dictionary(folder: Path, classes: list[str], lemmas: dict[str, str]) -> Path:
    path = folder / "dic.json"
    path.write_text(
        json.dumps(
            {"ix_to_word": {}, "wtod": {name: n for n, name in enumerate(classes)}, "wtol": lemmas, "images": []}
        )
    )
    return path


BOX = [1, 2, 30, 40]


def objects_of(labels, *texts: str, size=(100, 50), lemmas=None):
    captions = [Caption("7", "test", n, text.split(), text) for n, text in enumerate(texts)]
    return build_labelled_objects(labels, captions, lemmas or {}, {"7": size})


def test_labelled_words_are_tied_to_captions(tmp_path):
    path = write(
        tmp_path,
        {
            "image_id": 7,
            "image_size": [100, 50],
            "captions": [
                # other words than the caption's: an empty token, and punctuation
                caption(
                    "two  dogs in t-shirts", (2, "dog", BOX), (4, "shirt", [5, 5, 9, 9]), process_bbox_id=["12", 13]
                ),
                caption("a cat sleeps", (1, "cat", BOX)),
                caption("a cow", (1, "cow", BOX)),
            ],
        },
    )
    labels = read_class_labels(path)
    assert labels.classes == ["cat", "cow", "dog", "shirt"]
    objects, counts = objects_of(labels, "a cat sleeps", "two dogs in t shirts", "a pig", "nothing more")
    first, second, third, fourth = objects["images"]["7"]
    assert first == [{"word": 1, "class": "cat", "boxes": [BOX], "span": [1, 2], "types": []}]
    assert second == [
        {"word": 1, "class": "dog", "boxes": [BOX], "span": [1, 2], "types": [], "entity": "12"},
        {"word": 4, "class": "shirt", "boxes": [[5, 5, 9, 9]], "span": [3, 5], "types": [], "entity": "13"},
    ]
    # the third is paired by its number, but says something else
    assert (third, fourth) == ([], [])
    assert counts == {
        "images": 1,
        "images_rescaled": 0,
        "phrases": 4,
        "phrases_boxed": 3,
        "phrases_not_visual": 0,
        "phrases_without_box": 0,
        "phrases_not_tied": 1,
        "phrases_without_noun": 0,
        "captions_without_sentence": 1,
        "classes": 4,
    }
    assert objects["format"] == "fairseq_grounding.objects"
    assert (objects["splits"], objects["sizes"]) == ({"7": "test"}, {"7": [100, 50]})
    assert "unreachable_classes" not in objects


def test_dictionary_gives_classes_and_lemmas(tmp_path):
    image = {"image_id": "7", "captions": [caption("a dog in sunglasses", (1, "dog", BOX), (3, "sunglass", BOX))]}
    lemmas = {
        "dog": "dog",
        "dogs": "dog",
        "outfit": "outfit",
        "outfits": "outfit",
        "sunglasses": "sunglass",
        "is": "be",
    }
    labels = read_class_labels(
        write(tmp_path, image), dictionary(tmp_path, ["outfits", "dog", "outfit", "sunglass"], lemmas)
    )
    assert labels.classes == ["dog", "outfit", "outfits", "sunglass"]
    # of two classes with one lemma the last takes all; a class that is no word of the vocabulary is out of reach
    assert labels.lemmas == {**lemmas, "outfits": "outfit"}
    assert labels.unreachable == ["sunglass"]
    labels = read_class_labels(
        write(tmp_path, image), dictionary(tmp_path, ["dog", "outfit", "outfits", "sunglass"], lemmas)
    )
    assert labels.lemmas == {**lemmas, "outfit": "outfits", "outfits": "outfits"}
    objects, _ = objects_of(labels, "a dog in sunglasses", lemmas={"sunglasses": "glasses", "rare": "rar"})
    assert objects["lemmas"] == {**labels.lemmas, "rare": "rar"}
    assert objects["unreachable_classes"] == ["sunglass"]


def test_words_of_a_class_without_dictionary(tmp_path):
    image = {"image_id": 7, "captions": [caption("a graffiti", (1, "graffitus", BOX))]}
    labels = read_class_labels(write(tmp_path, image, lemma2w={"graffitus": "graffiti", "dog": "dogs"}))
    assert labels.lemmas == {"graffiti": "graffitus"}
    labels = read_class_labels(write(tmp_path, image, lemma2w={"graffitus": ["graffiti", "graffito"]}))
    assert labels.lemmas == {"graffiti": "graffitus", "graffito": "graffitus"}


@pytest.mark.parametrize(
    ("stated", "size", "expected"),
    [
        # the store's size, either side first: nothing to scale
        ([100, 50], (100, 50), BOX),
        ([50, 100], (100, 50), BOX),
        (None, (100, 50), BOX),
        # another size, boxes inside: width first
        ([50, 50], (100, 150), [2, 6, 60, 120]),
        # only with the height first is the box inside
        ([45, 35], (70, 90), [2, 4, 60, 80]),
    ],
)
def test_boxes_of_another_size_are_scaled(tmp_path, stated, size, expected):
    image = {"image_id": 7, "image_size": stated, "captions": [caption("a dog", (1, "dog", BOX))]}
    objects, counts = objects_of(read_class_labels(write(tmp_path, image)), "a dog", size=size)
    assert np.allclose(objects["images"]["7"][0][0]["boxes"], [expected])
    assert counts["images_rescaled"] == (expected != BOX)


def test_boxes_outside_either_way_cannot_be_scaled(tmp_path):
    image = {"image_id": 7, "image_size": [20, 20], "captions": [caption("a dog", (1, "dog", BOX))]}
    with pytest.raises(GroundingError, match="image '7' has a box outside its 'image_size'"):
        objects_of(read_class_labels(write(tmp_path, image)), "a dog")


def one(**changes: Any) -> dict[str, Any]:
    return {"image_id": 7, "captions": [{**caption("a dog", (1, "dog", BOX)), **changes}]}


BAD_LABELS = {
    "no id": ({**one(), "image_id": None}, "annotation number 0 has the image id None"),
    "no captions": ({"image_id": 7}, "image '7' has no list 'captions'"),
    "size": ({**one(), "image_size": [1]}, r"image '7' has the 'image_size' \[1\]"),
    "no tokens": (one(tokens="a dog"), "caption 0 of image '7' has no list 'tokens'"),
    "lists": (one(process_idx=None), "caption 0 of image '7' lacks one of the lists"),
    "lengths": (one(process_idx=[]), "has 0 process_idx, 1 process_clss and 1 process_bnd_box"),
    "far word": (one(process_idx=[2]), "labels the word 2, but has the words 0 to 1"),
    "negative word": (one(process_idx=[-1]), "labels the word -1"),
    "twice": (one(process_idx=[1, 1], process_clss=["a", "b"], process_bnd_box=[BOX, BOX]), "labels the word 1 twice"),
    "class": (one(process_clss=[["dog"]]), r"gives the word 1 the class \['dog'\]"),
    "short box": (one(process_bnd_box=[[1, 2, 3]]), r"gives the word 1 the box \[1, 2, 3\]"),
    "turned box": (one(process_bnd_box=[[5, 2, 3, 4]]), "which is not x0 y0 x1 y1 in order"),
    "far box": (one(process_bnd_box=[[1, 2, 3, 10**400]]), "which is not x0 y0 x1 y1 in order"),
    "NaN": (one(process_bnd_box=[[float("nan"), 2, 3, 4]]), "which is not x0 y0 x1 y1"),
}


@pytest.mark.parametrize("case", BAD_LABELS)
def test_bad_labels_name_the_image(tmp_path, case):
    image, message = BAD_LABELS[case]
    path = write(tmp_path, image, {**one(), "image_id": 8})
    with pytest.raises(GroundingError, match=rf"labels\.json: .*{message}") as error:
        read_class_labels(path)
    assert "\n" not in str(error.value)
    skipped = Skipped(True)
    assert list(read_class_labels(path, None, skipped).images) == ["8"]
    assert skipped.counts() == {"images": 0, "captions": 0, "annotations": 1}


def test_bad_label_files(tmp_path):
    with pytest.raises(GroundingError, match="image '7' is there more than once"):
        read_class_labels(write(tmp_path, one(), {**one(), "image_id": "7"}))
    path = write(tmp_path, one())
    (tmp_path / "other.json").write_text('{"annotations": {}}')
    with pytest.raises(GroundingError, match=r"other\.json: is not a file of class labels"):
        read_class_labels(tmp_path / "other.json")
    with pytest.raises(GroundingError, match=r"other\.json: is not a dictionary of class labels"):
        read_class_labels(path, tmp_path / "other.json")
    (tmp_path / "other.json").write_text('{"wtod": {}, "wtol": {"dogs": 3}}')
    with pytest.raises(GroundingError, match=r"other\.json: 'wtol' gives 'dogs' the lemma 3"):
        read_class_labels(path, tmp_path / "other.json")


def figure(name: str) -> Any:
    return json.loads((FIGURES / name).read_text())


def test_published_references_give_the_published_scores(tmp_path):
    """The published evaluator's own reference file, read from the form that it has on disk."""
    split_of = {image: split for split, images in figure("split.json").items() for image in images}
    annotations = figure("reference.json")["annotations"]
    said = {image: own[0] for image, own in figure("submission_gen.json")["results"].items() if image != "99"}
    names = {name for a in annotations for own in a["captions"] for name in own["process_clss"]}
    names |= {name for own in said.values() for name in own["clss"]}
    lemmas = {word: entry["lemma"] for word, entry in figure("lemmas.json").items()}
    dic = dictionary(tmp_path, sorted(names), {**{name: name for name in names}, **lemmas})
    labels = read_class_labels(FIGURES / "reference.json", dic)
    captions = [
        Caption(str(a["image_id"]), split_of[str(a["image_id"])], n, own["tokens"], "")
        for a in annotations
        for n, own in enumerate(a["captions"])
    ]
    objects, counts = build_labelled_objects(labels, captions, {}, {c.image_id: (500, 500) for c in captions})
    assert counts["phrases_boxed"] == counts["phrases"]
    rows = [
        {
            "id": n,
            "image_id": image,
            "caption_index": None,
            "model": "",
            "reference": False,
            "text": " ".join(own["clss"]),
            "tokens": own["clss"],
            "steps": [
                {"token": name, "region": 0, "box": box, "attention": None, "logprob": None}
                for name, box in zip(own["clss"], own["bbox"])
            ],
        }
        for n, (image, own) in enumerate(said.items())
    ]
    scores = GroundingScorer(objects).score(rows)
    for mode in ("all", "loc"):
        expected = figure("expected.json")[f"gen_{mode}"]
        for ours, theirs in (("precision", "prec"), ("recall", "recall"), ("f1", "f1")):
            assert scores[f"{ours}_{mode}"] == pytest.approx(expected[theirs], abs=1e-12)


def test_published_reference_with_two_boxes_a_word_is_refused():
    # the published evaluator stops at an assertion
    with pytest.raises(GroundingError, match="labels the word 1 twice; a word has one box"):
        read_class_labels(FIGURES / "reference_two_boxes_same_word.json")


def slow_choice(boxes, how):
    if how == "each":
        return boxes
    pixels = [{(x, y) for x in range(b[0], b[2] + 1) for y in range(b[1], b[3] + 1)} for b in boxes]
    if how == "largest":
        sizes = [len(own) for own in pixels]
        return [boxes[sizes.index(max(sizes))]]
    xs, ys = ([p[axis] for own in pixels for p in own] for axis in (0, 1))
    return [(min(xs), min(ys), max(xs), max(ys))]


SIDES = st.tuples(*[st.integers(0, 9)] * 4).map(
    lambda b: (min(b[0], b[2]), min(b[1], b[3]), max(b[0], b[2]), max(b[1], b[3]))
)


@settings(max_examples=60, deadline=None)
@given(boxes=st.lists(SIDES, min_size=1, max_size=4), how=st.sampled_from(["each", "union", "largest"]))
def test_several_boxes_of_an_entity(boxes, how):
    annotation = Annotation((10, 10), {"1": list(boxes)})
    sentence = Sentence(["a", "dog"], [Phrase("1", ("animals",), 0, 2)])
    captions = [Caption("7", "test", 0, ["a", "dog"], "")]
    objects, _ = build_objects(
        {"7": ([sentence], annotation)}, captions, [np.array([0, 1])], {"dog": "dog"}, {"7": (20, 10)}, 1, how
    )
    expected = [[2 * b[0], b[1], 2 * b[2], b[3]] for b in slow_choice(boxes, how)]
    assert objects["images"]["7"][0][0]["boxes"] == expected


WORD = st.text(st.sampled_from("abcdef"), min_size=1, max_size=4)
PART = st.tuples(st.lists(WORD, min_size=1, max_size=3), st.sampled_from(["", "1", "2", "3", "0"]), st.booleans())


@settings(max_examples=80, deadline=None)
@given(parts=st.lists(PART, min_size=1, max_size=5), data=st.data())
def test_phrases_are_found_in_captions_without_the_annotations_punctuation(parts, data):
    """Entities 1 and 2 have boxes, 3 has none, 0 cannot be seen; the caption is lower-case and without points."""
    words, tokens, phrases, expected = [], [], [], []
    nouns = {word for part, _, _ in parts for word in part if data.draw(st.booleans())}
    for own, entity, point in parts:
        first, at = len(words), len(tokens)
        words += [word.upper() for word in own] + [","] * point
        tokens += own
        if entity:
            phrases.append(Phrase(entity, ("other",), first, len(words)))
            heads = [n for n in range(at, len(tokens)) if tokens[n] in nouns]
            if entity in "12" and heads:
                expected.append((heads[-1], tokens[heads[-1]], entity, [at, len(tokens)]))
    annotation = Annotation((9, 9), {"1": [(0, 0, 1, 1)], "2": [(1, 1, 2, 2), (3, 3, 4, 4)]}, set(), {"3"})
    mask = np.array([token in nouns for token in tokens])
    objects, counts = build_objects(
        {"7": ([Sentence(words, phrases)], annotation)},
        [Caption("7", "test", 0, tokens, "")],
        [mask],
        {token: token for token in tokens},
        {"7": (9, 9)},
        1,
    )
    found = objects["images"]["7"][0]
    assert [(entry["word"], entry["class"], entry["entity"], entry["span"]) for entry in found] == expected
    assert all(entry["boxes"] == [list(b) for b in annotation.boxes[entry["entity"]]] for entry in found)
    assert counts["phrases_not_visual"] == sum(phrase.entity == "0" for phrase in phrases)
    assert counts["phrases_without_box"] == sum(phrase.entity == "3" for phrase in phrases)
    assert counts["phrases_not_tied"] == 0
    assert all(normalise(word) == word for word in tokens)


def toy_labels(toy, toy_folder, folder: Path) -> Path:
    """The toy data's objects in the published form, with its image sizes turned."""
    objects = PreparedFolder(toy_folder).objects()
    images = [
        {
            "image_id": image_id,
            "image_size": objects["sizes"][image_id][::-1],
            "captions": [
                caption(" ".join(tokens), *((e["word"], e["class"], e["boxes"][0]) for e in entries))
                for tokens, entries in zip(objects["tokens"][image_id], own)
            ],
        }
        for image_id, own in objects["images"].items()
    ]
    return write(folder, *images)


def test_label_file_prepares_the_objects_of_the_entities(toy_data, toy_folder, tmp_path):
    labels = toy_labels(toy_data, toy_folder, tmp_path)
    dic = dictionary(tmp_path, list(toy_data.nouns), {noun: noun for noun in toy_data.nouns})
    given_ = {"threshold": 1, "nouns": "table", "noun_table_path": toy_folder, "class_labels": labels}
    meta = prepare_captions(toy_data.captions, toy_data.regions, tmp_path / "out", class_dictionary=dic, **given_)
    whole, found = (PreparedFolder(folder).objects() for folder in (toy_folder, tmp_path / "out"))
    for key in ("format", "version", "classes", "tokens", "sizes", "splits"):
        assert found[key] == whole[key]
    for image_id, captions in whole["images"].items():
        for ours, theirs in zip(found["images"][image_id], captions, strict=True):
            assert [(e["word"], e["class"], e["boxes"]) for e in ours] == [
                (e["word"], e["class"], e["boxes"]) for e in theirs
            ]
    assert found["lemmas"] == {noun: noun for noun in sorted(toy_data.nouns)}
    assert meta["lemmatiser"] is None
    assert meta["class_labels"]["file"] == "labels.json"
    assert "class labels: 24 images, 240 of 240 labelled words found in the captions, 6 classes" in summary(meta)
    # without the dictionary, lemmas are spaCy's
    meta = prepare_captions(toy_data.captions, toy_data.regions, tmp_path / "without", **given_)
    assert PreparedFolder(tmp_path / "without").objects()["lemmas"] == whole["lemmas"]
    assert meta["lemmatiser"]["name"].startswith("en_core_web_sm")


def test_labels_of_other_images(toy_data, toy_folder, tmp_path):
    with pytest.raises(GroundingError, match="labels none of the captions' images"):
        prepare_captions(
            toy_data.captions,
            toy_data.regions,
            tmp_path / "out",
            threshold=1,
            nouns="table",
            noun_table_path=toy_folder,
            class_labels=write(tmp_path, one()),
        )
