"""Turn image regions of another program into a region store.

The store is the one file that every other command reads: boxes, feature vectors and image sizes. It appears
only when complete; images are read one at a time, so their number costs no memory. What an import decided about
the files that it read (the order of columns, what the boxes are) is printed, and kept in the store.
"""

from __future__ import annotations

import argparse
import json
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


def _formats() -> str:
    width = max(map(len, IMPORTERS))
    return "\n".join(["formats:", *(f"  {name:<{width}}  {found.summary}" for name, found in IMPORTERS.items())])


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags that all formats share, then those of each."""
    parser.description = f"{parser.description or ''}\n\n{_formats()}".strip()
    parser.add_argument("--format", required=True, choices=list(IMPORTERS), help="what --input is; see above")
    parser.add_argument(
        "--input",
        required=True,
        type=Path,
        nargs="+",
        metavar="PATH",
        help="the file or folder to read; several of one format, such as the splits of a data set, make one store",
    )
    parser.add_argument("--out", required=True, type=Path, metavar="FILE", help="the region store to write (.h5)")
    parser.add_argument(
        "--dtype",
        default="float16",
        choices=["float16", "float32"],
        help="how to store features; float16 (the default) halves the file and ends at 65504",
    )
    parser.add_argument(
        "--box-format",
        choices=BOX_FORMATS,
        help="what the boxes are: xyxy, x0 y0 x1 y1 in pixels of the original image; xywh, x0 y0 width height in "
        "pixels; normalised-xyxy, x0 y0 x1 y1 divided by the image's width and height; by default what the format "
        "says, which is xyxy except where its files show otherwise; boxes that cannot be that are refused",
    )
    parser.add_argument(
        "--source",
        metavar="TEXT",
        help="where the regions come from (detector, extractor), kept in the store; by default its name",
    )
    parser.add_argument(
        "--workers",
        type=int,
        default=1,
        metavar="N",
        help="processes that read and decode (default: 1); the store is the same with any number",
    )
    parser.add_argument(
        "--skip-bad",
        action="store_true",
        help="leave out images that cannot be imported, and list them in OUT.skipped.tsv: id or row, reason",
    )
    parser.add_argument(
        "--resume",
        action="store_true",
        help="go on where a stopped import left off (it leaves OUT.partial), with the same input and flags; begin "
        "anew where there is none",
    )
    groups: dict[str, argparse._ArgumentGroup] = {}
    for option, formats in _options().values():
        title = f"for --format {' or '.join(formats)}"
        if title not in groups:
            groups[title] = parser.add_argument_group(title)
        if option.type is bool:
            groups[title].add_argument(option.flag, action="store_true", default=None, help=option.help)
        else:
            groups[title].add_argument(
                option.flag,
                type=option.type,
                choices=option.choices,
                metavar=None if option.choices else option.metavar,
                help=option.help,
            )


@contextmanager
def _ending_orderly(out: Path) -> Iterator[None]:
    """Let a termination signal unwind the program, so that what was read is kept for --resume."""
    before = signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    try:
        yield
    except (KeyboardInterrupt, SystemExit):
        if Path(f"{out}.partial").is_dir():
            print(f"stopped; {out}.partial keeps what was read: go on with --resume, or delete it", file=sys.stderr)
        raise
    finally:
        signal.signal(signal.SIGTERM, before)


def run(args: argparse.Namespace) -> None:
    """Import, and say what was written and decided."""
    given = {}
    for keyword, (option, formats) in _options().items():
        value = getattr(args, keyword)
        if value is not None and args.format not in formats:
            raise GroundingError(f"{option.flag}: is for --format {' or '.join(formats)}; leave it out")
        if value is not None:
            given[keyword] = value
    with _ending_orderly(args.out):
        importers = [IMPORTERS[args.format](path, **given) for path in args.input]
        for warning in (line for importer in importers for line in importer.warnings):
            print(f"warning: {warning}", file=sys.stderr)
        written = import_regions(
            importers,
            args.out,
            args.box_format,
            args.dtype,
            args.source,
            workers=args.workers,
            skip_bad=args.skip_bad,
            resume=args.resume,
            flags=given,
        )
    print(
        f"wrote {args.out}: {written.images} images, {written.rows} regions, "
        f"feature size {written.feature_size} ({written.dtype.name})"
    )
    for name, words in json.loads(written.attributes["decisions"]).items():
        print(f"  {name}: {words}")
    if args.skip_bad:
        print(f"skipped {len(written.skipped)} images; {args.out}.skipped.tsv names them and says why")
