"""What an importer of regions is, and how its boxes become pixels."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np

from ...errors import GroundingError

BOX_FORMATS = ("xyxy", "xywh", "normalised-xyxy")


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


class Option(NamedTuple):
    """A command-line flag of an importer; its value reaches the constructor under the flag's name."""

    flag: str
    help: str
    type: Callable[[str], Any] = str

    @property
    def keyword(self) -> str:
        """The constructor's argument: ``--boxes-key`` is ``boxes_key``."""
        return self.flag.lstrip("-").replace("-", "_")


class Importer(ABC):
    """Reads one format, an image at a time.

    A new format is one file with a subclass, and one line in ``IMPORTERS``. The subclass yields every image
    as a :class:`Record` in an order that is the same each time, and raises :class:`GroundingError` where the
    source cannot be read. What the writer checks (shapes, NaN, boxes, duplicates) it need not check.

    Args:
        path: the file or folder that is imported. Subclasses take their options as keyword arguments.
    """

    options: ClassVar[tuple[Option, ...]] = ()
    """the flags that this format understands beside those that all share"""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def source(self) -> str:
        """What to note in the store when nobody says where the regions come from."""
        return self.path.resolve().name

    @abstractmethod
    def __len__(self) -> int:
        """The number of images."""

    @abstractmethod
    def __iter__(self) -> Iterator[Record]:
        """The images, one after another."""


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
    if boxes.min() >= 0 and boxes.max() <= 1 and max(record.size) > 2:
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
