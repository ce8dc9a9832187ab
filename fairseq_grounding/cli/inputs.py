"""Arguments of the sub-commands that run a trained model over a prepared folder."""

from __future__ import annotations

import argparse
from pathlib import Path


def add_regions(parser: argparse.ArgumentParser, *aliases: str) -> None:
    """``--regions``, under *aliases* too."""
    parser.add_argument(
        "--regions",
        *aliases,
        type=Path,
        metavar="FILE",
        help="region store (default: the one that the folder was prepared with)",
    )


def add_cpu(parser: argparse.ArgumentParser) -> None:
    """``--cpu``."""
    parser.add_argument("--cpu", action="store_true", help="compute on the processor even where there is a GPU")
