"""Importers of the region files of SCAN (Lee et al. 2018) and of the POS-SCAN code (Zhou et al. 2020)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from ...errors import GroundingError
from .base import Importer, Job, Record, grouped
from .reading import IDS, IMAGE_SIZES, Hdf5File, ImageSizes, load_npy, read_ids, readable, required_sizes

_CAPTIONS_AN_IMAGE = 5


class ScanImporter(Importer):
    """``{split}_ims.npy``, (rows, R, D), with ``{split}_ids.txt`` and maybe ``{split}_caps.txt`` beside it.

    A row is an image, or, where a file has as many rows as captions, the image of a caption: then its five rows
    are one image, and they must be equal. Ids are one a row, one an image or one a caption; the numbers of lines
    show which.

    There are no boxes in these files: each region gets its whole image for a box, and the store says so. Without
    ``--image-sizes`` an image counts as 1 x 1 pixels, which serves as well as long as there are no boxes. The
    array stays on disk; rows are read one at a time.
    """

    summary = "SCAN's SPLIT_ims.npy with SPLIT_ids.txt; has no boxes, so no drawing or grounding"
    options = (IDS, IMAGE_SIZES)
    has_boxes = False

    def __init__(self, path: Path, ids: Path | None = None, image_sizes: Path | None = None) -> None:
        super().__init__(path)
        if not path.is_file() or not path.name.endswith("_ims.npy"):
            raise GroundingError(f"{path}: is no file SPLIT_ims.npy; --input of scan is one, or several")
        split = path.name[: -len("_ims.npy")]
        ids = ids or path.with_name(f"{split}_ids.txt")
        captions = path.with_name(f"{split}_caps.txt")
        if not ids.is_file():
            raise GroundingError(f"{ids}: no such file; name the image ids with --ids")
        self._array: np.ndarray | None = None
        shape = self._rows().shape
        if len(shape) != 3:
            raise GroundingError(f"{path}: is {shape}, not (images, regions, size)")
        self.sizes = None if image_sizes is None else ImageSizes(image_sizes)
        self.reads = [path, ids, *([captions] if captions.is_file() else []), *([image_sizes] if image_sizes else [])]
        number = _number_of_lines(captions) if captions.is_file() else None
        self.ids, self.repeated = self._images(read_ids(ids), shape[0], ids, number, captions)
        self.total = len(self.ids)
        self.decisions["image ids"] = f"from {ids.name}"
        self.decisions["rows"] = (
            f"{self.repeated} equal rows an image, one a caption" if self.repeated > 1 else "one an image"
        )
        self.decisions["boxes"] = "none in the source: every region has its whole image for a box"
        self.decisions["image sizes"] = (
            f"from {image_sizes.name} (--image-sizes)" if image_sizes else "none: 1 x 1 pixels stand for them"
        )
        self.decisions["will not work"] = "drawing, grounding scores, box features"
        self.warnings.append(
            f"{path}: has no boxes, so each region gets its whole image for one: matching, captioning and retrieval "
            "work; drawing, grounding scores and --region-geometry box5 mean nothing"
        )

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_array": None}

    def jobs(self) -> Iterator[Job]:
        """The images in the order of the rows."""
        return grouped((image_id, (image_id, n * self.repeated)) for n, image_id in enumerate(self.ids))

    def where(self, what: tuple[str, int]) -> str:
        return f"{self.path}: row {what[1]}"

    def read(self, what: tuple[str, int]) -> Record:
        """Read one image's row, and see that those of its other captions are the same."""
        image_id, row = what
        rows = self._rows()
        features = np.array(rows[row])
        for other in range(row + 1, row + self.repeated):
            if not np.array_equal(features, rows[other], equal_nan=features.dtype.kind == "f"):
                raise GroundingError(
                    f"{self.path}: the rows {row} and {other} are of image {image_id!r} and differ; are the ids of "
                    "another file?"
                )
        size = (1, 1) if self.sizes is None else self.sizes[image_id]
        return Record(image_id, features, np.tile(np.array([0.0, 0.0, *size]), (len(features), 1)), size)

    def _rows(self) -> np.ndarray:
        if self._array is None:
            self._array = load_npy(self.path, mapped=True)
        return self._array

    def _images(
        self, ids: list[str], rows: int, ids_file: Path, captions: int | None, captions_file: Path
    ) -> tuple[list[str], int]:
        """The id of each image, and the rows that each has."""
        if captions is not None and captions not in (rows, rows * _CAPTIONS_AN_IMAGE):
            raise GroundingError(
                f"{captions_file}: has {captions} lines, and {self.path} {rows} rows; there must be as many, or "
                f"{_CAPTIONS_AN_IMAGE} times as many"
            )
        if len(ids) == rows * _CAPTIONS_AN_IMAGE:
            return _one_of_each(ids, ids_file), 1
        if rows == len(ids) * _CAPTIONS_AN_IMAGE:
            return ids, _CAPTIONS_AN_IMAGE
        if len(ids) != rows:
            raise GroundingError(
                f"{ids_file}: has {len(ids)} ids, and {self.path} {rows} rows; there must be as many, or "
                f"{_CAPTIONS_AN_IMAGE} times as many of one or the other"
            )
        if len(set(ids)) * _CAPTIONS_AN_IMAGE == rows:
            return _one_of_each(ids, ids_file), _CAPTIONS_AN_IMAGE
        return ids, 1


def _one_of_each(ids: list[str], path: Path) -> list[str]:
    first = ids[::_CAPTIONS_AN_IMAGE]
    for n, image_id in enumerate(ids):
        if image_id != first[n // _CAPTIONS_AN_IMAGE]:
            raise GroundingError(
                f"{path}: line {n + 1} is {image_id!r}, but the {_CAPTIONS_AN_IMAGE} lines of an image must be the "
                f"same, and line {n - n % _CAPTIONS_AN_IMAGE + 1} is {first[n // _CAPTIONS_AN_IMAGE]!r}"
            )
    return first


def _number_of_lines(path: Path) -> int:
    with readable(path), open(path, "rb") as file:
        return sum(1 for _ in file)


class PosScanImporter(Importer):
    """Either ``{split}_ims.h5`` (``feats``, (N, R, D)) with ``{split}_ims_box.h5`` (``boxes``, (N, R, 4)) and
    ``{split}_files.json`` (N file names) beside it; or the file that these were made of, ``flickr_det_feat.hdf5``
    (``image_features``, ``image_bb``), with ``--ids dic_flickr30k.json``.

    Boxes are x0 y0 x1 y1 in pixels. The size of the images is nowhere, so it is asked for. Rows at the end of an
    image whose box and features are all 0 are padding.
    """

    summary = "POS-SCAN's SPLIT_ims.h5, or flickr_det_feat.hdf5 with --ids; needs --image-sizes"
    options = (IDS, IMAGE_SIZES)

    def __init__(self, path: Path, ids: Path | None = None, image_sizes: Path | None = None) -> None:
        super().__init__(path)
        if not path.is_file():
            raise GroundingError(f"{path}: no such file; --input of pos-scan is SPLIT_ims.h5 or flickr_det_feat.hdf5")
        boxes = path
        with readable(path), h5py.File(path, "r") as file:
            whole = "image_features" in file
            features_key, boxes_key = ("image_features", "image_bb") if whole else ("feats", "boxes")
            shape = _shape(path, file, features_key)
        if not whole:
            split = path.name[: -len("_ims.h5")] if path.name.endswith("_ims.h5") else path.stem
            boxes = path.with_name(f"{split}_ims_box.h5")
            ids = ids or path.with_name(f"{split}_files.json")
            if not boxes.is_file():
                raise GroundingError(f"{boxes}: no such file; {path.name} has features only, so put its boxes there")
        if ids is None or not ids.is_file():
            wanted = "dic_flickr30k.json, whose images are in the order of the rows" if whole else "the image ids"
            raise GroundingError(f"{ids or path}: the file has no image ids; name {wanted}, with --ids")
        with readable(boxes), h5py.File(boxes, "r") as file:
            box_shape = _shape(boxes, file, boxes_key)
        if len(shape) != 3 or box_shape != (*shape[:2], 4):
            raise GroundingError(
                f"{path}: '{features_key}' is {shape} and '{boxes_key}' of {boxes.name} {box_shape}, not (N, R, D) and "
                "(N, R, 4)"
            )
        self.ids = read_ids(ids)
        if len(self.ids) != shape[0]:
            raise GroundingError(f"{ids}: has {len(self.ids)} ids, and {path} {shape[0]} images; name the right one")
        self.sizes = required_sizes(image_sizes, path, "these files")
        assert image_sizes is not None, "required_sizes refuses None"
        self.features, self.features_key = Hdf5File(path), features_key
        self.boxes, self.boxes_key = Hdf5File(boxes), boxes_key
        self.reads = list(dict.fromkeys([path, boxes, ids, image_sizes]))
        self.total = len(self.ids)
        self.decisions["datasets"] = f"{features_key} of {path.name}, {boxes_key} of {boxes.name}"
        self.decisions["image ids"] = f"from {ids.name}, in its order"
        self.decisions["image sizes"] = f"from {image_sizes.name} (--image-sizes)"
        self.decisions["padding"] = "rows at the end whose box and features are all 0"

    def jobs(self) -> Iterator[Job]:
        """The images in the order of the rows."""
        return grouped((image_id, (image_id, n)) for n, image_id in enumerate(self.ids))

    def where(self, what: tuple[str, int]) -> str:
        return f"{self.path}: row {what[1]}"

    def read(self, what: tuple[str, int]) -> Record:
        """Read one image."""
        image_id, n = what
        with readable(self.features.path):
            features = self.features.rows(self.features_key, n)
        with readable(self.boxes.path):
            boxes = self.boxes.rows(self.boxes_key, n)
        filled = np.flatnonzero((boxes != 0).any(axis=1) | (features != 0).any(axis=1))
        count = int(filled[-1]) + 1 if len(filled) else 0
        return Record(image_id, features[:count], boxes[:count], self.sizes[image_id])


def _shape(path: Path, file: h5py.File, key: str) -> tuple[int, ...]:
    found = file.get(key)
    if not isinstance(found, h5py.Dataset):
        raise GroundingError(f"{path}: has no dataset '{key}', only {', '.join(file) or 'nothing'}")
    return tuple(found.shape)
