"""Word vectors that somebody trained before: text files of word2vec and of GloVe."""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np

from ..errors import GroundingError


def read_word_vectors(
    path: str | os.PathLike[str], words: Sequence[str], width: int | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Read the vectors of *words*; the file is read line by line, and what is not asked for is dropped.

    Two formats, told apart by the first line: word2vec's text (``COUNT WIDTH``, then ``word number ...``) and
    GloVe's, which is the same without that line.

    Args:
        path: the file, UTF-8
        words: as they stand in it, upper and lower case kept apart
        width: numbers a vector; by default what the file has

    Returns:
        vectors (len(words), width) float32, 0 where the file lacks the word; found (len(words),) bool

    Raises:
        GroundingError: the file cannot be read, its vectors have another width, a line has fewer numbers than the
            others or something that is no finite number, one of *words* is there twice, or none is there
    """
    place = {word.encode(): number for number, word in enumerate(words)}
    found = np.zeros(len(words), dtype=bool)
    vectors: np.ndarray | None = None
    own = 0
    try:
        with open(path, "rb") as file:
            for number, line in enumerate(file, 1):
                line = line.rstrip()
                if number == 1:
                    cells = line.split(b" ")
                    header = len(cells) == 2 and cells[0].isdigit() and cells[1].isdigit()
                    own = int(cells[1]) if header else len(cells) - 1
                    _check_width(path, own, width, binary=b"\0" in line)
                    vectors = np.zeros((len(words), own), dtype=np.float32)
                    if header:
                        continue
                if line.count(b" ") < own:
                    if not line:
                        continue
                    raise GroundingError(
                        f"{path}: line {number} has {line.count(b' ')} numbers after its word, those before it {own};"
                        " is the file cut short, or word2vec's binary form? give its text form"
                    )
                # published files hold words with spaces in them
                word, *cells = line.rsplit(b" ", own)
                row = place.get(word)
                if row is None or vectors is None:
                    continue
                if found[row]:
                    raise GroundingError(f"{path}: line {number}: the word {words[row]!r} is there twice; remove one")
                vectors[row] = _numbers(path, number, cells)
                found[row] = True
    except OSError as error:
        raise GroundingError(f"{path}: cannot be read ({error.strerror})") from error
    if vectors is None:
        raise GroundingError(f"{path}: is empty; give word vectors in word2vec's text form or GloVe's")
    if not found.any():
        raise GroundingError(
            f"{path}: holds none of the dictionary's {len(words):,} words; is it of this language, in lower case?"
        )
    return vectors, found


def _check_width(path: str | os.PathLike[str], own: int, width: int | None, binary: bool) -> None:
    if own < 1 or binary:
        raise GroundingError(f"{path}: is no word2vec or GloVe text: line 1 is neither COUNT WIDTH nor a word's vector")
    if width is not None and own != width:
        raise GroundingError(f"{path}: has vectors of width {own}, not {width}; give --word-embedding-size {own}")


def _numbers(path: str | os.PathLike[str], number: int, cells: Sequence[bytes]) -> np.ndarray:
    try:
        vector = np.array([float(cell) for cell in cells], dtype=np.float32)
    except ValueError as error:
        reason = " ".join(str(error).split())
        raise GroundingError(f"{path}: line {number} does not hold numbers alone ({reason})") from error
    if not np.isfinite(vector).all():
        raise GroundingError(f"{path}: line {number} holds NaN or a number too large for float32")
    return vector
