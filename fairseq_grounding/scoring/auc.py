"""Area under the ROC curve, for resamples of images at once."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np


class WeightedAuc:
    """How often a positive item has the higher score than a negative one; ties count half.

    Every pair counts as often as its two images were drawn. With *groups*, only pairs of one group are compared.

    Args:
        scores: (n,)
        positive: (n,) bool
        images: (n,) the number of each item's image
        groups: (n,) what items belong to
    """

    def __init__(self, scores: Any, positive: Any, images: Any, groups: Sequence[Hashable] | None = None) -> None:
        numbers = {group: number for number, group in enumerate(dict.fromkeys(groups or ()))}
        group = np.array([numbers[each] for each in groups]) if groups is not None else np.zeros(len(scores), int)
        scores = np.asarray(scores, np.float64)
        order = np.lexsort((scores, group))
        group, scores = group[order], scores[order]
        self._positive = np.asarray(positive, bool)[order]
        self._images = np.asarray(images, int)[order]
        self._group = _ends(group[1:] != group[:-1])
        self._tied = _ends((group[1:] != group[:-1]) | (scores[1:] != scores[:-1]))

    def __call__(self, weights: np.ndarray) -> np.ndarray:
        """Weights (B,N) of N images -> (B,), NaN where there is no pair."""
        items = weights[:, self._images]
        negative = np.zeros((len(items), items.shape[1] + 1))
        np.cumsum(items * ~self._positive, 1, out=negative[:, 1:])
        own = items[:, self._positive]
        (first, last), (low, high) = (
            (begin[self._positive], end[self._positive]) for begin, end in (self._group, self._tied)
        )
        won = negative[:, low] - negative[:, first] + (negative[:, high] - negative[:, low]) / 2
        pairs = (own * (negative[:, last] - negative[:, first])).sum(1)
        return np.divide((own * won).sum(1), pairs, out=np.full(len(items), np.nan), where=pairs > 0)


def _ends(changes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """For each item the begin and the end of the run that it is in; *changes* (n-1,): a run ends after the item."""
    cuts = np.concatenate([[0], np.flatnonzero(changes) + 1, [len(changes) + 1]])
    run = np.concatenate([[0], np.cumsum(changes)]).astype(int)
    return cuts[run], cuts[run + 1]
