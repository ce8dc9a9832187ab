"""Bootstrap confidence intervals over images: what a score would be on other images of the same kind.

Images, not words, are drawn, because the words of one image are right or wrong together (Efron's percentile
intervals, 95%). The same seed draws the same images whatever is scored.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import Any

import numpy as np

ROUNDS = 1000
_LEVELS = (2.5, 97.5)
# resamples held at once
_BLOCK = 100

Interval = list[float]


def bootstrap_intervals(
    statistics: Callable[[np.ndarray], Mapping[Any, np.ndarray]], images: int, rounds: int, seed: int
) -> dict[Any, Interval | None]:
    """Intervals [low, high] by name of statistic; none at all for 0 rounds.

    *statistics* is given weights (B,N), how often each of N images was drawn, and returns an array (B,) a
    name. Resamples in which a statistic is NaN (nothing to divide by) are left out of it; it is None where
    none is left.
    """
    if rounds < 1 or images < 1:
        return {}
    random = np.random.default_rng(seed)
    blocks: list[Mapping[Any, np.ndarray]] = []
    for start in range(0, rounds, _BLOCK):
        drawn = random.integers(0, images, (min(_BLOCK, rounds - start), images))
        weights = np.stack([np.bincount(row, minlength=images) for row in drawn]).astype(np.float64)
        blocks.append(statistics(weights))
    found: dict[Any, Interval | None] = {}
    for name in blocks[0]:
        values = np.concatenate([block[name] for block in blocks])
        values = values[~np.isnan(values)]
        found[name] = [float(edge) for edge in np.percentile(values, _LEVELS)] if len(values) else None
    return found


class ImageRatios:
    """Ratios of sums over images, by name: hits over phrases, and the like."""

    def __init__(self, images: int) -> None:
        self.images = images
        self._sums: dict[Hashable, np.ndarray] = {}

    def add(self, name: Hashable, image: int, part: float, whole: float) -> None:
        """Add to the ratio *name* what the image number *image* has of it."""
        if name not in self._sums:
            self._sums[name] = np.zeros((self.images, 2))
        self._sums[name][image] += part, whole

    def ratio(self, name: Hashable) -> float | None:
        """The ratio over all images, None for 0/0 and for an unknown name."""
        part, whole = self.sums(name)
        return part / whole if whole else None

    def sums(self, name: Hashable) -> tuple[float, float]:
        """Part and whole over all images."""
        part, whole = self._sums[name].sum(0) if name in self._sums else (0, 0)
        return float(part), float(whole)

    def intervals(self, rounds: int, seed: int) -> dict[Any, Interval | None]:
        """The interval of each ratio."""
        return bootstrap_intervals(self._statistics, self.images, rounds, seed)

    def _statistics(self, weights: np.ndarray) -> dict[Any, np.ndarray]:
        found = {}
        for name, sums in self._sums.items():
            part, whole = np.moveaxis(weights @ sums, -1, 0)
            found[name] = np.divide(part, whole, out=np.full(len(weights), np.nan), where=whole > 0)
        return found
