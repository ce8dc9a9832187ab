"""Writing files so that nothing half-written is left behind, and naming what a file holds."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .errors import GroundingError


@contextmanager
def writing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary path beside *path*; rename it to *path* when the block ends without an error."""
    target = Path(path)
    if not target.parent.is_dir():
        raise GroundingError(f"{target}: the folder {target.parent} does not exist; make it first")
    temporary = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        yield temporary
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def writing_folder(path: str | os.PathLike[str], overwrite: bool = False) -> Iterator[Path]:
    """Yield a temporary folder beside *path*; rename it to *path* when the block ends without an error.

    A folder that exists and is not empty is refused unless *overwrite*; then it is replaced, at the end.
    """
    target = Path(path)
    if target.exists() and not target.is_dir():
        raise GroundingError(f"{target}: exists and is not a folder")
    if target.is_dir() and any(target.iterdir()) and not overwrite:
        raise GroundingError(f"{target}: exists and is not empty; choose another folder or add --overwrite")
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".{target.name}.{os.getpid()}.part")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir()
    try:
        yield temporary
        if target.is_dir():
            shutil.rmtree(target)
        os.replace(temporary, target)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def content_hash(path: str | os.PathLike[str]) -> str:
    """The SHA-256 of a file's bytes, in hexadecimal."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 22):
            digest.update(block)
    return digest.hexdigest()


def read_json(path: str | os.PathLike[str]) -> Any:
    """Read a JSON file; a missing or malformed one is a :class:`GroundingError` that names it."""
    try:
        with open(path, encoding="utf-8") as file:
            return json.load(file)
    except OSError as error:
        raise GroundingError(f"{path}: cannot be read ({error.strerror})") from error
    except ValueError as error:
        raise GroundingError(f"{path}: is not valid JSON ({error})") from error


def write_json(path: str | os.PathLike[str], value: Any) -> None:
    """Write *value* as indented JSON; NaN and infinity are refused."""
    with writing(path) as temporary, open(temporary, "w", encoding="utf-8") as file:
        json.dump(value, file, indent=2, ensure_ascii=False, allow_nan=False)
        file.write("\n")
