"""Objects that generated captions mention and their images lack.

Score the first caption that a dump has of each image. Two ways, which are not comparable with each other:

COCO      --instances, --captions and --synonyms: CHAIRs (share of captions that mention an object that is neither
          annotated in the image nor in one of its captions) and CHAIRi (share of mentions). The list of synonyms has a
          line an object, words separated by a comma and a space, the first is COCO's name of the category.
Entities  --objects: share of captions with an object word that no reference caption of the image has
          (unreferenced captions), and share of such words (unreferenced words). With --synonyms, words of one line
          are the same object.

The table shows percent; intervals are 95%, from resampled images. --json holds fractions, every object and every
caption with what it mentions.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..errors import GroundingError
from .report import add_common, add_resampling, interval, percent, print_table


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The dumps, and what says which objects are there."""
    add_common(parser, inputs=("instances", "captions", "objects", "synonyms"))
    parser.add_argument(
        "--instances",
        nargs="+",
        type=Path,
        metavar="FILE",
        help="COCO's instances_*.json, or a list of images with captions and boxes",
    )
    parser.add_argument(
        "--captions", nargs="+", type=Path, default=[], metavar="FILE", help="COCO's captions_*.json of the same images"
    )
    parser.add_argument("--objects", type=Path, metavar="FILE", help="objects.json of a prepared folder")
    parser.add_argument("--synonyms", type=Path, metavar="FILE", help="list of synonyms")
    parser.add_argument(
        "--variant",
        choices=("strict", "mended"),
        default="strict",
        help="of CHAIR. strict: as the published code, quirks included (needs nltk and textblob); mended: plurals, "
        "case and entries of several words are matched as meant (default: strict)",
    )
    parser.add_argument("--per-class", action="store_true", help="also print the objects that are hallucinated most")
    parser.add_argument("--top", type=int, default=20, metavar="N", help="print N of them (default: 20; 0: all)")
    add_resampling(parser, "the shares")


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Score the captions, print the table, and return the report."""
    from ..scoring.captions import first_captions

    if (args.instances is None) == (args.objects is None):
        raise GroundingError("--instances, --objects: give one of them, to say which objects are there")
    if args.top < 0 or args.bootstrap < 0 or args.seed < 0:
        raise GroundingError(
            f"--top {args.top} --bootstrap {args.bootstrap} --seed {args.seed}: none of them may be below 0"
        )
    coco = args.instances is not None
    score = (_chair_scorer if coco else _unreferenced_scorer)(args)
    results = []
    for dump in args.dumps:
        captions, ignored = first_captions(dump)
        try:
            results.append({"dump": str(dump), **score(captions), "rows_ignored": ignored})
        except GroundingError as error:
            raise GroundingError(f"{dump}: {error}") from error
    shares = {"chair_s": "CHAIRs", "chair_i": "CHAIRi"}
    if not coco:
        shares = {"unreferenced_captions": "unreferenced captions", "unreferenced_words": "unreferenced words"}
    print_table(*_table(results, shares))
    if args.per_class:
        for result in results:
            print(f"\n{result['dump']}: objects hallucinated most")
            print_table(*_object_table(result["per_object"], args.top or None))
    return {"score": "hallucination", "protocol": "chair" if coco else "unreferenced", "dumps": results}


def _chair_scorer(args: argparse.Namespace) -> Callable[[Mapping[str, str]], dict[str, Any]]:
    from ..scoring.chair import Chair
    from ..scoring.coco import image_number, read_coco
    from ..scoring.synonyms import read_synonyms

    if args.synonyms is None:
        raise GroundingError("--synonyms: give the list of words for COCO's categories")
    chair = Chair(read_synonyms(args.synonyms), args.variant)
    images = read_coco(args.instances, args.captions)

    def score(captions: Mapping[str, str]) -> dict[str, Any]:
        there = {}
        for image_id in captions:
            image = images.get(image_number(image_id))
            if image is not None:
                there[image_id] = chair.objects(sorted(image.categories), image.captions)
        if not there:
            raise GroundingError(f"0 of its {len(captions)} images are in --instances; give those of its split")
        known = {image_id: text for image_id, text in captions.items() if image_id in there}
        result = chair.score(known, there, args.bootstrap, args.seed)
        return {**result, "images_not_annotated": len(captions) - len(known)}

    return score


def _unreferenced_scorer(args: argparse.Namespace) -> Callable[[Mapping[str, str]], dict[str, Any]]:
    from ..scoring.synonyms import read_synonyms
    from ..scoring.unreferenced import UnreferencedWords

    scorer = UnreferencedWords(args.objects, read_synonyms(args.synonyms) if args.synonyms is not None else ())
    return lambda captions: scorer.score(captions, args.bootstrap, args.seed)


def _table(results: Sequence[Mapping[str, Any]], shares: Mapping[str, str]) -> tuple[list[str], list[list[str]]]:
    counts = {
        "captions": "captions",
        "captions_hallucinated": "with a wrong object",
        "mentions": "mentions",
        "mentions_hallucinated": "wrong",
        "images_not_annotated": "not annotated",
    }
    titles = [title for share in shares.values() for title in (share, "interval")]
    rows = []
    for result in results:
        figures = []
        for name, bounds in zip(shares, ("caption_share", "mention_share")):
            figures += [percent(result[name]), interval(result["intervals"][bounds])]
        rows.append([result["dump"], *figures, *(str(result[name]) for name in counts)])
    return ["dump", *titles, *counts.values()], rows


def _object_table(objects: Mapping[str, Mapping[str, int]], top: int | None) -> tuple[list[str], list[list[str]]]:
    order = sorted(objects, key=lambda name: (-objects[name]["hallucinated"], -objects[name]["mentions"], name))
    rows = [[name, str(objects[name]["hallucinated"]), str(objects[name]["mentions"])] for name in order[:top]]
    return ["object", "wrong", "mentions"], rows
