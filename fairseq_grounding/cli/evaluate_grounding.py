"""Where the attention points, against annotated boxes.

Score attended regions against the boxes of objects.json in the prepared folder, by one of three protocols:

gvd     F1_all and F1_loc on captions that the model wrote, attention accuracy on ground-truth ones, means over
        object classes: the published evaluation, number for number, traps included
strict  the same questions as a careful person would put them: the references of an image pooled, every annotated box
        of a class counts, repeated words are matched one to one, means over words and over classes
phrase  on ground-truth captions, for each boxed phrase: does the model look at one of its boxes

Example: one caption, "a man beside a man", a box for each. A model that writes "a man and a man" and looks at the one
box and then at the other has F1_all 50 by gvd, which knows the first box of a class alone, and 100 by strict.

A dump of align has a row in the table for each of its betas.

The table shows percent; intervals are 95%, from resampled images. --json holds fractions, counts, every class or
entity type, and where wrong attention went.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..errors import GroundingError
from .report import add_common, add_data, add_resampling, interval, percent, print_table

_F1_COLUMNS = {
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
    "largest_region": "(largest region)",
    "whole_image": "(whole image)",
    "random_region": "(a random region)",
}
_MEASURES = {"nouns": "every noun", "phrase_mean": "phrase mean", "pointing": "pointing"}

Table = tuple[list[str], list[list[str]]]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The dumps, the prepared folder, the protocol, the regions, and what to print and resample."""
    add_common(parser, inputs=("regions",))
    add_data(parser)
    parser.add_argument(
        "--protocol",
        choices=("gvd", "strict", "phrase"),
        default="gvd",
        help="what is scored, and how: see above (default: gvd)",
    )
    parser.add_argument(
        "--regions",
        type=Path,
        metavar="FILE",
        help="region store; with --protocol phrase, also score the mean attention over a phrase, and print what needs "
        "no model: the best possible, the top detection, the largest region, the whole image, a random region",
    )
    parser.add_argument(
        "--per-class",
        action="store_true",
        help="also print each class and where wrong attention went; with --protocol phrase, each entity type",
    )
    parser.add_argument(
        "--top", type=int, default=20, metavar="N", help="print the N most frequent of them (default: 20; 0: all)"
    )
    add_resampling(parser, "strict and phrase")


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Score the attention, print the tables, and return the report."""
    from ..data.prepared import PreparedFolder
    from ..data.regions import RegionStore
    from ..scoring.attended import betas_of
    from ..scoring.grounding import GroundingScorer
    from ..scoring.grounding import floors as measure_floors
    from ..scoring.phrases import PreparedNouns

    if args.regions is not None and args.protocol != "phrase":
        raise GroundingError("--regions: is for --protocol phrase")
    if args.top < 0:
        raise GroundingError(f"--top {args.top}: must be 0 (all) or more")
    folder = PreparedFolder(args.data)
    objects = folder.objects()
    if objects is None:
        raise GroundingError(
            f"{args.data}: has no objects.json; prepare it with boxes (prepare-captions --entities FOLDER)"
        )
    nouns = PreparedNouns(folder, objects["splits"]) if args.protocol == "phrase" else None
    store = None if args.regions is None else RegionStore(args.regions)
    resampling = {"bootstrap": args.bootstrap, "seed": args.seed}
    scorer = GroundingScorer(objects, args.protocol, nouns=nouns, store=store, **resampling)
    results = [
        {"dump": str(dump), **({} if beta is None else {"beta": beta}), **scorer.score(dump, beta)}
        for dump in args.dumps
        for beta in betas_of(dump)
    ]
    report: dict[str, Any] = {"score": "grounding", "protocol": args.protocol, "dumps": results}
    floors = None
    if store is not None:
        splits = {split for result in results for split in result["splits"]}
        floors = report["floors"] = measure_floors(objects, store, splits, nouns=nouns, **resampling)
    if args.protocol == "phrase":
        print_table(*_phrase_table(results, floors))
        for note in dict.fromkeys(note for result in results for note in result["notes"]):
            print(note)
    else:
        print_table(*(_strict_table if args.protocol == "strict" else _gvd_table)(results))
    if args.per_class:
        for result in results:
            for title, table in _details(result, args.top or None):
                if table[1]:
                    print(f"\n{_name(result)}: {title}")
                    print_table(*table)
    return report


def _name(result: Mapping[str, Any]) -> str:
    return f"{result['dump']}, beta {result['beta']:g}" if "beta" in result else str(result["dump"])


def _gvd_table(results: Sequence[dict[str, Any]]) -> Table:
    header = ["dump", *_F1_COLUMNS.values(), "generated", "ground truth", "missing", "not annotated"]
    rows = []
    for result in results:
        kinds = [result["generated"], result["reference"]]
        rows.append(
            [
                _name(result),
                *(percent(result[name]) for name in _F1_COLUMNS),
                *(str(kind["images"]) for kind in kinds),
                str(sum(kind["images_missing"] for kind in kinds)),
                str(result["images_not_annotated"]),
            ]
        )
    return header, rows


def _strict_table(results: Sequence[dict[str, Any]]) -> Table:
    names = {name: title for name, title in _F1_COLUMNS.items() if name.startswith(("f1", "attention"))}
    rest = {name: title for name, title in _F1_COLUMNS.items() if name not in names}
    header = ["dump", "mean over", *(f"{title} (interval)" for title in names.values()), *rest.values(), "missing"]
    rows = []
    for result in results:
        missing = sum(result[kind]["images_missing"] for kind in ("generated", "reference"))
        for prefix, over in (("", "words"), ("macro_", "classes")):
            figures = [_with_interval(result, prefix + name) for name in names]
            figures += [percent(result.get(prefix + name)) for name in rest]
            rows.append([_name(result), over, *figures, str(missing)])
    return header, rows


def _with_interval(result: Mapping[str, Any], name: str) -> str:
    bounds = result["intervals"].get(name)
    figure = percent(result[name])
    return figure if bounds is None else f"{figure} ({interval(bounds)})"


def _phrase_table(results: Sequence[dict[str, Any]], floors: dict[str, Any] | None) -> Table:
    there = [name for name in _MEASURES if any(name in result["measures"] for result in results)]
    counts = ("phrases", "phrases_past_end", "phrases_missing", "images")
    header = ["dump", "accuracy", "interval", *(_MEASURES[name] for name in there)]
    header += ["phrases", "past end", "missing", "images"]
    rows = []
    for result in results:
        measures = [result["measures"].get(name, {}).get("accuracy") for name in there]
        figures = [percent(result["accuracy"]), interval(result["interval"]), *map(percent, measures)]
        rows.append([_name(result), *figures, *(str(result[count]) for count in counts)])
    for name, title in _FLOORS.items():
        if floors is not None and floors[name] is not None:
            # whoever chooses one region a phrase has the same accuracy at its last noun and over its words
            measures = [floors["measures"].get(measure, floors)[name] for measure in there]
            figures = [percent(floors[name]), interval(floors.get("intervals", {}).get(name)), *map(percent, measures)]
            rows.append([title, *figures, str(floors["phrases"]), "", "", ""])
    return header, rows


def _details(result: Mapping[str, Any], top: int | None) -> list[tuple[str, Table]]:
    if result["protocol"] == "phrase":
        return [("by entity type", _type_table(result, top))]
    classes = result["per_class"]
    tables = []
    for mode in ("all", "loc"):
        if result["protocol"] == "gvd":
            table = _class_table(classes[mode], "", "predicted", "annotated", top)
        else:
            table = _class_table(classes["generated"], f"_{mode}", f"judged_{mode}", f"entities_{mode}", top)
        tables.append((f"words and boxes by class, {mode}", table))
    tables.append(("attention accuracy by class", _accuracy_table(classes["attention"], top)))
    for kind, misses in result["confusion"].items():
        went = _outline(result["wrong_attention"][kind])
        tables.append((f"where wrong attention went ({kind}): {went}", _confusion_table(misses, top)))
    return tables


def _class_table(classes: Mapping[str, Any], suffix: str, judged: str, annotated: str, top: int | None) -> Table:
    order = sorted(classes, key=lambda name: (-classes[name][annotated], name))[:top]
    rows = []
    for name in order:
        own = classes[name]
        figures = [percent(own[f"precision{suffix}"]), percent(own[f"recall{suffix}"])]
        rows.append([name, figures[0], str(own[judged]), figures[1], str(own[annotated])])
    return ["class", "precision", "of predicted", "recall", "of annotated"], rows


def _accuracy_table(classes: Mapping[str, Any], top: int | None) -> Table:
    order = sorted(classes, key=lambda name: (-classes[name]["annotated"], name))[:top]
    rows = [[name, percent(classes[name]["accuracy"]), str(classes[name]["annotated"])] for name in order]
    return ["class", "accuracy", "annotated"], rows


def _outline(counts: Mapping[str, int]) -> str:
    total = sum(counts.values())
    shares = {name: percent(count / total if total else None) for name, count in counts.items()}
    return (
        f"too loosely at the same class {shares['same_class']}, at another thing {shares['another']}, "
        f"at the background {shares['background']}, at nothing {shares['nothing']}"
    )


def _confusion_table(misses: Sequence[Mapping[str, Any]], top: int | None) -> Table:
    total = sum(row["count"] for row in misses)
    rows = [[row["said"], row["attended"], str(row["count"]), percent(row["count"] / total)] for row in misses[:top]]
    return ["looked for", "attended to", "times", "of wrong"], rows


def _type_table(result: Mapping[str, Any], top: int | None) -> Table:
    types = result["per_type"]
    there = [name for name in _MEASURES if name in result["measures"]]
    rows = []
    for name in sorted(types, key=lambda name: (-types[name]["phrases"], name))[:top]:
        own = types[name]
        measures = [own["measures"][measure]["accuracy"] for measure in there]
        figures = [percent(own["accuracy"]), interval(own["interval"]), *map(percent, measures)]
        rows.append([name, *figures, str(own["phrases"])])
    return ["type", "accuracy", "interval", *(_MEASURES[name] for name in there), "phrases"], rows
