"""Importers: how regions in the formats of other programs get into a region store.

To add a format, write a subclass of :class:`~.base.Importer` in a file here and name it in ``IMPORTERS``; the
command ``prepare-regions`` takes its name and its flags from there.
"""

from __future__ import annotations

import os

from tqdm import tqdm

from ..regions import RegionWriter
from .base import BOX_FORMATS, Importer, Option, Record, boxes_in_pixels
from .hdf5 import Hdf5Importer
from .npz_dir import NpzDirImporter

__all__ = ["BOX_FORMATS", "IMPORTERS", "Importer", "Option", "Record", "import_regions"]

IMPORTERS: dict[str, type[Importer]] = {
    "npz-dir": NpzDirImporter,
    "hdf5": Hdf5Importer,
}


def import_regions(
    importer: Importer,
    out: str | os.PathLike[str],
    box_format: str = "xyxy",
    dtype: str = "float16",
    source: str | None = None,
) -> RegionWriter:
    """Write every image of *importer* into the region store *out*, one at a time.

    Args:
        importer: where the images come from.
        out: the store to write.
        box_format: one of :data:`BOX_FORMATS`, what the importer's boxes are.
        dtype: how to store features, ``float16`` or ``float32``.
        source: where the regions come from; by default what the importer knows.

    Returns:
        The finished writer, which knows how much it wrote.

    Raises:
        GroundingError: something cannot be read or is wrong; then *out* is as it was before.
    """
    with RegionWriter(out, source=importer.source if source is None else source, dtype=dtype) as writer:
        for record in tqdm(importer, total=len(importer), desc="regions", unit=" images", disable=None):
            writer.add(**record._replace(boxes=boxes_in_pixels(record, box_format))._asdict())
    return writer
