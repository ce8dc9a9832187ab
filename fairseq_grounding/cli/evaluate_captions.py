"""BLEU, METEOR, ROUGE-L, CIDEr, SPICE of generated captions.

Score the first caption that a dump has of each image against all captions of the image in the prepared folder. The
table shows percent (CIDEr: 100 times its mean, 1000 at most); --json holds fractions, also for each image. What needs
a missing Java or parser is skipped with a line.
"""

from __future__ import annotations

import argparse
from typing import Any

from ..errors import GroundingError
from .report import add_common, add_data, percent, print_table

_COLUMNS = {
    "bleu1": "BLEU-1",
    "bleu2": "BLEU-2",
    "bleu3": "BLEU-3",
    "bleu4": "BLEU-4",
    "meteor": "METEOR",
    "rouge_l": "ROUGE-L",
    "cider": "CIDEr",
    "spice": "SPICE",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The dumps, the prepared folder and its split."""
    add_common(parser)
    add_data(parser)
    parser.add_argument("--split", default="test", help="split that the images are of (default: test)")


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Score the captions, print the table, and return the report."""
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
    there = [name for name in _COLUMNS if any(name in result for result in results)]
    rows = [
        [result["dump"], *(percent(result.get(name)) for name in there)]
        + [str(result[count]) for count in ("images", "images_missing", "rows_ignored")]
        for result in results
    ]
    header = ["dump", *(_COLUMNS[name] for name in there), "images", "missing", "rows ignored"]
    print_table(header, rows)
    for note in scorer.notes:
        print(note)
    return {"score": "captions", "split": args.split, "notes": scorer.notes, "dumps": results}
