"""Overlap of boxes: the published evaluation's, in inclusive pixels, and the exact one of a region's area."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

THRESHOLD = 0.5

# an annotated box ends after its last pixel
_LAST_PIXEL = np.array([0.0, 0.0, 1.0, 1.0])

Box = Sequence[float]


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


def region_overlaps(regions: Any, targets: Any) -> np.ndarray:
    """Intersection over union (R,T) of regions (R,4) and annotated boxes (T,4), as :func:`hits_region` has it."""
    return box_overlaps(regions, np.asarray(targets, np.float64).reshape(-1, 4) + _LAST_PIXEL)


def box_overlaps(boxes: Any, others: Any) -> np.ndarray:
    """Intersection over union (A,B) of boxes (A,4) and others (B,4) as areas; 0 where both boxes are empty."""
    shared, areas = _shared_areas(boxes, others)
    union = areas[0] + areas[1] - shared
    return np.divide(shared, union, out=np.zeros_like(shared), where=union > 0)


def shares_inside(regions: Any, targets: Any) -> np.ndarray:
    """The share (R,T) of each region's area (R,4) that lies in each annotated box (T,4); 0 for an empty region."""
    shared, areas = _shared_areas(regions, np.asarray(targets, np.float64).reshape(-1, 4) + _LAST_PIXEL)
    return np.divide(shared, areas[0], out=np.zeros_like(shared), where=areas[0] > 0)


def points_inside(points: Any, targets: Any) -> np.ndarray:
    """Whether points (P,2) lie in a pixel of one of the annotated boxes (T,4): (P,) bool."""
    first = np.asarray(points, np.float64).reshape(-1, 1, 2)
    second = np.asarray(targets, np.float64).reshape(1, -1, 4) + _LAST_PIXEL
    inside = (first >= second[..., :2]) & (first < second[..., 2:])
    return np.asarray(inside.all(-1).any(-1))


def centres(boxes: Any) -> np.ndarray:
    """Centres (R,2) of boxes (R,4)."""
    corners = np.asarray(boxes, np.float64).reshape(-1, 4)
    return (corners[:, :2] + corners[:, 2:]) / 2


def _shared_areas(boxes: Any, others: Any) -> tuple[np.ndarray, tuple[np.ndarray, np.ndarray]]:
    """Areas that boxes (A,4) and others (B,4) share (A,B), and their own (A,1) and (1,B)."""
    first = np.asarray(boxes, np.float64).reshape(-1, 1, 4)
    second = np.asarray(others, np.float64).reshape(1, -1, 4)
    sides = np.minimum(first[..., 2:], second[..., 2:]) - np.maximum(first[..., :2], second[..., :2])
    own, other = ((corners[..., 2:] - corners[..., :2]).prod(-1) for corners in (first, second))
    return sides.clip(min=0).prod(-1), (own, other)


def _is_one_pixel(box: Box) -> bool:
    return box[0] == box[2] and box[1] == box[3]


def _overlap(first: Box, second: Box, pixel: float) -> float:
    width = min(first[2], second[2]) - max(first[0], second[0]) + pixel
    height = min(first[3], second[3]) - max(first[1], second[1]) + pixel
    if width <= 0 or height <= 0:
        return 0.0
    areas = sum((box[2] - box[0] + pixel) * (box[3] - box[1] + pixel) for box in (first, second))
    return width * height / (areas - width * height)
