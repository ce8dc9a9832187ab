"""Score grounding dumps: the captions in them, or where their attention points.

Each score is a sub-command that takes one or more dumps and prints one table, a row a dump.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..errors import GroundingError
from ..files import write_json

_CAPTION_COLUMNS = {
    "bleu1": "BLEU-1",
    "bleu2": "BLEU-2",
    "bleu3": "BLEU-3",
    "bleu4": "BLEU-4",
    "meteor": "METEOR",
    "rouge_l": "ROUGE-L",
    "cider": "CIDEr",
    "spice": "SPICE",
}
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
    """One sub-command a score."""
    scores = parser.add_subparsers(dest="score", required=True, metavar="SCORE")
    captions = scores.add_parser(
        "captions",
        help="BLEU, METEOR, ROUGE-L, CIDEr, SPICE of generated captions",
        description="Score the first caption that a dump has of each image against all captions of the image in "
        "the prepared folder. The table shows percent (CIDEr: 100 times its mean, 1000 at most); --json holds "
        "fractions, also for each image. What needs a missing Java or parser is skipped with a line.",
    )
    _add_common(captions)
    captions.add_argument("--split", default="test", help="split that the images are of (default: test)")
    captions.set_defaults(run_score=_run_captions)
    grounding = scores.add_parser(
        "grounding",
        help="where the attention points, against annotated boxes",
        description="Score attended regions against the boxes of objects.json in the prepared folder. The table "
        "shows percent; --json holds fractions, also for each class or entity type.",
    )
    _add_common(grounding)
    grounding.add_argument(
        "--protocol",
        choices=("gvd", "phrase"),
        default="gvd",
        help="gvd: F1_all and F1_loc on captions the model wrote, attention accuracy on ground-truth ones, means "
        "over classes, as published; phrase: hits on the boxed phrases of ground-truth captions (default: gvd)",
    )
    grounding.add_argument(
        "--regions",
        type=Path,
        metavar="FILE",
        help="region store; with --protocol phrase, also print what needs no model: the best possible, the top "
        "detection, the whole image, a random region",
    )
    grounding.set_defaults(run_score=_run_grounding)


def _add_common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("dumps", nargs="+", type=Path, metavar="DUMP", help="grounding dumps (JSON lines)")
    parser.add_argument("--data", type=Path, required=True, metavar="FOLDER", help="the prepared folder")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write everything as JSON")


def run(args: argparse.Namespace) -> None:
    """Score the dumps, print a table, and write the JSON file where asked."""
    if args.json is not None and not args.json.absolute().parent.is_dir():
        raise GroundingError(f"--json {args.json}: its folder does not exist; make it first")
    report = args.run_score(args)
    if args.json is not None:
        write_json(args.json, report)


def _run_captions(args: argparse.Namespace) -> dict[str, Any]:
    from tqdm import tqdm

    from ..data.prepared import PreparedFolder
    from ..scoring.captions import CaptionScorer, first_captions

    split = PreparedFolder(args.data).split(args.split)
    raw: dict[str, list[str]] = {}
    words: dict[str, list[str]] = {}
    for image, as_written, text in zip(split.image_ids, split.raws, split.texts):
        raw.setdefault(image, []).append(as_written)
        words.setdefault(image, []).append(text)
    said = []
    for dump in args.dumps:
        captions, ignored = first_captions(dump)
        unknown = [image for image in captions if image not in raw]
        if unknown:
            raise GroundingError(
                f"{dump}: {len(unknown)} of its {len(captions)} images are not in the split {args.split!r} of "
                f"{args.data} (first: {unknown[0]}); give the dump's --split and --data"
            )
        said.append((dump, captions, ignored))
    results = []
    with CaptionScorer(raw, words) as scorer:
        for dump, captions, ignored in tqdm(said, desc="score", unit=" dumps", disable=None):
            scores = scorer.score(captions)
            scores.update(images_missing=len(raw) - len(captions), rows_ignored=ignored)
            results.append({"dump": str(dump), **scores})
    there = [name for name in _CAPTION_COLUMNS if any(name in result for result in results)]
    rows = [
        [result["dump"], *(_percent(result.get(name)) for name in there)]
        + [str(result[count]) for count in ("images", "images_missing", "rows_ignored")]
        for result in results
    ]
    header = ["dump", *(_CAPTION_COLUMNS[name] for name in there), "images", "missing", "rows ignored"]
    _print_table(header, rows)
    for note in scorer.notes:
        print(note)
    return {"score": "captions", "split": args.split, "notes": scorer.notes, "dumps": results}


def _run_grounding(args: argparse.Namespace) -> dict[str, Any]:
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
        _print_table(*_gvd_table(results))
        return report
    floors = None
    if args.regions is not None:
        floors = measure_floors(objects, args.regions, {s for result in results for s in result["splits"]})
        report["floors"] = floors
    _print_table(*_phrase_table(results, floors))
    return report


def _gvd_table(results: Sequence[dict[str, Any]]) -> tuple[list[str], list[list[str]]]:
    header = ["dump", *_GVD_COLUMNS.values(), "generated", "ground truth", "missing", "not annotated"]
    rows = []
    for result in results:
        kinds = [result["generated"], result["reference"]]
        rows.append(
            [
                result["dump"],
                *(_percent(result[name]) for name in _GVD_COLUMNS),
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
        [result["dump"], _percent(result["accuracy"]), *(str(result[count]) for count in counts)] for result in results
    ]
    for name, title in _FLOORS.items():
        if floors is not None and floors[name] is not None:
            rows.append([title, _percent(floors[name]), "", str(floors["phrases"]), "", "", ""])
    return header, rows


def _percent(fraction: float | None) -> str:
    return "-" if fraction is None else f"{100 * fraction:.1f}"


def _print_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    widths = [max(map(len, column)) for column in zip(header, *rows)]
    for row in (header, *rows):
        cells = [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:]))]
        print("  ".join(cells).rstrip())
