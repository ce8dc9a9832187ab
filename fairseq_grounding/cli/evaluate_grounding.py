"""Where the attention points, against annotated boxes.

Score attended regions against the boxes of objects.json in the prepared folder. The table shows percent; --json holds
fractions, also for each class or entity type.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..errors import GroundingError
from .report import add_common, add_data, percent, print_table

_GVD_COLUMNS = {
    "f1_all": "F1_all",
    "precision_all": "prec_all",
    "recall_all": "rec_all",
    "f1_loc": "F1_loc",
    "precision_loc": "prec_loc",
    "recall_loc": "rec_loc",
    "attention_accuracy": "att. acc.",
}
_FLOORS = {
    "best_possible": "(best possible with these regions)",
    "top_detection": "(top detection)",
    "whole_image": "(whole image)",
    "random_region": "(a random region)",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The dumps, the prepared folder, the protocol and the regions."""
    add_common(parser, inputs=("regions",))
    add_data(parser)
    parser.add_argument(
        "--protocol",
        choices=("gvd", "phrase"),
        default="gvd",
        help="gvd: F1_all and F1_loc on captions the model wrote, attention accuracy on ground-truth ones, means "
        "over classes, as published; phrase: hits on the boxed phrases of ground-truth captions (default: gvd)",
    )
    parser.add_argument(
        "--regions",
        type=Path,
        metavar="FILE",
        help="region store; with --protocol phrase, also print what needs no model: the best possible, the top "
        "detection, the whole image, a random region",
    )


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Score the attention, print the table, and return the report."""
    from ..data.prepared import PreparedFolder
    from ..scoring.grounding import GroundingScorer
    from ..scoring.grounding import floors as measure_floors

    if args.regions is not None and args.protocol != "phrase":
        raise GroundingError("--regions: is for --protocol phrase")
    objects = PreparedFolder(args.data).objects()
    if objects is None:
        raise GroundingError(
            f"{args.data}: has no objects.json; prepare it with boxes (prepare-captions --entities FOLDER)"
        )
    scorer = GroundingScorer(objects, args.protocol)
    results = [{"dump": str(dump), **scorer.score(dump)} for dump in args.dumps]
    report: dict[str, Any] = {"score": "grounding", "protocol": args.protocol, "dumps": results}
    if args.protocol == "gvd":
        print_table(*_gvd_table(results))
        return report
    floors = None
    if args.regions is not None:
        floors = measure_floors(objects, args.regions, {s for result in results for s in result["splits"]})
        report["floors"] = floors
    print_table(*_phrase_table(results, floors))
    return report


def _gvd_table(results: Sequence[dict[str, Any]]) -> tuple[list[str], list[list[str]]]:
    header = ["dump", *_GVD_COLUMNS.values(), "generated", "ground truth", "missing", "not annotated"]
    rows = []
    for result in results:
        kinds = [result["generated"], result["reference"]]
        rows.append(
            [
                result["dump"],
                *(percent(result[name]) for name in _GVD_COLUMNS),
                *(str(kind["images"]) for kind in kinds),
                str(sum(kind["images_missing"] for kind in kinds)),
                str(result["images_not_annotated"]),
            ]
        )
    return header, rows


def _phrase_table(
    results: Sequence[dict[str, Any]], floors: dict[str, Any] | None
) -> tuple[list[str], list[list[str]]]:
    counts = ("hits", "phrases", "phrases_past_end", "phrases_missing", "images")
    header = ["dump", "accuracy", "hits", "phrases", "past end", "missing", "images"]
    rows = [
        [result["dump"], percent(result["accuracy"]), *(str(result[count]) for count in counts)] for result in results
    ]
    for name, title in _FLOORS.items():
        if floors is not None and floors[name] is not None:
            rows.append([title, percent(floors[name]), "", str(floors["phrases"]), "", "", ""])
    return header, rows
