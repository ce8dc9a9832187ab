"""Score grounding dumps: the captions in them, where their attention points, or what they make up.

Each score is a sub-command that takes one or more dumps and prints one table, a row a dump.
"""

from __future__ import annotations

import argparse

from . import evaluate_captions, evaluate_grounding, evaluate_hallucination
from .report import check_json, write_report
from .subcommands import add_subcommand

_SCORES = {"captions": evaluate_captions, "grounding": evaluate_grounding, "hallucination": evaluate_hallucination}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """One sub-command a score; its module's docstring is its help."""
    scores = parser.add_subparsers(dest="score", required=True, metavar="SCORE")
    for name, module in _SCORES.items():
        add_subcommand(scores, name, module).set_defaults(run_score=module.run)


def run(args: argparse.Namespace) -> None:
    """Score the dumps, print a table, and write the JSON file where asked."""
    check_json(args)
    write_report(args, args.run_score(args))
