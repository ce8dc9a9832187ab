"""What several importers need: arrays, ids and image sizes from files, read with care."""

from __future__ import annotations

import csv
import os
import tokenize
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path, PurePosixPath, PureWindowsPath

import h5py
import numpy as np

from ...errors import GroundingError
from ...files import read_json
from ..regions import RegionStore
from ..text_lines import read_lines
from .base import Option

IMAGE_SIZES = Option(
    "--image-sizes",
    "width and height of the original images, which this format does not keep: a folder of photographs, a CSV or "
    "TSV file (image_id, width, height), a JSON file with images[] of a name or id, width and height (COCO's "
    "annotations), or a region store",
    Path,
    "PATH",
)
IDS = Option(
    "--ids",
    "the image ids in the order of the rows: a text file, one a line; a JSON list; or GVD's dic_flickr30k.json",
    Path,
    "FILE",
)

_PHOTOGRAPHS = (".jpg", ".jpeg", ".png")
# numpy hands an array's header to Python's tokeniser and parser, and its shape to mmap
_HEADER_ERRORS = (tokenize.TokenError, SyntaxError, OverflowError, TypeError, IndexError)
_UNREADABLE = (
    *(OSError, EOFError, ValueError, MemoryError, RuntimeError, zipfile.BadZipFile, zlib.error),
    *_HEADER_ERRORS,
)


@contextmanager
def readable(path: Path) -> Iterator[None]:
    """Turn what is raised while a file is read into one line that names it."""
    try:
        yield
    except _UNREADABLE as error:
        reason = getattr(error, "strerror", None) or " ".join(str(error).split()) or type(error).__name__
        raise GroundingError(f"{path}: cannot be read ({reason}); save or copy it again") from error


def load_npy(path: Path, mapped: bool = False) -> np.ndarray:
    """The array of an ``.npy`` file; *mapped*: left on disk. Pickles are refused.

    Raises:
        GroundingError: the file is missing, cut short, pickled, or not an array; names it.
    """
    with readable(path):
        array = np.load(path, mmap_mode="r" if mapped else None, allow_pickle=False)
    if not isinstance(array, np.ndarray):
        raise GroundingError(f"{path}: is an .npz archive, not an .npy array; save it with numpy.save")
    return array


@contextmanager
def opened_npz(path: Path) -> Iterator[np.lib.npyio.NpzFile]:
    """An ``.npz`` archive, without pickles; its arrays are read inside the block.

    Raises:
        GroundingError: it cannot be read, is no archive, or one of its names leads out of a folder.
    """
    with readable(path):
        arrays = np.load(path, allow_pickle=False)
        if not isinstance(arrays, np.lib.npyio.NpzFile):
            raise GroundingError(f"{path}: is a single array, not an .npz file; save it with numpy.savez")
        with arrays:
            for name in arrays.files:
                if not _inside(name):
                    raise GroundingError(
                        f"{path}: holds an array named {name!r}, which leads out of a folder; do not trust this file"
                    )
            yield arrays


def array_of(path: Path, arrays: np.lib.npyio.NpzFile, key: str) -> np.ndarray:
    """One array of an archive, which must have two axes."""
    if key not in arrays:
        raise GroundingError(f"{path}: has no '{key}', only {', '.join(arrays.files) or 'nothing'}; save it too")
    array = arrays[key]
    if array.ndim != 2:
        raise GroundingError(f"{path}: '{key}' is {array.shape}, not one row a region")
    return array


def whole_numbers(path: Path, arrays: np.lib.npyio.NpzFile, key: str, number: int) -> tuple[int, ...]:
    """*number* whole numbers of an archive."""
    if key not in arrays:
        raise GroundingError(f"{path}: has no '{key}', only {', '.join(arrays.files)}; save it too")
    values = arrays[key].reshape(-1)
    whole = values.dtype.kind in "fiu" and np.isfinite(values).all() and (values == np.floor(values)).all()
    if len(values) != number or not whole:
        raise GroundingError(f"{path}: '{key}' is {values.tolist()}, not {number} whole number(s)")
    return tuple(int(value) for value in values)


def file_of(folder: Path, image_id: str, ending: str) -> Path:
    """``folder/ID<ending>``; an id that leads elsewhere is refused."""
    if "/" in image_id or not _inside(image_id):
        raise GroundingError(f"{folder}: the id {image_id!r} leads out of the folder; do not trust this file")
    return folder / f"{image_id}{ending}"


def ids_in(folder: Path, ending: str) -> list[str]:
    """The ids of a folder's files ``ID<ending>``, in the order of their names, without hidden files."""
    try:
        with os.scandir(folder) as entries:
            names = [entry.name for entry in entries if entry.name.endswith(ending) and entry.name[0] != "."]
    except OSError as error:
        raise GroundingError(f"{folder}: is not a folder that can be read ({error.strerror})") from error
    return sorted(name[: -len(ending)] for name in names)


def read_ids(path: Path) -> list[str]:
    """Image ids in order: a text file, a JSON list, or GVD's JSON with ``images[].id``.

    An entry of a JSON list that ends as photographs do is a file name, and its id is the name without ending.
    """
    if path.suffix == ".json":
        data = read_json(path)
        if isinstance(data, dict) and isinstance(data.get("images"), list):
            data = [image.get("id") if isinstance(image, dict) else None for image in data["images"]]
        if not isinstance(data, list) or not all(isinstance(value, (str, int)) for value in data):
            raise GroundingError(f"{path}: is neither a JSON list of ids nor an object with images[].id")
        return [_stem(str(value)) for value in data]
    return [line.strip() for _, line in read_lines(path)]


class ImageSizes:
    """Width and height of images, from whatever the user has; see :data:`IMAGE_SIZES`.

    A folder of photographs is looked up image by image, and only the head of a photograph is read; everything
    else is read at once.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._sizes: dict[str, tuple[int, int]] | None = None
        if path.is_dir():
            return
        if not path.is_file():
            raise GroundingError(f"--image-sizes {path}: no such file or folder")
        if path.suffix == ".json":
            self._sizes = _sizes_of_json(path)
        elif h5py.is_hdf5(path):
            store = RegionStore(path)
            self._sizes = {image_id: (int(w), int(h)) for image_id, (w, h) in zip(store.image_ids, store.image_sizes)}
        else:
            self._sizes = _sizes_of_table(path)

    def __getitem__(self, image_id: str) -> tuple[int, int]:
        """Width and height of an image; a :class:`GroundingError` when they are not known."""
        if self._sizes is None:
            return self._measured(image_id)
        try:
            return self._sizes[image_id]
        except KeyError:
            raise GroundingError(
                f"image {image_id!r}: --image-sizes {self.path} does not have its width and height; add them"
            ) from None

    def _measured(self, image_id: str) -> tuple[int, int]:
        from PIL import Image

        for ending in _PHOTOGRAPHS:
            path = file_of(self.path, image_id, ending)
            if path.is_file():
                with readable(path), Image.open(path) as photograph:
                    return photograph.size
        raise GroundingError(
            f"image {image_id!r}: --image-sizes {self.path} has no {image_id} with the ending "
            f"{', '.join(_PHOTOGRAPHS)}; add the photograph"
        )


class Hdf5File:
    """An HDF5 file that each process opens for itself, when it first reads; it can be pickled and forked."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._handle: tuple[int, h5py.File] | None = None

    def __getstate__(self) -> dict[str, object]:
        return {"path": self.path, "_handle": None}

    def get(self, name: str) -> object:
        """The dataset or group *name*, or None; what is raised by reading it is the caller's to name."""
        if self._handle is None or self._handle[0] != os.getpid():
            self._handle = os.getpid(), h5py.File(self.path, "r")
        return self._handle[1].get(name)

    def rows(self, name: str, rows: int | slice) -> np.ndarray:
        """Rows of a dataset that is known to be there."""
        dataset = self.get(name)
        assert isinstance(dataset, h5py.Dataset), "checked when the importer was made"
        return dataset[rows]


def required_sizes(path: Path | None, source: Path, name: str) -> ImageSizes:
    """The sizes that the user named; without any, an error that asks for them."""
    if path is None:
        raise GroundingError(
            f"{source}: {name} do not keep the size of the images; say where it is with --image-sizes (a folder of "
            "photographs, a CSV or TSV file image_id width height, COCO's JSON, or a region store)"
        )
    return ImageSizes(path)


def _sizes_of_json(path: Path) -> dict[str, tuple[int, int]]:
    data = read_json(path)
    images = data.get("images") if isinstance(data, dict) else data
    if not isinstance(images, list) or not all(isinstance(image, dict) for image in images):
        raise GroundingError(f"--image-sizes {path}: is not a JSON object with a list 'images' of objects")
    sizes: dict[str, tuple[int, int]] = {}
    for number, image in enumerate(images):
        if "width" not in image or "height" not in image:
            raise GroundingError(
                f"--image-sizes {path}: images[{number}] has no 'width' and 'height' (Karpathy's own files have "
                "none); name a folder of photographs or a CSV file"
            )
        size = _whole(path, f"images[{number}]", image["width"], image["height"])
        for key in ("filename", "file_name", "id", "image_id", "cocoid"):
            if isinstance(image.get(key), (str, int)):
                sizes.setdefault(_stem(str(image[key])), size)
    return sizes


def _sizes_of_table(path: Path) -> dict[str, tuple[int, int]]:
    sizes: dict[str, tuple[int, int]] = {}
    with readable(path), open(path, encoding="utf-8", newline="") as file:
        first = file.readline()
        file.seek(0)
        rows = csv.reader(file, delimiter="\t" if "\t" in first else ",")
        columns: Mapping[str, int] = {"image_id": 0, "width": 1, "height": 2}
        for number, row in enumerate(rows, 1):
            if number == 1 and any(name in row for name in ("width", "image_w")):
                columns = _named_columns(path, row)
                continue
            if not row:
                continue
            if len(row) <= max(columns.values()):
                raise GroundingError(f"--image-sizes {path}: row {number} has not image_id, width and height")
            width, height = (row[columns[name]] for name in ("width", "height"))
            sizes[_stem(row[columns["image_id"]])] = _whole(path, f"row {number}", width, height)
    return sizes


def _named_columns(path: Path, header: list[str]) -> dict[str, int]:
    found = {}
    for name, others in (("image_id", ("id", "filename")), ("width", ("image_w",)), ("height", ("image_h",))):
        there = [header.index(known) for known in (name, *others) if known in header]
        if not there:
            raise GroundingError(f"--image-sizes {path}: its first row names no column '{name}'; add it")
        found[name] = there[0]
    return found


def _whole(path: Path, where: str, width: object, height: object) -> tuple[int, int]:
    try:
        values = [float(str(value)) for value in (width, height)]
    except ValueError:
        values = [0.0]
    if not all(1 <= value < 2**31 and value == int(value) for value in values):
        raise GroundingError(
            f"--image-sizes {path}: {where} has the size {width} x {height}, not whole numbers of pixels"
        )
    return int(values[0]), int(values[1])


def _stem(name: str) -> str:
    """The id that a file name stands for; an id as it is."""
    if name.lower().endswith(_PHOTOGRAPHS):
        return PurePosixPath(name).stem
    return name


def _inside(name: str) -> bool:
    windows = PureWindowsPath(name)
    return bool(name) and ".." not in windows.parts and not windows.drive and not windows.root and "\0" not in name
