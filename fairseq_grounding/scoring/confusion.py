"""Where wrong attention went: which annotated thing the attended box overlaps most."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from .iou import Box, region_overlaps

BACKGROUND = "(background)"
NOTHING = "(nothing)"
# an attended box that shares less with every annotated one than this is on the background
_LEAST_OVERLAP = 0.1

Miss = tuple[str, str, "Box | None"]
"""an image, the class that was looked for, the attended box"""


def confusion(misses: Iterable[Miss], objects: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Count misses by (``said``, ``attended``), the most frequent first.

    ``attended`` is the name of the annotated box of the image that the attended box overlaps most: the class
    or, where its noun is too rare to be one, the lemma. Of several names of one box the class that was said
    is taken, which then means the right thing, hit too loosely; else the most used name. Below an overlap of
    0.1 it is ``(background)``; where the word attended to nothing, ``(nothing)``.
    """
    by_image: defaultdict[str, list[tuple[str, Box | None]]] = defaultdict(list)
    for image, name, box in misses:
        by_image[image].append((name, box))
    counts: Counter[tuple[str, str]] = Counter()
    for image, own in by_image.items():
        names = _names_of_boxes(objects, image)
        placed = [(name, box) for name, box in own if box is not None]
        counts.update((name, NOTHING) for name, box in own if box is None)
        if not names:
            counts.update((name, BACKGROUND) for name, _ in placed)
            continue
        overlaps = region_overlaps([box for _, box in placed], list(names))
        for (name, _), row in zip(placed, overlaps):
            if row.max() < _LEAST_OVERLAP:
                counts[name, BACKGROUND] += 1
                continue
            box_names = names[list(names)[int(np.argmax(row))]]
            counts[name, name if name in box_names else _most_used(box_names)] += 1
    order = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return [{"said": said, "attended": attended, "count": count} for (said, attended), count in order]


def outline(rows: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """The rows of :func:`confusion` by what was attended to: the same class, another thing, or none."""
    counts = {"same_class": 0, "another": 0, "background": 0, "nothing": 0}
    for row in rows:
        if row["attended"] in (BACKGROUND, NOTHING):
            counts["background" if row["attended"] == BACKGROUND else "nothing"] += row["count"]
        else:
            counts["same_class" if row["attended"] == row["said"] else "another"] += row["count"]
    return counts


def _names_of_boxes(objects: Mapping[str, Any], image: str) -> dict[tuple[float, ...], Counter[str]]:
    names: defaultdict[tuple[float, ...], Counter[str]] = defaultdict(Counter)
    for words, entries in zip(objects["tokens"][image], objects["images"][image]):
        for entry in entries:
            word = words[entry["word"]]
            name = entry["class"] or objects["lemmas"].get(word, word)
            for box in entry["boxes"]:
                names[tuple(box)][name] += 1
    return dict(names)


def _most_used(names: Counter[str]) -> str:
    return min(names, key=lambda name: (-names[name], name))
