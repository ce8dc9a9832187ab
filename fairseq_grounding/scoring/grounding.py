"""Does the attention point at the right object? Scores of a grounding dump against annotated boxes.

Two protocols:

``phrase``
    The model reads the ground-truth captions; for each boxed phrase, the attended region at its head noun
    is a hit if it overlaps one of the phrase's boxes by more than half. Accuracy is hits over phrases.
``gvd``
    The published evaluation of grounded captioning (Zhou et al., "Grounded video description", CVPR 2019, its
    Flickr30k Entities branch), number for number: F1 of words and boxes on captions that the model wrote
    (F1_all, F1_loc) and attention accuracy on ground-truth captions, all averaged over object classes.

What annotates is ``objects.json`` of a prepared folder; its boxes are inclusive pixels counted from 0.
"""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..dump import read_dump
from ..errors import GroundingError
from ..files import read_json

if TYPE_CHECKING:
    from ..data.regions import RegionStore

PROTOCOLS = ("gvd", "phrase")
THRESHOLD = 0.5

Box = Sequence[float]


@dataclass(frozen=True)
class AnnotatedWord:
    """A word of a ground-truth caption that has boxes (x0, y0, x1, y1)."""

    word: int
    name: str
    boxes: Sequence[Box]


@dataclass(frozen=True)
class Reference:
    """A ground-truth caption: its words' lemmas, and those of its words that have a class and boxes."""

    lemmas: Sequence[str]
    words: Sequence[AnnotatedWord]


class GroundingScorer:
    """Score grounding dumps by one protocol.

    *objects* is ``objects.json`` of a prepared folder, its path or its content. Raises
    :class:`GroundingError` for an unknown protocol and for objects of another format.

    Images: a dump answers for every annotated image of the splits that its images are in; what it lacks
    counts against it and is reported as missing. Its images without annotation are left out and counted. A
    dump none of whose images is annotated is an error.
    """

    def __init__(self, objects: str | os.PathLike[str] | Mapping[str, Any], protocol: str = "gvd") -> None:
        if protocol not in PROTOCOLS:
            known = ", ".join(PROTOCOLS)
            raise GroundingError(f"grounding protocol {protocol!r} is unknown; choose one of {known}")
        self.protocol = protocol
        self.objects = load_objects(objects)

    def score(self, dump: str | os.PathLike[str] | Iterable[Mapping[str, Any]]) -> dict[str, Any]:
        """Score a dump, given by its path or as rows.

        ``phrase`` returns ``accuracy``, ``hits``, ``phrases``, ``phrases_past_end`` (misses because the model
        was not shown the word: the caption was cut short), ``phrases_missing`` (misses because the caption is
        not in the dump), ``per_type`` (the same by entity type) and ``images``, ``images_missing``,
        ``splits``.

        ``gvd`` returns, for captions the model wrote (of each image the dump's first), ``precision_all``,
        ``recall_all``, ``f1_all``, ``precision_loc``, ``recall_loc``, ``f1_loc``; for ground-truth captions
        ``attention_accuracy``; ``per_class``; and ``images``, ``images_missing``, ``splits`` of both kinds,
        under ``generated`` and ``reference``. A figure is None where the dump has no caption of its kind,
        and where the published tool gives NaN (F1 of precision 0 and recall 0).

        Both add ``images_not_annotated`` and ``rows_ignored`` (a further row of the same caption or, for
        captions the model wrote, of the same image). All figures are fractions. Raises
        :class:`GroundingError` when nothing can be scored.
        """
        content = _Content(dump, self.objects)
        if self.protocol == "phrase":
            return _score_phrases(content, self.objects)
        return _score_gvd(content, self.objects)


def load_objects(objects: str | os.PathLike[str] | Mapping[str, Any]) -> Mapping[str, Any]:
    """Read ``objects.json``, or check its content."""
    if isinstance(objects, Mapping):
        content, name = objects, "objects"
    else:
        content, name = read_json(objects), str(objects)
    if not isinstance(content, Mapping) or content.get("format") != "fairseq_grounding.objects":
        raise GroundingError(f"{name}: is not an objects.json written by fairseq-grounding prepare-captions")
    missing = [key for key in ("classes", "lemmas", "images", "tokens", "splits") if key not in content]
    if missing:
        raise GroundingError(f"{name}: lacks {', '.join(missing)}; run prepare-captions again")
    return content


class _Content:
    """What a dump holds for scoring: attended boxes by word."""

    def __init__(self, dump: str | os.PathLike[str] | Iterable[Mapping[str, Any]], objects: Mapping[str, Any]) -> None:
        rows: Iterable[Mapping[str, Any]]
        if isinstance(dump, (str, os.PathLike)):
            self.name, rows = str(dump), read_dump(dump)
        else:
            self.name, rows = "dump", dump
        self.generated: dict[str, tuple[list[str], list[Box | None]]] = {}
        self.references: dict[str, dict[int, list[Box | None]]] = {}
        self.rows_ignored = 0
        seen: set[str] = set()
        attends = False
        for row in rows:
            image = row["image_id"]
            seen.add(image)
            boxes = [step["box"] for step in row["steps"]]
            attends = attends or any(box is not None for box in boxes)
            if image in objects["images"]:
                self._keep(row, boxes, len(objects["images"][image]))
        self.annotated = {image for image in seen if image in objects["images"]}
        self.not_annotated = len(seen) - len(self.annotated)
        if not seen:
            raise GroundingError(f"{self.name}: has no rows")
        if not self.annotated:
            raise GroundingError(
                f"{self.name}: 0 of its {len(seen)} images are annotated in objects.json; "
                "score a split that has boxes, with the prepared folder that the model was run on"
            )
        if not attends:
            raise GroundingError(f"{self.name}: no step has a box; the model gives no attention to score")

    def _keep(self, row: Mapping[str, Any], boxes: list[Box | None], captions: int) -> None:
        image, number, words = row["image_id"], row["caption_index"], row["text"].split()
        if len(boxes) > len(words):
            raise GroundingError(
                f"{self.name}: image {image}: {len(boxes)} tokens for {len(words)} words; "
                "grounding is scored word by word, dump whole words"
            )
        if not row.get("reference", False):
            if image in self.generated:
                self.rows_ignored += 1
            else:
                self.generated[image] = words, boxes
            return
        if number is None or number >= captions:
            raise GroundingError(
                f"{self.name}: image {image}: the ground-truth caption_index is {number}, and "
                f"objects.json has {captions} captions of it; dump from the same prepared folder"
            )
        if number in self.references.setdefault(image, {}):
            self.rows_ignored += 1
        else:
            self.references[image][number] = boxes

    def left_out(self) -> dict[str, int]:
        """How much of the dump is not scored."""
        return {"images_not_annotated": self.not_annotated, "rows_ignored": self.rows_ignored}

    def expected(self, images: Iterable[str], objects: Mapping[str, Any]) -> list[str]:
        """The annotated images of all splits that *images* are in."""
        splits = {objects["splits"][image] for image in images}
        return [image for image in objects["images"] if objects["splits"][image] in splits]


@dataclass
class _Tally:
    hits: int = 0
    phrases: int = 0
    phrases_past_end: int = 0
    phrases_missing: int = 0

    def add(self, boxes: Sequence[Box | None] | None, word: int, targets: Sequence[Box]) -> None:
        self.phrases += 1
        if boxes is None:
            self.phrases_missing += 1
        elif word >= len(boxes):
            self.phrases_past_end += 1
        else:
            self.hits += hits_region(boxes[word], targets)

    def report(self) -> dict[str, Any]:
        accuracy = self.hits / self.phrases if self.phrases else None
        return {"accuracy": accuracy, **vars(self)}


def _score_phrases(content: _Content, objects: Mapping[str, Any]) -> dict[str, Any]:
    if not content.references:
        raise GroundingError(
            f"{content.name}: holds no ground-truth captions, which --protocol phrase needs; "
            "dump them with fairseq-generate --score-reference"
        )
    images = content.expected(content.references, objects)
    total = _Tally()
    types: defaultdict[str, _Tally] = defaultdict(_Tally)
    for image in images:
        captions = content.references.get(image, {})
        for number, phrases in enumerate(objects["images"][image]):
            for phrase in phrases:
                for tally in (total, *(types[name] for name in phrase["types"])):
                    tally.add(captions.get(number), phrase["word"], phrase["boxes"])
    return {
        "protocol": "phrase",
        **total.report(),
        "per_type": {name: types[name].report() for name in sorted(types)},
        **_coverage(images, content.references, objects),
        **content.left_out(),
    }


def _score_gvd(content: _Content, objects: Mapping[str, Any]) -> dict[str, Any]:
    classes, lemmas = set(objects["classes"]), objects["lemmas"]
    result: dict[str, Any] = {"protocol": "gvd", "per_class": {}}
    generated_images = content.expected(content.generated, objects) if content.generated else []
    predictions = {
        image: [(lemmas.get(word, word), box) for word, box in zip(words, boxes) if lemmas.get(word, word) in classes]
        for image, (words, boxes) in content.generated.items()
    }
    references = {image: _references(objects, image) for image in generated_images}
    for mode in ("all", "loc"):
        scores = f1_scores(references, predictions, localised_only=mode == "loc")
        for name in ("precision", "recall", "f1"):
            result[f"{name}_{mode}"] = scores[name]
        result["per_class"][mode] = scores["per_class"]

    reference_images = content.expected(content.references, objects) if content.references else []
    for image, captions in content.references.items():
        if len(captions) != len(objects["images"][image]):
            raise GroundingError(
                f"{content.name}: image {image}: {len(captions)} of its {len(objects['images'][image])} "
                "ground-truth captions are in the dump; attention accuracy needs all of them"
            )
    accuracy = attention_accuracy(
        {image: _references(objects, image) for image in reference_images}, content.references
    )
    result["attention_accuracy"] = accuracy["accuracy"]
    result["per_class"]["attention"] = accuracy["per_class"]
    result["classes"] = len(classes)
    result["generated"] = _coverage(generated_images, content.generated, objects)
    result["reference"] = _coverage(reference_images, content.references, objects)
    result.update(content.left_out())
    return result


def _references(objects: Mapping[str, Any], image: str) -> list[Reference]:
    lemmas = objects["lemmas"]
    return [
        Reference(
            [lemmas.get(word, word) for word in words],
            [
                AnnotatedWord(entry["word"], entry["class"], entry["boxes"])
                for entry in entries
                if entry["class"] is not None
            ],
        )
        for words, entries in zip(objects["tokens"][image], objects["images"][image])
    ]


def _coverage(expected: Sequence[str], there: Iterable[str], objects: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "images": len(expected),
        "images_missing": len(set(expected) - set(there)),
        "splits": sorted({objects["splits"][image] for image in expected}),
    }


@dataclass
class _Outcomes:
    precision: list[bool] = field(default_factory=list)
    recall: list[bool] = field(default_factory=list)


def f1_scores(
    references: Mapping[str, Sequence[Reference]],
    predictions: Mapping[str, Sequence[tuple[str, Box | None]]],
    localised_only: bool,
) -> dict[str, Any]:
    """F1_all, or F1_loc with *localised_only*, as the published evaluation computes it.

    *references* are all captions of each image, *predictions* the (class, attended box) of each object word
    of the one caption that a model wrote, in the order of its words.

    Precision: each predicted word is held against each reference. If that has words of the class, the box
    of the first must be hit; otherwise, if the class is among the lemmas of its words without boxes, the
    word is skipped, since it may well be right; otherwise it is wrong for F1_all and skipped for F1_loc.
    Recall: for each annotated word of each reference, the first predicted word of its class must hit it; a
    class that was not said is wrong for F1_all, skipped for F1_loc. An image without a caption is skipped
    in precision and wrong in recall, in both.

    Precision and recall are means within a class, summed, and divided by the number of classes annotated in
    images that have a caption; F1 is taken of these two. Returns ``precision``, ``recall``, ``f1`` (None for
    0/0) and ``per_class``.
    """
    outcomes: defaultdict[str, _Outcomes] = defaultdict(_Outcomes)
    counted: set[str] = set()
    for image, captions in references.items():
        said = predictions.get(image)
        for caption in captions:
            if said is None:
                for word in caption.words:
                    outcomes[word.name].recall.append(False)
                continue
            counted.update(word.name for word in caption.words)
            for name, hit in _precision_outcomes(said, caption, localised_only):
                outcomes[name].precision.append(hit)
            for name, hit in _recall_outcomes(said, caption, localised_only):
                outcomes[name].recall.append(hit)
    if not counted:
        return {"precision": None, "recall": None, "f1": None, "per_class": {}}
    per_class = {
        name: {
            "precision": _mean(outcomes[name].precision),
            "recall": _mean(outcomes[name].recall),
            "predicted": len(outcomes[name].precision),
            "annotated": len(outcomes[name].recall),
        }
        for name in sorted(counted)
    }
    precision = sum(scores["precision"] for scores in per_class.values()) / len(counted)
    recall = sum(scores["recall"] for scores in per_class.values()) / len(counted)
    f1 = 2 * precision * recall / (precision + recall) if precision + recall > 0 else None
    return {"precision": precision, "recall": recall, "f1": f1, "per_class": per_class}


def _precision_outcomes(
    said: Sequence[tuple[str, Box | None]], caption: Reference, localised_only: bool
) -> Iterable[tuple[str, bool]]:
    first: dict[str, AnnotatedWord] = {}
    for word in sorted(caption.words, key=lambda word: word.word):
        first.setdefault(word.name, word)
    boxed = {word.word for word in caption.words}
    unboxed = {lemma for position, lemma in enumerate(caption.lemmas) if position not in boxed}
    for name, box in said:
        if name in first:
            yield name, hits_inclusive(box, first[name].boxes)
        elif name not in unboxed and not localised_only:
            yield name, False


def _recall_outcomes(
    said: Sequence[tuple[str, Box | None]], caption: Reference, localised_only: bool
) -> Iterable[tuple[str, bool]]:
    first: dict[str, Box | None] = {}
    for name, box in said:
        first.setdefault(name, box)
    for word in caption.words:
        if word.name in first:
            yield word.name, hits_inclusive(first[word.name], word.boxes)
        elif not localised_only:
            yield word.name, False


def attention_accuracy(
    references: Mapping[str, Sequence[Reference]],
    attended: Mapping[str, Mapping[int, Sequence[Box | None]]],
) -> dict[str, Any]:
    """Attention accuracy on ground-truth captions, as the published evaluation computes it.

    *attended* ``[image][caption][word]`` is the attended box. An annotated word is right if the box at its
    place hits; a word or an image that is not there is wrong. Returns ``accuracy``, the mean over classes
    of the mean within a class (None without any), and ``per_class``.
    """
    hits: Counter[str] = Counter()
    total: Counter[str] = Counter()
    for image, captions in references.items():
        for number, caption in enumerate(captions):
            boxes = attended.get(image, {}).get(number, ())
            for word in caption.words:
                total[word.name] += 1
                hits[word.name] += word.word < len(boxes) and hits_inclusive(boxes[word.word], word.boxes)
    per_class = {name: {"accuracy": hits[name] / total[name], "annotated": total[name]} for name in sorted(total)}
    accuracy = sum(entry["accuracy"] for entry in per_class.values()) / len(total) if total else None
    return {"accuracy": accuracy, "per_class": per_class}


def hits_inclusive(box: Box | None, targets: Sequence[Box]) -> bool:
    """Whether *box* overlaps one of *targets* by more than half, both counted in inclusive pixels.

    The published evaluation's overlap: a side is x1 - x0 + 1 long, and a box of one pixel never hits nor is
    hit. It knows one box a word; of several, any may be hit.
    """
    if box is None or _is_one_pixel(box):
        return False
    return any(_overlap(box, target, 1.0) > THRESHOLD for target in targets if not _is_one_pixel(target))


def hits_region(box: Box | None, targets: Sequence[Box]) -> bool:
    """Whether a region overlaps one of the annotated *targets* by more than half, as areas.

    A region's box is where its edges are; an annotated box includes its last pixel, so its far edges are one
    further on. This is exact, and reproduces the yardsticks known for the real data.
    """
    if box is None:
        return False
    return any(_overlap(box, (x0, y0, x1 + 1, y1 + 1), 0.0) > THRESHOLD for x0, y0, x1, y1 in targets)


def _is_one_pixel(box: Box) -> bool:
    return box[0] == box[2] and box[1] == box[3]


def _overlap(first: Box, second: Box, pixel: float) -> float:
    width = min(first[2], second[2]) - max(first[0], second[0]) + pixel
    height = min(first[3], second[3]) - max(first[1], second[1]) + pixel
    if width <= 0 or height <= 0:
        return 0.0
    areas = sum((box[2] - box[0] + pixel) * (box[3] - box[1] + pixel) for box in (first, second))
    return width * height / (areas - width * height)


def _mean(outcomes: Sequence[bool]) -> float:
    return sum(outcomes) / len(outcomes) if outcomes else 0.0


def floors(
    objects: str | os.PathLike[str] | Mapping[str, Any],
    store: RegionStore | str | os.PathLike[str],
    splits: Collection[str] | None = None,
) -> dict[str, Any]:
    """What needs no model, by the ``phrase`` protocol: how to read an accuracy on these regions.

    Returns ``best_possible`` (some region hits), ``top_detection`` (the region of highest detector score;
    None without scores), ``whole_image`` (the image as one box), ``random_region`` (the expected accuracy
    of a uniform choice) and ``phrases``. By default all annotated images count, with *splits* those in them.
    """
    from ..data.regions import RegionStore

    content = load_objects(objects)
    if isinstance(store, (str, os.PathLike)):
        store = RegionStore(Path(store))
    best, top, whole, drawn = [], [], [], []
    for image, captions in content["images"].items():
        phrases = [phrase for caption in captions for phrase in caption]
        if not phrases or (splits is not None and content["splits"][image] not in splits):
            continue
        number = store.index(image)
        boxes = store.boxes(number).tolist()
        width, height = (float(side) for side in store.image_sizes[number])
        scores = store.scores(number)
        for phrase in phrases:
            hit = [hits_region(box, phrase["boxes"]) for box in boxes]
            best.append(any(hit))
            drawn.append(float(np.mean(hit)))
            whole.append(hits_region((0.0, 0.0, width, height), phrase["boxes"]))
            if scores is not None:
                top.append(hit[int(np.argmax(scores))])
    if not best:
        raise GroundingError("objects.json: has no boxed phrase in these splits")
    return {
        "best_possible": float(np.mean(best)),
        "top_detection": float(np.mean(top)) if top else None,
        "whole_image": float(np.mean(whole)),
        "random_region": float(np.mean(drawn)),
        "phrases": len(best),
    }
