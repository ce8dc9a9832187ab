"""How a module becomes a sub-command."""

from __future__ import annotations

import argparse
from types import ModuleType
from typing import Any


def add_subcommand(commands: Any, name: str, module: ModuleType) -> argparse.ArgumentParser:
    """Add *module*, whose docstring is its help and which defines its arguments, as *name* to argparse's *commands*."""
    description = (module.__doc__ or "").strip()
    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        help=description.splitlines()[0],
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    module.add_arguments(parser)
    return parser
