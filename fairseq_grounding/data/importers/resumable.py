"""A region store that is written so that an import which was killed can go on.

While it is written, all that is there of it is the folder ``OUT.partial``: ``plan.json`` (what is imported, and
with which flags), the rows so far (``features.rows``, ``boxes.rows``, ...), and ``journal``, a line for each image
that is done. Rows reach the disk before the lines that speak of them, so what the journal says is there, is there.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import numpy as np

from ...errors import GroundingError
from ...files import read_json, write_json
from ..regions import CheckedImage, RegionWriter, Spill

_COMMIT_BYTES = 1 << 26
_COMMIT_SECONDS = 5.0


class ResumableWriter(RegionWriter):
    """A :class:`RegionWriter` with a journal, for a sequence of jobs; a context manager.

    When the ``with`` ends by an error, nothing is left. When it ends by an interrupt, an orderly exit or a kill,
    ``OUT.partial`` is left.

    Args:
        path: the store to write.
        plan: what is imported and how, as JSON has it; a stopped import goes on only with the same.
        resume: go on where a stopped import of the same plan ended, if there is one.
        source, dtype, attributes: as for :class:`RegionWriter`.

    Attributes:
        done: jobs that need not be done again.
        skipped: name and reason of each job that was skipped.

    Raises:
        GroundingError: there is a stopped import, and *resume* is off or its plan another; or one is running.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        plan: Mapping[str, Any],
        resume: bool = False,
        source: str = "",
        dtype: str = "float16",
        attributes: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(path, source=source, dtype=dtype, attributes=attributes)
        self.folder = self.path.with_name(f"{self.path.name}.partial")
        self.plan = plan
        self.resume = resume
        self.done = 0
        self.skipped: list[tuple[str, str]] = []
        self._lines: list[str] = []
        self._bytes, self._committed = 0, time.monotonic()
        self._journal: IO[bytes]

    def __enter__(self) -> ResumableWriter:
        if self.folder.is_dir() and not self.resume:
            raise GroundingError(
                f"{self.folder}: a stopped import left it; add --resume to go on with it, or delete it"
            )
        try:
            if self.folder.is_dir():
                self._compare_plans()
            else:
                self._begin()
            self._journal = self._stack.enter_context(open(self.folder / "journal", "ab+"))
            self._lock()
            self._read_journal()
        except OSError as error:
            self._stack.close()
            raise self._cannot_write(error) from error
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                super().__exit__(kind, error, trace)
            elif not issubclass(kind, Exception):
                with self._stack:
                    self._commit()
                return
        except Exception:
            self._remove()
            raise
        self._remove()

    def _remove(self) -> None:
        self._stack.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def add_checked(self, image: CheckedImage) -> None:
        """Add an image, the next job's."""
        first = not self._spills
        super().add_checked(image)
        features = image.columns["features"]
        if first:
            self._lines.append(json.dumps(["features", features.shape[1]]))
        self._bytes += features.nbytes
        self._note("image", image.image_id, len(features), *image.size)

    def skip(self, name: str, reason: str) -> None:
        """Note that the next job is left out."""
        self.skipped.append((name, reason))
        self._note("skipped", name, reason)

    def _note(self, *entry: Any) -> None:
        self.done += 1
        self._lines.append(json.dumps(entry))
        if self._bytes >= _COMMIT_BYTES or time.monotonic() - self._committed >= _COMMIT_SECONDS:
            self._commit()

    def _commit(self) -> None:
        try:
            for spill in self._spills.values():
                spill.file.flush()
                os.fsync(spill.file.fileno())
            self._journal.write("".join(f"{line}\n" for line in self._lines).encode())
            self._journal.flush()
        except OSError as error:
            raise self._cannot_write(error) from error
        self._lines.clear()
        self._bytes, self._committed = 0, time.monotonic()

    def _spill_file(self, name: str) -> IO[bytes]:
        return self._stack.enter_context(open(self.folder / f"{name}.rows", "wb+"))

    def _finish(self) -> None:
        self._commit()
        super()._finish()

    @contextmanager
    def _temporary(self) -> Iterator[Path]:
        # in the folder, so that a kill leaves no further trace
        yield self.folder / "store.h5"
        os.replace(self.folder / "store.h5", self.path)

    def _begin(self) -> None:
        temporary = self.folder.with_name(f".{self.folder.name}.{os.getpid()}")
        temporary.mkdir()
        write_json(temporary / "plan.json", self.plan)
        # whoever comes first makes the folder, plan and all
        os.rename(temporary, self.folder)

    def _compare_plans(self) -> None:
        before = read_json(self.folder / "plan.json")
        for name, value in json.loads(json.dumps(self.plan)).items():
            if not isinstance(before, dict) or before.get(name) != value:
                raise GroundingError(
                    f"{self.folder}: was begun with another {name}; go on with what it was begun with, or delete it"
                )

    def _lock(self) -> None:
        if sys.platform == "win32":
            return
        import fcntl

        try:
            fcntl.flock(self._journal, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise GroundingError(f"{self.folder}: another import is writing it; wait for its end") from error

    def _read_journal(self) -> None:
        """Take up what a stopped import has done: its journal, and the rows that it speaks of."""
        self._journal.seek(0)
        kept, rows = 0, 0
        for line in self._journal:
            try:
                kind, *values = json.loads(line)
                if not line.endswith(b"\n"):
                    break
                if kind == "image":
                    image_id, count, width, height = values
                    self._counts[image_id] = count
                    self._sizes.append((width, height))
                    rows += count
                elif kind == "features":
                    (self.feature_size,) = values
                    kept += len(line)
                    continue
                else:
                    name, reason = values
                    self.skipped.append((name, reason))
            except (ValueError, TypeError):
                # the line that was being written when the program was killed
                break
            self.done += 1
            kept += len(line)
        self._journal.truncate(kept)
        self._journal.seek(kept)
        if rows:
            self._take_up_rows(rows)

    def _take_up_rows(self, rows: int) -> None:
        assert self.feature_size is not None, "the journal notes it before the first image"
        types = {"features": self.dtype, "boxes": np.dtype(np.float32)}
        types |= {"labels": np.dtype(np.int32), "scores": np.dtype(np.float32)}
        shapes: dict[str, tuple[int, ...]] = {"features": (self.feature_size,), "boxes": (4,)}
        for name, dtype in types.items():
            path = self.folder / f"{name}.rows"
            if not path.is_file():
                continue
            file = self._stack.enter_context(path.open("rb+"))
            shape = shapes.get(name, ())
            size = rows * dtype.itemsize * math.prod(shape)
            if os.fstat(file.fileno()).st_size < size:
                raise GroundingError(f"{path}: is shorter than the journal says; delete {self.folder} and begin anew")
            file.truncate(size)
            file.seek(size)
            spill = Spill(file, dtype, shape)
            spill.rows = rows
            self._spills[name] = spill


def fingerprint(paths: Sequence[Path]) -> str:
    """A SHA-256 of names, sizes and times of change of files, and of the files in folders."""
    digest = hashlib.sha256()
    for path in paths:
        digest.update(f"{path.resolve()}\n".encode("utf-8", "surrogateescape"))
        # folders in folders are left out: the one that this import writes may be among them
        files = [entry for entry in os.scandir(path) if entry.is_file()] if path.is_dir() else [path]
        for name, stat in sorted((file.name, file.stat()) for file in files):
            facts = f"{name} {stat.st_size} {stat.st_mtime_ns}\n"
            digest.update(facts.encode("utf-8", "surrogateescape"))
    return digest.hexdigest()
