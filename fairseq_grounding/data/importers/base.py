"""What an importer of regions is, and how its boxes become pixels."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np

from ...errors import GroundingError

BOX_FORMATS = ("xyxy", "xywh", "normalised-xyxy")

_TOGETHER = 8


class Record(NamedTuple):
    """The regions of one image as a source has them: R regions, D numbers a feature vector."""

    image_id: str
    features: np.ndarray
    """(R, D)"""
    boxes: np.ndarray
    """(R, 4), in the source's own box format"""
    size: tuple[int, int]
    """width, height in pixels"""
    labels: np.ndarray | None = None
    """(R,) integers"""
    scores: np.ndarray | None = None
    """(R,) numbers"""


class Job(NamedTuple):
    """One image that is still to be read."""

    name: str
    """how people find it in the source: ``row 12``, or its id"""
    what: Any
    """what :meth:`Importer.read` needs to find it; small, and can be pickled"""
    group: int
    """consecutive jobs of one group are read by one process"""


class Option(NamedTuple):
    """A command-line flag of an importer; its value reaches the constructor under the flag's name."""

    flag: str
    help: str
    type: Callable[[str], Any] = str
    """``bool`` is a flag without a value"""
    metavar: str = "NAME"
    choices: tuple[str, ...] | None = None

    @property
    def keyword(self) -> str:
        """The constructor's argument: ``--boxes-key`` is ``boxes_key``."""
        return self.flag.lstrip("-").replace("-", "_")


class Importer(ABC):
    """Reads one format, an image at a time.

    A new format is one file with a subclass, and one line in ``IMPORTERS``. The subclass names every image as
    a :class:`Job`, in an order that is the same each time, and reads a job when it is asked to, maybe in
    another process: it can be pickled, and opens what cannot be (files) when it is needed. It raises
    :class:`GroundingError` where the source cannot be read. What the writer checks (shapes, NaN, boxes,
    duplicates) it need not check.

    Args:
        path: the file or folder that is imported. Subclasses take their options as keyword arguments.

    Attributes:
        decisions: what it decided about the source, name and words, for people to read.
        warnings: what will not work with these regions; each is one line.
        box_format: what the boxes are unless a flag says otherwise, one of :data:`BOX_FORMATS`.
        reads: the files and folders that are read; a stopped import goes on only if they are the same.
        total: the number of images, or None where it is not known before they are read.
    """

    summary: ClassVar[str] = ""
    """what --input is, in one line"""
    options: ClassVar[tuple[Option, ...]] = ()
    """the flags that this format understands beside those that all share"""
    has_boxes: ClassVar[bool] = True
    """False where the source has none, and every region gets its whole image for a box"""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.decisions: dict[str, str] = {}
        self.warnings: list[str] = []
        self.box_format = "xyxy"
        self.reads: list[Path] = [path]
        self.total: int | None = None

    @property
    def source(self) -> str:
        """What to note in the store when nobody says where the regions come from."""
        return self.path.resolve().name

    @abstractmethod
    def jobs(self) -> Iterator[Job]:
        """The images, one after another."""

    @abstractmethod
    def read(self, what: Any) -> Record:
        """Read the image of one job."""

    def where(self, what: Any) -> str:
        """Where a job's image is, to begin an error with."""
        return str(self.path)

    def image_id(self, job: Job) -> str:
        """The id of a job that cannot be read, as far as it is known; else the job's name."""
        return job.name

    def __iter__(self) -> Iterator[Record]:
        """Read every image in this process."""
        return (self.read(job.what) for job in self.jobs())


def grouped(pairs: Iterable[tuple[str, Any]]) -> Iterator[Job]:
    """Jobs of pairs of name and what to read, a few consecutive ones to a group."""
    for number, (name, what) in enumerate(pairs):
        yield Job(name, what, number // _TOGETHER)


def boxes_in_pixels(record: Record, box_format: str) -> np.ndarray:
    """The boxes of *record* as x0 y0 x1 y1 in pixels.

    Args:
        record: an image.
        box_format: what its boxes are: ``xyxy`` (x0 y0 x1 y1 in pixels), ``xywh`` (x0 y0 width height in
            pixels) or ``normalised-xyxy`` (x0 y0 x1 y1 divided by the image's width and height).

    Raises:
        GroundingError: the boxes are said to be pixels, and all lie within the first pixel of a larger image.
    """
    boxes = np.asarray(record.boxes)
    if boxes.ndim != 2 or boxes.shape[1] != 4 or boxes.dtype.kind not in "fiu" or not boxes.size:
        # the writer says what is wrong with these, in the same words for every source
        return boxes
    boxes = boxes.astype(np.float64)
    if box_format == "normalised-xyxy":
        return boxes * np.tile(np.asarray(record.size, np.float64), 2)
    if within_one(boxes, record.size):
        raise GroundingError(
            f"image {record.image_id!r}: its boxes all lie within 0 and 1, so they are not pixels; "
            + (
                "use --box-format normalised-xyxy"
                if box_format == "xyxy"
                else "multiply them by the image's size first"
            )
        )
    if box_format == "xywh":
        boxes[:, 2:] += boxes[:, :2]
    return boxes


def within_one(boxes: np.ndarray, size: tuple[int, int]) -> bool:
    """Whether boxes (R, 4) all lie within 0 and 1, and their image is larger than a pixel or two."""
    return bool(boxes.min() >= 0 and boxes.max() <= 1 and max(size) > 2)
