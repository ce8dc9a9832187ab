"""The published evaluation of grounded captioning, number for number.

Zhou et al., "Grounded video description", CVPR 2019, the Flickr30k Entities branch of its code: F1 of words and boxes
on captions that the model wrote (F1_all, F1_loc) and attention accuracy on ground-truth captions, all averaged over
object classes. Its traps are kept; :mod:`.strict` is the same without them.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..errors import GroundingError
from .annotations import AnnotatedWord, Reference, coverage, references_of
from .attended import Attended
from .confusion import Miss, confusion, outline
from .iou import Box, hits_inclusive


def score_gvd(content: Attended, objects: Mapping[str, Any]) -> dict[str, Any]:
    """Score a dump; :meth:`GroundingScorer.score` says what is returned."""
    result: dict[str, Any] = {"protocol": "gvd", "per_class": {}, "confusion": {}}
    generated_images = content.expected(content.generated, objects) if content.generated else []
    # in the published evaluation a class counts only if its own name is a word of the label file's vocabulary
    predictions = content.said(objects, objects.get("unreachable_classes", ()))
    references = {image: references_of(objects, image) for image in generated_images}
    for mode in ("all", "loc"):
        scores = f1_scores(references, predictions, localised_only=mode == "loc")
        for name in ("precision", "recall", "f1"):
            result[f"{name}_{mode}"] = scores[name]
        result["per_class"][mode] = scores["per_class"]
        result["confusion"][mode] = confusion(scores["misses"], objects)

    reference_images = content.expected(content.references, objects) if content.references else []
    for image, captions in content.references.items():
        if len(captions) != len(objects["images"][image]):
            raise GroundingError(
                f"{content.name}: image {image}: {len(captions)} of its {len(objects['images'][image])} "
                "ground-truth captions are in the dump; attention accuracy needs all of them"
            )
    accuracy = attention_accuracy(
        {image: references_of(objects, image) for image in reference_images}, content.references
    )
    result["attention_accuracy"] = accuracy["accuracy"]
    result["per_class"]["attention"] = accuracy["per_class"]
    result["confusion"]["attention"] = confusion(accuracy["misses"], objects)
    result["wrong_attention"] = {kind: outline(rows) for kind, rows in result["confusion"].items()}
    result["classes"] = len(objects["classes"])
    result["generated"] = coverage(generated_images, content.generated, objects)
    result["reference"] = coverage(reference_images, content.references, objects)
    result.update(content.left_out())
    return result


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
    0/0), ``per_class``, and ``misses``: each predicted word that a reference says is wrong.
    """
    outcomes: defaultdict[str, _Outcomes] = defaultdict(_Outcomes)
    counted: set[str] = set()
    misses: list[Miss] = []
    for image, captions in references.items():
        said = predictions.get(image)
        for caption in captions:
            if said is None:
                for word in caption.words:
                    outcomes[word.name].recall.append(False)
                continue
            counted.update(word.name for word in caption.words)
            for name, box, hit in _precision_outcomes(said, caption, localised_only):
                outcomes[name].precision.append(hit)
                if not hit:
                    misses.append((image, name, box))
            for name, hit in _recall_outcomes(said, caption, localised_only):
                outcomes[name].recall.append(hit)
    if not counted:
        return {"precision": None, "recall": None, "f1": None, "per_class": {}, "misses": misses}
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
    return {"precision": precision, "recall": recall, "f1": f1, "per_class": per_class, "misses": misses}


def _precision_outcomes(
    said: Sequence[tuple[str, Box | None]], caption: Reference, localised_only: bool
) -> Iterable[tuple[str, Box | None, bool]]:
    first: dict[str, AnnotatedWord] = {}
    for word in sorted(caption.words, key=lambda word: word.word):
        first.setdefault(word.name, word)
    boxed = {word.word for word in caption.words}
    unboxed = {lemma for position, lemma in enumerate(caption.lemmas) if position not in boxed}
    for name, box in said:
        if name in first:
            yield name, box, hits_inclusive(box, first[name].boxes)
        elif name not in unboxed and not localised_only:
            yield name, box, False


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
    of the mean within a class (None without any), ``per_class``, and ``misses``: the words that were read and
    looked elsewhere.
    """
    hits: Counter[str] = Counter()
    total: Counter[str] = Counter()
    misses: list[Miss] = []
    for image, captions in references.items():
        for number, caption in enumerate(captions):
            boxes = attended.get(image, {}).get(number, ())
            for word in caption.words:
                total[word.name] += 1
                if word.word >= len(boxes):
                    continue
                if hits_inclusive(boxes[word.word], word.boxes):
                    hits[word.name] += 1
                else:
                    misses.append((image, word.name, boxes[word.word]))
    per_class = {name: {"accuracy": hits[name] / total[name], "annotated": total[name]} for name in sorted(total)}
    accuracy = sum(entry["accuracy"] for entry in per_class.values()) / len(total) if total else None
    return {"accuracy": accuracy, "per_class": per_class, "misses": misses}


def _mean(outcomes: Sequence[bool]) -> float:
    return sum(outcomes) / len(outcomes) if outcomes else 0.0
