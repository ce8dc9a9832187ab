"""The region store: one HDF5 file with the boxes and feature vectors of all images, read and written here.

The layout of the file (N images, image n has R_n regions, D numbers a feature vector):

=============== =========================== ========================================================
dataset         shape, type                 meaning
=============== =========================== ========================================================
``features``    (sum of R, D) float16 or 32 rows of all images, one after another
``boxes``       (sum of R, 4) float32       x0 y0 x1 y1, absolute pixels of the original image
``offsets``     (N + 1,) int64              image n owns the rows ``offsets[n]:offsets[n + 1]``
``image_ids``   (N,) UTF-8 string           the key that captions use
``image_sizes`` (N, 2) int32                width, height
``labels``      (sum of R,) integer         optional: the detector's class
``scores``      (sum of R,) float           optional: the detector's confidence
=============== =========================== ========================================================

Attributes: ``format``, ``version``, ``feature_size``, ``source``; maybe ``decisions`` (a JSON object: what an
importer decided about the file that it read) and ``boxes``, ``"whole image"`` where the source had no boxes.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from types import TracebackType
from typing import IO, Any, NamedTuple

import h5py
import numpy as np

from ..errors import GroundingError
from ..files import writing

FORMAT = "fairseq_grounding.regions"
VERSION = 1

# a box may stick out of its image by so many pixels: detectors round, and some count the last pixel in
BOX_TOLERANCE = 1.0

_BLOCK_BYTES = 1 << 23
_HASHED_ROWS = 64
# For stores that somebody else wrote in compressed chunks: without a cache that holds a few, every image
# would decompress its chunk anew. A contiguous store, which RegionWriter makes, never touches the cache.
_CHUNK_CACHE_BYTES = 1 << 26

PLACEHOLDER_BOXES = "whole image"
HDF5_SIGNATURE = b"\x89HDF\r\n\x1a\n"
"""the attribute ``boxes`` of a store whose boxes say nothing"""

# what h5py raises where a file's bytes are wrong; KeyError is a link or an object header that leads nowhere
_DAMAGED = (OSError, RuntimeError, ValueError, KeyError, TypeError)
_REQUIRED = ("features", "boxes", "offsets", "image_ids", "image_sizes")
_PER_ROW = ("features", "boxes", "labels", "scores")


class RegionStore:
    """Reader of a region store.

    The file is checked once, here; later reads open it lazily, once a process, so that a store can be pickled
    or forked into data-loading workers. Ids, offsets and image sizes stay in memory, rows are read on demand.

    Args:
        path: the HDF5 file.

    Attributes:
        path: the file.
        image_ids: the N ids, in the order of the file.
        feature_size: D.
        source: where the regions come from, in the words of whoever wrote the store ("" when unsaid).
        decisions: what the importer decided about the file that it read, name and words; empty when unsaid.
        has_boxes: False when the source had no boxes, and each region has its whole image for a box.
        dtype: the stored type of the features, float16 or float32.
        rows: the number of regions of all images.
        offsets: (N + 1,) int64, image n owns the rows ``offsets[n]:offsets[n + 1]``.
        counts: (N,) int64, regions an image.
        image_sizes: (N, 2) int32, width and height in pixels.
        has_labels, has_scores: whether the optional datasets are there.

    Raises:
        GroundingError: the file is missing, damaged, or not a region store.
    """

    path: Path
    image_ids: list[str]
    feature_size: int
    source: str
    decisions: dict[str, str]
    has_boxes: bool
    dtype: np.dtype
    rows: int
    offsets: np.ndarray
    counts: np.ndarray
    image_sizes: np.ndarray
    has_labels: bool
    has_scores: bool

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._handle: tuple[int, dict[str, h5py.Dataset]] | None = None
        if not self.path.is_file():
            raise GroundingError(f"{self.path}: no such file; write one with fairseq-grounding prepare-regions")
        with open(self.path, "rb") as start:
            if not HDF5_SIGNATURE.startswith(start.read(8)):
                raise GroundingError(
                    f"{self.path}: is no HDF5 file, so no region store; write one with prepare-regions"
                )
        try:
            with h5py.File(self.path, "r") as file:
                self._check_header(file)
                self._read_index(file)
        except _DAMAGED as error:
            raise GroundingError(
                f"{self.path}: cannot be read as HDF5, is it cut short? ({_one_line(error)})"
            ) from error

    def _refuse(self, what: str) -> GroundingError:
        return GroundingError(f"{self.path}: {what}; write the store again with fairseq-grounding prepare-regions")

    def _check_header(self, file: h5py.File) -> None:
        kind = _text(file.attrs.get("format"))
        if kind != FORMAT:
            raise GroundingError(
                f"{self.path}: is not a region store (its attribute 'format' is {kind!r}, not {FORMAT!r}); "
                "make one of it with fairseq-grounding prepare-regions"
            )
        version = file.attrs.get("version")
        if version != VERSION:
            raise self._refuse(f"has version {version} of the format, and this program reads version {VERSION}")
        for name in _REQUIRED:
            if name not in file:
                raise self._refuse(f"has no dataset '{name}'")
        for name in (*_REQUIRED, "labels", "scores"):
            if name in file and not isinstance(file[name], h5py.Dataset):
                raise self._refuse(f"'{name}' is not a dataset")

    def _read_index(self, file: h5py.File) -> None:
        features, images = file["features"], file["image_ids"].size
        if features.ndim != 2 or features.dtype not in (np.float16, np.float32):
            raise self._refuse(f"'features' is {features.shape} {features.dtype}, not (rows, size) float16 or float32")
        self.rows, self.feature_size = features.shape
        self.dtype = features.dtype
        stated = file.attrs.get("feature_size")
        if stated != self.feature_size:
            raise self._refuse(f"the attribute 'feature_size' is {stated}, the features have {self.feature_size}")
        shapes = {
            "boxes": ((self.rows, 4), "f"),
            "offsets": ((images + 1,), "iu"),
            "image_ids": ((images,), "OS"),
            "image_sizes": ((images, 2), "iu"),
            "labels": ((self.rows,), "iu"),
            "scores": ((self.rows,), "f"),
        }
        for name, (shape, kinds) in shapes.items():
            if name in file and (file[name].shape != shape or file[name].dtype.kind not in kinds):
                raise self._refuse(
                    f"'{name}' is {file[name].shape} {file[name].dtype}, which does not go with "
                    f"{images} images and {self.rows} rows of features"
                )
        self.has_labels, self.has_scores = "labels" in file, "scores" in file
        self.source = _text(file.attrs.get("source")) or ""
        self.has_boxes = _text(file.attrs.get("boxes")) != PLACEHOLDER_BOXES
        self.decisions = _read_decisions(_text(file.attrs.get("decisions")))

        self.offsets = file["offsets"][()].astype(np.int64)
        self.counts = np.diff(self.offsets)
        if self.offsets[0] != 0 or self.offsets[-1] != self.rows or (self.counts < 0).any():
            raise self._refuse(f"'offsets' does not run from 0 up to the {self.rows} rows of features")
        self.image_sizes = file["image_sizes"][()].astype(np.int32)

        try:
            self.image_ids = [_decode(value) for value in file["image_ids"][()].tolist()]
        except UnicodeDecodeError as error:
            raise self._refuse("'image_ids' holds an id that is not UTF-8") from error
        self._index = {image_id: n for n, image_id in enumerate(self.image_ids)}
        if len(self._index) != images:
            twice = next(image_id for n, image_id in enumerate(self.image_ids) if self._index[image_id] != n)
            raise self._refuse(f"has the image {twice!r} more than once")
        if (self.image_sizes < 1).any():
            wrong = int((self.image_sizes < 1).any(axis=1).argmax())
            raise self._refuse(f"image {self.image_ids[wrong]!r} has no width or height")

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_handle": None}

    def __len__(self) -> int:
        return len(self.image_ids)

    def __contains__(self, image_id: object) -> bool:
        return image_id in self._index

    def index(self, image_id: str) -> int:
        """The number of an image; a :class:`GroundingError` when the store does not have it."""
        try:
            return self._index[image_id]
        except KeyError:
            raise GroundingError(
                f"{self.path}: has no regions of image {image_id!r}; add it to the store, or leave it out"
            ) from None

    def features(self, n: int, limit: int | None = None) -> np.ndarray:
        """The feature vectors of image *n*, its first *limit* when that is given.

        Returns:
            (R, D) float32.

        Raises:
            GroundingError: they hold NaN or infinity, the image has no regions, or the file is damaged there.
        """
        return self._finite("features", n, limit)

    def boxes(self, n: int, limit: int | None = None) -> np.ndarray:
        """The boxes of image *n*: (R, 4) float32, x0 y0 x1 y1 in pixels. Raises as :meth:`features` does."""
        return self._finite("boxes", n, limit)

    def labels(self, n: int) -> np.ndarray | None:
        """The detector's classes of image *n*: (R,) int64, or None when the store has none."""
        return self._of_image("labels", n).astype(np.int64) if self.has_labels else None

    def scores(self, n: int) -> np.ndarray | None:
        """The detector's confidences of image *n*: (R,) float32, or None when the store has none."""
        return self._of_image("scores", n).astype(np.float32) if self.has_scores else None

    def read_rows(self, name: str, start: int, stop: int) -> np.ndarray:
        """Rows ``start:stop`` of one of the per-region datasets, as stored and unchecked.

        Raises:
            GroundingError: the file is damaged there; names the first image of these rows.
        """
        try:
            return self._dataset(name)[start:stop]
        except _DAMAGED as error:
            n = int(np.searchsorted(self.offsets, start, side="right")) - 1
            raise GroundingError(
                f"{self.path}: the {name} of image {self.image_ids[n]!r} cannot be read "
                f"({_one_line(error)}); the file is damaged, write or copy it again"
            ) from error

    def blocks(self, name: str) -> Iterator[tuple[int, np.ndarray]]:
        """All rows of a per-region dataset in blocks of a few MB: pairs of first row number and rows."""
        width = self.feature_size if name == "features" else 4
        step = max(1, _BLOCK_BYTES // (4 * width))
        for start in range(0, self.rows, step):
            yield start, self.read_rows(name, start, min(start + step, self.rows))

    def content_hash(self) -> str:
        """A SHA-256 in hexadecimal of what the store holds, quick also on a store of many gigabytes.

        It covers everything except the features whole: ids, offsets, image sizes, boxes, labels and scores.
        Of the features it covers shape, type and 64 evenly spaced rows, so a change of other rows goes
        unseen. It does not depend on how the file is laid out (chunks, compression) nor on the attributes
        ``source`` and ``decisions``.
        """
        digest = hashlib.sha256(f"{FORMAT} {VERSION} {self.rows} {self.feature_size} {self.dtype.name}\n".encode())
        for image_id in self.image_ids:
            text = image_id.encode()
            digest.update(len(text).to_bytes(8, "little") + text)
        digest.update(self.offsets.astype("<i8").tobytes())
        digest.update(self.image_sizes.astype("<i4").tobytes())
        for name, kind, there in (
            ("boxes", "<f4", True),
            ("labels", "<i8", self.has_labels),
            ("scores", "<f4", self.has_scores),
        ):
            digest.update(f"{name} {there}\n".encode())
            if there:
                for _, block in self.blocks(name):
                    digest.update(block.astype(kind).tobytes())
        for row in np.unique(np.linspace(0, max(0, self.rows - 1), _HASHED_ROWS).round().astype(np.int64)):
            digest.update(self.read_rows("features", row, row + 1).astype(self.dtype.newbyteorder("<")).tobytes())
        return digest.hexdigest()

    def _dataset(self, name: str) -> h5py.Dataset:
        pid = os.getpid()
        if self._handle is None or self._handle[0] != pid:
            file = h5py.File(self.path, "r", rdcc_nbytes=_CHUNK_CACHE_BYTES)
            self._handle = (pid, {key: file[key] for key in _PER_ROW if key in file})
        return self._handle[1][name]

    def _of_image(self, name: str, n: int, limit: int | None = None) -> np.ndarray:
        if not 0 <= n < len(self.image_ids):
            raise IndexError(f"image {n} of {len(self.image_ids)}")
        start, stop = int(self.offsets[n]), int(self.offsets[n + 1])
        if start == stop:
            raise GroundingError(f"{self.path}: image {self.image_ids[n]!r} has no regions; leave it out of the store")
        if limit is not None:
            stop = min(stop, start + limit)
        return self.read_rows(name, start, stop)

    def _finite(self, name: str, n: int, limit: int | None) -> np.ndarray:
        values = self._of_image(name, n, limit).astype(np.float32, copy=False)
        if not np.isfinite(values).all():
            raise GroundingError(
                f"{self.path}: the {name} of image {self.image_ids[n]!r} hold NaN or infinity; "
                "extract its regions again, or leave it out"
            )
        return values


class CheckedImage(NamedTuple):
    """One image as it goes into a store: nothing in it is wrong, and every column has its stored type."""

    image_id: str
    size: tuple[int, int]
    """width, height in pixels"""
    columns: dict[str, np.ndarray]
    """``features`` (R, D), ``boxes`` (R, 4), and maybe ``labels`` (R,) and ``scores`` (R,)"""


def check_image(
    image_id: str,
    features: np.ndarray,
    boxes: np.ndarray,
    size: tuple[int, int],
    labels: np.ndarray | None = None,
    scores: np.ndarray | None = None,
    dtype: np.dtype | str = "float16",
) -> CheckedImage:
    """Check what can be known of one image alone, and give its columns the types that a store keeps.

    Args:
        image_id: its id, as the captions name it.
        features: (R, D) numbers.
        boxes: (R, 4), x0 y0 x1 y1 in pixels of the original image.
        size: width and height of the original image in pixels.
        labels: (R,) integers.
        scores: (R,) numbers.
        dtype: of the stored features, ``float16`` or ``float32``.

    Raises:
        GroundingError: something in it is wrong; names the image.
    """
    check_image_id(image_id)
    width_height = _check_size(image_id, size)
    stored = _check_features(image_id, np.asarray(features), np.dtype(dtype))
    columns = {"features": stored, "boxes": _check_boxes(image_id, np.asarray(boxes), len(stored), width_height)}
    if labels is not None:
        columns["labels"] = _check_column(image_id, "labels", np.asarray(labels), len(stored), np.int32)
    if scores is not None:
        columns["scores"] = _check_column(image_id, "scores", np.asarray(scores), len(stored), np.float32)
    return CheckedImage(image_id, width_height, columns)


class RegionWriter:
    """Writer of a region store; a context manager.

    HDF5 stores a dataset in one piece only if its size is known when it is created, and the number of regions
    is known only at the end. So the rows go to unnamed temporary files beside *path* as they come, and are
    copied block by block into the finished file when the ``with`` ends. That costs the disk space twice for a
    while; memory holds one image, a few buffers and the ids. A copy is quicker than a first pass over the
    images to count regions, and readers get each image in one uncompressed piece.

    The file appears under its name only when complete; after an exception nothing is left, and since the
    temporary files have no names, neither is after a kill while images are being added.

    Args:
        path: the file to write; its folder must exist. An existing file is replaced, at the end.
        feature_size: D; by default that of the first image.
        source: where the regions come from, for people to read.
        dtype: how to store features, ``float16`` or ``float32``.
        attributes: further attributes of the file.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        feature_size: int | None = None,
        source: str = "",
        dtype: str = "float16",
        attributes: Mapping[str, str] | None = None,
    ) -> None:
        if dtype not in ("float16", "float32"):
            raise GroundingError(f"--dtype {dtype}: must be float16 or float32")
        self.path = Path(path)
        if self.path.is_dir():
            raise GroundingError(f"{self.path}: is a folder; give the name of a file")
        self.feature_size = feature_size
        self.source = source
        self.dtype = np.dtype(dtype)
        self.attributes = dict(attributes or {})
        self._counts: dict[str, int] = {}
        self._sizes: list[tuple[int, int]] = []
        self._spills: dict[str, Spill] = {}
        self._stack = ExitStack()

    @property
    def images(self) -> int:
        """Images added so far."""
        return len(self._counts)

    @property
    def rows(self) -> int:
        """Regions added so far."""
        return self._spills["boxes"].rows if self._spills else 0

    def __enter__(self) -> RegionWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._stack:
            if kind is None:
                self._finish()

    def add(
        self,
        image_id: str,
        features: np.ndarray,
        boxes: np.ndarray,
        size: tuple[int, int],
        labels: np.ndarray | None = None,
        scores: np.ndarray | None = None,
    ) -> None:
        """Add one image: :func:`check_image`, then :meth:`add_checked`, which say what is wrong with it."""
        self.add_checked(check_image(image_id, features, boxes, size, labels, scores, self.dtype))

    def add_checked(self, image: CheckedImage) -> None:
        """Add an image that :func:`check_image` made; :meth:`check_fits` says whether it can be."""
        self.check_fits(image)
        image_id, columns = image.image_id, image.columns
        rows, size = columns["features"].shape
        try:
            if not self._spills:
                for name, values in columns.items():
                    self._spills[name] = Spill(self._spill_file(name), values.dtype, values.shape[1:])
            for name, values in columns.items():
                self._spills[name].append(values)
        except OSError as error:
            raise self._cannot_write(error) from error
        self.feature_size = size
        self._counts[image_id] = rows
        self._sizes.append(image.size)

    def check_fits(self, image: CheckedImage) -> None:
        """Whether an image goes with those before it.

        Raises:
            GroundingError: its id is there already, its features have another size than those before it, or
                labels or scores are given for some images and not for others.
        """
        image_id, columns = image.image_id, image.columns
        if image_id in self._counts:
            raise GroundingError(f"image {image_id!r}: is there more than once; remove one of them")
        size = columns["features"].shape[1]
        if self.feature_size is not None and size != self.feature_size:
            raise GroundingError(
                f"image {image_id!r}: its features have size {size}, those before it {self.feature_size}; "
                "all must be of one extractor"
            )
        if self._spills and columns.keys() != self._spills.keys():
            odd = sorted(columns.keys() ^ self._spills.keys())
            raise GroundingError(
                f"image {image_id!r}: {' and '.join(odd)} must be given for every image or for none, "
                "and the images before it differ"
            )

    def _spill_file(self, name: str) -> IO[bytes]:
        """Where to put the rows of one dataset until their number is known; closed with the writer."""
        return self._stack.enter_context(tempfile.TemporaryFile(dir=self.path.parent, buffering=_BLOCK_BYTES))

    def _finish(self) -> None:
        if not self._counts:
            raise GroundingError(f"{self.path}: not written, because there was no image to write")
        try:
            with self._temporary() as temporary:
                self._write(temporary)
        except (OSError, RuntimeError) as error:
            raise self._cannot_write(error) from error

    def _temporary(self) -> AbstractContextManager[Path]:
        """Where to write the file; it gets its name when the block ends without an error."""
        return writing(self.path)

    def _write(self, path: Path) -> None:
        """The finished file, under another name."""
        with h5py.File(path, "w") as file:
            file.attrs["format"] = FORMAT
            file.attrs["version"] = VERSION
            file.attrs["feature_size"] = self.feature_size
            file.attrs["source"] = self.source
            for name, value in self.attributes.items():
                file.attrs[name] = value
            counts = np.fromiter(self._counts.values(), np.int64, len(self._counts))
            file["offsets"] = np.concatenate([np.zeros(1, np.int64), counts.cumsum()])
            file["image_sizes"] = np.array(self._sizes, np.int32)
            file.create_dataset("image_ids", data=list(self._counts), dtype=h5py.string_dtype())
            for name, spill in self._spills.items():
                spill.copy_to(file, name)

    def _cannot_write(self, error: Exception) -> GroundingError:
        reason = getattr(error, "strerror", None) or _one_line(error)
        return GroundingError(f"{self.path}: cannot be written ({reason}); is its folder there, and is there space?")


class Spill:
    """The rows of one dataset in a temporary file, until their number is known."""

    def __init__(self, file: IO[bytes], dtype: np.dtype, shape: tuple[int, ...]) -> None:
        self.file, self.dtype, self.shape, self.rows = file, dtype, shape, 0

    def append(self, values: np.ndarray) -> None:
        self.file.write(np.ascontiguousarray(values).data)
        self.rows += len(values)

    def copy_to(self, target: h5py.File, name: str) -> None:
        dataset = target.create_dataset(name, (self.rows, *self.shape), self.dtype)
        row_bytes = self.dtype.itemsize * int(np.prod(self.shape))
        step = max(1, _BLOCK_BYTES // row_bytes)
        self.file.seek(0)
        for start in range(0, self.rows, step):
            stop = min(start + step, self.rows)
            block = np.frombuffer(self.file.read((stop - start) * row_bytes), self.dtype)
            dataset[start:stop] = block.reshape(stop - start, *self.shape)


def check_image_id(image_id: str) -> None:
    """Refuse ids that captions or HDF5 could not hold: empty, with control characters, or not UTF-8."""
    if not image_id or any(ord(letter) < 32 for letter in image_id):
        raise GroundingError(f"image {image_id!r}: an id must have letters and no control characters; rename it")
    try:
        image_id.encode()
    except UnicodeEncodeError as error:
        raise GroundingError(f"image {image_id!r}: its id is not UTF-8; rename it") from error


def broken_boxes(boxes: np.ndarray, sizes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Which boxes are no boxes, and which lie outside their image.

    Args:
        boxes: (R, 4), x0 y0 x1 y1 in pixels.
        sizes: (R, 2) or (2,), width and height of the image.

    Returns:
        Two (R,) bool arrays: NaN, infinite or ended before it starts; and sticking out of its image by more
        than :data:`BOX_TOLERANCE` pixels.
    """
    bad = ~np.isfinite(boxes).all(axis=1) | (boxes[:, 2:] < boxes[:, :2]).any(axis=1)
    outside = (boxes[:, :2] < -BOX_TOLERANCE).any(axis=1) | (boxes[:, 2:] > sizes + BOX_TOLERANCE).any(axis=1)
    return bad, outside & ~bad


def _check_features(image_id: str, features: np.ndarray, dtype: np.dtype) -> np.ndarray:
    if features.ndim != 2 or features.dtype.kind not in "fiu" or (len(features) and not features.shape[1]):
        raise GroundingError(
            f"image {image_id!r}: features are {features.shape} {features.dtype}, not (regions, size) numbers"
        )
    if not len(features):
        raise GroundingError(f"image {image_id!r}: has no regions; leave it out, or give it a whole-image box")
    if not np.isfinite(features).all():
        raise GroundingError(
            f"image {image_id!r}: its features hold NaN or infinity; extract it again, or leave it out"
        )
    with np.errstate(over="ignore"):
        stored: np.ndarray = features.astype(dtype)
    if not np.isfinite(stored).all():
        if dtype == np.float16:
            raise GroundingError(
                f"image {image_id!r}: its features reach {np.abs(features).max():.6g}, and float16 ends "
                "at 65504; use --dtype float32"
            )
        raise GroundingError(f"image {image_id!r}: its features do not fit into float32; scale them down")
    return stored


def _check_size(image_id: str, size: tuple[int, int]) -> tuple[int, int]:
    values = np.asarray(size)
    whole = values.shape == (2,) and values.dtype.kind in "fiu" and (values == np.floor(values)).all()
    if not whole or (values < 1).any() or (values >= 2**31).any():
        raise GroundingError(f"image {image_id!r}: its size is {size}, not width and height in whole pixels")
    return int(values[0]), int(values[1])


def _check_boxes(image_id: str, boxes: np.ndarray, regions: int, size: tuple[int, int]) -> np.ndarray:
    if boxes.shape != (regions, 4) or boxes.dtype.kind not in "fiu":
        raise GroundingError(
            f"image {image_id!r}: boxes are {boxes.shape} {boxes.dtype}, not ({regions}, 4) numbers, one row a region"
        )
    bad, outside = broken_boxes(boxes, np.array(size))
    for wrong, what in (
        (bad, "is no box x0 y0 x1 y1"),
        (outside, f"lies outside its {size[0]} x {size[1]} pixels"),
    ):
        if wrong.any():
            n = int(wrong.argmax())
            values = " ".join(f"{value:g}" for value in boxes[n])
            raise GroundingError(
                f"image {image_id!r}: box {n} ({values}) {what}; check the box format and the image's size"
            )
    return boxes.astype(np.float32)


def _check_column(image_id: str, name: str, values: np.ndarray, regions: int, dtype: type) -> np.ndarray:
    whole = dtype is np.int32
    if values.shape != (regions,) or values.dtype.kind not in ("iu" if whole else "fiu"):
        raise GroundingError(
            f"image {image_id!r}: {name} are {values.shape} {values.dtype}, "
            f"not ({regions},) {'whole numbers' if whole else 'numbers'}"
        )
    stored: np.ndarray = values.astype(dtype)
    if not (np.isfinite(stored).all() and (not whole or (stored == values).all())):
        raise GroundingError(f"image {image_id!r}: {name} hold a number that does not fit into {stored.dtype}")
    return stored


def _read_decisions(text: str | None) -> dict[str, str]:
    """What was decided is for people to read: a store in which it is damaged is no worse a store."""
    try:
        found = json.loads(text or "{}")
    except ValueError:
        return {}
    return {str(key): str(value) for key, value in found.items()} if isinstance(found, dict) else {}


def _decode(value: bytes | str) -> str:
    return value.decode("utf-8") if isinstance(value, bytes) else value


def _text(value: Any) -> str | None:
    return None if value is None else _decode(value) if isinstance(value, (bytes, str)) else str(value)


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
