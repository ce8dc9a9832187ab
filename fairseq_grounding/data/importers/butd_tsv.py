"""Importer of the TSV files of bottom-up attention (Anderson et al. 2018) and of its descendants."""

from __future__ import annotations

import base64
import binascii
import csv
import io
import math
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ...errors import GroundingError
from ..regions import BOX_TOLERANCE
from .base import Importer, Job, Option, Record, grouped
from .reading import readable

_BUTD = ("image_id", "image_w", "image_h", "num_boxes", "boxes", "features")
_BUTD_HW = ("image_id", "image_h", "image_w", "num_boxes", "boxes", "features")
_LXMERT = (
    *("image_id", "image_h", "image_w", "objects_id", "objects_conf", "attrs_id", "attrs_conf"),
    *("num_boxes", "boxes", "features"),
)
COLUMNS = {"butd": _BUTD, "butd-hw": _BUTD_HW, "lxmert": _LXMERT}
_ALIASES = {"img_id": "image_id", "img_w": "image_w", "img_h": "image_h"}

# a row of 100 boxes with 2048 numbers each has a million letters; one of so many is no row
_ROW_BYTES = 1 << 28
# rows that are looked at for one whose boxes show which number is the width
_LOOKED_AT = 1000


class _Row(NamedTuple):
    """Where one row is in the file."""

    number: int
    offset: int
    length: int


class ButdTsvImporter(Importer):
    """Rows of text fields, separated by tabs: id, width, height, number of boxes n, and in base64 float32 boxes
    (n, 4), x0 y0 x1 y1 in pixels, and features (n, D).

    Three orders of columns are known (:data:`COLUMNS`): ``butd``, the original; ``butd-hw``, where several
    descendants write the height before the width; ``lxmert``, with the detector's classes and confidences, which
    become labels and scores. Further columns at the end are not read. Which one it is, the first row shows: where
    the number stands that tells the length of the next field, and whether a box fits into the image one way only.
    Where no row shows that, it is asked for. A first row of names is understood.
    """

    summary = "bottom-up-attention's TSV, also in LXMERT's and py-bottom-up's orders of columns"
    options = (
        Option(
            "--columns",
            "the order of the columns: butd (id, width, height, number of boxes, boxes, features), butd-hw (height "
            "before width), lxmert (id, height, width, classes, confidences, attributes, their confidences, number "
            "of boxes, boxes, features), or the names of all, separated by commas: image_id, image_w, image_h, "
            "num_boxes, boxes, features, objects_id, objects_conf, and any other name for what is not read; "
            "by default what the first row shows",
            str,
            "ORDER",
        ),
    )

    def __init__(self, path: Path, columns: str | None = None) -> None:
        super().__init__(path)
        if not path.is_file():
            raise GroundingError(f"{path}: no such file; --input of butd-tsv is a TSV file")
        self.decisions["boxes and features"] = "float32, as this format has them"
        first = next(self._rows(), None)
        if first is None:
            raise GroundingError(f"{path}: is empty; --input of butd-tsv is a TSV file")
        fields = self._fields(first)
        header = [_ALIASES.get(field.decode("utf-8", "replace"), field.decode("utf-8", "replace")) for field in fields]
        self.has_header = {"num_boxes", "boxes", "features"} <= set(header)
        if columns is not None:
            self.columns = self._named(columns)
            self.decisions["columns"] = f"{', '.join(self.columns)} (--columns)"
        elif self.has_header:
            self.columns = self._checked("the first row", header)
            self.decisions["columns"] = f"{', '.join(self.columns)} (the first row names them)"
        else:
            self.columns = self._detected()

    def jobs(self) -> Iterator[Job]:
        """The rows, in the order of the file."""
        return grouped((f"row {row.number}", row) for row in self._data_rows())

    def where(self, what: _Row) -> str:
        return f"{self.path}: row {what.number}"

    def image_id(self, job: Job) -> str:
        try:
            return self._text(job.what, self._named_fields(job.what), "image_id") or job.name
        except GroundingError:
            return job.name

    def read(self, what: _Row) -> Record:
        """Decode one row."""
        fields = self._named_fields(what)
        image_id = self._text(what, fields, "image_id")
        where = f"{self.where(what)} (image {image_id!r})"
        width, height, count = (self._whole(where, fields, name) for name in ("image_w", "image_h", "num_boxes"))
        if count < 1:
            raise GroundingError(f"{where}: has {count} boxes; leave it out, or give it a whole-image box")
        boxes = self._numbers(where, fields, "boxes", np.dtype("<f4"), (count, 4))
        features = self._numbers(where, fields, "features", np.dtype("<f4"), (count, -1))
        labels = scores = None
        if "objects_id" in fields:
            # detectors differ in the width of their integers; both lengths cannot be meant
            kind = "<i8" if len(_decoded(where, "objects_id", fields["objects_id"])) == 8 * count else "<i4"
            labels = self._numbers(where, fields, "objects_id", np.dtype(kind), (count,))
        if "objects_conf" in fields:
            scores = self._numbers(where, fields, "objects_conf", np.dtype("<f4"), (count,))
        return Record(image_id, features, boxes, (width, height), labels, scores)

    def _rows(self) -> Iterator[_Row]:
        """Where the rows begin and how long they are, blank ones left out."""
        with readable(self.path), open(self.path, "rb", buffering=1 << 20) as file:
            number, offset = 0, 0
            while line := file.readline(_ROW_BYTES):
                number += 1
                length, quotes = len(line), line.count(b'"')
                # a quoted field may go on over lines, as base64 with line breaks does
                quoted = quotes and (line[:1] == b'"' or b'\t"' in line)
                while quoted and quotes % 2 and (more := file.readline(_ROW_BYTES)):
                    length, quotes = length + len(more), quotes + more.count(b'"')
                    if length >= _ROW_BYTES:
                        break
                if length >= _ROW_BYTES:
                    raise GroundingError(f"{self.path}: row {number} does not end; is this a TSV file?")
                if line.strip():
                    yield _Row(number, offset, length)
                offset += length

    def _data_rows(self) -> Iterator[_Row]:
        return islice(self._rows(), int(self.has_header), None)

    def _fields(self, row: _Row) -> list[bytes]:
        with readable(self.path), open(self.path, "rb") as file:
            file.seek(row.offset)
            line = file.read(row.length).rstrip(b"\r\n")
        if b'"' not in line:
            return line.split(b"\t")
        csv.field_size_limit(_ROW_BYTES)
        with readable(self.path):
            text = io.StringIO(line.decode("utf-8"), newline="")
            return [field.encode() for field in next(csv.reader(text, delimiter="\t"))]

    def _named_fields(self, row: _Row) -> dict[str, bytes]:
        fields = self._fields(row)
        if len(fields) < len(self.columns):
            raise GroundingError(
                f"{self.where(row)}: has {len(fields)} columns, not {len(self.columns)} "
                f"({', '.join(self.columns)}); is the file cut short, or are --columns others?"
            )
        return dict(zip(self.columns, fields))

    def _text(self, row: _Row, fields: dict[str, bytes], name: str) -> str:
        try:
            return fields[name].decode("utf-8")
        except UnicodeDecodeError as error:
            raise GroundingError(f"{self.where(row)}: its {name} is not UTF-8; is this a TSV file?") from error

    def _whole(self, where: str, fields: dict[str, bytes], name: str) -> int:
        value = _integer(fields[name])
        if value is None:
            raise GroundingError(
                f"{where}: its {name} is {_shown(fields[name])}, not a whole number; "
                f"the columns were taken for {', '.join(self.columns)}, name others with --columns"
            )
        return value

    def _numbers(
        self, where: str, fields: dict[str, bytes], name: str, dtype: np.dtype, shape: tuple[int, ...]
    ) -> np.ndarray:
        data = _decoded(where, name, fields[name])
        row_bytes = dtype.itemsize * math.prod(size for size in shape[1:] if size > 0)
        count = shape[0]
        wrong = len(data) % (row_bytes * count) if -1 in shape else len(data) != row_bytes * count
        if wrong or not data:
            wanted = f"a multiple of {row_bytes * count}" if -1 in shape else str(row_bytes * count)
            raise GroundingError(
                f"{where}: its {name} decode to {len(data)} bytes, not {wanted} for {count} boxes; "
                "is the row cut short?"
            )
        return np.frombuffer(data, dtype).reshape(shape)

    def _named(self, columns: str) -> tuple[str, ...]:
        if columns in COLUMNS:
            return COLUMNS[columns]
        return self._checked(f"--columns {columns}", columns.split(","))

    def _checked(self, who: str, names: Sequence[str]) -> tuple[str, ...]:
        found = tuple(_ALIASES.get(name.strip(), name.strip()) for name in names)
        for name in _BUTD:
            if found.count(name) != 1:
                raise GroundingError(
                    f"{self.path}: {who} names {name} {found.count(name)} times, not once; name {', '.join(COLUMNS)}, "
                    f"or all columns, among them {', '.join(_BUTD)}"
                )
        last = max(found.index(name) for name in (*_BUTD, *(n for n in ("objects_id", "objects_conf") if n in found)))
        return found[: last + 1]

    def _detected(self) -> tuple[str, ...]:
        """The columns, by the first row that has whole numbers where one order, and not the other, has them."""
        for row in islice(self._rows(), _LOOKED_AT):
            fields = self._fields(row)
            fitting = [name for name in ("butd", "lxmert") if _fits(fields, COLUMNS[name])]
            if fitting == ["lxmert"]:
                self.decisions["columns"] = (
                    f"lxmert: {', '.join(_LXMERT)} (row {row.number} has whole numbers in its fields 2, 3 and 8)"
                )
                return _LXMERT
            if fitting == ["butd"]:
                return self._width_first()
        first = self._fields(next(self._rows()))
        shown = ", ".join(_shown(field) for field in first[:12])
        raise GroundingError(
            f"{self.path}: row 1 ({shown}) has the columns of none of {', '.join(COLUMNS)}; is it cut short? "
            "else name its columns with --columns"
        )

    def _width_first(self) -> tuple[str, ...]:
        """Whether width or height comes first: the first row whose boxes fit one way only."""
        self.columns = _BUTD
        square, readable_rows, wrong = True, False, None
        for row in islice(self._data_rows(), _LOOKED_AT):
            try:
                record = self.read(row)
            except GroundingError as error:
                # whoever imports the row says so, or nobody if no row can be read
                wrong = wrong or error
                continue
            readable_rows = True
            first, second = record.size
            square = square and first == second
            right, bottom = record.boxes[:, 2:].max(axis=0)
            as_butd = right <= first + BOX_TOLERANCE and bottom <= second + BOX_TOLERANCE
            as_hw = right <= second + BOX_TOLERANCE and bottom <= first + BOX_TOLERANCE
            if as_butd != as_hw:
                name = "butd" if as_butd else "butd-hw"
                self.decisions["columns"] = (
                    f"{name}: {', '.join(COLUMNS[name])} (row {row.number}: a box reaches {right:g}, {bottom:g}, "
                    f"which goes into {first} x {second} pixels one way only)"
                )
                return COLUMNS[name]
        if wrong is not None and not readable_rows:
            raise wrong
        if square:
            self.decisions["columns"] = f"butd: {', '.join(_BUTD)} (all images are square, so the order is the same)"
            return _BUTD
        raise GroundingError(
            f"{self.path}: nothing shows whether its second column is the width or the height (all boxes of its first "
            f"{_LOOKED_AT} rows go into their images both ways); say --columns butd (width first) or butd-hw"
        )


def _fits(fields: Sequence[bytes], columns: Sequence[str]) -> bool:
    """Whether a row has whole numbers where these columns have them."""
    named = dict(zip(columns, fields))
    return all(_integer(named.get(name, b"")) is not None for name in ("image_w", "image_h", "num_boxes"))


def _integer(field: bytes) -> int | None:
    try:
        return int(field) if len(field) < 20 else None
    except ValueError:
        return None


def _decoded(where: str, name: str, field: bytes) -> bytes:
    if b"\n" in field:
        field = b"".join(field.split())
    try:
        return base64.b64decode(field, validate=True)
    except (binascii.Error, ValueError) as error:
        raise GroundingError(f"{where}: its {name} are not whole base64 ({error}); is the row cut short?") from error


def _shown(field: bytes) -> str:
    text = repr(field[:16].decode("utf-8", "replace"))
    return text if len(field) <= 16 else f"{text[:-1]}...' ({len(field)} letters)"
