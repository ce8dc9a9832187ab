"""BLEU, METEOR, ROUGE-L, CIDEr, CIDEr-D, SPICE of generated captions.

Score the first caption that a dump has of each image against all captions of the image in the prepared folder. The
table shows percent (CIDEr and CIDEr-D: 100 times the mean, 1000 at most); --json and --csv hold fractions for each
image (CIDEr: 0 to 10). What needs a missing Java or parser is skipped with a line.

CIDEr is the figure that papers quote: after the PTB tokenizer, with document frequencies counted on the references
of the images that are scored. CIDEr-D is what self-critical training is rewarded by: the same formula on the folder's
own tokens, the end of the sentence among them, with the document frequencies of its training images.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from ..errors import GroundingError
from .report import add_common, add_data, check_csv, percent, print_table

_COLUMNS = {
    "bleu1": "BLEU-1",
    "bleu2": "BLEU-2",
    "bleu3": "BLEU-3",
    "bleu4": "BLEU-4",
    "meteor": "METEOR",
    "rouge_l": "ROUGE-L",
    "cider": "CIDEr",
    "cider_d": "CIDEr-D",
    "spice": "SPICE",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The dumps, the prepared folder and its split, and what else to write."""
    add_common(parser)
    add_data(parser)
    parser.add_argument("--split", default="test", help="split that the images are of (default: test)")
    parser.add_argument(
        "--csv",
        type=Path,
        metavar="FILE",
        help="also write a line an image: its id, the caption and every score; with several dumps, the dump first",
    )
    parser.add_argument(
        "--java-timeout",
        type=float,
        default=3600,
        metavar="SECONDS",
        help="end a Java program (PTB tokenizer, METEOR, SPICE) that is not done with one dump after so many seconds, "
        "and go on without it (default: 3600)",
    )


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Score the captions, print the table, and return the report."""
    from tqdm import tqdm

    from ..data.prepared import PreparedFolder
    from ..scoring.captions import CaptionScorer, TokenCiderD, first_captions, write_scores

    _check(args)
    folder = PreparedFolder(args.data)
    split = folder.split(args.split)
    raw: dict[str, list[str]] = {}
    words: dict[str, list[str]] = {}
    tokens: dict[str, list[list[int]]] = {}
    for number, (image, as_written, text) in enumerate(zip(split.image_ids, split.raws, split.texts)):
        raw.setdefault(image, []).append(as_written)
        words.setdefault(image, []).append(text)
        tokens.setdefault(image, []).append(split.tokens[number].tolist())
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
    dictionary = folder.dictionary()
    token_cider = TokenCiderD(dictionary.index, dictionary.eos(), tokens, folder.document_frequency())
    results = []
    with CaptionScorer(raw, words, token_cider=token_cider, java_timeout=args.java_timeout) as scorer:
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
    if args.csv is not None:
        write_scores(args.csv, [(str(dump), captions, result) for (dump, captions, _), result in zip(said, results)])
    return {"score": "captions", "split": args.split, "notes": scorer.notes, "dumps": results}


def _check(args: argparse.Namespace) -> None:
    """Refuse what would fail only after the minutes of scoring."""
    if not 0 < args.java_timeout < float("inf"):
        raise GroundingError("--java-timeout: must be a number of seconds above 0")
    check_csv(args)
