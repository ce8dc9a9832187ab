"""Lists of synonyms: a line an object, words separated by a comma and a space, the first is its name."""

from __future__ import annotations

import os

from ..errors import GroundingError


def read_synonyms(path: str | os.PathLike[str]) -> list[list[str]]:
    """Read the lines as they are: case and a further space after the comma are kept.

    Raises:
        GroundingError: the file cannot be read or has no word.
    """
    try:
        with open(path, encoding="utf-8") as file:
            lines = [line.strip() for line in file]
    except OSError as error:
        raise GroundingError(f"--synonyms {path}: cannot be read ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise GroundingError(f"--synonyms {path}: is not UTF-8 text") from error
    synonyms = [line.split(", ") for line in lines if line]
    if not synonyms:
        raise GroundingError(f"--synonyms {path}: is empty; it has a line an object, words separated by commas")
    return synonyms


def names_by_word(synonyms: list[list[str]]) -> dict[str, str]:
    """The name of each word, both lower-cased and stripped; a word on several lines goes to the last."""
    return {word.strip().lower(): line[0].strip().lower() for line in synonyms for word in line if word.strip()}
