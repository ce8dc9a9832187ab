"""Recall of image-sentence retrieval by matching models, alone or as an ensemble.

Score every image of a split with every caption, and look where the right answers stand: i2t ranks captions for each
image (the best of its own counts), t2i ranks images for each caption. R@1, R@5 and R@10 are percent, medr and meanr
the median and the mean rank (from 1), rsum the sum of the six recalls.

1K and 5K figures of COCO: on a split of 5,000 images, `--folds 5` prints the five folds of 1,000 images, their mean
(which papers call 1K) and all images (5K). Flickr30k's test split has 1,000 images: no flag. `--images 1000` takes
the first 1,000 only.

An ensemble (`--path t2i.pt:i2t.pt`) averages the scores of its models, as SCAN's does. A model that was trained on
another prepared folder reads this one's words by name.

Features that others extracted (SCAN's `--data_name f30k_precomp` means no more than that) come as a region store:
`prepare-regions --format scan` imports SCAN's own files.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

from ..errors import GroundingError
from .inputs import add_cpu, add_regions
from .report import add_json, check_csv, print_table

_COLUMNS = {"r1": "R@1", "r5": "R@5", "r10": "R@10", "medr": "medr", "meanr": "meanr"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The prepared folder and its split, the models, which images, and what else to write."""
    parser.add_argument("data", type=Path, metavar="DATA", help="the prepared folder")
    parser.add_argument(
        "--path",
        type=_paths,
        required=True,
        metavar=f"FILE[{os.pathsep}FILE...]",
        help=f"checkpoint of a matching model; several with {os.pathsep} between them are averaged",
    )
    parser.add_argument("--split", default="test", help="split to rank (default: test)")
    parser.add_argument("--folds", type=int, metavar="N", help="also N folds of equally many images, and their mean")
    parser.add_argument("--images", type=int, metavar="N", help="the first N images of the split only (default: all)")
    add_regions(parser, "--features")
    parser.add_argument(
        "--max-regions", type=int, default=100, metavar="N", help="at most N regions an image (default: 100)"
    )
    parser.add_argument(
        "--max-target-positions",
        type=int,
        default=50,
        metavar="N",
        help="captions are cut to N tokens, the end symbol included (default: 50)",
    )
    add_cpu(parser)
    parser.add_argument(
        "--csv",
        type=Path,
        metavar="FILE",
        help="also write a line a query: the set of images, i2t or t2i, image id, number of the caption, and the rank",
    )
    add_json(parser, ("data", "path", "regions"))


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Rank the split, print the table, and return the report."""
    import torch

    from ..data.grounded_caption_dataset import GroundedCaptionDataset
    from ..data.prepared import PreparedFolder
    from ..retrieval import load_ensemble, score_matrix
    from ..scoring.retrieval import fold_bounds, mean_of_folds, retrieval_scores, split_ranks, write_ranks

    _check(args)
    folder = PreparedFolder(args.data)
    store = folder.region_store(args.regions)
    dataset = GroundedCaptionDataset(
        folder.split(args.split), store, folder.dictionary(), "image", args.max_regions, args.max_target_positions
    )
    there = len(dataset.image_ids)
    if args.images is not None and args.images > there:
        raise GroundingError(f"--images {args.images}: the split {args.split!r} of {args.data} has {there} images")
    images = args.images or there
    folds = [] if args.folds is None else fold_bounds(images, args.folds)
    models = load_ensemble(args.path, dataset)
    device = torch.device("cuda" if torch.cuda.is_available() and not args.cpu else "cpu")
    scores = score_matrix(models, dataset, images, device)
    sets = {f"fold {n}": bounds for n, bounds in enumerate(folds, start=1)}
    sets[f"{'all' if images == there else 'first'} {images:,} images"] = (0, images)
    ranks = {name: split_ranks(scores, dataset.first_caption, bounds) for name, bounds in sets.items()}
    results = {name: retrieval_scores(each) for name, each in ranks.items()}
    whole = results[list(results)[-1]]
    rows = {name: figures for name, figures in results.items() if figures is not whole}
    report = {"path": os.pathsep.join(map(str, args.path)), "images": images, "captions": scores.shape[1], **whole}
    if folds:
        report["fold_scores"] = list(rows.values())
        report["mean_of_folds"] = rows[f"mean of {len(folds)} folds"] = mean_of_folds(report["fold_scores"])
    rows[list(results)[-1]] = whole
    ways = [(way, name) for way in ("i2t", "t2i") for name in _COLUMNS]
    header = ["images", *(f"{way} {_COLUMNS[name]}" for way, name in ways), "rsum"]
    print_table(
        header,
        [
            [title, *(f"{figures[f'{way}_{name}']:.1f}" for way, name in ways), f"{figures['rsum']:.1f}"]
            for title, figures in rows.items()
        ],
    )
    if args.csv is not None:
        queries = [(name, sets[name], ranks[name]) for name in sets]
        write_ranks(args.csv, queries, dataset.image_ids, dataset.first_caption)
    return {"score": "retrieval", "split": args.split, "device": str(device), "models": [report]}


def _paths(text: str) -> list[Path]:
    return [Path(path) for path in text.split(os.pathsep) if path]


def _check(args: argparse.Namespace) -> None:
    """Refuse what would fail only after the minutes of scoring."""
    if not args.path:
        raise GroundingError("--path: names no checkpoint")
    for flag, value, least in (
        ("--folds", args.folds, 2),
        ("--images", args.images, 1),
        ("--max-regions", args.max_regions, 1),
        ("--max-target-positions", args.max_target_positions, 2),
    ):
        if value is not None and value < least:
            raise GroundingError(f"{flag} {value}: give at least {least}")
    check_csv(args)
