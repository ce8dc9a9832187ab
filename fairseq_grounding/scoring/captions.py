"""Corpus scores of generated captions, by the tools that published results use (pycocoevalcap).

BLEU, METEOR, ROUGE-L, CIDEr and SPICE after the PTB tokenizer. The tokenizer, METEOR and SPICE are Java
programs; what cannot run here is left out, and :attr:`CaptionScorer.notes` says so.

Two of the scores are CIDEr. What pycocoevalcap calls CIDEr, and papers quote, clips counts and has the Gaussian
length penalty: it is CIDEr-D already. It counts document frequencies on the references of the images that are
scored, so that a caption's score depends on which other images are. ``cider_d`` is the same formula as
self-critical training is rewarded by: on the prepared folder's token ids (rare words are ``<unk>``, the end of
the sentence is a token), with the document frequencies of the training images.
"""

from __future__ import annotations

import csv
import importlib
import math
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any

from ..dump import read_dump
from ..errors import GroundingError
from ..files import writing
from ..java import (
    JavaError,
    JavaTimeout,
    Meteor,
    java_version,
    missing_spice_jars,
    one_line,
    spice,
    spice_advice,
    tokenize,
)
from .cider import CiderD

NAMES = ("bleu1", "bleu2", "bleu3", "bleu4", "meteor", "rouge_l", "cider", "cider_d", "spice")
JAVA_TIMEOUT = 3600.0

Score = tuple[float, Sequence[float]]


class TokenCiderD:
    """CIDEr-D of captions given as words, on token ids.

    *index* gives a word's id (``Dictionary.index``), *end* is the id of the end of the sentence, *references* are
    the token ids of each image's captions, the end included, and *document_frequency* is as
    :meth:`fairseq_grounding.scoring.cider.CiderD.from_references` takes it.
    """

    def __init__(
        self,
        index: Callable[[str], int],
        end: int,
        references: Mapping[str, Sequence[Sequence[int]]],
        document_frequency: tuple[Any, Any, Any],
    ) -> None:
        self._index = index
        self._end = end
        self._row = {image: row for row, image in enumerate(references)}
        self._scorer = CiderD.from_references(list(references.values()), document_frequency)

    def score(self, captions: Mapping[str, str]) -> list[float]:
        """CIDEr-D (0 to 10) of each image's caption, in the order of *captions*."""
        tokens = [[*map(self._index, caption.split()), self._end] for caption in captions.values()]
        return self._scorer.score(tokens, [self._row[image] for image in captions]).tolist()


class CaptionScorer:
    """Score captions against references, several sets of captions one after another.

    *raw* maps an image to its captions as people wrote them: what the PTB tokenizer is given. *words* maps
    it to the same captions as words joined by spaces: what is scored where Java is missing. *token_cider* adds
    ``cider_d``. A Java program that is not done with one set of captions after *java_timeout* seconds is ended,
    and its score left out. ``notes`` has a line for everything that is left out or done differently, and why.
    METEOR takes seconds to start, so its program stays: leave a ``with`` block around the scorer, or
    :meth:`close` it. Raises :class:`GroundingError` without pycocoevalcap.
    """

    def __init__(
        self,
        raw: Mapping[str, Sequence[str]],
        words: Mapping[str, Sequence[str]],
        *,
        token_cider: TokenCiderD | None = None,
        java_timeout: float = JAVA_TIMEOUT,
    ) -> None:
        try:
            importlib.import_module("pycocoevalcap")
        except ImportError as error:
            raise GroundingError(
                "evaluate captions needs pycocoevalcap: pip install 'fairseq-grounding[metrics]'"
            ) from error
        self.notes: list[str] = []
        self._token_cider = token_cider
        self._timeout = java_timeout
        self._meteor: Meteor | None = None
        self._java: int | None = None
        self._spice_cache: tempfile.TemporaryDirectory[str] | None = None
        self._tokenizes = self._runs_meteor = self._runs_spice = True
        self._scored = 0
        self._words = {image: [one_line(c) for c in captions] for image, captions in words.items()}
        self._references = self._words
        try:
            self._java = java_version()
        except JavaError as error:
            self._no_tokenizer(error)
            self._runs_meteor = self._runs_spice = False
            self.notes.append(f"METEOR and SPICE are skipped: {error}")
            return
        missing = missing_spice_jars()
        if missing:
            self._runs_spice = False
            self.notes.append(f"SPICE is skipped: its parser is not installed (no {', '.join(missing)})")
        # it gets ready while the tokenizer runs
        self._start_meteor()
        try:
            self._references = tokenize(raw, self._timeout)
        except JavaError as error:
            self._no_tokenizer(error)

    def score(self, captions: Mapping[str, str]) -> dict[str, Any]:
        """The scores of one caption an image, against all references of these images.

        Returns those of ``bleu1``..``bleu4``, ``meteor``, ``rouge_l``, ``cider``, ``cider_d``, ``spice`` that can
        be had, as fractions (CIDEr: 0 to 10), ``images``, ``tokenizer`` (``"ptb"``, or None where words are scored
        as they are), and ``per_image`` with the scores of each image. A score that is no number is None.
        """
        unknown = [image for image in captions if image not in self._references]
        if unknown:
            raise GroundingError(f"image {unknown[0]}: has no reference captions")
        if not captions:
            raise GroundingError("there are no captions to score")
        said = {image: one_line(caption) for image, caption in captions.items()}
        if self._tokenizes:
            try:
                tokens = tokenize({image: [caption] for image, caption in said.items()}, self._timeout)
                said = {image: caption for image, (caption,) in tokens.items()}
            except JavaError as error:
                self._no_tokenizer(error)
        references = {image: self._references[image] for image in captions}
        self._scored += 1

        found: dict[str, Score] = {}
        with ThreadPoolExecutor(1) as beside:
            # METEOR is a program of its own: the others are computed meanwhile
            meteor = beside.submit(self._score_meteor, references, said)
            try:
                found.update(_score_here(references, said))
                if self._token_cider is not None:
                    each = self._token_cider.score(captions)
                    found["cider_d"] = (math.fsum(each) / len(each), each)
                self._add_spice(found, references, said)
            except BaseException:
                self.close()
                raise
            score = meteor.result()
            if score is not None:
                found["meteor"] = score
        result: dict[str, Any] = {name: _number(found[name][0]) for name in NAMES if name in found}
        result["images"] = len(captions)
        result["tokenizer"] = "ptb" if self._tokenizes else None
        result["per_image"] = {
            image: {name: _number(found[name][1][place]) for name in NAMES if name in found}
            for place, image in enumerate(captions)
        }
        return result

    def _no_tokenizer(self, why: JavaError) -> None:
        self._tokenizes = False
        self._references = self._words
        which = f" from dump {self._scored + 1} on" if self._scored else ""
        self.notes.append(
            f"the scores{which} are of the words as they are, without the PTB tokenizer, and so not comparable with "
            f"published ones: {self._reason(why)}"
        )

    def _start_meteor(self) -> None:
        try:
            self._meteor = Meteor()
        except JavaError as error:
            self._skip_meteor(error)

    def _skip_meteor(self, why: JavaError) -> None:
        self._runs_meteor = False
        self.notes.append(f"METEOR is skipped: its program failed: {self._reason(why)}")

    def _score_meteor(self, references: Mapping[str, Sequence[str]], said: Mapping[str, str]) -> Score | None:
        if self._runs_meteor and self._meteor is None:
            self._start_meteor()
        if self._meteor is None:
            return None
        try:
            return self._meteor.score(references, said, self._timeout)
        except JavaError as error:
            self._skip_meteor(error)
            self._end_meteor()
            return None

    def _add_spice(
        self, found: dict[str, Score], references: Mapping[str, Sequence[str]], said: Mapping[str, str]
    ) -> None:
        if not self._runs_spice:
            return
        if self._spice_cache is None:
            # references that one set of captions had parsed are there for the next
            self._spice_cache = tempfile.TemporaryDirectory()
        try:
            scores = spice(references, said, Path(self._spice_cache.name), self._timeout)
        except JavaError as error:
            self._runs_spice = False
            advice = "" if isinstance(error, JavaTimeout) else spice_advice(self._java)
            self.notes.append(f"SPICE is skipped: its program failed: {self._reason(error)}{advice}")
            return
        found["spice"] = (sum(scores.values()) / len(scores), list(scores.values()))

    @staticmethod
    def _reason(error: JavaError) -> str:
        return f"{error}; --java-timeout gives it longer" if isinstance(error, JavaTimeout) else str(error)

    def _end_meteor(self) -> None:
        meteor, self._meteor = self._meteor, None
        if meteor is not None:
            meteor.close()

    def close(self) -> None:
        """End METEOR's program and drop what SPICE keeps; a later :meth:`score` starts again."""
        self._end_meteor()
        cache, self._spice_cache = self._spice_cache, None
        if cache is not None:
            cache.cleanup()

    def __enter__(self) -> CaptionScorer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def first_captions(dump: str | os.PathLike[str]) -> tuple[dict[str, str], int]:
    """The caption that a model wrote of each image, the dump's first, and how many further rows there are.

    Raises :class:`GroundingError` when the dump holds only ground-truth captions.
    """
    captions: dict[str, str] = {}
    rows = 0
    for row in read_dump(dump):
        if not row["reference"]:
            rows += 1
            captions.setdefault(row["image_id"], row["text"])
    if not captions:
        raise GroundingError(f"{dump}: holds only ground-truth captions; dump without --score-reference")
    return captions, rows - len(captions)


def write_scores(
    path: str | os.PathLike[str], results: Sequence[tuple[str, Mapping[str, str], Mapping[str, Any]]]
) -> None:
    """Write each image's scores as CSV: ``image_id``, ``caption``, then the scores as :data:`NAMES` calls them.

    *results* are (dump, captions, what :meth:`CaptionScorer.score` returned), one a dump; with several, the column
    ``dump`` comes first. Fractions as in the result; a cell is empty where a score is missing or no number.
    """
    names = [name for name in NAMES if any(name in scores for _, _, scores in results)]
    several = ["dump"] if len(results) > 1 else []
    # half a surrogate pair, which JSON may hold, has no UTF-8
    with writing(path) as temporary, open(temporary, "w", newline="", encoding="utf-8", errors="replace") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow([*several, "image_id", "caption", *names])
        for dump, captions, scores in results:
            for image, each in scores["per_image"].items():
                cells = ["" if each.get(name) is None else repr(each[name]) for name in names]
                table.writerow([*([dump] if several else []), image, captions[image], *cells])


def _score_here(references: Mapping[str, Sequence[str]], said: Mapping[str, str]) -> dict[str, Score]:
    """What needs no other program."""
    from pycocoevalcap.bleu.bleu import Bleu
    from pycocoevalcap.cider.cider import Cider
    from pycocoevalcap.rouge.rouge import Rouge

    lists = {image: [caption] for image, caption in said.items()}
    bleu, bleu_each = Bleu(4).compute_score(references, lists, verbose=0)
    found = {f"bleu{n}": (bleu[n - 1], bleu_each[n - 1]) for n in range(1, 5)}
    found["rouge_l"] = Rouge().compute_score(references, lists)
    found["cider"] = Cider().compute_score(references, lists)
    return found


def _number(value: Any) -> float | None:
    return float(value) if math.isfinite(value) else None
