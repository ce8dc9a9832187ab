"""Do explanations point at the object: relevance inside the box of the word that is explained.

After "Understanding Image Captioning Models beyond Visualizing Attention" (Sun et al., arXiv 2001.01037): of an object
word's positive relevance, the share that lies inside the object's box; of several boxes the best one counts. Only
relevance of at least a threshold times the highest is kept, thresholds from 0 to 0.9 (its released code cuts all boxes
after the first at 0.9; here each is cut as it should be). Relevance of a region is spread evenly over its area.
"""

from __future__ import annotations

import zlib
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import GroundingError
from .controlled import ControlledMeans
from .explained import ExplainedCaption, ExplainedWord, Explanations
from .iou import THRESHOLD, Box, centres, points_inside, region_overlaps, shares_inside

if TYPE_CHECKING:
    from ..data.regions import RegionStore

THRESHOLDS = tuple(number / 10 for number in range(10))

# permutations of a word's relevance that its control is the mean of
_SHUFFLES = 10


def mass_inside(relevance: np.ndarray, shares: np.ndarray, thresholds: Sequence[float] = THRESHOLDS) -> np.ndarray:
    """The share of positive relevance inside the best box, for each of H thresholds.

    Args:
        relevance: (...,R) of regions, signed
        shares: (R,T) of each region's area, inside each of T boxes
        thresholds: relevance below that times the highest is left out

    Returns:
        (...,H); 0 where no relevance is positive: then none is inside
    """
    positive = relevance.clip(min=0)[..., None, :]
    least = np.asarray(thresholds)[:, None] * positive.max(-1, keepdims=True)
    kept = np.where(positive >= least, positive, 0.0)
    total = kept.sum(-1)
    return np.divide((kept @ shares).max(-1), total, out=np.zeros_like(total), where=total > 0)


def score_correctness(
    explanations: Explanations,
    objects: Mapping[str, Any],
    store: RegionStore,
    max_regions: int,
    rounds: int,
    seed: int,
) -> dict[str, Any]:
    """Hold the relevance of object words against the boxes of their objects.

    In a ground-truth caption a word's boxes are those of its own phrase, in one that the model wrote all that any
    reference caption of the image has for its class.

    Returns:
        ``figures`` (:mod:`.controlled`), each a mean over words. ``measure``:

        - ``mass``, ``at`` a threshold: :func:`mass_inside`; control: the same relevance on the regions in random order
        - ``pointing``: the region of the highest relevance overlaps a box by more than half; ``pointing_centre``: its
          centre lies in one. Among equals the mean over them. Control: a random region, exactly
        - ``box_area``: the mass inside the best box of relevance that is spread evenly over the whole image; control:
          the same

        ``per_class``: ``words`` and the means of ``mass`` (threshold 0), ``pointing`` and ``box_area``; counts of
        ``words_without_box`` (object words) and ``words_without_positive``

    Raises:
        GroundingError: nothing to score, regions that are not the store's, or captions of another folder
    """
    explanations.check_whole_words()
    if not store.has_boxes:
        raise GroundingError(f"{store.path}: its regions have no boxes, so none can be inside an object's")
    annotated = [caption for caption in explanations.captions if caption.image in objects["images"]]
    means = ControlledMeans([caption.image for caption in annotated])
    classes: dict[str, list[float]] = {}
    missing = empty = 0
    for caption in annotated:
        targets_of = _Targets(explanations.name, caption, objects)
        regions = store.boxes(store.index(caption.image), limit=max_regions).astype(np.float64)
        width, height = (float(side) for side in store.image_sizes[store.index(caption.image)])
        for word in caption.words:
            name = targets_of.name(word)
            targets = [] if name is None else targets_of.boxes(word, name)
            if name is None or not targets:
                missing += name is not None
                continue
            _check_regions(explanations.name, caption, word, regions, store)
            shares = shares_inside(regions, targets)
            mass = mass_inside(word.regions, shares)
            random = np.random.default_rng([seed, zlib.crc32(caption.image.encode()), word.place])
            orders = np.array([random.permutation(len(regions)) for _ in range(_SHUFFLES)])
            shuffled = mass_inside(word.regions[orders], shares).mean(0)
            for threshold, value, control in zip(THRESHOLDS, mass, shuffled):
                means.add({"measure": "mass", "at": threshold}, caption.image, float(value), float(control))
            highest = word.regions == word.regions.max()
            overlapping = np.any(region_overlaps(regions, targets) > THRESHOLD, axis=1)
            pointing = float(overlapping[highest].mean())
            means.add({"measure": "pointing"}, caption.image, pointing, float(overlapping.mean()))
            inside = points_inside(centres(regions), targets)
            means.add(
                {"measure": "pointing_centre"}, caption.image, float(inside[highest].mean()), float(inside.mean())
            )
            area = float(shares_inside([[0.0, 0.0, width, height]], targets).max())
            means.add({"measure": "box_area"}, caption.image, area, area)
            empty += not bool((word.regions > 0).any())
            own = classes.setdefault(name, [0.0] * 4)
            for number, part in enumerate((1.0, float(mass[0]), pointing, area)):
                own[number] += part
    if not classes:
        raise GroundingError(
            f"{explanations.name}: explains no object word that objects.json has a box of; explain a split that has"
            " boxes"
        )
    return {
        "figures": means.figures(rounds, seed),
        "per_class": {
            name: {"words": int(words), "mass": mass / words, "pointing": hits / words, "box_area": area / words}
            for name, (words, mass, hits, area) in sorted(classes.items())
        },
        "words_without_box": missing,
        "words_without_positive": empty,
        "images": len({caption.image for caption in annotated}),
        "images_not_annotated": len({caption.image for caption in explanations.captions} - set(objects["images"])),
    }


class _Targets:
    """The classes of a caption's words, and the boxes of each."""

    def __init__(self, file: str, caption: ExplainedCaption, objects: Mapping[str, Any]) -> None:
        captions = objects["images"][caption.image]
        self._lemmas = objects["lemmas"]
        self._classes: Collection[str] = objects["classes"]
        self._own: Sequence[Mapping[str, Any]] | None = None
        self._all = [entry for own in captions for entry in own]
        if caption.row["reference"]:
            number = caption.row["caption_index"]
            if number is None or number >= len(captions):
                raise GroundingError(
                    f"{file}: image {caption.image}: the ground-truth caption_index is {number}, and objects.json has"
                    f" {len(captions)} captions of it; give the --data that was explained"
                )
            self._own = captions[number]

    def name(self, word: ExplainedWord) -> str | None:
        """The class of a word, None for one that is no object word."""
        lemma = self._lemmas.get(word.token, word.token)
        return lemma if lemma in self._classes else None

    def boxes(self, word: ExplainedWord, name: str) -> list[Box]:
        if self._own is not None:
            return [box for entry in self._own if entry["word"] == word.place for box in entry["boxes"]]
        boxes = [tuple(box) for entry in self._all if entry["class"] == name for box in entry["boxes"]]
        return list(dict.fromkeys(boxes))


def _check_regions(
    file: str, caption: ExplainedCaption, word: ExplainedWord, regions: np.ndarray, store: RegionStore
) -> None:
    if len(word.regions) != len(regions):
        raise GroundingError(
            f"{file}: image {caption.image}: has relevance of {len(word.regions)} regions, and {store.path} has"
            f" {len(regions)}; give the --regions and --max-regions that were explained"
        )
