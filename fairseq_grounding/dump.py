"""The grounding dump: JSON lines, one caption a line, that every scorer, the viewer and the explainer read.

A row::

    {"id": 0, "image_id": "1000092795", "caption_index": 2, "model": "up_down", "reference": false,
     "text": "a dog runs", "tokens": ["a", "dog", "runs"],
     "steps": [{"token": "a", "region": 3, "box": [x0, y0, x1, y1], "attention": [...], "logprob": -0.1},
               ...]}

``text`` is the caption's words joined by spaces; ``steps`` has one entry a token, end of sentence left out.
``region`` is the region of highest attention, ``box`` its box in pixels of the original image and
``attention`` the weights over that image's real regions only; all three are null where a model has no
attention, and ``logprob`` is null where it gives no probabilities (a matching model). ``caption_index`` is
the number of the caption within its image, or null where the row answers to no single caption.
``reference`` (false when absent) says that ``text`` is a ground-truth caption the model was made to read,
not one it wrote.
"""

from __future__ import annotations

import json
import logging
import math
import os
import weakref
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from .errors import GroundingError

DECIMALS = 6

logger = logging.getLogger(__name__)


class DumpWriter:
    """Write a grounding dump that appears under its name only once it is complete.

    Rows go to a temporary file beside *path*, which is renamed as soon as *expected* rows are written (the
    stock generate command tells nobody that it has ended). With *expected* None, :meth:`close` completes
    the dump. A dump that is closed early, garbage-collected or left at exit leaves no file; a former one at
    *path* stays.

    Floats are rounded to 6 decimals. Raises :class:`GroundingError` for a folder that does not exist, for a
    row that :func:`read_dump` would refuse, and for a row beyond *expected*.
    """

    def __init__(self, path: str | os.PathLike[str], expected: int | None = None) -> None:
        self.path = Path(path)
        self.expected = expected
        self.rows = 0
        if expected is not None and expected < 1:
            raise GroundingError(f"{self.path}: there is no caption to dump")
        if self.path.is_dir():
            raise GroundingError(f"{self.path}: is a folder; give the name of a file")
        if not self.path.parent.is_dir():
            raise GroundingError(f"{self.path}: the folder {self.path.parent} does not exist; make it first")
        self._temporary = self.path.with_name(f".{self.path.name}.{os.getpid()}.part")
        try:
            self._file = open(self._temporary, "w", encoding="utf-8")  # noqa: SIM115 (lives as long as the writer)
        except OSError as error:
            raise GroundingError(f"{self.path}: cannot be written ({error.strerror})") from error
        # runs when the writer is garbage-collected or at exit, whichever is first
        self._discard = weakref.finalize(self, _discard, self._file, self._temporary, os.getpid())

    def write(self, row: dict[str, Any]) -> None:
        """Add one row; the last expected one completes the dump."""
        if not self._discard.alive:
            state = "complete" if self.rows == self.expected else "closed"
            raise GroundingError(f"{self.path}: the dump is {state} ({self.rows} rows) and takes no further row")
        row = _plain(row)
        fault = row_fault(row)
        if fault is not None:
            raise GroundingError(f"{self.path}: row {self.rows + 1}: {fault}")
        self._file.write(json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n")
        self.rows += 1
        if self.rows == self.expected:
            self._complete()

    def close(self) -> None:
        """Complete the dump when *expected* is None; otherwise drop what is incomplete."""
        if not self._discard.alive:
            return
        if self.expected is None and self.rows:
            self._complete()
        else:
            wanted = "" if self.expected is None else f" of {self.expected}"
            logger.warning("%s: closed after %d%s rows; nothing is kept", self.path, self.rows, wanted)
            self._discard()

    def __enter__(self) -> DumpWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
        else:
            self._discard()

    def _complete(self) -> None:
        self._file.close()
        os.replace(self._temporary, self.path)
        self._discard.detach()


def _discard(file: IO[str], temporary: Path, owner: int) -> None:
    # a forked data-loading process holds a copy of the writer; only its maker may remove the file
    if os.getpid() == owner:
        file.close()
        temporary.unlink(missing_ok=True)


def read_dump(path: str | os.PathLike[str]) -> Iterator[dict[str, Any]]:
    """Yield the rows of a grounding dump, each checked; ``reference`` is filled in where absent.

    Raises :class:`GroundingError` with the file, the line number and what is wrong, also for an empty file.
    """
    try:
        with open(path, encoding="utf-8") as file:
            number = 0
            for number, line in enumerate(file, 1):
                try:
                    row = json.loads(line, parse_constant=_refuse_constant)
                except ValueError as error:
                    raise GroundingError(f"{path}, line {number}: is not valid JSON ({error})") from error
                fault = row_fault(row)
                if fault is not None:
                    raise GroundingError(f"{path}, line {number}: {fault}")
                row.setdefault("reference", False)
                yield row
            if number == 0:
                raise GroundingError(f"{path}: is empty; a grounding dump has one JSON object a line")
    except OSError as error:
        raise GroundingError(f"{path}: cannot be read ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise GroundingError(f"{path}: is not UTF-8 text; is it a grounding dump?") from error


def row_fault(row: Any) -> str | None:
    """What is wrong with a dump's row, in a few words, or None."""
    if not isinstance(row, dict):
        return "is not a JSON object"
    missing = [key for key in ("id", "image_id", "caption_index", "model", "text", "tokens", "steps") if key not in row]
    if missing:
        return f"lacks {', '.join(missing)}; is it a grounding dump?"
    if not (_is_int(row["id"]) or isinstance(row["id"], str)):
        return "id is neither an integer nor a string"
    for key in ("image_id", "model", "text"):
        if not isinstance(row[key], str):
            return f"{key} is not a string"
    if row["caption_index"] is not None and not (_is_int(row["caption_index"]) and row["caption_index"] >= 0):
        return "caption_index is neither null nor an integer from 0 on"
    if not isinstance(row.get("reference", False), bool):
        return "reference is neither true nor false"
    tokens, steps = row["tokens"], row["steps"]
    if not isinstance(tokens, list) or not all(isinstance(token, str) for token in tokens):
        return "tokens is not a list of strings"
    if not isinstance(steps, list) or len(steps) != len(tokens):
        return f"steps is not a list with one entry for each of the {len(tokens)} tokens"
    for position, (token, step) in enumerate(zip(tokens, steps)):
        fault = _step_fault(token, step)
        if fault is not None:
            return f"step {position} (image {row['image_id']}): {fault}"
    return None


def _step_fault(token: str, step: Any) -> str | None:
    if not isinstance(step, dict):
        return "is not a JSON object"
    missing = [key for key in ("token", "region", "box", "attention", "logprob") if key not in step]
    if missing:
        return f"lacks {', '.join(missing)}"
    if step["token"] != token:
        return f"token {step['token']!r} is not the {token!r} of tokens"
    if step["logprob"] is not None and not _is_number(step["logprob"]):
        return "logprob is neither null nor a finite number"
    region, box, attention = step["region"], step["box"], step["attention"]
    if attention is not None and not (isinstance(attention, list) and _are_numbers(attention)):
        return "attention is neither null nor a list of finite numbers"
    if region is not None:
        if not (_is_int(region) and region >= 0):
            return "region is neither null nor an integer from 0 on"
        if attention and region >= len(attention):
            return f"region {region} is beyond the {len(attention)} regions of attention"
    if box is not None and not (isinstance(box, list) and len(box) == 4 and _are_numbers(box)):
        return "box is neither null nor four finite numbers (x0, y0, x1, y1)"
    if box is not None and region is None:
        return "box is given but region is null"
    return None


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return _are_numbers([value])


def _are_numbers(values: list[Any]) -> bool:
    # there are millions in a dump: two passes in C instead of a call a number
    try:
        return set(map(type, values)) <= {int, float} and all(map(math.isfinite, values))
    except OverflowError:  # an integer beyond every float
        return False


def _refuse_constant(text: str) -> float:
    raise ValueError(f"{text} is not a number")


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return round(float(value), DECIMALS)
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if hasattr(value, "tolist"):  # tensors, arrays and their scalars
        return _plain(value.tolist())
    return value
