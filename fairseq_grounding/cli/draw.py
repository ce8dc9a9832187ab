"""Draw the captions of grounding dumps on their photographs, with the box each word attended to.

Writes OUT/ID.png for each image: the photograph, the attended boxes of its content words with their attention
weights, and the caption underneath in the same colours. With several dumps, the first caption of each model is
drawn, one under the other, and images that are not in every dump are left out.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from .report import check_written_folder


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Dumps, photographs, where to write, what to draw."""
    parser.add_argument("dumps", type=Path, nargs="+", metavar="DUMP", help="grounding dumps (JSON lines)")
    parser.add_argument(
        "--images", type=Path, required=True, metavar="DIR", help="photographs: ID.jpg, ID.jpeg or ID.png"
    )
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder for ID.png, made if absent")
    parser.add_argument(
        "--limit", type=int, default=8, metavar="N", help="draw at most N images, the first (default: %(default)s)"
    )
    parser.add_argument("--image-ids", nargs="+", metavar="ID", help="draw these images, all of them")
    parser.add_argument(
        "--data",
        type=Path,
        metavar="PREPARED",
        help="prepared folder: draw its nouns, and take from it the size of the original photographs, for "
        "copies of another size (default: words that are no function words; boxes in pixels of the files)",
    )
    parser.add_argument(
        "--max-words", type=int, default=8, metavar="N", help="boxes in a picture, at most (default: %(default)s)"
    )
    parser.set_defaults(inputs=("dumps", "images", "data"))


def run(args: argparse.Namespace) -> None:
    """Draw and say how many."""
    check_written_folder(args, "--out", args.out)
    from ..viewer.files import draw_dumps

    written = draw_dumps(
        args.dumps,
        args.images,
        args.out,
        limit=args.limit,
        image_ids=args.image_ids,
        prepared=args.data,
        max_words=args.max_words,
    )
    print(f"{len(written)} pictures in {args.out}")
