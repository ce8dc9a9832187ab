"""What cuts sentences into words."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import GroundingError
from ..java import JavaError, tokenize_lines

TOKENISERS = ("file", "ptb", "spacy", "whitespace")

_BATCH = 1000
# for all captions of a data set at once
_JAVA_SECONDS = 3600.0


class Tokeniser(NamedTuple):
    """A way to cut sentences into lower-case words."""

    name: str
    version: str | None
    """of the program that cuts; None where none does"""
    cut: Callable[[Sequence[str]], list[list[str]]]
    """the words of each sentence; sentences are single lines"""


def load_tokeniser(name: str) -> Tokeniser:
    """The tokeniser *name*.

    ``ptb``: what the caption metrics do: the Stanford PTB tokeniser that pycocoevalcap brings (Java), without
    pycocoevalcap's list of punctuation. ``spacy``: spaCy's English rules, without words that are punctuation.
    ``whitespace``: cut at white space alone. ``file`` is none of them: it means the words of the file.

    Raises:
        GroundingError: what it needs is not installed.
    """
    if name == "ptb":
        return _load_ptb()
    if name == "spacy":
        return _load_spacy()
    if name == "whitespace":
        return Tokeniser(name, None, lambda sentences: [sentence.lower().split() for sentence in sentences])
    raise ValueError(f"{name!r} is no tokeniser that cuts sentences")


def _load_spacy() -> Tokeniser:
    if find_spec("spacy") is None:
        raise GroundingError("--tokeniser spacy needs spaCy: pip install 'fairseq-grounding[text]'")
    import spacy

    tokenizer: Any = spacy.blank("en").tokenizer

    def cut(sentences: Sequence[str]) -> list[list[str]]:
        documents = tokenizer.pipe((sentence.lower() for sentence in sentences), batch_size=_BATCH)
        return [[token.text for token in document if not (token.is_punct or token.is_space)] for document in documents]

    return Tokeniser("spacy", spacy.__version__, cut)


def _load_ptb() -> Tokeniser:
    if find_spec("pycocoevalcap") is None:
        raise GroundingError("--tokeniser ptb needs pycocoevalcap: pip install 'fairseq-grounding[metrics]'")
    from pycocoevalcap.tokenizer import ptbtokenizer

    def cut(sentences: Sequence[str]) -> list[list[str]]:
        if not sentences:
            return []
        try:
            return [line.split() for line in tokenize_lines(sentences, _JAVA_SECONDS)]
        except JavaError as error:
            raise GroundingError(
                f"--tokeniser ptb: {error}; install a Java runtime or choose another tokeniser"
            ) from error

    jar = Path(ptbtokenizer.STANFORD_CORENLP_3_4_1_JAR)
    return Tokeniser("ptb", f"{jar.stem}, pycocoevalcap {version('pycocoevalcap')}", cut)
