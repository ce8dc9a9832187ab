"""Cut region candidates out of the demo's pictures and describe each by the pixels inside it.

    python examples/demo/extract_regions.py --images demo/pictures/images \\
        --annotations demo/pictures/entities/Annotations --out demo/regions \\
        --report demo/pictures/dataset.json

A picture's candidates are its annotated boxes, each moved a little and a few missed, and windows that are no
object: parts of objects, two objects in one box, random windows, the whole picture; 8 to 14, in random order.
Of the annotations only the corners of the boxes are read. Writes ``ID.npz`` for each picture: ``features``
(R, 172) float32, ``boxes`` (R, 4) float32 (x0 y0 x1 y1 in pixels) and ``image_size`` (width, height), as
``fairseq-grounding prepare-regions --format npz-dir`` reads them. ``--report`` prints what can be reached
without learning.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import shutil
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

Box = tuple[float, float, float, float]

SIDE = 32  # every region is resized to this before anything is measured
CELLS = 4
ORIENTATIONS = 6
HUES = 9
GREYS = 5
FEATURE_SIZE = CELLS * CELLS * (ORIENTATIONS + 3) + 2 * (HUES + GREYS)
FEWEST, MOST = 8, 14
MISSED = 0.05  # share of the annotated boxes that no candidate is made from
PHRASE = re.compile(r"\[/EN#(\d+)/\S+ [^\]]+\]")


def iou(one: Box, boxes: np.ndarray) -> np.ndarray:
    """Intersection over union of one box with each of *boxes* (N, 4)."""
    low = np.maximum(boxes[:, :2], one[:2])
    high = np.minimum(boxes[:, 2:], one[2:])
    shared = np.clip(high - low, 0, None).prod(axis=1)
    areas = (boxes[:, 2:] - boxes[:, :2]).prod(axis=1)
    return shared / (areas + (one[2] - one[0]) * (one[3] - one[1]) - shared)


def read_boxes(path: Path) -> list[tuple[str, Box]]:
    """Chain number and box of every boxed object; the files count pixels from 1, both ends included."""
    boxes = []
    for item in ElementTree.parse(path).getroot().findall("object"):
        corners = item.find("bndbox")
        if corners is not None:
            x0, y0, x1, y1 = (float(corners.findtext(name, "")) for name in ("xmin", "ymin", "xmax", "ymax"))
            boxes += [(name.text or "", (x0 - 1, y0 - 1, x1, y1)) for name in item.findall("name")]
    return boxes


def clip(box: Sequence[float], size: tuple[int, int]) -> Box:
    """Keep a box inside the picture and at least four pixels wide and high."""
    x0, y0 = min(max(box[0], 0.0), size[0] - 4.0), min(max(box[1], 0.0), size[1] - 4.0)
    return (x0, y0, min(max(box[2], x0 + 4), size[0]), min(max(box[3], y0 + 4), size[1]))


def moved(box: Box, amount: float, size: tuple[int, int], rng: random.Random) -> Box:
    """Shift each side of a box by a normal deviate, *amount* times the box's width or height."""
    wide, high = box[2] - box[0], box[3] - box[1]
    return clip([c + rng.gauss(0, amount) * (high if k % 2 else wide) for k, c in enumerate(box)], size)


def distractor(true: Sequence[Box], size: tuple[int, int], rng: random.Random) -> Box:
    """A window that is no object: a part of one, two in one box, or a window anywhere."""
    kind = rng.choice(("part", "pair", "window", "window")) if true else "window"
    if kind == "part":
        x0, y0, x1, y1 = rng.choice(true)
        wide, high = (x1 - x0) * rng.uniform(0.4, 0.65), (y1 - y0) * rng.uniform(0.4, 0.65)
        left, top = rng.uniform(x0, x1 - wide), rng.uniform(y0, y1 - high)
        return clip((left, top, left + wide, top + high), size)
    if kind == "pair" and len(true) > 1:
        a, b = rng.sample(list(true), 2)
        return (min(a[0], b[0]), min(a[1], b[1]), max(a[2], b[2]), max(a[3], b[3]))
    wide, high = size[0] * rng.uniform(0.12, 0.5), size[1] * rng.uniform(0.12, 0.5)
    left, top = rng.uniform(0, size[0] - wide), rng.uniform(0, size[1] - high)
    return clip((left, top, left + wide, top + high), size)


def candidates(true: Sequence[Box], size: tuple[int, int], rng: random.Random) -> np.ndarray:
    """The region candidates of one picture, (R, 4) float32, in random order."""
    boxes = [moved(box, rng.uniform(0.05, 0.15), size, rng) for box in true if rng.random() > MISSED][: MOST - 2]
    boxes.append((0.0, 0.0, float(size[0]), float(size[1])))
    wanted = rng.randint(max(FEWEST, len(boxes) + 1), max(MOST, len(boxes) + 1))
    boxes += [distractor(true, size, rng) for _ in range(wanted - len(boxes))]
    rng.shuffle(boxes)
    return np.asarray(boxes, dtype=np.float32)


def _normalised(block: np.ndarray) -> np.ndarray:
    """Each row divided by its length."""
    return block / (np.linalg.norm(block, axis=1, keepdims=True) + 1e-6)


def describe(crops: np.ndarray) -> np.ndarray:
    """Features (R, FEATURE_SIZE) of crops (R, SIDE, SIDE, 3) with values from 0 to 1.

    Three blocks, each of length 1: orientations of gradients in a grid of cells, histograms of hues and greys
    over the whole crop and over its middle, and the mean colour of each cell.
    """
    count, cell = len(crops), SIDE // CELLS
    grey = crops.mean(axis=3)
    dy, dx = np.gradient(grey, axis=(1, 2))
    strength = np.hypot(dx, dy)
    # a gradient falls between two of the orientations and is shared by both
    angle = (np.arctan2(dy, dx) % np.pi) / np.pi * ORIENTATIONS
    lower = np.floor(angle)
    gradients = np.zeros((count, SIDE, SIDE, ORIENTATIONS))
    for k in range(ORIENTATIONS):
        share = (lower % ORIENTATIONS == k) * (1 - (angle - lower)) + ((lower + 1) % ORIENTATIONS == k) * (
            angle - lower
        )
        gradients[..., k] = strength * share
    by_cell = gradients.reshape(count, CELLS, cell, CELLS, cell, ORIENTATIONS).sum(axis=(2, 4))
    by_cell = np.sqrt(by_cell).reshape(count, -1)

    high, low = crops.max(axis=3), crops.min(axis=3)
    spread = high - low
    safe = np.maximum(spread, 1e-6)
    red, green, blue = np.moveaxis(crops, 3, 0)
    hue = np.where(
        high == red,
        (green - blue) / safe % 6,
        np.where(high == green, (blue - red) / safe + 2, (red - green) / safe + 4),
    )
    hue_bin = (hue / 6 * HUES).astype(int) % HUES
    grey_bin = np.minimum((high * GREYS).astype(int), GREYS - 1)
    saturation = spread / np.maximum(high, 1e-6)
    tones = np.zeros((count, SIDE, SIDE, HUES + GREYS))
    for k in range(HUES):
        tones[..., k] = (hue_bin == k) * saturation
    for k in range(GREYS):
        tones[..., HUES + k] = (grey_bin == k) * (1 - saturation)
    edge = SIDE // 4
    whole = np.sqrt(tones.mean(axis=(1, 2)))
    middle = np.sqrt(tones[:, edge:-edge, edge:-edge].mean(axis=(1, 2)))

    colours = crops.reshape(count, CELLS, cell, CELLS, cell, 3).mean(axis=(2, 4)).reshape(count, -1)
    blocks = (by_cell, np.concatenate([whole, middle], axis=1), colours - 0.5)
    return np.concatenate([_normalised(block) for block in blocks], axis=1).astype(np.float32)


def cut(image: Image.Image, boxes: np.ndarray) -> np.ndarray:
    """The pixels inside each box, resized to (R, SIDE, SIDE, 3), from 0 to 1."""
    crops = [image.resize((SIDE, SIDE), Image.Resampling.BILINEAR, box=tuple(map(float, box))) for box in boxes]
    return np.stack([np.asarray(crop, dtype=np.float32) for crop in crops]) / 255


def pictures_in(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.suffix in (".jpg", ".png"))


def extract(images: Path, annotations: Path, out: Path, seed: int) -> int:
    """Write ``ID.npz`` for every picture of *images* into *out*; their number."""
    pictures = pictures_in(images)
    for path in pictures:
        rng = random.Random(f"{seed} {path.stem}")
        with Image.open(path) as file:
            image = file.convert("RGB")
        # one object may be in several chains: one candidate for each box, not for each chain
        true = list(dict.fromkeys(box for _, box in read_boxes(annotations / f"{path.stem}.xml")))
        boxes = candidates(true, image.size, rng)
        np.savez(
            out / f"{path.stem}.npz",
            features=describe(cut(image, boxes)),
            boxes=boxes,
            image_size=np.asarray(image.size, dtype=np.int32),
        )
    return len(pictures)


def report(regions: Path, annotations: Path, dataset: Path, split: str) -> dict[str, float]:
    """Accuracies on the boxed phrases of a split's captions.

    A region counts if its IoU with one of the phrase's boxes is over 0.5. ``random region`` is the expected
    accuracy of a region drawn evenly; the largest region is always the whole picture; ``best possible`` is the
    share of phrases for which some region counts.
    """
    with open(dataset, encoding="utf-8") as file:
        ids = [Path(item["filename"]).stem for item in json.load(file)["images"] if item["split"] == split]
    totals = dict.fromkeys(("random region", "largest region", "second largest region", "best possible"), 0.0)
    phrases = regions_seen = 0
    for image_id in ids:
        with np.load(regions / f"{image_id}.npz") as file:
            boxes = file["boxes"].astype(np.float64)
        regions_seen += len(boxes)
        second, largest = np.argsort((boxes[:, 2:] - boxes[:, :2]).prod(axis=1))[-2:]
        by_chain: dict[str, list[Box]] = {}
        for chain, box in read_boxes(annotations / f"{image_id}.xml"):
            by_chain.setdefault(chain, []).append(box)
        lines = (annotations.parent / "Sentences" / f"{image_id}.txt").read_text(encoding="utf-8")
        for chain in PHRASE.findall(lines):
            if chain not in by_chain:
                continue
            hits = np.max([iou(box, boxes) for box in by_chain[chain]], axis=0) > 0.5
            phrases += 1
            totals["random region"] += hits.mean()
            totals["largest region"] += hits[largest]
            totals["second largest region"] += hits[second]
            totals["best possible"] += hits.any()
    if not phrases:
        raise SystemExit(f"extract_regions.py: error: {dataset}: no boxed phrase in the split {split}")
    figures = {name: total / phrases for name, total in totals.items()}
    return {"pictures": len(ids), "regions a picture": regions_seen / len(ids), "phrases": phrases, **figures}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=Path, required=True, metavar="DIR", help="pictures, ID.jpg or ID.png")
    parser.add_argument("--annotations", type=Path, required=True, metavar="DIR", help="folder of ID.xml")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder to write; must not exist")
    parser.add_argument("--seed", type=int, default=1, help="of the moves and distractors (default: %(default)s)")
    parser.add_argument(
        "--report", type=Path, metavar="JSON", help="the dataset.json; prints the floors of its test split"
    )
    args = parser.parse_args()
    for flag in ("images", "annotations"):
        if not getattr(args, flag).is_dir():
            parser.error(f"--{flag}: {getattr(args, flag)} is not a folder")
    if args.out.exists():
        parser.error(f"--out: {args.out} exists; remove it or choose another folder")
    for picture in pictures_in(args.images):
        if not (args.annotations / f"{picture.stem}.xml").is_file():
            parser.error(f"--annotations: {args.annotations} has no annotation of {picture.name}")
    temporary = args.out.with_name(f".{args.out.name}.{os.getpid()}.part")
    temporary.mkdir(parents=True)
    try:
        count = extract(args.images, args.annotations, temporary, args.seed)
        os.replace(temporary, args.out)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    print(f"{args.out}: regions of {count} pictures, {FEATURE_SIZE} features", file=sys.stderr)
    if args.report:
        for name, value in report(args.out, args.annotations, args.report, "test").items():
            print(f"{name:<24}{value:>8.3f}" if isinstance(value, float) else f"{name:<24}{value:>8}")


if __name__ == "__main__":
    main()
