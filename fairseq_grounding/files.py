"""Writing files so that nothing half-written is left behind, and naming what a file holds."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from .errors import GroundingError


@contextmanager
def writing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary path beside *path*; rename it to *path* when the block ends without an error.

    Raises:
        GroundingError: *path* is a folder, or its folder is missing or cannot be written; or the block raised an
            :class:`OSError`.
    """
    target = Path(path)
    if not target.parent.is_dir():
        raise GroundingError(f"{target}: the folder {target.parent} does not exist; make it first")
    if target.is_dir():
        raise GroundingError(f"{target}: is a folder; give the name of a file")
    temporary = target.with_name(f".{target.name}.{os.getpid()}.part")
    with _writable(target):
        try:
            yield temporary
            os.replace(temporary, target)
        finally:
            temporary.unlink(missing_ok=True)


@contextmanager
def writing_folder(path: str | os.PathLike[str], overwrite: bool = False) -> Iterator[Path]:
    """Yield a temporary folder beside *path*; rename it to *path* when the block ends without an error.

    A folder that exists and is not empty is refused unless *overwrite*; then it is replaced, at the end.

    Raises:
        GroundingError: *path* is refused, or its place cannot be written; or the block raised an :class:`OSError`.
    """
    target = Path(path)
    temporary = target.with_name(f".{target.name}.{os.getpid()}.part")
    with _writable(target):
        if target.exists() and not target.is_dir():
            raise GroundingError(f"{target}: exists and is not a folder")
        if target.is_dir() and any(target.iterdir()) and not overwrite:
            raise GroundingError(f"{target}: exists and is not empty; choose another folder or add --overwrite")
        with new_folders(target.parent):
            shutil.rmtree(temporary, ignore_errors=True)
            temporary.mkdir()
            try:
                yield temporary
                if target.is_dir():
                    shutil.rmtree(target)
                os.replace(temporary, target)
            finally:
                shutil.rmtree(temporary, ignore_errors=True)


@contextmanager
def new_folders(path: str | os.PathLike[str]) -> Iterator[None]:
    """Make *path* and the folders above it; when the block fails, those that it made and left empty go again.

    Raises:
        GroundingError: it cannot be made.
    """
    target = Path(path)
    with _writable(target):
        for folder in (target, *target.parents):
            if folder.exists() and not folder.is_dir():
                raise GroundingError(f"{folder}: exists and is not a folder")
        made = [folder for folder in (target, *target.parents) if not folder.exists()]
        target.mkdir(parents=True, exist_ok=True)
    try:
        yield
    except BaseException:
        # one that is not empty ends it: those above are not empty either
        with suppress(OSError):
            for folder in made:
                folder.rmdir()
        raise


@contextmanager
def _writable(target: Path) -> Iterator[None]:
    """Turn what the system says against writing *target* into one line that names it."""
    try:
        yield
    except OSError as error:
        named = error.filename
        ours = named is None or f".{target.name}." in str(named) or Path(named) in (target, *target.parents)
        # a file that was read in the meantime, or a process that went away, is nothing of ours
        if not ours or isinstance(error, ConnectionError):
            raise
        reason = error.strerror or " ".join(str(error).split())
        raise GroundingError(
            f"{target}: cannot be written ({reason}); is its folder there, and is there space?"
        ) from error


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
    except (ValueError, RecursionError) as error:
        raise GroundingError(f"{path}: is not valid JSON ({error})") from error


def write_json(path: str | os.PathLike[str], value: Any) -> None:
    """Write *value* as indented JSON; NaN and infinity are refused."""
    with writing(path) as temporary, open(temporary, "w", encoding="utf-8") as file:
        json.dump(value, file, indent=2, ensure_ascii=False, allow_nan=False)
        file.write("\n")
