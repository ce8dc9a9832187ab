"""What cuts sentences into words."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Sequence
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import GroundingError

TOKENISERS = ("file", "ptb", "spacy", "whitespace")

_BATCH = 1000


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

    jar = Path(ptbtokenizer.__file__).with_name(ptbtokenizer.STANFORD_CORENLP_3_4_1_JAR)
    punctuation = frozenset(ptbtokenizer.PUNCTUATIONS)

    def cut(sentences: Sequence[str]) -> list[list[str]]:
        if not sentences:
            return []
        lines = _run_ptb(jar, "\n".join(sentences) + "\n").split("\n")[:-1]
        if len(lines) != len(sentences):
            raise GroundingError(
                f"--tokeniser ptb: the Java program gave {len(lines)} lines for {len(sentences)} captions; "
                "choose another tokeniser"
            )
        # pycocoevalcap drops punctuation from what stands between spaces; its metrics then split at any white space
        return [" ".join(word for word in line.split(" ") if word not in punctuation).split() for line in lines]

    return Tokeniser("ptb", f"{jar.stem}, pycocoevalcap {version('pycocoevalcap')}", cut)


def _run_ptb(jar: Path, text: str) -> str:
    encoding = [f"-D{name}=UTF-8" for name in ("file.encoding", "stdout.encoding")]
    program = ["edu.stanford.nlp.process.PTBTokenizer", "-preserveLines", "-lowerCase"]
    try:
        ran = subprocess.run(
            ["java", *encoding, "-cp", str(jar), *program], input=text.encode(), capture_output=True, check=False
        )
    except OSError as error:
        raise GroundingError(
            f"--tokeniser ptb needs the command java, which cannot be started ({error.strerror}); install a Java "
            "runtime, 8 or newer, or choose another tokeniser"
        ) from error
    if ran.returncode != 0:
        complaint = " ".join(ran.stderr.decode(errors="replace").split())
        raise GroundingError(f"--tokeniser ptb: java ended with {ran.returncode} ({complaint[-200:]})")
    return ran.stdout.decode("utf-8", errors="replace")
