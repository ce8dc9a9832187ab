"""Print the plugin's folder, for fairseq's --user-dir."""

from __future__ import annotations

import argparse
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """No arguments."""


def run(args: argparse.Namespace) -> None:
    """Print the folder."""
    print(Path(__file__).resolve().parent.parent)
