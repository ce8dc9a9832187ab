"""``fairseq-grounding``: one module here a sub-command.

A sub-command's module holds ``add_arguments(parser)`` and ``run(args)``; its docstring's first line is its help.
It imports what it needs inside ``run``, so that ``--help`` is quick.
"""

from __future__ import annotations

import argparse
import importlib
import logging
import os
import sys
from collections.abc import Sequence

from ..errors import GroundingError
from .subcommands import add_subcommand

COMMANDS = (
    "prepare-regions",
    "prepare-captions",
    "inspect",
    "align",
    "cache-teacher",
    "evaluate",
    "draw",
    "figure",
    "describe-regions",
    "explain",
    "flags",
    "user-dir",
)


def build_parser() -> argparse.ArgumentParser:
    """The parser with all sub-commands."""
    parser = argparse.ArgumentParser(
        prog="fairseq-grounding",
        description="Prepare regions and captions for fairseq_grounding, score what its models say, draw it.",
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name in COMMANDS:
        module = importlib.import_module(f"{__name__}.{name.replace('-', '_')}")
        add_subcommand(commands, name, module).set_defaults(run=module.run)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one sub-command and return its exit code: 0, or 1 after one line on standard error."""
    args = build_parser().parse_args(argv)
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    try:
        args.run(args)
        sys.stdout.flush()
    except GroundingError as error:
        name = " ".join(filter(None, (args.command, getattr(args, "score", None))))
        print(f"fairseq-grounding {name}: error: {error}", file=sys.stderr)
        return 1
    except BrokenPipeError:
        # the reader of our output (head, less) went away: not an error; keep Python from complaining at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        print(f"fairseq-grounding {args.command}: interrupted", file=sys.stderr)
        return 130
    return 0
