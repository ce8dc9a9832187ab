"""Importer of a folder with one ``.npz`` file an image."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import GroundingError
from .base import Importer, Job, Option, Record, grouped
from .reading import array_of, file_of, ids_in, opened_npz, readable, whole_numbers


class NpzDirImporter(Importer):
    """A folder of ``ID.npz`` files, in the order of their names; the id is the name without ``.npz``.

    Two sets of keys are known, by their names:

    - ``features`` (R, D), ``boxes`` (R, 4), ``image_size`` (width, height), and maybe ``labels``, ``scores``;
    - ``x``, ``bbox`` (R, 4), ``image_w``, ``image_h``, and maybe ``num_bbox``: rows after the first ``num_bbox``
      are padding. This is what MILVLG's PyTorch version of bottom-up attention saves. Some of its descendants save
      ``x`` as (D, R), not (R, D): the number of boxes shows which, unless it equals D.

    The pickled ``info`` of the latter (classes and confidences, which become labels and scores) is read only with
    ``--trust-pickle``: a pickle can run any program. Files named with a leading dot are left out.
    """

    summary = "a folder of ID.npz: features, boxes, image_size; or MILVLG's x, bbox, ..."
    options = (
        Option(
            "--x-layout",
            "whether the array x has one row a region (rows) or one column a region (columns); by default what the "
            "number of boxes shows, file by file",
            str,
            "LAYOUT",
            ("rows", "columns"),
        ),
        Option(
            "--trust-pickle",
            "read classes and confidences from the pickled info: only for files that you made, because a pickle can "
            "run any program",
            bool,
        ),
    )

    def __init__(self, path: Path, x_layout: str | None = None, trust_pickle: bool = False) -> None:
        super().__init__(path)
        if not path.is_dir():
            raise GroundingError(f"{path}: is not a folder; --input of npz-dir is the folder of ID.npz files")
        self.ids = ids_in(path, ".npz")
        if not self.ids:
            raise GroundingError(f"{path}: holds no .npz file; --input of npz-dir is the folder of ID.npz files")
        self.total = len(self.ids)
        self.x_layout, self.trust_pickle = x_layout, trust_pickle
        self._decide()

    def _decide(self) -> None:
        try:
            with opened_npz(self._file(self.ids[0])) as arrays:
                keys = set(arrays.files)
        except GroundingError:
            # whoever imports the file says what is wrong with it
            return
        if "x" not in keys or "features" in keys:
            self.decisions["keys"] = "features, boxes, image_size"
            return
        self.decisions["keys"] = "x, bbox, image_w, image_h"
        self.decisions["layout of x"] = (
            f"{self.x_layout} (--x-layout)" if self.x_layout else "by the number of boxes of each file"
        )
        if "info" in keys:
            self.decisions["info"] = (
                "unpickled for labels and scores (--trust-pickle)" if self.trust_pickle else "pickled, not read"
            )

    def jobs(self) -> Iterator[Job]:
        """The files, in the order of their names."""
        return grouped((image_id, image_id) for image_id in self.ids)

    def where(self, what: str) -> str:
        return str(self._file(what))

    def read(self, what: str) -> Record:
        """Read one file."""
        path = self._file(what)
        with opened_npz(path) as arrays:
            if "features" in arrays:
                width, height = whole_numbers(path, arrays, "image_size", 2)
                return Record(
                    what,
                    array_of(path, arrays, "features"),
                    array_of(path, arrays, "boxes"),
                    (width, height),
                    arrays.get("labels"),
                    arrays.get("scores"),
                )
            if "x" in arrays:
                return self._milvlg(path, what, arrays)
            raise GroundingError(
                f"{path}: has neither 'features' nor 'x', only {', '.join(arrays.files) or 'nothing'}; "
                "save features, boxes and image_size"
            )

    def _file(self, image_id: str) -> Path:
        return file_of(self.path, image_id, ".npz")

    def _milvlg(self, path: Path, image_id: str, arrays: np.lib.npyio.NpzFile) -> Record:
        boxes = array_of(path, arrays, "bbox")
        features = self._one_row_a_region(path, array_of(path, arrays, "x"), len(boxes))
        if "num_bbox" in arrays:
            (count,) = whole_numbers(path, arrays, "num_bbox", 1)
            if not 0 <= count <= len(boxes):
                raise GroundingError(f"{path}: num_bbox is {count}, but there are {len(boxes)} boxes; save them all")
            features, boxes = features[:count], boxes[:count]
        width, height = (whole_numbers(path, arrays, key, 1)[0] for key in ("image_w", "image_h"))
        labels = scores = None
        if self.trust_pickle:
            info = _unpickled(path)
            labels, scores = (_of_info(path, info, key, len(boxes)) for key in ("objects_id", "objects_conf"))
        return Record(image_id, features, boxes, (width, height), labels, scores)

    def _one_row_a_region(self, path: Path, x: np.ndarray, boxes: int) -> np.ndarray:
        rows, columns = (size == boxes for size in x.shape)
        if self.x_layout is None and rows and columns:
            raise GroundingError(
                f"{path}: 'x' is {x.shape} and there are {boxes} boxes, so either axis may be the regions; "
                "say --x-layout rows or columns"
            )
        turned = self.x_layout == "columns" if self.x_layout else columns
        if not (columns if turned else rows):
            raise GroundingError(
                f"{path}: 'x' is {x.shape} and 'bbox' ({boxes}, 4); there must be one {'column' if turned else 'row'} "
                "of x for each box"
            )
        return x.T if turned else x


def _unpickled(path: Path) -> dict[str, Any]:
    with readable(path), np.load(path, allow_pickle=True) as arrays:
        try:
            info = arrays["info"].item() if "info" in arrays else None
        except Exception as error:
            # a pickle may raise anything
            raise GroundingError(
                f"{path}: its 'info' cannot be unpickled ({error!r}); leave --trust-pickle out"
            ) from error
    if not isinstance(info, dict):
        raise GroundingError(f"{path}: has no 'info' that is a dict; leave --trust-pickle out")
    return info


def _of_info(path: Path, info: dict[str, Any], key: str, boxes: int) -> np.ndarray:
    values = np.asarray(info.get(key))
    if values.dtype.kind not in "fiu" or values.shape[:1] < (boxes,):
        raise GroundingError(f"{path}: its 'info' has no '{key}' of {boxes} numbers; leave --trust-pickle out")
    return values[:boxes]
