"""Reading text files line by line, so that a message can name the line."""

from __future__ import annotations

import os
from pathlib import Path

from ..errors import GroundingError


def read_lines(path: str | os.PathLike[str]) -> list[tuple[int, str]]:
    """The lines of a UTF-8 text file with their numbers from 1; those empty at the end are left out.

    Raises:
        GroundingError: the file cannot be read, or is not UTF-8.
    """
    try:
        text = Path(path).read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise GroundingError(f"{path}: cannot be read ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise GroundingError(f"{path}: is not UTF-8 text ({error.reason} at byte {error.start})") from error
    lines = [line.rstrip("\r") for line in text.split("\n")]
    while lines and not lines[-1].strip():
        lines.pop()
    return list(enumerate(lines, 1))
