"""Importer of a folder with one ``.npz`` file an image."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from ...errors import GroundingError
from .base import Importer, Record


class NpzDirImporter(Importer):
    """A folder of ``ID.npz`` files, in the order of their names; the id is the name without ``.npz``.

    Two sets of keys are known, by their names:

    - ``features`` (R, D), ``boxes`` (R, 4), ``image_size`` (width, height), and maybe ``labels``, ``scores``;
    - ``x`` (R, D), ``bbox`` (R, 4), ``image_w``, ``image_h``, and maybe ``num_bbox``: rows after the first
      ``num_bbox`` are padding. This is what MILVLG's PyTorch version of bottom-up attention saves.

    Pickled arrays, such as MILVLG's ``info``, are never read. Files named with a leading dot are left out.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        if not path.is_dir():
            raise GroundingError(f"{path}: is not a folder; --input of npz-dir is the folder of ID.npz files")
        self.files = sorted(file for file in path.glob("*.npz") if not file.name.startswith("."))
        if not self.files:
            raise GroundingError(f"{path}: holds no .npz file; --input of npz-dir is the folder of ID.npz files")

    def __len__(self) -> int:
        return len(self.files)

    def __iter__(self) -> Iterator[Record]:
        return map(_read, self.files)


def _read(path: Path) -> Record:
    image_id = path.name[: -len(".npz")]
    try:
        arrays = np.load(path, allow_pickle=False)
        if not isinstance(arrays, np.lib.npyio.NpzFile):
            raise GroundingError(f"{path}: is a single array, not an .npz file; save it with numpy.savez")
        with arrays:
            if "features" in arrays:
                width, height = _whole_numbers(path, arrays, "image_size", 2)
                return Record(
                    image_id,
                    _array(path, arrays, "features"),
                    _array(path, arrays, "boxes"),
                    (width, height),
                    arrays.get("labels"),
                    arrays.get("scores"),
                )
            if "x" in arrays:
                return _read_milvlg(path, image_id, arrays)
            raise GroundingError(
                f"{path}: has neither 'features' nor 'x', only {', '.join(arrays.files) or 'nothing'}; "
                "save features, boxes and image_size"
            )
    except (OSError, EOFError, ValueError, zipfile.BadZipFile, zlib.error) as error:
        reason = " ".join(str(error).split())
        raise GroundingError(f"{path}: cannot be read ({reason}); save or copy it again") from error


def _read_milvlg(path: Path, image_id: str, arrays: np.lib.npyio.NpzFile) -> Record:
    features, boxes = _array(path, arrays, "x"), _array(path, arrays, "bbox")
    if len(features) != len(boxes):
        raise GroundingError(
            f"{path}: 'x' is {features.shape} and 'bbox' {boxes.shape}; both must have one row a region "
            "(some programs save x transposed)"
        )
    if "num_bbox" in arrays:
        (count,) = _whole_numbers(path, arrays, "num_bbox", 1)
        if not 0 <= count <= len(boxes):
            raise GroundingError(f"{path}: num_bbox is {count}, but there are {len(boxes)} boxes; save them all")
        features, boxes = features[:count], boxes[:count]
    width, height = (_whole_numbers(path, arrays, key, 1)[0] for key in ("image_w", "image_h"))
    return Record(image_id, features, boxes, (width, height))


def _array(path: Path, arrays: np.lib.npyio.NpzFile, key: str) -> np.ndarray:
    if key not in arrays:
        raise GroundingError(f"{path}: has no '{key}', only {', '.join(arrays.files)}; save it too")
    array = arrays[key]
    if array.ndim != 2:
        raise GroundingError(f"{path}: '{key}' is {array.shape}, not one row a region")
    return array


def _whole_numbers(path: Path, arrays: np.lib.npyio.NpzFile, key: str, number: int) -> tuple[int, ...]:
    if key not in arrays:
        raise GroundingError(f"{path}: has no '{key}', only {', '.join(arrays.files)}; save it too")
    values = arrays[key].reshape(-1)
    whole = values.dtype.kind in "fiu" and np.isfinite(values).all() and (values == np.floor(values)).all()
    if len(values) != number or not whole:
        raise GroundingError(f"{path}: '{key}' is {values.tolist()}, not {number} whole number(s)")
    return tuple(int(value) for value in values)
