"""Attention on the boxed phrases of ground-truth captions, and what needs no model to compare it with.

Four measures, each a share of phrases (or nouns) that are right:

``last_noun``
    the attended region at the phrase's last noun overlaps one of its boxes by more than half
``nouns``
    the same for every noun of the phrase, over nouns
``phrase_mean``
    the same for the region of the highest mean attention over the phrase's words
``pointing``
    the centre of the attended region at the last noun lies in one of the phrase's boxes
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import GroundingError
from .annotations import coverage, load_objects
from .attended import Attended
from .bootstrap import ImageRatios
from .iou import THRESHOLD, Box, centres, hits_region, points_inside, region_overlaps

if TYPE_CHECKING:
    from ..data.prepared import PreparedFolder
    from ..data.regions import RegionStore

MEASURES = ("last_noun", "nouns", "phrase_mean", "pointing")
FLOORS = ("best_possible", "top_detection", "largest_region", "whole_image", "random_region")

# a dump rounds boxes to 6 decimals, and a store keeps them as float32
_SAME_BOX = 0.01

NounMasks = Callable[[str], Sequence[np.ndarray]]
"""of an image id: for each caption (W,), 1 where the word is a noun"""


class PreparedNouns:
    """The noun masks of a prepared folder, by image; a split is read when the first of its images is asked for."""

    def __init__(self, folder: PreparedFolder, splits: Mapping[str, str]) -> None:
        self._folder = folder
        self._split_of = splits
        self._masks: dict[str, dict[str, list[np.ndarray]]] = {}

    def __call__(self, image: str) -> Sequence[np.ndarray]:
        name = self._split_of[image]
        if name not in self._masks:
            split = self._folder.split(name)
            own: dict[str, list[np.ndarray]] = {}
            for number, owner in enumerate(split.image_ids):
                own.setdefault(owner, []).append(split.nouns[number].numpy()[:-1])
            self._masks[name] = own
        return self._masks[name][image]


class _Tallies:
    """Hits and misses of each measure, over all phrases (type None) and by entity type."""

    def __init__(self, images: int) -> None:
        self.ratios = ImageRatios(images)
        self.lost: Counter[tuple[str, str | None, str]] = Counter()
        self.types: set[str] = set()

    def add(self, measure: str, types: Sequence[str], image: int, hit: bool, lost: str | None) -> None:
        self.types.update(types)
        for name in (None, *types):
            self.ratios.add((measure, name), image, hit, 1)
            if lost is not None:
                self.lost[measure, name, lost] += 1

    def report(self, measure: str, name: str | None, intervals: Mapping[Any, Any]) -> dict[str, Any]:
        hits, counted = self.ratios.sums((measure, name))
        return {
            "accuracy": self.ratios.ratio((measure, name)),
            "interval": intervals.get((measure, name)),
            "hits": int(hits),
            "counted": int(counted),
            "past_end": self.lost[measure, name, "past_end"],
            "missing": self.lost[measure, name, "missing"],
        }


def score_phrases(
    content: Attended,
    objects: Mapping[str, Any],
    nouns: NounMasks | None,
    store: RegionStore | None,
    rounds: int,
    seed: int,
) -> dict[str, Any]:
    """Score a dump; :meth:`GroundingScorer.score` says what is returned."""
    if not content.references:
        raise GroundingError(
            f"{content.name}: holds no ground-truth captions, which --protocol phrase needs; "
            "dump them with fairseq-generate --score-reference"
        )
    images = content.expected(content.references, objects)
    attends = any(
        weights is not None for own in content.attention.values() for words in own.values() for weights in words
    )
    notes = []
    if nouns is None:
        notes.append("every noun: is not measured without the captions' noun masks")
    if store is None:
        notes.append("mean attention over the phrase: is not measured without the region store (--regions FILE)")
    elif not attends:
        notes.append(f"mean attention over the phrase: is not measured, {content.name} holds no attention weights")
    tallies = _Tallies(len(images))
    for number, image in enumerate(images):
        masks = None if nouns is None else nouns(image)
        regions = None
        if store is not None and attends and image in content.attention:
            regions = _regions(content, store, image)
        for place, phrases in enumerate(objects["images"][image]):
            boxes = content.references.get(image, {}).get(place)
            weights = content.attention.get(image, {}).get(place)
            for phrase in phrases:
                types, targets, word = phrase["types"], phrase["boxes"], phrase["word"]
                lost = _lost(boxes, word)
                box = boxes[word] if boxes is not None and lost is None else None
                tallies.add("last_noun", types, number, hits_region(box, targets), lost)
                pointed = box is not None and bool(points_inside(centres(box), targets)[0])
                tallies.add("pointing", types, number, pointed, lost)
                start, stop = phrase.get("span", (word, word + 1))
                if masks is not None:
                    for noun in np.flatnonzero(masks[place][start:stop]) + start:
                        lost = _lost(boxes, noun)
                        box = boxes[noun] if boxes is not None and lost is None else None
                        tallies.add("nouns", types, number, hits_region(box, targets), lost)
                if store is not None and attends:
                    box = None if weights is None or regions is None else _mean_box(weights[start:stop], regions)
                    tallies.add("phrase_mean", types, number, hits_region(box, targets), _lost(boxes, start))

    measured = [measure for measure in MEASURES if tallies.ratios.ratio((measure, None)) is not None]
    intervals = tallies.ratios.intervals(rounds, seed)

    def report(name: str | None) -> dict[str, Any]:
        measures = {measure: tallies.report(measure, name, intervals) for measure in measured}
        last = tallies.report("last_noun", name, intervals)
        return {
            "accuracy": last["accuracy"],
            "interval": last["interval"],
            "hits": last["hits"],
            "phrases": last["counted"],
            "phrases_past_end": last["past_end"],
            "phrases_missing": last["missing"],
            "measures": measures,
        }

    return {
        "protocol": "phrase",
        **report(None),
        "per_type": {name: report(name) for name in sorted(tallies.types)},
        "notes": notes,
        "bootstrap": {"rounds": rounds, "seed": seed},
        **coverage(images, content.references, objects),
        **content.left_out(),
    }


def _lost(boxes: Sequence[Box | None] | None, word: int) -> str | None:
    if boxes is None:
        return "missing"
    return "past_end" if word >= len(boxes) else None


def _regions(content: Attended, store: RegionStore, image: str) -> np.ndarray:
    """The boxes of an image's regions, once they agree with what the dump says of them."""
    regions = store.boxes(store.index(image)).astype(np.float64)
    for number, words in content.attention[image].items():
        for weights, box in zip(words, content.references[image][number]):
            if weights is None or box is None:
                continue
            wrong = len(weights) > len(regions) or np.abs(regions - np.asarray(box)).max(1).min() > _SAME_BOX
            if wrong:
                raise GroundingError(
                    f"{content.name}: image {image}: attends to {len(weights)} regions, one at {box}, and "
                    f"{store.path} has {len(regions)} others; give the --regions that the model read"
                )
    return regions


def _mean_box(weights: Sequence[np.ndarray | None], regions: np.ndarray) -> Box | None:
    there = [row for row in weights if row is not None]
    return regions[int(np.mean(there, 0).argmax())].tolist() if there else None


def floors(
    objects: str | os.PathLike[str] | Mapping[str, Any],
    store: RegionStore | str | os.PathLike[str],
    splits: Collection[str] | None = None,
    *,
    nouns: NounMasks | None = None,
    bootstrap: int = 0,
    seed: int = 1,
) -> dict[str, Any]:
    """What needs no model, by the ``phrase`` protocol: how to read an accuracy on these regions.

    Returns ``best_possible`` (some region hits), ``top_detection`` (the region of highest detector score;
    None without scores), ``largest_region``, ``whole_image`` (the image as one box), ``random_region`` (the
    expected accuracy of a uniform choice), all of the measure ``last_noun``, and ``phrases``. ``measures`` has
    the same for ``pointing`` and, with *nouns*, for ``nouns``; ``per_type`` both by entity type. With
    *bootstrap* resamples of the images, each figure also has its 95% interval in ``intervals``.

    By default all annotated images count, with *splits* those in them.
    """
    from ..data.regions import RegionStore

    content = load_objects(objects)
    if isinstance(store, (str, os.PathLike)):
        store = RegionStore(Path(store))
    images = [
        image
        for image, captions in content["images"].items()
        if any(captions) and (splits is None or content["splits"][image] in splits)
    ]
    if not images:
        raise GroundingError("objects.json: has no boxed phrase in these splits")
    ratios = ImageRatios(len(images))
    types: set[str] = set()
    for number, image in enumerate(images):
        masks = None if nouns is None else nouns(image)
        choices = _Choices(store, image)
        for place, phrases in enumerate(content["images"][image]):
            for phrase in phrases:
                own = phrase.get("types", ())
                types.update(own)
                hits = choices.hits(phrase["boxes"])
                outcomes = [("last_noun", 1, hits), ("pointing", 1, choices.points(phrase["boxes"]))]
                if masks is not None:
                    start, stop = phrase["span"]
                    outcomes.append(("nouns", int(masks[place][start:stop].sum()), hits))
                for measure, times, shares in outcomes:
                    for name in (None, *own):
                        for floor, share in shares.items():
                            ratios.add((measure, floor, name), number, times * share, times)
    intervals = ratios.intervals(bootstrap, seed)
    measures = [measure for measure in MEASURES if ratios.sums((measure, "random_region", None))[1]]

    def report(measure: str, name: str | None) -> dict[str, Any]:
        figures: dict[str, Any] = {floor: ratios.ratio((measure, floor, name)) for floor in FLOORS}
        if intervals:
            figures["intervals"] = {floor: intervals.get((measure, floor, name)) for floor in FLOORS}
        return figures

    return {
        **report("last_noun", None),
        "phrases": int(ratios.sums(("last_noun", "random_region", None))[1]),
        "measures": {measure: report(measure, None) for measure in measures if measure != "last_noun"},
        "per_type": {name: {measure: report(measure, name) for measure in measures} for name in sorted(types)},
    }


class _Choices:
    """What an image offers to whoever must choose a region without a model."""

    def __init__(self, store: RegionStore, image: str) -> None:
        number = store.index(image)
        width, height = (float(side) for side in store.image_sizes[number])
        scores = store.scores(number)
        boxes = store.boxes(number).astype(np.float64)
        # the whole image comes last and is no region
        self.boxes = np.concatenate([boxes, [[0.0, 0.0, width, height]]])
        self.largest = int((boxes[:, 2:] - boxes[:, :2]).prod(1).argmax())
        self.top = None if scores is None else int(np.argmax(scores))

    def hits(self, targets: Sequence[Box]) -> dict[str, float]:
        return self._shares(np.asarray((region_overlaps(self.boxes, targets) > THRESHOLD).any(1)))

    def points(self, targets: Sequence[Box]) -> dict[str, float]:
        return self._shares(points_inside(centres(self.boxes), targets))

    def _shares(self, right: np.ndarray) -> dict[str, float]:
        regions = right[:-1]
        shares = {
            "best_possible": float(regions.any()),
            "largest_region": float(regions[self.largest]),
            "whole_image": float(right[-1]),
            "random_region": float(regions.mean()),
        }
        if self.top is not None:
            shares["top_detection"] = float(regions[self.top])
        return shares
