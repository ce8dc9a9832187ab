"""Importer of Grounded Video Description's Flickr30k detections (Zhou et al. 2019) and region features."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import h5py
import numpy as np

from ...errors import GroundingError
from .base import Importer, Job, Option, Record, grouped
from .reading import IDS, IMAGE_SIZES, Hdf5File, file_of, ids_in, load_npy, read_ids, readable, required_sizes


class GvdImporter(Importer):
    """An HDF5 file with ``dets_labels`` (N, M, 6), x0 y0 x1 y1 in pixels, class and score, and ``nms_num`` (N,),
    the number of rows that count; and a folder of ``ID.npy`` (M, D), whose rows are those of ``dets_labels``.

    The ids are in neither, but in ``dic_flickr30k.json``, in the order of the rows. The size of the images is
    nowhere. Both are asked for. Classes and scores become labels and scores.
    """

    summary = "GVD's HDF5 of detections; needs --features-dir (ID.npy), --ids and --image-sizes"
    options = (
        Option("--features-dir", "the folder of ID.npy, one row of features a detection", Path, "DIR"),
        IDS,
        IMAGE_SIZES,
        Option(
            "--min-score",
            "keep detections whose score is above this; GVD's own loader takes 0.2; by default all are kept",
            float,
            "SCORE",
        ),
    )

    def __init__(
        self,
        path: Path,
        features_dir: Path | None = None,
        ids: Path | None = None,
        image_sizes: Path | None = None,
        min_score: float | None = None,
    ) -> None:
        super().__init__(path)
        if not path.is_file():
            raise GroundingError(f"{path}: no such file; --input of gvd is the HDF5 file of detections")
        if features_dir is None or ids is None:
            flag = "--features-dir (the folder of ID.npy)" if features_dir is None else "--ids (dic_flickr30k.json)"
            raise GroundingError(f"{path}: GVD keeps detections, features and ids apart; add {flag}")
        self.features_dir, self.min_score = features_dir, min_score
        self.sizes = required_sizes(image_sizes, path, "GVD's files")
        assert image_sizes is not None, "required_sizes refuses None"
        self.reads = [path, features_dir, ids, image_sizes]
        self.ids = read_ids(ids)
        with readable(path), h5py.File(path, "r") as file:
            self.counts = self._counts(file)
        self.detections = Hdf5File(path)
        if len(self.ids) != len(self.counts):
            raise GroundingError(
                f"{path}: has {len(self.counts)} images, and --ids {ids} {len(self.ids)}; they must be of one data set"
            )
        # features without detections are jobs too: whoever reads them says what lacks
        self.extra = sorted(set(ids_in(features_dir, ".npy")) - set(self.ids))
        self.total = len(self.ids) + len(self.extra)
        self.decisions["image ids"] = f"from {ids.name} (--ids), in its order"
        self.decisions["image sizes"] = f"from {image_sizes.name} (--image-sizes)"
        self.decisions["scores"] = (
            "all are kept (GVD's own loader keeps those above 0.2: --min-score 0.2)"
            if min_score is None
            else f"above {min_score:g} (--min-score)"
        )

    def jobs(self) -> Iterator[Job]:
        """The images in the order of the file."""
        pairs = [(image_id, (image_id, n)) for n, image_id in enumerate(self.ids)]
        return grouped(pairs + [(image_id, (image_id, -1)) for image_id in self.extra])

    def read(self, what: tuple[str, int]) -> Record:
        """Read the features of one image, and keep those whose detections count."""
        image_id, n = what
        path = file_of(self.features_dir, image_id, ".npy")
        if n < 0:
            raise GroundingError(f"image {image_id!r}: {path} is there, but {self.path} and --ids do not have it")
        if not path.is_file():
            raise GroundingError(f"image {image_id!r}: {self.path} has its detections, but there is no {path}; add it")
        with readable(self.path):
            found = self.detections.rows("dets_labels", n)[: self.counts[n]]
        features = load_npy(path)
        if features.ndim != 2 or len(features) < len(found):
            raise GroundingError(f"{path}: is {features.shape}, not {len(found)} rows or more, one a detection")
        kept = np.ones(len(found), bool) if self.min_score is None else found[:, 5] > self.min_score
        if not kept.any():
            raise GroundingError(
                f"image {image_id!r}: none of its {len(found)} detections has a score above {self.min_score}; leave it "
                "out, or lower --min-score"
            )
        found, features = found[kept], features[: len(found)][kept]
        labels, scores = found[:, 4], found[:, 5]
        if not (labels == np.floor(labels)).all():
            raise GroundingError(f"image {image_id!r}: its classes in {self.path} are not whole numbers")
        return Record(image_id, features, found[:, :4], self.sizes[image_id], labels.astype(np.int64), scores)

    def _counts(self, file: h5py.File) -> np.ndarray:
        detections, counts = file.get("dets_labels"), file.get("nms_num")
        if not isinstance(detections, h5py.Dataset) or not isinstance(counts, h5py.Dataset):
            raise GroundingError(f"{self.path}: has not both 'dets_labels' and 'nms_num', only {', '.join(file)}")
        if detections.ndim != 3 or detections.shape[2] != 6 or counts.size != len(detections):
            raise GroundingError(
                f"{self.path}: 'dets_labels' is {detections.shape} and 'nms_num' {counts.shape}, not (N, M, 6) and (N,)"
            )
        numbers = counts[()].reshape(-1)
        if not ((numbers >= 0) & (numbers <= detections.shape[1]) & (numbers == np.floor(numbers))).all():
            raise GroundingError(f"{self.path}: 'nms_num' is not a number of detections up to {detections.shape[1]}")
        return numbers.astype(np.int64)
