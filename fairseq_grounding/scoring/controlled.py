"""Figures beside their random control: means over words of both and of their difference, with bootstrap intervals.

A figure is a dictionary: ``measure``, ``at`` and ``group``, where they tell figures apart; ``value``, ``control`` and
``difference`` (value minus control), each with ``..._interval`` (95%, images drawn; the two of a difference are drawn
together); and ``words``, over how many it is. None stands for what cannot be measured.
"""

from __future__ import annotations

import csv
import os
from collections.abc import Mapping, Sequence
from typing import Any

from ..files import writing
from .bootstrap import ImageRatios, Interval

Figure = dict[str, Any]

SIDES = ("value", "control", "difference")
_NAMES = ("group", "at", "measure")


def figure(
    names: Mapping[str, Any],
    values: Mapping[str, float | None],
    intervals: Mapping[str, Interval | None],
    words: int,
) -> Figure:
    """A figure of its *values* and *intervals*, both by the names in :data:`SIDES`; missing ones are None."""
    found = dict(names)
    for side in SIDES:
        found[side] = values.get(side)
        found[f"{side}_interval"] = intervals.get(side)
    return {**found, "words": words}


class ControlledMeans:
    """Means over words, by name, each beside its control.

    A name is the items of what :func:`figure` calls names: ``(("measure", "fall"), ("at", "3"))``.
    """

    def __init__(self, images: Sequence[str]) -> None:
        self._numbers = {image: number for number, image in enumerate(dict.fromkeys(images))}
        self._ratios = ImageRatios(len(self._numbers))
        self._names: dict[tuple[tuple[str, Any], ...], None] = {}

    def add(self, names: Mapping[str, Any], image: str, value: float, control: float) -> None:
        """One more word of *image*."""
        key = tuple(names.items())
        self._names[key] = None
        for side, part in zip(SIDES, (value, control, value - control)):
            self._ratios.add((key, side), self._numbers[image], part, 1)

    def figures(self, rounds: int, seed: int) -> list[Figure]:
        """All means, in the order in which their names first came."""
        intervals = self._ratios.intervals(rounds, seed)
        return [
            figure(
                dict(key),
                {side: self._ratios.ratio((key, side)) for side in SIDES},
                {side: intervals.get((key, side)) for side in SIDES},
                int(self._ratios.sums((key, "value"))[1]),
            )
            for key in self._names
        ]


def write_figures(path: str | os.PathLike[str], results: Sequence[Mapping[str, Any]]) -> None:
    """Write the figures of several explanations as CSV, a line a figure.

    *results* have ``explanations`` (a path), ``method``, and ``experiments``, whose ``figures`` are written; cells of
    what is None are empty.
    """
    sides = [name for side in SIDES for name in (side, f"{side}_low", f"{side}_high")]
    with writing(path) as temporary, open(temporary, "w", newline="", encoding="utf-8", errors="replace") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(["explanations", "method", "experiment", *_NAMES, *sides, "words"])
        for result in results:
            for name, experiment in result["experiments"].items():
                for each in experiment["figures"]:
                    cells = [each.get(column, "") for column in _NAMES]
                    for side in SIDES:
                        cells += [each[side], *(each[f"{side}_interval"] or (None, None))]
                    written = ["" if cell is None else cell for cell in (*cells, each["words"])]
                    table.writerow([result["explanations"], result["method"], name, *written])
