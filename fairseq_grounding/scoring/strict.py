"""Grounding of object words as a careful person would score it; side by side with the published evaluation.

======================  ==========================================  =============================================
of                      ``gvd`` (as published)                      ``strict``
======================  ==========================================  =============================================
a reference             each of the five captions is one in turn    the five captions of an image are pooled: its
                                                                    annotated boxes of a class, each once
a class said or         only the first annotated box of a caption   every box of the class may be hit; words and
annotated repeatedly    may be hit (precision); the first word      boxes are matched one to one
                        answers for all boxes (recall)
recall                  annotated words of all captions             annotated entities of the image; any of its
                                                                    names and any of its boxes finds an entity
mean                    over classes                                over words and entities (micro: the names
                                                                    without prefix) and over classes (``macro_``)
a class not predicted   precision 0 in the mean over classes        left out of the mean precision
F1                      of the two means; NaN for 0 and 0           micro of the two, macro the mean of the
                                                                    classes' F1; 0 for 0 and 0
overlap                 inclusive pixels, one-pixel boxes never     areas; a region ends at its edges, an
                        hit                                         annotated box after its last pixel
no caption of an image  wrong in recall, in F1_loc too              wrong in recall of ``all``
attention accuracy      mean over classes                           micro, and ``macro_``
uncertainty             none                                        bootstrap intervals over images
======================  ==========================================  =============================================

Matching: within an image and a class, the words in the order in which they were said each take the free box that
they overlap most, of those they overlap by more than half; a word that finds its boxes taken has earlier words move
to another of theirs where that lets one more word match. So the number of matched words is the largest possible
(Kuhn's augmenting paths). Boxes with the same corners are one box.

Precision: a predicted object word that is matched is right. One that is not is wrong if the class has boxes in
this image; if it has none, but some reference says it without a box, it cannot be judged and is left out
(``not_judged``); if no reference has it, it is wrong in ``all`` and left out in ``loc``. Recall: an entity one of whose
boxes is matched is found; ``loc`` counts only entities one of whose names was said.

Example: one caption, "a man beside a man", with box A for the first man and B for the second. A model that writes
"a man and a man" and looks at A, then at B, is right in all it says: strict F1 1. ``gvd`` holds both words against A
(precision 1/2) and the first word against A and B (recall 1/2): F1 1/2. If it looks at A twice, one man is not found:
strict 1/2, ``gvd`` precision 1, recall 1/2, F1 2/3.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from .annotations import Reference, coverage, references_of
from .attended import Attended
from .bootstrap import Interval, bootstrap_intervals
from .confusion import Miss, confusion, outline
from .iou import THRESHOLD, Box, hits_region, region_overlaps

_MODES = ("all", "loc")
# counts of a class, or of all, in an image
_GENERATED = ("right", "judged_all", "judged_loc", "entities_all", "entities_loc", "found", "predicted", "not_judged")
_READ = ("hits", "annotated")

Counts = dict[str, int]


def score_strict(content: Attended, objects: Mapping[str, Any], rounds: int, seed: int) -> dict[str, Any]:
    """Score a dump; :meth:`GroundingScorer.score` says what is returned."""
    written = content.expected(content.generated, objects) if content.generated else []
    read = content.expected(content.references, objects) if content.references else []
    said = content.said(objects)
    misses: dict[str, list[Miss]] = {"generated": [], "attention": []}
    generated, attention = _Table(_GENERATED, len(written)), _Table(_READ, len(read))
    for number, image in enumerate(written):
        references, words = references_of(objects, image), said.get(image)
        total, per_class, wrong = count_generated(references, words or [])
        generated.add(number, total, per_class)
        misses["generated"] += [(image, name, box) for name, box in wrong]
    lost = {"words_past_end": 0, "words_missing": 0}
    for number, image in enumerate(read):
        captions = content.references.get(image, {})
        per_class = defaultdict(lambda: dict.fromkeys(_READ, 0))
        for place, reference in enumerate(references_of(objects, image)):
            boxes = captions.get(place)
            for word in reference.words:
                per_class[word.name]["annotated"] += 1
                if boxes is None or word.word >= len(boxes):
                    lost["words_missing" if boxes is None else "words_past_end"] += 1
                elif hits_region(boxes[word.word], word.boxes):
                    per_class[word.name]["hits"] += 1
                else:
                    misses["attention"].append((image, word.name, boxes[word.word]))
        total = {key: sum(counts[key] for counts in per_class.values()) for key in _READ}
        attention.add(number, total, per_class)

    names = [f"{prefix}{kind}_{mode}" for prefix in ("", "macro_") for mode in _MODES for kind in _KINDS]
    names += ["attention_accuracy", "macro_attention_accuracy"]
    result: dict[str, Any] = {"protocol": "strict", **dict.fromkeys(names), "intervals": dict.fromkeys(names)}
    for table, statistics in ((generated, _generated_statistics), (attention, _attention_statistics)):
        if table.images:
            figures, intervals = table.measure(statistics, rounds, seed)
            result.update(figures)
            result["intervals"].update(intervals)
    result["counts"] = {**generated.totals(), **attention.totals(), **lost}
    result["per_class"] = {"generated": _generated_classes(generated), "attention": _attention_classes(attention)}
    result["confusion"] = {kind: confusion(wrong, objects) for kind, wrong in misses.items()}
    result["wrong_attention"] = {kind: outline(rows) for kind, rows in result["confusion"].items()}
    result["classes"] = len(objects["classes"])
    result["bootstrap"] = {"rounds": rounds, "seed": seed}
    result["generated"] = coverage(written, content.generated, objects)
    result["reference"] = coverage(read, content.references, objects)
    result.update(content.left_out())
    return result


def count_generated(
    references: Sequence[Reference], said: Sequence[tuple[str, Box | None]]
) -> tuple[Counts, dict[str, Counts], list[tuple[str, Box | None]]]:
    """What one image's caption gets right, as the module's docstring says.

    Returns the counts of the image (an entity of several names once), the counts of each class (an entity of
    several names in each), and the words that are wrong, with the boxes they attended to.
    """
    entities: defaultdict[str, set[tuple[float, ...]]] = defaultdict(set)
    names: defaultdict[str, set[str]] = defaultdict(set)
    unboxed: set[str] = set()
    for reference in references:
        boxed = {word.word for word in reference.words}
        unboxed.update(lemma for place, lemma in enumerate(reference.lemmas) if place not in boxed)
        for word in reference.words:
            entities[word.entity].update(tuple(box) for box in word.boxes)
            names[word.entity].add(word.name)
    boxes_of: defaultdict[str, set[tuple[float, ...]]] = defaultdict(set)
    for entity, own in names.items():
        for name in own:
            boxes_of[name] |= entities[entity]
    words: defaultdict[str, list[Box | None]] = defaultdict(list)
    for name, box in said:
        words[name].append(box)

    per_class = {name: dict.fromkeys(_GENERATED, 0) for name in sorted({*words, *boxes_of})}
    wrong: list[tuple[str, Box | None]] = []
    taken: dict[str, set[tuple[float, ...]]] = {}
    for name, attended in words.items():
        counts, targets = per_class[name], sorted(boxes_of[name]) if name in boxes_of else []
        counts["predicted"] = len(attended)
        if not targets and name in unboxed:
            counts["not_judged"] = len(attended)
            continue
        matched = match(attended, targets)
        taken[name] = {targets[place] for place in matched if place is not None}
        counts["judged_all"] = len(attended)
        counts["judged_loc"] = len(attended) if targets else 0
        counts["right"] = len(taken[name])
        wrong += [(name, box) for box, place in zip(attended, matched) if place is None]
    total = {key: sum(counts[key] for counts in per_class.values()) for key in _GENERATED}
    for entity, own in names.items():
        outcome = {
            "entities_all": 1,
            "entities_loc": int(any(name in words for name in own)),
            "found": int(any(taken.get(name, set()) & entities[entity] for name in own)),
        }
        for key, value in outcome.items():
            total[key] += value
            for name in own:
                per_class[name][key] += value
    return total, per_class, wrong


def match(attended: Sequence[Box | None], targets: Sequence[Box]) -> list[int | None]:
    """One-to-one matching of words' boxes and annotated boxes, the largest possible.

    Returns for each word the number of its target, or None; which, the module's docstring says.
    """
    placed = [place for place, box in enumerate(attended) if box is not None]
    owner: dict[int, int] = {}
    if placed and targets:
        overlaps = region_overlaps([attended[place] for place in placed], targets)
        choices = [[int(t) for t in np.argsort(-row, kind="stable") if row[t] > THRESHOLD] for row in overlaps]
        for word in range(len(placed)):
            _augment(word, choices, owner, set())
    of_word = {word: target for target, word in owner.items()}
    found: list[int | None] = [None] * len(attended)
    for word, place in enumerate(placed):
        found[place] = of_word.get(word)
    return found


def _augment(word: int, choices: Sequence[Sequence[int]], owner: dict[int, int], tried: set[int]) -> bool:
    free = [target for target in choices[word] if target not in owner]
    if free:
        owner[free[0]] = word
        return True
    for target in choices[word]:
        if target not in tried:
            tried.add(target)
            if _augment(owner[target], choices, owner, tried):
                owner[target] = word
                return True
    return False


class _Table:
    """Counts by image, and by image and class."""

    def __init__(self, keys: Sequence[str], images: int) -> None:
        self.keys = keys
        self.images = images
        self._totals = np.zeros((images, len(keys)))
        self._rows: list[tuple[str, int, list[int]]] = []

    def add(self, image: int, total: Counts, per_class: Mapping[str, Counts]) -> None:
        self._totals[image] = [total[key] for key in self.keys]
        self._rows += [(name, image, [counts[key] for key in self.keys]) for name, counts in per_class.items()]

    def totals(self) -> dict[str, int]:
        return {key: int(count) for key, count in zip(self.keys, self._totals.sum(0))}

    def classes(self) -> dict[str, Counts]:
        sums: dict[str, np.ndarray] = {}
        for name, _, counts in sorted(self._rows):
            sums[name] = sums.get(name, 0) + np.array(counts)
        return {name: {key: int(n) for key, n in zip(self.keys, counts)} for name, counts in sums.items()}

    def measure(self, statistics: Any, rounds: int, seed: int) -> tuple[dict[str, float], dict[str, Interval | None]]:
        """The statistics over all images, and their intervals."""
        rows = sorted(self._rows)
        images = np.array([image for _, image, _ in rows], np.int64)
        counts = np.array([row for _, _, row in rows], np.float64).reshape(len(rows), len(self.keys))
        names = [name for name, _, _ in rows]
        starts = np.array([n for n, name in enumerate(names) if n == 0 or names[n - 1] != name], np.int64)

        def of(weights: np.ndarray) -> dict[str, np.ndarray]:
            total = dict(zip(self.keys, (weights @ self._totals).T))
            drawn = weights[:, images]
            classes = {
                key: np.add.reduceat(drawn * counts[:, n], starts, axis=1) if rows else np.zeros((len(weights), 0))
                for n, key in enumerate(self.keys)
            }
            return statistics(total, classes)

        figures = {name: float(value[0]) for name, value in of(np.ones((1, self.images))).items()}
        return figures, bootstrap_intervals(of, self.images, rounds, seed)


_KINDS = ("precision", "recall", "f1")


def _generated_statistics(total: Mapping[str, np.ndarray], classes: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    found: dict[str, np.ndarray] = {}
    for mode in _MODES:
        judged, entities = f"judged_{mode}", f"entities_{mode}"
        precision, recall = _ratio(total["right"], total[judged]), _ratio(total["found"], total[entities])
        found.update(zip((f"{kind}_{mode}" for kind in _KINDS), (precision, recall, _f1(precision, recall))))
        precision, recall = _ratio(classes["right"], classes[judged]), _ratio(classes["found"], classes[entities])
        said, there = classes[judged] > 0, classes[entities] > 0
        means = _mean(precision, said), _mean(recall, there), _mean(_f1(precision, recall), said | there)
        found.update(zip((f"macro_{kind}_{mode}" for kind in _KINDS), means))
    return found


def _attention_statistics(total: Mapping[str, np.ndarray], classes: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    of_classes = _ratio(classes["hits"], classes["annotated"])
    return {
        "attention_accuracy": _ratio(total["hits"], total["annotated"]),
        "macro_attention_accuracy": _mean(of_classes, classes["annotated"] > 0),
    }


def _generated_classes(table: _Table) -> dict[str, Any]:
    found = {}
    for name, counts in table.classes().items():
        figures = {}
        for mode in _MODES:
            precision = _ratio(*(np.array([counts[key]]) for key in ("right", f"judged_{mode}")))
            recall = _ratio(*(np.array([counts[key]]) for key in ("found", f"entities_{mode}")))
            values = precision, recall, _f1(precision, recall)
            figures.update({f"{kind}_{mode}": float(value[0]) for kind, value in zip(_KINDS, values)})
        found[name] = {**figures, **counts}
    return found


def _attention_classes(table: _Table) -> dict[str, Any]:
    classes = table.classes()
    return {name: {"accuracy": counts["hits"] / counts["annotated"], **counts} for name, counts in classes.items()}


def _ratio(part: np.ndarray, whole: np.ndarray) -> np.ndarray:
    """0 for 0/0: the counts beside it say so."""
    return np.divide(part, whole, out=np.zeros(part.shape), where=whole > 0)


def _f1(precision: np.ndarray, recall: np.ndarray) -> np.ndarray:
    return _ratio(2 * precision * recall, precision + recall)


def _mean(values: np.ndarray, counted: np.ndarray) -> np.ndarray:
    return _ratio((values * counted).sum(1), counted.sum(1).astype(np.float64))
