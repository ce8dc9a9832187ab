"""Write a caption for every region of an image, with its box and how sure the model is of it.

The model is a captioner trained on regions: multimodal_rnn on the snippets of align --export-snippets, with
--image-vector region. Any other captioner gets each region as if it were an image with this one region.

FILE.jsonl has a line an image, its best region first:

  {"image_id": "1000", "regions": [{"region": 4, "box": [x0, y0, x1, y1], "text": "a red ball", "score": -0.41}, ...]}

"region" is the region's number in the store, "box" is in pixels of the original photograph, "score" is the mean natural
logarithm of the probability of the words and of the end. Of regions that overlap and say the same, the best is kept.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from ..errors import GroundingError
from .inputs import add_cpu, add_regions
from .report import check_written, check_written_folder


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The images, the model, which regions and how many, where to write and to draw."""
    parser.add_argument("data", type=Path, metavar="DATA", help="a prepared folder, or a region store (regions.h5)")
    parser.add_argument("--path", type=Path, required=True, metavar="CKPT", help="checkpoint of a captioner")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="file to write, JSON lines")
    parser.add_argument(
        "--images",
        metavar="ID,ID",
        help="describe these images (default: those of --split; of a region store all)",
    )
    parser.add_argument(
        "--split", metavar="NAME", help="describe the images of this split of the prepared folder (default: test)"
    )
    add_regions(parser)
    parser.add_argument("--top", type=int, metavar="K", help="describe K regions an image, at most (default: all)")
    parser.add_argument(
        "--rank",
        choices=("detector", "caption"),
        help="which regions are the best. detector: by the detector's confidence; --top then captions these alone;"
        " caption: by the score of their captions (default: detector if the store has confidences)",
    )
    parser.add_argument("--beam", type=int, default=5, metavar="N", help="beam of the search (default: %(default)s)")
    parser.add_argument(
        "--max-len-b", type=int, default=20, metavar="N", help="tokens a caption, at most (default: %(default)s)"
    )
    parser.add_argument(
        "--batch-size", type=int, default=64, metavar="N", help="regions decoded at once (default: %(default)s)"
    )
    parser.add_argument(
        "--nms",
        type=float,
        default=0.7,
        metavar="IOU",
        help="leave out a region whose intersection over union with a better one is above this, from 0 to 1; 1 keeps"
        " all (default: %(default)s)",
    )
    parser.add_argument(
        "--nms-duplicates",
        choices=("same-caption", "any-caption"),
        default="same-caption",
        help="but only if both have the same caption, or whatever they say (default: %(default)s)",
    )
    parser.add_argument(
        "--region-as",
        choices=("auto", "snippet", "image"),
        default="auto",
        help="what the model gets. snippet: the region and the whole image, as align --export-snippets writes them;"
        " image: the region as an image of this one region; auto: snippet for a model with --image-vector region"
        " (default: %(default)s)",
    )
    parser.add_argument("--draw", type=Path, metavar="DIR", help="also draw ID.png here; needs --photographs")
    parser.add_argument("--photographs", type=Path, metavar="DIR", help="photographs: ID.jpg, ID.jpeg or ID.png")
    parser.add_argument(
        "--max-drawn", type=int, default=8, metavar="N", help="regions in a picture, at most (default: %(default)s)"
    )
    add_cpu(parser)
    parser.set_defaults(inputs=("data", "path", "regions", "photographs"))


def run(args: argparse.Namespace) -> None:
    """Describe, write, draw, and say how much."""
    _check(args)
    import torch

    from ..checkpoints import load_captioner
    from ..describing import RegionDescriber
    from ..files import new_folders, writing
    from ..viewer.files import find_photograph, open_photograph, save_picture
    from ..viewer.region_pictures import draw_described

    store, chosen = _chosen(args)
    images = [store.index(image_id) for image_id in chosen]
    photographs = {}
    if args.draw is not None:
        photographs = {image_id: find_photograph(args.photographs, image_id) for image_id in chosen}
    model: Any = load_captioner(args.path, "--path")
    if torch.cuda.is_available() and not args.cpu:
        model = model.cuda()
    describer = RegionDescriber(
        model, beam=args.beam, max_length=args.max_len_b, batch_size=args.batch_size, form=args.region_as
    )
    rows = describer.describe(
        store,
        images,
        top=args.top,
        rank=args.rank or ("detector" if store.has_scores else "caption"),
        nms=args.nms,
        duplicates=args.nms_duplicates,
    )
    regions = 0
    with writing(args.out) as temporary, open(temporary, "w", encoding="utf-8") as file:
        for image, row in zip(images, rows):
            file.write(json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n")
            regions += len(row["regions"])
            if args.draw is not None:
                width, height = store.image_sizes[image].tolist()
                with new_folders(args.draw):
                    photograph = open_photograph(photographs[row["image_id"]])
                    picture = draw_described(photograph, row, (width, height), args.max_drawn)
                    save_picture(picture, args.draw, row["image_id"])
    print(f"{regions:,} regions of {len(images):,} images in {args.out}")


def _check(args: argparse.Namespace) -> None:
    for flag in ("top", "beam", "max_len_b", "batch_size", "max_drawn"):
        value = getattr(args, flag)
        if value is not None and value < 1:
            raise GroundingError(f"--{flag.replace('_', '-')} {value}: must be at least 1")
    if not 0 <= args.nms <= 1:
        raise GroundingError(f"--nms {args.nms}: must be from 0 to 1")
    if (args.draw is None) != (args.photographs is None):
        raise GroundingError("--draw DIR and --photographs DIR belong together; give both")
    if args.images is not None and args.split is not None:
        raise GroundingError("--images and --split: both say which images; give one")
    if args.photographs is not None and not args.photographs.is_dir():
        raise GroundingError(f"--photographs {args.photographs}: is not a folder")
    check_written(args, "--out", args.out)
    check_written_folder(args, "--draw", args.draw)


def _chosen(args: argparse.Namespace) -> tuple[Any, list[str]]:
    """The region store, and the ids of the images to describe."""
    from ..data.prepared import PreparedFolder
    from ..data.regions import RegionStore

    named = None if args.images is None else list(dict.fromkeys(filter(None, args.images.split(","))))
    if named == []:
        raise GroundingError(f"--images {args.images}: names no image")
    if args.data.is_dir():
        folder = PreparedFolder(args.data)
        store = folder.region_store(args.regions)
        return store, named or list(dict.fromkeys(folder.split(args.split or "test").image_ids))
    for flag in ("split", "regions"):
        if getattr(args, flag) is not None:
            raise GroundingError(f"--{flag}: is for a prepared folder, and {args.data} is not one")
    store = RegionStore(args.data)
    return store, named or store.image_ids
