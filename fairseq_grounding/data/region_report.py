"""What is in a region store, and what is broken in it: the whole store read once, in blocks."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from tqdm import tqdm

from .regions import RegionStore, broken_boxes

NAMED = 5
"""how many images of each fault are named"""


def describe_store(store: RegionStore) -> dict[str, Any]:
    """Measure a region store.

    Memory does not grow with the size of the features. Values that are NaN or infinite are left out of the
    features' range, mean and standard deviation (that of all values, not of a sample).

    Returns:
        What can be written as JSON; ``broken`` maps each fault to the number of ``rows`` (regions; for images
        without any, images), the number of ``images`` and the first ids of these.

    Raises:
        GroundingError: the file is damaged somewhere.
    """
    images_of_rows = _Faults(store)
    counts = store.counts
    report: dict[str, Any] = {
        "file": str(store.path),
        "bytes": store.path.stat().st_size,
        "source": store.source,
        "decisions": store.decisions,
        "has_boxes": store.has_boxes,
        "images": len(store),
        "regions": store.rows,
        "regions_per_image": {
            "min": int(counts.min()) if len(store) else None,
            "mean": float(counts.mean()) if len(store) else None,
            "max": int(counts.max()) if len(store) else None,
        },
        "feature_size": store.feature_size,
        "dtype": store.dtype.name,
        "labels": store.has_labels,
        "scores": store.has_scores,
    }
    with tqdm(total=store.rows, desc="inspect", unit=" regions", unit_scale=True, disable=None) as bar:
        report["features"] = _feature_values(store, images_of_rows, bar)
    sizes = np.repeat(np.arange(len(store)), counts)
    for start, boxes in store.blocks("boxes"):
        bad, outside = broken_boxes(boxes, store.image_sizes[sizes[start : start + len(boxes)]])
        images_of_rows.note("boxes that are no boxes", start, bad)
        images_of_rows.note("boxes outside the image", start, outside)
    if store.has_scores:
        for start, scores in store.blocks("scores"):
            images_of_rows.note("scores that are NaN or infinite", start, ~np.isfinite(scores))
    report["broken"] = images_of_rows.report()
    report["content_hash"] = store.content_hash()
    return report


class _Faults:
    """Which rows and images have which fault."""

    def __init__(self, store: RegionStore) -> None:
        self.store = store
        self.rows: dict[str, int] = {}
        self.images: dict[str, set[int]] = {}
        empty = np.flatnonzero(store.counts == 0)
        if len(empty):
            self.rows["images without regions"] = len(empty)
            self.images["images without regions"] = set(empty.tolist())

    def note(self, fault: str, start: int, wrong: np.ndarray) -> None:
        """Count the rows from *start* on where *wrong* is true."""
        rows = start + np.flatnonzero(wrong)
        if len(rows):
            images = np.searchsorted(self.store.offsets, rows, side="right") - 1
            self.rows[fault] = self.rows.get(fault, 0) + len(rows)
            self.images.setdefault(fault, set()).update(images.tolist())

    def report(self) -> dict[str, dict[str, Any]]:
        return {
            fault: {
                "rows": rows,
                "images": len(self.images[fault]),
                "ids": [self.store.image_ids[n] for n in sorted(self.images[fault])[:NAMED]],
            }
            for fault, rows in self.rows.items()
        }


def _feature_values(store: RegionStore, faults: _Faults, bar: tqdm) -> dict[str, Any]:
    seen, mean, squares = 0, 0.0, 0.0
    low, high = math.inf, -math.inf
    nan = infinite = 0
    for start, block in store.blocks("features"):
        finite = np.isfinite(block)
        if not finite.all():
            faults.note("features that are NaN or infinite", start, ~finite.all(axis=1))
            here = int(np.isnan(block).sum())
            nan, infinite = nan + here, infinite + int((~finite).sum()) - here
        values = block[finite].astype(np.float64) if not finite.all() else block.astype(np.float64)
        if values.size:
            low, high = min(low, float(values.min())), max(high, float(values.max()))
            # moments of blocks are merged (Chan, Golub, LeVeque 1979): a large mean then costs no digits
            here_mean = float(values.mean())
            gap, total = here_mean - mean, seen + values.size
            squares += float(((values - here_mean) ** 2).sum()) + gap * gap * seen * values.size / total
            mean += gap * values.size / total
            seen = total
        bar.update(len(block))
    return {
        "min": low if seen else None,
        "max": high if seen else None,
        "mean": mean if seen else None,
        "std": math.sqrt(squares / seen) if seen else None,
        "nan": nan,
        "infinite": infinite,
    }
