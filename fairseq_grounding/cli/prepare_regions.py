"""Turn image regions of another program into a region store.

The store is the one file that every other command reads: boxes, feature vectors and image sizes. It appears
only when complete; images are read one at a time, so their number costs no memory.

Formats:
  npz-dir  a folder of ID.npz files, with features, boxes and image_size (width, height), and maybe labels and
           scores; or with x, bbox, num_bbox, image_w and image_h, as MILVLG's bottom-up attention saves them
  hdf5     an HDF5 file with features, boxes, ids and sizes in datasets that the --...-key flags name
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..data.importers import BOX_FORMATS, IMPORTERS, Option, import_regions
from ..errors import GroundingError


def _options() -> dict[str, tuple[Option, list[str]]]:
    """The flags of all importers, and which formats understand each."""
    found: dict[str, tuple[Option, list[str]]] = {}
    for name, importer in IMPORTERS.items():
        for option in importer.options:
            found.setdefault(option.keyword, (option, []))[1].append(name)
    return found


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags that all formats share, then those of some."""
    parser.add_argument("--format", required=True, choices=list(IMPORTERS), help="what --input is")
    parser.add_argument("--input", required=True, type=Path, metavar="PATH", help="the file or folder to read")
    parser.add_argument("--out", required=True, type=Path, metavar="FILE", help="the region store to write (.h5)")
    parser.add_argument(
        "--dtype",
        default="float16",
        choices=["float16", "float32"],
        help="how to store features; float16 (the default) halves the file and ends at 65504",
    )
    parser.add_argument(
        "--box-format",
        default="xyxy",
        choices=BOX_FORMATS,
        help="what the boxes are: xyxy, x0 y0 x1 y1 in pixels of the original image (the default); xywh, x0 "
        "y0 width height in pixels; normalised-xyxy, x0 y0 x1 y1 divided by the image's width and height",
    )
    parser.add_argument(
        "--source",
        metavar="TEXT",
        help="where the regions come from (detector, extractor), kept in the store; by default its name",
    )
    for option, formats in _options().values():
        parser.add_argument(option.flag, type=option.type, metavar="NAME", help=f"{', '.join(formats)}: {option.help}")


@contextmanager
def _ending_orderly() -> Iterator[None]:
    """Let a termination signal unwind the program, so that half-written files are removed."""
    before = signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def run(args: argparse.Namespace) -> None:
    """Import, and say what was written."""
    given = {}
    for keyword, (option, formats) in _options().items():
        value = getattr(args, keyword)
        if value is not None and args.format not in formats:
            raise GroundingError(f"{option.flag}: is for --format {' or '.join(formats)}; leave it out")
        if value is not None:
            given[keyword] = value
    with _ending_orderly():
        importer = IMPORTERS[args.format](args.input, **given)
        written = import_regions(importer, args.out, args.box_format, args.dtype, args.source)
    print(
        f"wrote {args.out}: {written.images} images, {written.rows} regions, "
        f"feature size {written.feature_size} ({written.dtype.name})"
    )
