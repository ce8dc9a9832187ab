"""Explanations as ``fairseq-grounding explain`` writes them: grounding dumps with a ``relevance`` in every step."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..dump import read_dump
from ..errors import GroundingError

_AGAIN = "write them with fairseq-grounding explain"


@dataclass(frozen=True)
class ExplainedWord:
    """A word of a caption and what explains it.

    Attributes:
        place: in the caption, 0 the first
        token: the word
        regions: (R,) signed relevance of the image's regions
        words: (place,) that of the words before; start: that of the start symbol
        explained: the number that is explained
        sentinel: what of it went through the sentinel
        attention: (R,) the captioner's own, None where it gives none
        logprob: the word's log-probability, None where it is not known
    """

    place: int
    token: str
    regions: np.ndarray
    words: np.ndarray
    start: float
    explained: float
    sentinel: float
    attention: np.ndarray | None
    logprob: float | None


@dataclass(frozen=True)
class ExplainedCaption:
    """A caption's row of the file, relevance taken out, and those of its words that were explained."""

    row: Mapping[str, Any]
    words: list[ExplainedWord]

    @property
    def image(self) -> str:
        return str(self.row["image_id"])


@dataclass(frozen=True)
class Explanations:
    """A file of explanations.

    Attributes:
        name: its path
        method: that all of its captions were explained by
        captions: in the order of the file
    """

    name: str
    method: str
    captions: list[ExplainedCaption]

    def written(self) -> Iterator[ExplainedCaption]:
        """The first caption that the model wrote of each image."""
        seen = set()
        for caption in self.captions:
            if not caption.row["reference"] and caption.image not in seen:
                seen.add(caption.image)
                yield caption

    def check_whole_words(self) -> None:
        """Refuse captions of pieces: their words are not those of an annotation."""
        for caption in self.captions:
            if len(caption.row["tokens"]) > len(caption.row["text"].split()):
                raise GroundingError(
                    f"{self.name}: image {caption.image}: explains pieces of words, which annotations do not know; use"
                    " --experiments regions words --all-words"
                )


def read_explanations(path: str | os.PathLike[str]) -> Explanations:
    """Read a file of explanations, JSON lines.

    Raises:
        GroundingError: it is no grounding dump, holds no relevance or that of a word which the caption does not have,
            or is of several methods
    """
    captions: list[ExplainedCaption] = []
    method: str | None = None
    for number, row in enumerate(read_dump(path), 1):
        where = f"{path}, line {number}"
        made = row.get("explained")
        if not isinstance(made, Mapping) or not isinstance(made.get("method"), str):
            raise GroundingError(f"{where}: holds no relevance; {_AGAIN}")
        if made.get("word") is not None:
            raise GroundingError(
                f"{where}: explains {made['word']!r} in place of the caption's words; explain without --word"
            )
        method = method or made["method"]
        if made["method"] != method:
            raise GroundingError(f"{where}: is explained by {made['method']}, lines before by {method}; a file each")
        words = []
        for place, step in enumerate(row["steps"]):
            relevance = step.pop("relevance", None)
            if relevance is not None:
                words.append(_word(place, step, relevance, where))
        captions.append(ExplainedCaption(row, words))
    if not any(caption.words for caption in captions):
        raise GroundingError(f"{path}: holds no relevance; {_AGAIN}")
    assert method is not None
    return Explanations(str(path), method, captions)


def _word(place: int, step: Mapping[str, Any], relevance: Any, where: str) -> ExplainedWord:
    names = ("start", "logit", "sentinel")
    try:
        regions, words = (np.array(relevance[name], np.float64) for name in ("regions", "words"))
        start, explained, sentinel = (float(relevance[name]) for name in names)
    except (TypeError, ValueError, KeyError) as error:
        raise GroundingError(f"{where}: step {place}: its relevance cannot be read; {_AGAIN}") from error
    if regions.ndim != 1 or not len(regions) or words.shape != (place,):
        raise GroundingError(
            f"{where}: step {place}: has relevance of {regions.size} regions and {words.size} words, and {place} words"
            f" come before; {_AGAIN}"
        )
    if not (np.isfinite(regions).all() and np.isfinite(words).all() and math.isfinite(start + explained + sentinel)):
        raise GroundingError(f"{where}: step {place}: its relevance is not finite; {_AGAIN}")
    attention = None if step["attention"] is None else np.array(step["attention"], np.float64)
    return ExplainedWord(place, step["token"], regions, words, start, explained, sentinel, attention, step["logprob"])
