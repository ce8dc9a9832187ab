"""Importer of the ``att`` and ``box`` folders of ImageCaptioning.pytorch and of the code that grew out of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import h5py
import numpy as np

from ...errors import GroundingError
from .base import Importer, Job, Record, grouped
from .reading import IMAGE_SIZES, Hdf5File, file_of, ids_in, load_npy, opened_npz, readable, required_sizes


class CaptioningFoldersImporter(Importer):
    """``att/ID.npz`` with the key ``feat`` (R, D), and ``box/ID.npy`` (R, 4), x0 y0 x1 y1 in pixels.

    *path* is the folder that holds ``att`` and ``box``, or the beginning of their names: ``data/cocobu`` of
    ``data/cocobu_att`` and ``data/cocobu_box``. Instead of either folder there may be an HDF5 file
    (``cocobu_att.h5``) with a dataset for each id. ``fc`` (an image's mean feature) is not read: models here
    compute it. The size of the images is nowhere in these files, so it is asked for.
    """

    summary = "ImageCaptioning.pytorch's folders att (ID.npz) and box (ID.npy); needs --image-sizes"
    options = (IMAGE_SIZES,)

    def __init__(self, path: Path, image_sizes: Path | None = None) -> None:
        super().__init__(path)
        self.att, self.box = self._part("att", ".npz"), self._part("box", ".npy")
        self.sizes = required_sizes(image_sizes, path, "att and box")
        assert image_sizes is not None, "required_sizes refuses None"
        self.reads = [self.att.path, self.box.path, image_sizes]
        self.decisions["att, box"] = f"{self.att.path.name}, {self.box.path.name}"
        self.decisions["image sizes"] = f"from {image_sizes.name} (--image-sizes)"
        # an id of one only is a job too: whoever reads it says what lacks
        self.ids = sorted({*self.att.ids, *self.box.ids})
        if not self.ids:
            raise GroundingError(f"{self.att.path}: holds no .npz file; --input names the folder of att and box")
        self.total = len(self.ids)

    def jobs(self) -> Iterator[Job]:
        """The ids of both parts, sorted."""
        return grouped((image_id, image_id) for image_id in self.ids)

    def read(self, what: str) -> Record:
        """Read the features and the boxes of one id."""
        features, boxes = self.att.array(what), self.box.array(what)
        return Record(what, features, boxes, self.sizes[what])

    def _part(self, name: str, ending: str) -> _Part:
        prefix = self.path.name
        for found in (self.path / name, self.path.with_name(f"{prefix}_{name}")):
            if found.is_dir():
                return _Part(found, ending)
            if (file := found.with_name(f"{found.name}.h5")).is_file():
                return _Part(file, ending)
        lmdb = [self.path / f"{name}.lmdb", self.path.with_name(f"{prefix}_{name}.lmdb")]
        if any(found.exists() for found in lmdb):
            raise GroundingError(
                f"{self.path}: '{name}' is an LMDB, which is not read here; unpack it into a folder of ID{ending}"
            )
        raise GroundingError(
            f"{self.path}: has no folder or .h5 file '{name}', and there is no {prefix}_{name} beside it; --input of "
            "att-box-dirs is the folder that holds att and box, or the beginning of their names"
        )


class _Part:
    """The arrays of one part: a file for each id, or a dataset for each id."""

    def __init__(self, path: Path, ending: str) -> None:
        self.path, self.ending = path, ending
        self.is_folder = path.is_dir()
        self._file = Hdf5File(path)
        if self.is_folder:
            self.ids = ids_in(path, ending)
        else:
            with readable(path), h5py.File(path, "r") as file:
                self.ids = sorted(file)

    def array(self, image_id: str) -> np.ndarray:
        """The array of one id."""
        if not self.is_folder:
            return self._dataset(image_id)
        file = file_of(self.path, image_id, self.ending)
        if not file.is_file():
            raise GroundingError(
                f"image {image_id!r}: {self.path} has no {file.name}; extract it again, or leave it out"
            )
        if self.ending == ".npy":
            return load_npy(file)
        with opened_npz(file) as arrays:
            if "feat" not in arrays:
                raise GroundingError(f"{file}: has no 'feat', only {', '.join(arrays.files)}; save it too")
            return arrays["feat"]

    def _dataset(self, image_id: str) -> np.ndarray:
        with readable(self.path):
            found = self._file.get(image_id)
            if not isinstance(found, h5py.Dataset):
                raise GroundingError(f"image {image_id!r}: {self.path} has no dataset of it; leave it out")
            return found[()]
