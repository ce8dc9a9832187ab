"""Write a teacher's attention on a prepared folder's captions once.

Captioners that learn from it (--teacher-attention FILE) then run no teacher:

  fairseq-grounding cache-teacher DATA --teacher-path pos_scan.pt --split train,valid --out pos_scan.attention.h5
  fairseq-train DATA ... --criterion kl_attention_distill --teacher-attention pos_scan.attention.h5

The file holds a number for each word of each caption and each region of its image: with float16 about 130 MB for
Flickr30k at 36 regions. It is read by memory map. It knows the prepared folder, the region store, the checkpoint's
weights and the read-out, and a training that does not fit them is refused. Captions drawn in self-critical training
are in no file: there the teacher itself is needed (--teacher-path).
"""

from __future__ import annotations

import argparse
from pathlib import Path

from ..errors import GroundingError
from .inputs import add_cpu, add_regions
from .report import check_written


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The folder, the teacher, how to read it, and what to write."""
    parser.add_argument("data", type=Path, metavar="DATA", help="prepared folder")
    parser.add_argument(
        "--teacher-path", type=Path, required=True, metavar="CKPT", help="checkpoint of the matching model that teaches"
    )
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="HDF5 file to write")
    parser.add_argument(
        "--split",
        default="train,valid",
        metavar="NAMES",
        help="splits, with commas; training needs train, and valid to validate (default: %(default)s)",
    )
    parser.add_argument(
        "--teacher-readout",
        choices=("normalised", "similarity"),
        default="normalised",
        help="softmax over regions of the word-normalised similarity, as published, or of temperature times cosine "
        "(default: %(default)s)",
    )
    parser.add_argument(
        "--dtype",
        choices=("float32", "float16"),
        default="float16",
        help="half precision costs about 1e-3 of a loss (default: %(default)s)",
    )
    add_regions(parser)
    parser.add_argument(
        "--max-regions", type=int, default=100, metavar="N", help="as the training will have it (default: 100)"
    )
    parser.add_argument(
        "--max-target-positions",
        type=int,
        default=50,
        metavar="N",
        help="as the training will have it: a caption that is cut is read differently (default: 50)",
    )
    add_cpu(parser)
    parser.set_defaults(inputs=("data", "teacher_path", "regions"))


def run(args: argparse.Namespace) -> None:
    """Write the file and say how large it is."""
    splits = [name.strip() for name in args.split.split(",") if name.strip()]
    if not splits or len(set(splits)) < len(splits):
        raise GroundingError(f"--split {args.split}: name each split once, with commas")
    for flag, value, least in (
        ("--max-regions", args.max_regions, 1),
        ("--max-target-positions", args.max_target_positions, 2),
    ):
        if value < least:
            raise GroundingError(f"{flag} {value}: give at least {least}")
    check_written(args, "--out", args.out)
    from ..caching import cache_teacher

    captions = cache_teacher(
        args.data,
        args.teacher_path,
        args.out,
        splits=splits,
        readout=args.teacher_readout,
        dtype=args.dtype,
        regions=args.regions,
        max_regions=args.max_regions,
        max_target_positions=args.max_target_positions,
        cpu=args.cpu,
    )
    print(f"{args.out}: attention on {captions:,} captions, {args.out.stat().st_size / 1e6:,.1f} MB")
