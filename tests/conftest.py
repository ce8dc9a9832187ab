"""Fixtures that several test files share."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

FIGURES = Path(__file__).parent / "figures"


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of real data and parity figures that lies beside a developer's checkout."""
    folder = Path(__file__).resolve().parents[2] / "shared"
    if not folder.is_dir():
        pytest.skip(f"needs the real data in {folder}, which is not here")
    return folder


TOY_NOUNS = ("dog", "cat", "ball", "boat", "tree", "car")
TOY_FEATURES = 12
# adjectives that the tagger never takes for nouns in this grammar, so that tests know the noun mask
_TOY_COLOURS = ("blue", "black", "yellow", "dirty")
_TOY_SPLITS = ("train",) * 16 + ("val",) * 4 + ("test",) * 4
_TOY_GRAMMAR = (
    ("a {} {}", "is near", "a {} {}"),
    ("the {} {}", "stands beside", "the {} {}"),
    ("a {1}", "behind", "a {} {}"),
    ("there is a {} {}", "and", "a {1}"),
    ("one {} {}", "with", "some {1}"),
)


@dataclass(frozen=True)
class ToyData:
    """A small data set: 24 images of two objects among distractors, five captions an image, gold boxes."""

    captions: Path
    """Karpathy's JSON; splits train 16, val 4, test 4"""
    regions: Path
    """4 to 9 regions an image, features of size 12: which object (6), which colour (4), noise"""
    entities: Path
    """Flickr30k Entities files of all images"""
    folder: Path
    """where the prepared folder is or will be"""
    nouns: tuple[str, ...] = TOY_NOUNS
    """the nouns of the captions, which are the classes too"""


def _make_toy_data(root: Path, seed: int = 0, splits: Sequence[str] = _TOY_SPLITS) -> ToyData:
    from fairseq_grounding.data.regions import RegionWriter

    random = np.random.default_rng(seed)
    toy = ToyData(root / "dataset.json", root / "regions.h5", root / "entities", root / "prepared")
    for name in ("Sentences", "Annotations"):
        (toy.entities / name).mkdir(parents=True)
    images = []
    with RegionWriter(toy.regions, source="toy") as writer:
        for number, split in enumerate(splits):
            image_id = f"toy{number:02d}"
            width, height = (int(side) for side in random.integers(100, 200, 2))
            objects = random.permutation(len(TOY_NOUNS))[:2]
            colours = random.integers(0, len(_TOY_COLOURS), 2)
            regions = int(random.integers(4, 10))
            corner = random.uniform(0, 0.5, (regions, 2)) * (width, height)
            boxes = np.round(np.hstack([corner, corner + random.uniform(0.2, 0.5, (regions, 2)) * (width, height)]))
            features = random.normal(0, 0.1, (regions, TOY_FEATURES))
            places = random.permutation(regions)[:2]
            for place, thing, colour in zip(places, objects, colours):
                features[place, [thing, len(TOY_NOUNS) + colour]] += 1
            writer.add(image_id, features.astype(np.float32), boxes, (width, height))

            names = [(_TOY_COLOURS[colour], TOY_NOUNS[thing]) for thing, colour in zip(objects, colours)]
            sentences, lines = [], []
            for first, middle, last in _TOY_GRAMMAR:
                parts = [part.format(*name) for part, name in zip((first, last), names)]
                raw = f"{parts[0]} {middle} {parts[1]} ."
                sentences.append({"tokens": raw[:-2].split(), "raw": raw.capitalize()})
                marked = [f"[/EN#{100 + n}/other {part}]" for n, part in enumerate(parts)]
                lines.append(f"{marked[0]} {middle} {marked[1]} .")
            images.append({"filename": f"{image_id}.jpg", "split": split, "sentences": sentences})
            (toy.entities / "Sentences" / f"{image_id}.txt").write_text("\n".join(lines) + "\n")
            gold = "".join(
                "<object><name>{}</name><bndbox><xmin>{}</xmin><ymin>{}</ymin><xmax>{}</xmax><ymax>{}</ymax>"
                "</bndbox></object>".format(100 + n, *(boxes[place].astype(int) + 1))
                for n, place in enumerate(places)
            )
            (toy.entities / "Annotations" / f"{image_id}.xml").write_text(
                f"<annotation><size><width>{width}</width><height>{height}</height></size>{gold}</annotation>"
            )
    toy.captions.write_text(json.dumps({"images": images}))
    return toy


@pytest.fixture(scope="session")
def make_toy_data() -> Callable[..., ToyData]:
    """``make_toy_data(folder, seed=0, splits=...)`` writes a fresh toy data set, unprepared, into a folder."""
    return _make_toy_data


@pytest.fixture(scope="session")
def toy_data(tmp_path_factory: pytest.TempPathFactory) -> ToyData:
    """The toy data set that all tests share: read it, never write to it."""
    return _make_toy_data(tmp_path_factory.mktemp("toy"))


@pytest.fixture(scope="session")
def toy_folder(toy_data: ToyData) -> Path:
    """The prepared folder of ``toy_data``, shared too; copy its parent where a test wants to change it."""
    pytest.importorskip("spacy", reason="needs the extra 'text'")
    from fairseq_grounding.data.prepare import prepare_captions

    prepare_captions(toy_data.captions, toy_data.regions, toy_data.folder, entities=toy_data.entities, threshold=1)
    return toy_data.folder
