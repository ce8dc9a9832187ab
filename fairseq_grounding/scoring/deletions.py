"""Does a word need what explains it: what becomes of it when its most relevant inputs are deleted.

After "Understanding Image Captioning Models beyond Visualizing Attention" (Sun et al., arXiv 2001.01037). Region
ablation deletes the most relevant part of the image (the released code: 20 of 784 patches, for object words after the
first word), decodes again and counts words that vanished, and how far the probability of others falls. Word ablation
deletes the most relevant of the words before (3, of words that have at least 6 before them; never the start symbol) and
looks at the probability, for object words and for stop words. Random deletions are the control.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import GroundingError
from .controlled import ControlledMeans

ALL = "all"


@dataclass(frozen=True)
class Amount:
    """How much is deleted: so many, or a share of what there is, of which at least one is deleted."""

    number: float
    share: bool = False

    @classmethod
    def parse(cls, text: str, flag: str) -> Amount:
        """``3`` or ``20%``; *flag* names it in errors."""
        number, share = text.removesuffix("%") if text.endswith("%") else text, text.endswith("%")
        try:
            found = cls(float(number) / 100, True) if share else cls(int(number))
        except ValueError:
            found = cls(0)
        if not 0 < found.number < math.inf or (share and found.number > 1):
            raise GroundingError(f"{flag} {text}: give a number from 1 on, or percent up to 100%")
        return found

    def of(self, there: int) -> int:
        """How many of *there*."""
        # a share in binary may lie a little above the integer that is meant
        return min(there, max(1, math.ceil(self.number * there - 1e-9)) if self.share else int(self.number))

    def __str__(self) -> str:
        return f"{100 * self.number:g}%" if self.share else str(self.number)


def most_relevant(relevance: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Numbers (R,) in the order of falling relevance (R,), equals in random order."""
    return np.lexsort((random.random(len(relevance)), -relevance))


@dataclass(frozen=True)
class Deletion:
    """What became of one word, for each of A amounts.

    Attributes:
        image: its image
        group: what kind of word it is
        before: its probability
        after: (A,) its probability when so much of the most relevant is deleted; control: (A,) of what was drawn
        gone: (A,) whether the word is not in the caption that is then decoded; gone_control: (A,); both None for words
            that are not decoded from the whole image either, and where nothing was decoded
    """

    image: str
    group: str
    before: float
    after: Sequence[float]
    control: Sequence[float]
    gone: Sequence[bool] | None = None
    gone_control: Sequence[bool] | None = None


def score_deletions(deletions: Sequence[Deletion], amounts: Sequence[Amount], rounds: int, seed: int) -> dict[str, Any]:
    """Means over words, all and by group.

    Returns:
        ``figures`` (:mod:`.controlled`): ``group``, ``at`` an amount, ``measure`` ``fall`` (of the probability) and
        ``gone`` (share of words that vanish from the decoded caption, of those that the whole image gives); control:
        random deletions
    """
    means = ControlledMeans([deletion.image for deletion in deletions])
    groups = sorted({deletion.group for deletion in deletions})
    for group in (ALL, *groups) if len(groups) > 1 else groups:
        own = [deletion for deletion in deletions if group in (ALL, deletion.group)]
        for number, amount in enumerate(amounts):
            names = {"group": group, "at": str(amount)}
            for word in own:
                fall, control = (word.before - side[number] for side in (word.after, word.control))
                means.add({**names, "measure": "fall"}, word.image, fall, control)
            for word in own:
                if word.gone is not None and word.gone_control is not None:
                    gone = float(word.gone[number]), float(word.gone_control[number])
                    means.add({**names, "measure": "gone"}, word.image, *gone)
    return {"figures": means.figures(rounds, seed)}
