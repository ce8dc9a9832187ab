"""Draw a figure for print: photographs with the attended regions of several models, one under the other.

Words and the regions that they attended to most have the same colour, the same word in all models of a photograph.
Under each caption stands a strip for each word: the weights of all regions in the order of the region store, darker
for bigger, the biggest framed in the word's colour and written at the end.

FILE.png or FILE.pdf; sizes are as printed: text of 9 points in a figure of --width inches.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from .report import check_written


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Dumps, photographs, where to write, what to draw, and how large."""
    parser.add_argument("dumps", type=Path, nargs="+", metavar="DUMP", help="grounding dumps, one a model")
    parser.add_argument(
        "--images", type=Path, required=True, metavar="DIR", help="photographs: ID.jpg, ID.jpeg or ID.png"
    )
    parser.add_argument(
        "--image-ids", type=_ids, required=True, metavar="ID,ID", help="the photographs to draw, in this order"
    )
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="FILE.png or FILE.pdf")
    parser.add_argument(
        "--names", nargs="+", metavar="NAME", help="what to call each model (default: as it is in its dump)"
    )
    parser.add_argument(
        "--words",
        choices=("nouns", "all"),
        default="nouns",
        help="which words have colours. nouns: those of --data, without it words that are no function words;"
        " all: every word that attends (default: nouns)",
    )
    parser.add_argument(
        "--data",
        type=Path,
        metavar="PREPARED",
        help="prepared folder: for its nouns, and for the size of the original photographs where --images are copies"
        " of another size",
    )
    parser.add_argument(
        "--max-words", type=int, default=8, metavar="N", help="words with colours a caption, at most (default: 8)"
    )
    parser.add_argument(
        "--width", type=float, default=7.0, metavar="INCHES", help="width of the whole figure (default: 7)"
    )
    parser.add_argument("--columns", type=int, default=1, metavar="N", help="photographs side by side (default: 1)")
    parser.add_argument("--dpi", type=int, default=200, metavar="N", help="pixels an inch (default: 200)")
    parser.set_defaults(inputs=("dumps", "images", "data"))


def run(args: argparse.Namespace) -> None:
    """Draw and say where."""
    check_written(args, "--out", args.out)
    from ..viewer.figure import write_figure

    options = ("names", "words", "max_words", "width", "columns", "dpi")
    chosen = {name: getattr(args, name) for name in options}
    written = write_figure(args.dumps, args.images, args.image_ids, args.out, prepared=args.data, **chosen)
    print(f"{len(args.image_ids)} photographs by {len(args.dumps)} models in {written}")


def _ids(text: str) -> list[str]:
    return [image_id for image_id in text.split(",") if image_id]
