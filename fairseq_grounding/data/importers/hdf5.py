"""Importer of HDF5 files that keep features, boxes, ids and image sizes in datasets of any name."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from ...errors import GroundingError
from .base import Importer, Job, Option, Record
from .reading import Hdf5File

_BLOCK_BYTES = 1 << 23


class Hdf5Importer(Importer):
    """An HDF5 file in one of two layouts, of N images with up to R regions and D numbers a feature vector:

    - padded: features (N, R, D) and boxes (N, R, 4), with counts (N,) where images have fewer than R;
    - flat: features (rows, D) and boxes (rows, 4), with either offsets (N + 1,), where image n owns the rows
      ``offsets[n]:offsets[n + 1]``, or counts (N,).

    Ids are (N,) strings or integers; sizes are (N, 2) width and height, or two datasets (N,), their names
    joined by a comma, width first. Labels and scores are shaped as the boxes without their last axis. The
    default names are those of a region store, so a compressed store is rewritten plainly by importing it.

    Images are read in blocks of some 8 MB.
    """

    summary = "an HDF5 file with features, boxes, ids and sizes in datasets of any name"
    options = (
        Option("--features-key", "dataset of the features, (N, R, D) or flat (rows, D); default features"),
        Option("--boxes-key", "dataset of the boxes, (N, R, 4) or flat (rows, 4); default boxes"),
        Option("--ids-key", "dataset of the image ids, (N,) strings or integers; default image_ids"),
        Option(
            "--sizes-key",
            "dataset of the image sizes in pixels, (N, 2) width and height, or two datasets WIDTHS,HEIGHTS; "
            "default image_sizes",
        ),
        Option("--counts-key", "dataset of the number of regions of each image, (N,); default counts, if there"),
        Option(
            "--offsets-key",
            "flat rows: dataset of where each image's rows begin, and their end, (N + 1,); default offsets, if there",
        ),
        Option("--labels-key", "dataset of the detector's classes; default labels, if there"),
        Option("--scores-key", "dataset of the detector's confidences; default scores, if there"),
    )

    def __init__(
        self,
        path: Path,
        features_key: str = "features",
        boxes_key: str = "boxes",
        ids_key: str = "image_ids",
        sizes_key: str = "image_sizes",
        counts_key: str | None = None,
        offsets_key: str | None = None,
        labels_key: str | None = None,
        scores_key: str | None = None,
    ) -> None:
        super().__init__(path)
        if not path.is_file():
            raise GroundingError(f"{path}: no such file; --input of hdf5 is an HDF5 file")
        try:
            with h5py.File(path, "r") as self.file:
                self.features = self._required("--features-key", features_key)
                self.boxes = self._required("--boxes-key", boxes_key)
                self.labels = self._optional("--labels-key", labels_key, "labels")
                self.scores = self._optional("--scores-key", scores_key, "scores")
                self.ids = self._read_ids(self._required("--ids-key", ids_key))
                self.sizes = self._read_sizes(sizes_key)
                self.total = len(self.ids)
                self.padded = self.features.ndim == 3
                self._check_shapes()
                self.starts, self.counts = self._read_extents(counts_key, offsets_key)
                stated = self.file.attrs.get("source")
                row_bytes = self.features.dtype.itemsize * self.features.shape[-1]
                self._block_rows = max(1, _BLOCK_BYTES // max(1, row_bytes))
                self._row_width = self.features.shape[1]
                columns = {name: getattr(self, name) for name in ("features", "boxes", "labels", "scores")}
                self._names = {name: found.name for name, found in columns.items() if found is not None}
        except (OSError, RuntimeError) as error:
            raise self._unreadable("", error) from error
        # closed now; each process that reads opens the file anew
        del self.file, self.features, self.boxes, self.labels, self.scores
        self._source = stated if isinstance(stated, str) and stated else super().source
        self._columns = Hdf5File(path)
        self._block: tuple[int, dict[str, np.ndarray]] | None = None
        self.decisions["datasets"] = ", ".join(sorted(self._names.values()))

    @property
    def source(self) -> str:
        """The file's own attribute ``source`` if it has one, else its name."""
        return self._source

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_block": None}

    def jobs(self) -> Iterator[Job]:
        """The images in the order of the file; those of one block to a group."""
        begin = group = 0
        while begin < len(self.ids):
            end = self._block_end(begin)
            for n in range(begin, end):
                yield Job(self.ids[n], (n, begin, end), group)
            begin, group = end, group + 1

    def read(self, what: tuple[int, int, int]) -> Record:
        """Read one image, and with the first of a block all of the block."""
        n, begin, end = what
        if self._block is None or self._block[0] != begin:
            self._block = begin, self._read_block(begin, end)
        columns = self._block[1]
        if self.padded:
            own: Any = (n - begin, slice(int(self.counts[n])))
        else:
            own = slice(int(self.starts[n] - self.starts[begin]), int(self.starts[n + 1] - self.starts[begin]))
        rows = {name: values[own] for name, values in columns.items()}
        return Record(
            self.ids[n], rows["features"], rows["boxes"], self.sizes[n], rows.get("labels"), rows.get("scores")
        )

    def _block_end(self, begin: int) -> int:
        """As many images from *begin* on as go into a block, and at least one."""
        if self.padded:
            return min(len(self.ids), begin + max(1, self._block_rows // max(1, self._row_width)))
        last = int(np.searchsorted(self.starts, self.starts[begin] + self._block_rows, side="right")) - 1
        return min(len(self.ids), max(begin + 1, last))

    def _read_block(self, begin: int, end: int) -> dict[str, np.ndarray]:
        rows = slice(begin, end) if self.padded else slice(int(self.starts[begin]), int(self.starts[end]))
        try:
            return {name: self._columns.rows(key, rows) for name, key in self._names.items()}
        except (OSError, RuntimeError) as error:
            raise self._unreadable(
                f"between the images {self.ids[begin]!r} and {self.ids[end - 1]!r}: ", error
            ) from error

    def _unreadable(self, where: str, error: Exception) -> GroundingError:
        reason = " ".join(str(error).split())
        return GroundingError(f"{self.path}: cannot be read as HDF5 ({where}{reason}); is it cut short or damaged?")

    def _required(self, flag: str, key: str) -> h5py.Dataset:
        found = self.file.get(key)
        if not isinstance(found, h5py.Dataset):
            raise GroundingError(f"{self.path}: has no dataset '{key}' ({flag}); {self._listing()}")
        return found

    def _optional(self, flag: str, key: str | None, default: str) -> h5py.Dataset | None:
        if key is None and not isinstance(self.file.get(default), h5py.Dataset):
            return None
        return self._required(flag, key or default)

    def _listing(self) -> str:
        found: list[str] = []

        def note(name: str, item: Any) -> None:
            if isinstance(item, h5py.Dataset):
                found.append(f"{name} {item.shape} {item.dtype}")

        self.file.visititems(note)
        return f"it has {', '.join(found)}" if found else "it has no datasets"

    def _read_ids(self, dataset: h5py.Dataset) -> list[str]:
        if dataset.ndim != 1 or dataset.dtype.kind not in "OSiu":
            raise self._odd("--ids-key", dataset, "one string or integer an image")
        try:
            return [value.decode("utf-8") if isinstance(value, bytes) else str(value) for value in dataset[()].tolist()]
        except UnicodeDecodeError as error:
            raise GroundingError(f"{self.path}: '{dataset.name}' holds an id that is not UTF-8") from error

    def _read_sizes(self, key: str) -> list[tuple[int, int]]:
        parts = [self._required("--sizes-key", part) for part in key.split(",", 1)]
        shape = (len(self.ids), 2) if len(parts) == 1 else (len(self.ids),)
        for part in parts:
            if part.shape != shape or part.dtype.kind not in "fiu":
                raise self._odd("--sizes-key", part, f"{shape}: width and height of {len(self.ids)} images")
        sizes = parts[0][()] if len(parts) == 1 else np.stack([part[()] for part in parts], axis=1)
        return [tuple(size) for size in sizes.tolist()]

    def _read_extents(self, counts_key: str | None, offsets_key: str | None) -> tuple[np.ndarray, np.ndarray]:
        """Where the rows of each image begin in the flat layout, and how many regions each image has."""
        images = len(self.ids)
        if offsets_key is not None and (self.padded or counts_key is not None):
            raise GroundingError(
                f"{self.path}: --offsets-key goes with flat features and without --counts-key; leave it out"
            )
        offsets = None if self.padded or counts_key else self._optional("--offsets-key", offsets_key, "offsets")
        counts = None if offsets is not None else self._optional("--counts-key", counts_key, "counts")
        if offsets is not None:
            if offsets.shape != (images + 1,) or offsets.dtype.kind not in "iu":
                raise self._odd("--offsets-key", offsets, f"{images + 1} integers, for {images} images")
            starts = offsets[()].astype(np.int64)
            if starts[0] < 0 or (np.diff(starts) < 0).any() or starts[-1] > len(self.features):
                raise GroundingError(
                    f"{self.path}: '{offsets.name}' does not grow from 0 on, up to at most the "
                    f"{len(self.features)} rows of the features"
                )
            return starts, np.diff(starts)
        if counts is not None:
            if counts.size != images or counts.dtype.kind not in "iu":
                raise self._odd("--counts-key", counts, f"{images} integers, for {images} images")
            numbers = counts[()].reshape(-1).astype(np.int64)
            rows = len(self.features)
            most = self.features.shape[1] if self.padded else rows
            if (numbers < 0).any() or (numbers > most).any() or not (self.padded or numbers.sum() == rows):
                raise GroundingError(
                    f"{self.path}: '{counts.name}' does not go with the features {self.features.shape}; "
                    "name another dataset with --counts-key"
                )
        elif self.padded:
            numbers = np.full(images, self.features.shape[1], np.int64)
        else:
            raise GroundingError(
                f"{self.path}: '{self.features.name}' is {self.features.shape}, one row a region, so name "
                "the dataset that says which rows an image owns, with --offsets-key or --counts-key; " + self._listing()
            )
        return np.concatenate([np.zeros(1, np.int64), numbers.cumsum()]), numbers

    def _check_shapes(self) -> None:
        shape = self.features.shape
        if len(shape) not in (2, 3) or (self.padded and shape[0] != len(self.ids)):
            raise self._odd("--features-key", self.features, f"(N, R, D) or (rows, D) for {len(self.ids)} images")
        if self.boxes.shape != (*shape[:-1], 4):
            raise self._odd("--boxes-key", self.boxes, f"{(*shape[:-1], 4)}, as the features are {shape}")
        for flag, dataset in (("--labels-key", self.labels), ("--scores-key", self.scores)):
            if dataset is not None and dataset.shape != shape[:-1]:
                raise self._odd(flag, dataset, f"{shape[:-1]}, as the features are {shape}")

    def _odd(self, flag: str, dataset: h5py.Dataset, wanted: str) -> GroundingError:
        return GroundingError(
            f"{self.path}: '{dataset.name}' ({flag}) is {dataset.shape} {dataset.dtype}, not {wanted}; "
            f"{self._listing()}"
        )
