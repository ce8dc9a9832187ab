"""Corpus scores of generated captions, by the tools that published results use (pycocoevalcap).

BLEU, METEOR, ROUGE-L, CIDEr and SPICE after the PTB tokenizer. The tokenizer, METEOR and SPICE are Java
programs; what cannot run here is left out, and :attr:`CaptionScorer.notes` says so.
"""

from __future__ import annotations

import math
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from ..dump import read_dump
from ..errors import GroundingError

NAMES = ("bleu1", "bleu2", "bleu3", "bleu4", "meteor", "rouge_l", "cider", "spice")

_SPICE_JARS = ("stanford-corenlp-3.6.0.jar", "stanford-corenlp-3.6.0-models.jar")
# METEOR writes 0,5 in a German locale, and cannot read it back
_JAVA_OPTIONS = "-Duser.language=en -Duser.country=US -Duser.language.format=en -Duser.country.format=US"


class CaptionScorer:
    """Score captions against references, several sets of captions one after another.

    *raw* maps an image to its captions as people wrote them: what the PTB tokenizer is given. *words* maps
    it to the same captions as words joined by spaces: what is scored where Java is missing. ``notes`` has a
    line for everything that is left out or done differently, and why. METEOR takes seconds to start, so its
    program stays: leave a ``with`` block around the scorer, or :meth:`close` it. Raises
    :class:`GroundingError` without pycocoevalcap.
    """

    def __init__(self, raw: Mapping[str, Sequence[str]], words: Mapping[str, Sequence[str]]) -> None:
        try:
            from pycocoevalcap.tokenizer import ptbtokenizer
        except ImportError as error:
            raise GroundingError(
                "evaluate captions needs pycocoevalcap: pip install 'fairseq-grounding[metrics]'"
            ) from error
        self.notes: list[str] = []
        self._meteor: Any = None
        fault = _java_fault()
        self._tokenizes = fault is None
        self._runs_meteor = fault is None
        self._runs_spice = fault is None
        if fault is not None:
            self._no_tokenizer(fault)
            self.notes.append(f"METEOR and SPICE are skipped: {fault}")
        else:
            missing = _missing_spice_jars(Path(ptbtokenizer.__file__).parents[1])
            if missing:
                self._runs_spice = False
                self.notes.append(f"SPICE is skipped: its parser is not installed (no {', '.join(missing)})")
        self._references = {image: [_one_line(c) for c in captions] for image, captions in words.items()}
        if self._tokenizes:
            try:
                self._references = _tokenize(raw)
            except GroundingError as error:
                self._tokenizes = False
                self._no_tokenizer(str(error))

    def _no_tokenizer(self, why: str) -> None:
        self.notes.append(
            "the scores are of the words as they are, without the PTB tokenizer, and so not comparable with "
            f"published ones: {why}"
        )

    def score(self, captions: Mapping[str, str]) -> dict[str, Any]:
        """The scores of one caption an image, against all references of these images.

        Returns those of ``bleu1``..``bleu4``, ``meteor``, ``rouge_l``, ``cider``, ``spice`` that can be
        had, as fractions (CIDEr: 0 to 10), ``images``, and ``per_image`` with the same for each image. A
        score that is no number is None.
        """
        from pycocoevalcap.bleu.bleu import Bleu
        from pycocoevalcap.cider.cider import Cider
        from pycocoevalcap.rouge.rouge import Rouge

        unknown = [image for image in captions if image not in self._references]
        if unknown:
            raise GroundingError(f"image {unknown[0]}: has no reference captions")
        if not captions:
            raise GroundingError("there are no captions to score")
        references = {image: self._references[image] for image in captions}
        if self._tokenizes:
            said = _tokenize({image: [caption] for image, caption in captions.items()})
        else:
            said = {image: [_one_line(caption)] for image, caption in captions.items()}

        bleu, bleu_each = Bleu(4).compute_score(references, said, verbose=0)
        found = {f"bleu{n}": (bleu[n - 1], bleu_each[n - 1]) for n in range(1, 5)}
        found["rouge_l"] = Rouge().compute_score(references, said)
        found["cider"] = Cider().compute_score(references, said)
        if self._runs_meteor:
            try:
                found["meteor"] = self._score_meteor(references, said)
            except (OSError, ValueError) as error:
                self.close()
                self._runs_meteor = False
                self.notes.append(f"METEOR is skipped: its program failed ({_one_line(str(error))})")
        if self._runs_spice:
            try:
                found["spice"] = _spice(references, said)
            except (OSError, ValueError, subprocess.CalledProcessError) as error:
                self._runs_spice = False
                self.notes.append(f"SPICE is skipped: its program failed ({_one_line(str(error))})")
        result: dict[str, Any] = {name: _number(found[name][0]) for name in NAMES if name in found}
        result["images"] = len(captions)
        result["per_image"] = {
            image: {name: _number(found[name][1][place]) for name in NAMES if name in found}
            for place, image in enumerate(captions)
        }
        return result

    def _score_meteor(self, references: dict[str, list[str]], said: dict[str, list[str]]) -> tuple[float, list[float]]:
        from pycocoevalcap.meteor.meteor import Meteor

        if self._meteor is None:
            with _quiet_java():
                self._meteor = Meteor()
        return self._meteor.compute_score(*(_without_bars(captions) for captions in (references, said)))

    def close(self) -> None:
        """End METEOR's program; a later :meth:`score` starts it again."""
        meteor, self._meteor = self._meteor, None
        if meteor is None:
            return
        # an error leaves the lock taken, and Meteor's own finalizer would wait for it for ever
        if meteor.lock.locked():
            meteor.lock.release()
        meteor.meteor_p.kill()
        meteor.meteor_p.wait()
        for stream in (meteor.meteor_p.stdin, meteor.meteor_p.stdout, meteor.meteor_p.stderr):
            with suppress(OSError):
                stream.close()

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


def _tokenize(captions: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """PTB tokens, lower case and without punctuation, joined by spaces."""
    from pycocoevalcap.tokenizer.ptbtokenizer import PTBTokenizer

    lines = {image: [{"caption": _one_line(c)} for c in own] for image, own in captions.items()}
    with _quiet_java() as output:
        try:
            tokens = PTBTokenizer().tokenize(lines)
        except (OSError, UnicodeDecodeError) as error:
            raise GroundingError(f"the PTB tokenizer failed ({_one_line(str(error))})") from error
        output.seek(0)
        complaint = _one_line(output.read().decode(errors="replace"))
    if any(len(tokens.get(image, ())) != len(own) for image, own in lines.items()):
        raise GroundingError(f"the PTB tokenizer lost captions ({complaint[-200:]})")
    return tokens


def _without_bars(captions: dict[str, list[str]]) -> dict[str, list[str]]:
    # three bars separate captions in what METEOR reads
    return {image: [c.replace("|||", " ") for c in own] for image, own in captions.items()}


def _spice(references: dict[str, list[str]], said: dict[str, list[str]]) -> tuple[float, list[float]]:
    from pycocoevalcap.spice.spice import Spice

    with _quiet_java():
        score, each = Spice().compute_score(references, said)
    # it answers in the order of the sorted ids
    by_image = {image: scores["All"]["f"] for image, scores in zip(sorted(references), each)}
    return score, [by_image[image] for image in references]


def _missing_spice_jars(package: Path) -> list[str]:
    return [jar for jar in _SPICE_JARS if not (package / "spice" / "lib" / jar).is_file()]


def _java_fault() -> str | None:
    if shutil.which("java") is None:
        return "there is no java command here (install a Java runtime, 8 or newer)"
    ran = subprocess.run(["java", "-version"], capture_output=True, check=False)
    return None if ran.returncode == 0 else f"java -version ends with {ran.returncode}"


@contextmanager
def _quiet_java() -> Iterator[IO[bytes]]:
    """Send what Java programs print to a temporary file, which is yielded; they inherit our descriptors."""
    before = os.environ.get("JAVA_TOOL_OPTIONS")
    sys.stdout.flush()
    sys.stderr.flush()
    with tempfile.TemporaryFile() as output:
        saved = {descriptor: os.dup(descriptor) for descriptor in (1, 2)}
        try:
            for descriptor in saved:
                os.dup2(output.fileno(), descriptor)
            os.environ["JAVA_TOOL_OPTIONS"] = f"{before or ''} {_JAVA_OPTIONS}".strip()
            yield output
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            for descriptor, copy in saved.items():
                os.dup2(copy, descriptor)
                os.close(copy)
            if before is None:
                os.environ.pop("JAVA_TOOL_OPTIONS", None)
            else:
                os.environ["JAVA_TOOL_OPTIONS"] = before


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _number(value: Any) -> float | None:
    return float(value) if math.isfinite(value) else None
