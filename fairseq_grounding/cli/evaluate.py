"""Score grounding dumps (captions, where attention points, what is made up), matching models (retrieval), explanations.

Each score is a sub-command. Those of dumps take one or more and print one table, a row a dump.
"""

from __future__ import annotations

import argparse

from . import (
    evaluate_captions,
    evaluate_explanations,
    evaluate_grounding,
    evaluate_hallucination,
    evaluate_retrieval,
)
from .report import check_json, write_report
from .subcommands import add_subcommand

_SCORES = {
    "captions": evaluate_captions,
    "grounding": evaluate_grounding,
    "hallucination": evaluate_hallucination,
    "retrieval": evaluate_retrieval,
    "explanations": evaluate_explanations,
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """One sub-command a score; its module's docstring is its help."""
    scores = parser.add_subparsers(dest="score", required=True, metavar="SCORE")
    for name, module in _SCORES.items():
        add_subcommand(scores, name, module).set_defaults(run_score=module.run)


def run(args: argparse.Namespace) -> None:
    """Score, print a table, and write the JSON file where asked."""
    check_json(args)
    write_report(args, args.run_score(args))
