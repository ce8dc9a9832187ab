"""Suppression of regions that say again what a better one of the same image said."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .iou import box_overlaps


def suppress(boxes: Any, ranks: Sequence[float], threshold: float, texts: Sequence[str] | None = None) -> list[int]:
    """Which regions are kept when, best first, each takes its near-duplicates away.

    Args:
        boxes: (R,4) x0 y0 x1 y1
        ranks: R numbers, the highest is the best; of equal ones the first
        threshold: a region goes where its intersection over union with a kept one is above it
        texts: R captions; with them a region goes only where the kept one's caption is its own too

    Returns:
        the kept regions' numbers, best first
    """
    overlaps = box_overlaps(boxes, boxes)
    alike = overlaps > threshold
    if texts is not None:
        names = np.asarray(texts, dtype=object)
        alike &= names[:, None] == names[None, :]
    gone = np.zeros(len(ranks), dtype=bool)
    kept = []
    for region in np.argsort(-np.asarray(ranks, dtype=np.float64), kind="stable").tolist():
        if not gone[region]:
            kept.append(region)
            gone |= alike[region]
    return kept
