"""Importer of the folders of fairseq-image-captioning: ``ID.npy``, ``ID-boxes.npy`` and ``metadata.csv``."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from ...errors import GroundingError
from .base import Importer, Job, Record, grouped, within_one
from .reading import file_of, ids_in, load_npy, readable

_COLUMNS = ("image_id", "image_w", "image_h", "num_boxes")
# what rounding to float32 may add to a normalised coordinate or area
_ROUNDING = 1e-3


class NpyDirImporter(Importer):
    """``ID.npy`` (R, D), ``ID-boxes.npy``, and ``metadata.csv`` with image_id, image_w, image_h and num_boxes.

    Boxes are x0 y0 x1 y1, either in pixels (the program's own files) or divided by the image's width and height,
    then often with their area as a fifth number (as its models take them). Which one it is, the boxes of the first
    image that can be read show; normalised ones become pixels again.
    """

    summary = "fairseq-image-captioning's folder of ID.npy, ID-boxes.npy and metadata.csv"

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        if not path.is_dir():
            raise GroundingError(f"{path}: is not a folder; --input of npy-dir is a folder with metadata.csv")
        self.rows = self._metadata(path / "metadata.csv")
        known = {image_id for image_id, *_ in self.rows}
        files = {name[: -len("-boxes")] if name.endswith("-boxes") else name for name in ids_in(path, ".npy")}
        # files without a row are jobs too: whoever reads them says what lacks
        self.rows += [(image_id, 0, 0, 0) for image_id in sorted(files - known)]
        self.total = len(self.rows)
        self._decide()

    def jobs(self) -> Iterator[Job]:
        """The rows of ``metadata.csv``, in its order."""
        return grouped((row[0], row) for row in self.rows)

    def where(self, what: tuple[str, int, int, int]) -> str:
        return str(self.path / f"{what[0]}.npy")

    def read(self, what: tuple[str, int, int, int]) -> Record:
        """Read the features and the boxes of one row."""
        image_id, width, height, count = what
        if not width:
            raise GroundingError(f"image {image_id!r}: {self.path / 'metadata.csv'} has no row of it; add its size")
        arrays = []
        for ending in (".npy", "-boxes.npy"):
            path = file_of(self.path, image_id, ending)
            if not path.is_file():
                raise GroundingError(f"image {image_id!r}: {path} is missing, though metadata.csv has it; add it")
            arrays.append(load_npy(path))
        features, boxes = arrays
        if len(features) != count or len(boxes) != count:
            raise GroundingError(
                f"image {image_id!r}: metadata.csv of {self.path} says {count} boxes, the files have {len(features)} "
                f"features and {len(boxes)} boxes; extract it again, or leave it out"
            )
        return Record(image_id, features, self._without_area(path, boxes), (width, height))

    def _without_area(self, path: Path, boxes: np.ndarray) -> np.ndarray:
        if boxes.ndim != 2 or boxes.shape[1] != 5 or boxes.dtype.kind != "f":
            return boxes
        areas = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
        if not np.allclose(areas, boxes[:, 4], atol=_ROUNDING, equal_nan=True):
            raise GroundingError(f"{path}: has five numbers a box, and the fifth is not its area; save x0 y0 x1 y1")
        return boxes[:, :4]

    def _decide(self) -> None:
        for row in self.rows:
            try:
                record = self.read(row)
            except GroundingError:
                continue
            boxes = record.boxes
            if boxes.ndim != 2 or boxes.shape[1] != 4 or not boxes.size or not np.isfinite(boxes).all():
                continue
            if within_one(boxes, record.size):
                self.box_format = "normalised-xyxy"
                shown = "lie within 0 and 1"
            else:
                shown = f"reach {boxes.max():g}"
            self.decisions["boxes"] = f"{self.box_format}: those of image {record.image_id!r} {shown}"
            return

    def _metadata(self, path: Path) -> list[tuple[str, int, int, int]]:
        if not path.is_file():
            raise GroundingError(f"{path}: no such file; it must hold a row {','.join(_COLUMNS)} for each image")
        rows = []
        with readable(path), open(path, encoding="utf-8", newline="") as file:
            reader = csv.DictReader(file)
            missing = [name for name in _COLUMNS if name not in (reader.fieldnames or ())]
            if missing:
                raise GroundingError(f"{path}: its first row names no column {', '.join(missing)}; add it")
            for number, row in enumerate(reader, 2):
                try:
                    width, height, count = (int(row[name]) for name in _COLUMNS[1:])
                except (TypeError, ValueError) as error:
                    raise GroundingError(
                        f"{path}: row {number} has no whole numbers {', '.join(_COLUMNS[1:])}; is it cut short?"
                    ) from error
                if min(width, height) < 1:
                    raise GroundingError(f"{path}: row {number} has the size {width} x {height}; mend it")
                rows.append((row["image_id"], width, height, count))
        return rows
