"""Draw the demo's pictures and write their captions and boxes.

    python examples/demo/pictures.py --out demo/pictures --images 1500 --seed 1

writes ``images/ID.jpg``, ``dataset.json`` (the layout of Karpathy's splits), ``entities/Sentences/ID.txt``
and ``entities/Annotations/ID.xml`` (the layout of Flickr30k Entities: boxes count pixels from 1, both ends
included). Two fifteenths of the pictures are for testing and one for validation. The same seed gives the same files.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from drawing import HEIGHT, KINDS, WIDTH, background, finish, sprite
from PIL import Image, ImageDraw
from sentences import FLYING, TYPES, Box, Group, Phrase, Piece, Scene, Teller, Thing, raw_text

# how often a group of a kind is drawn at a place
PLACES: dict[str, dict[str, float]] = {
    "field": {"dog": 3, "cat": 1, "bird": 2, "man": 2, "woman": 2, "boy": 3, "ball": 2, "balloon": 1,
              "tree": 3, "house": 2, "flower": 3},
    "beach": {"dog": 2, "bird": 2, "man": 2, "woman": 2, "boy": 3, "ball": 3, "umbrella": 3, "boat": 2,
              "balloon": 1},
    "lake": {"boat": 7, "bird": 2, "man": 2, "woman": 1, "dog": 2, "tree": 2, "flower": 1, "boy": 1},
    "street": {"car": 5, "man": 2, "woman": 3, "dog": 2, "cat": 1, "tree": 2, "house": 3, "bird": 1,
               "balloon": 1},
    "room": {"table": 5, "cat": 3, "dog": 2, "woman": 1, "man": 2, "ball": 2, "balloon": 2},
}  # fmt: skip
# what comes with a kind nearly always: the trap for learning from whole captions
PARTNERS = {"man": ("hat", 0.93), "woman": ("umbrella", 0.7), "boy": ("kite", 0.85), "table": ("cup", 0.95)}
PLURAL_CHANCE = {"dog": 0.3, "cat": 0.25, "bird": 0.4, "ball": 0.25, "balloon": 0.45, "tree": 0.3,
                 "flower": 0.6, "car": 0.25, "boat": 0.25}  # fmt: skip
SIZES = {"small": 0.78, "": 1.0, "big": 1.22}


def intersection(a: Box, b: Box) -> int:
    """Shared pixels of two boxes."""
    return max(0, min(a[2], b[2]) - max(a[0], b[0])) * max(0, min(a[3], b[3]) - max(a[1], b[1]))


def area(box: Box) -> int:
    return (box[2] - box[0]) * (box[3] - box[1])


def union(boxes: list[Box]) -> Box:
    return (
        min(b[0] for b in boxes),
        min(b[1] for b in boxes),
        max(b[2] for b in boxes),
        max(b[3] for b in boxes),
    )


class Layout:
    """Fills an empty background with groups of objects that hide each other only a little."""

    def __init__(self, place: str, light: str, rng: random.Random, grain: np.random.Generator) -> None:
        self.place, self.light, self.rng, self.grain = place, light, rng, grain
        self.ground = background(place, light, rng, grain)
        self.groups: list[Group] = []
        self.layers: list[tuple[int, Image.Image, tuple[int, int]]] = []
        self.strings: list[tuple[tuple[int, int], tuple[int, int]]] = []

    def _fits(self, kind: str, box: Box) -> bool:
        if box[0] < 1 or box[1] < 1 or box[2] >= WIDTH or box[3] >= HEIGHT:
            return False
        for group in self.groups:
            for thing in [*group.things, *group.partners]:
                behind = {kind, thing.kind} & {"tree", "house"} and kind != thing.kind
                limit = 0.3 if behind else 0.12
                if intersection(box, thing.box) > limit * min(area(box), area(thing.box)):
                    return False
        return True

    def _base(self, kind: str, pose: str) -> int:
        """The row on which an object of a kind stands (or, in the air, ends)."""
        horizon, water = self.ground.horizon, self.ground.water
        first = horizon if water is None else water[3]
        if kind == "boat":
            assert water is not None
            return self.rng.randint(water[1] + 10, max(water[1] + 11, water[3] - 4))
        if kind in FLYING or (kind, pose) == ("bird", "fly"):
            return self.rng.randint(34, max(60, horizon))
        if kind in ("tree", "house"):
            return self.rng.randint(first + 4, first + 22)
        return self.rng.randint(min(first + 16, HEIGHT - 14), HEIGHT - 5)

    def _scale(self, base: int, kind: str, pose: str) -> float:
        if kind in FLYING or (kind, pose) == ("bird", "fly"):
            return 1.0
        depth = (base - self.ground.horizon) / (HEIGHT - self.ground.horizon)
        return 0.72 + 0.42 * depth

    def _paste(self, base: int, image: Image.Image, x: int, bottom: int) -> Box:
        self.layers.append((base, image, (x, bottom - image.height)))
        return (x, bottom - image.height, x + image.width, bottom)

    def add(self, kind: str) -> bool:
        """Try to find room for a group of a kind."""
        rng = self.rng
        partner, likely = PARTNERS.get(kind, ("", 0.0))
        has_partner = rng.random() < likely and not (partner in ("kite", "umbrella") and self.place == "room")
        pose = rng.choice([p for p in KINDS[kind].poses if p != "hold"])
        if has_partner and partner in ("kite", "umbrella"):
            pose = "hold"
        if kind == "bird" and (self.place == "room" or rng.random() < 0.3):
            pose = "stand"
        if kind == "boat" and self.ground.water is None:
            return False
        count = 1
        if rng.random() < PLURAL_CHANCE.get(kind, 0):
            count = 3 if kind in ("bird", "balloon", "flower") and rng.random() < 0.4 else 2
        size = rng.choice(("small", "", "", "big"))
        colour = rng.choice(KINDS[kind].colours)
        for _ in range(30):
            base = self._base(kind, pose)
            group = Group(kind, pose, size, base)
            scale = self._scale(base, kind, pose) * SIZES[size]
            before = len(self.layers), len(self.strings)
            self.groups.append(group)
            x = rng.randint(2, WIDTH - 20)
            if all(self._add_thing(group, colour, scale, x, k) for k in range(count)) and (
                not has_partner or self._add_partner(group, partner, scale)
            ):
                return True
            self.groups.pop()
            del self.layers[before[0] :], self.strings[before[1] :]
        return False

    def _add_thing(self, group: Group, colour: str, scale: float, x: int, k: int) -> bool:
        rng = self.rng
        if k and rng.random() < 0.25:
            colour = rng.choice(KINDS[group.kind].colours)
        flip = rng.random() < 0.5 and group.pose != "hold"
        if group.things:
            x = group.things[-1].box[2] + rng.randint(1, 8)
        base = group.base + (rng.randint(-3, 3) if k else 0)
        height = KINDS[group.kind].height * scale
        # a box a little smaller than the drawing will be: most places are ruled out before anything is drawn
        wide, high = round(0.8 * height * KINDS[group.kind].aspect), round(0.8 * height)
        if not self._fits(group.kind, (x, base - high, x + wide, base)):
            return False
        image = sprite(group.kind, colour, group.pose, height, rng, flip)
        box = (x, base - image.height, x + image.width, base)
        if not self._fits(group.kind, box):
            return False
        group.things.append(Thing(group.kind, colour, self._paste(base, image, x, base)))
        return True

    def _add_partner(self, group: Group, kind: str, scale: float) -> bool:
        rng, owner = self.rng, group.things[0]
        x0, y0, x1, y1 = owner.box
        wide, high = x1 - x0, y1 - y0
        colour = rng.choice(KINDS[kind].colours)
        pose = rng.choice(KINDS[kind].poses)
        if kind == "hat":
            # as wide as a head and its brim
            height = high * (0.115 if pose == "cap" else 0.13)
            image = sprite(kind, colour, pose, height, rng, rng.random() < 0.5)
            x = round(self._head(owner) - image.width / 2)
            box = self._paste(group.base, image, x, y0 + round(high * 0.075))
            # a man's box holds his hat, as an annotator would draw it
            owner.box = union([owner.box, box])
            group.partners.append(Thing(kind, colour, box))
            return box[1] >= 1 and box[0] >= 1 and box[2] < WIDTH
        if kind == "cup":
            for k in range(2 if rng.random() < 0.3 else 1):
                image = sprite(kind, colour, pose, KINDS[kind].height * scale, rng, rng.random() < 0.5)
                x = rng.randint(x0 + 5, x0 + wide // 2 - 8) + k * (wide // 2 - 4)
                box = self._paste(group.base + 1, image, x, y0 + rng.randint(5, 8))
                if box[2] > x1 or box[1] < 1:
                    return False
                group.partners.append(Thing(kind, colour, box))
            return True
        hand = (x1 - 2, y0 + round(high * (0.31 if kind == "kite" else 0.2)))
        if kind == "umbrella":
            image = sprite(kind, colour, pose, KINDS[kind].height * scale * 0.92, rng, False)
            box = self._paste(group.base + 1, image, round(hand[0] - image.width * 0.5), hand[1] + round(high * 0.06))
            if box[0] < 1 or box[1] < 1 or box[2] >= WIDTH or not self._clear(box, group):
                return False
            group.partners.append(Thing(kind, colour, box))
            return True
        image = sprite(kind, colour, pose, KINDS[kind].height * rng.uniform(0.85, 1.15), rng, rng.random() < 0.5)
        x = hand[0] + rng.randint(15, 80)
        bottom = rng.randint(image.height + 2, max(image.height + 3, hand[1] - 6))
        box = (x, bottom - image.height, x + image.width, bottom)
        if not self._fits(kind, box):
            return False
        self._paste(group.base, image, x, bottom)
        self.strings.append((hand, (x + image.width // 2, bottom - image.height // 2)))
        group.partners.append(Thing(kind, colour, box))
        return True

    def _clear(self, box: Box, own: Group) -> bool:
        """Whether a box hides little of the other groups."""
        others = [t for g in self.groups if g is not own for t in [*g.things, *g.partners]]
        return all(intersection(box, t.box) <= 0.15 * min(area(box), area(t.box)) for t in others)

    def _head(self, owner: Thing) -> float:
        """The column of a person's head: the middle of the topmost pixels."""
        for _, image, (x, y) in reversed(self.layers):
            if (x, y) == owner.box[:2]:
                top = np.asarray(image.getchannel("A"))[: max(2, image.height // 12)] > 128
                columns = np.flatnonzero(top.any(axis=0))
                return x + (float(columns[0]) + float(columns[-1]) + 1) / 2
        raise AssertionError("an owner is drawn before what it carries")

    def scene(self) -> Scene:
        return Scene(self.place, self.light, self.ground.water, self.groups)

    def image(self) -> Image.Image:
        """Paste all layers, the farthest first."""
        image = self.ground.image.convert("RGB")
        if self.place != "room":
            shadows = Image.new("L", (WIDTH, HEIGHT))
            draw = ImageDraw.Draw(shadows)
            for group in self.groups:
                aloft = group.kind in FLYING or group.kind == "boat" or (group.kind, group.pose) == ("bird", "fly")
                for thing in [] if aloft else group.things:
                    x0, _, x1, y1 = thing.box
                    draw.ellipse([x0 + 1, y1 - 4, x1 - 1, y1 + 2], fill=70)
            image.paste((30, 30, 40), (0, 0), shadows)
        draw = ImageDraw.Draw(image)
        for hand, end in self.strings:
            draw.line([hand, end], fill=(245, 245, 240), width=1)
        for _, layer, corner in sorted(self.layers, key=lambda layer: layer[0]):
            image.paste(layer, corner, layer)
        return finish(image, self.light, self.grain)


def compose(rng: random.Random, grain: np.random.Generator) -> tuple[Scene, Image.Image]:
    """One scene of two to four groups of objects, and its picture."""
    while True:
        place = rng.choice(tuple(PLACES))
        layout = Layout(place, rng.choice(("day", "day", "evening", "cloudy")), rng, grain)
        wanted = rng.choice((2, 2, 3, 3, 4))
        weights = dict(PLACES[place])
        for _ in range(12):
            if len(layout.groups) == wanted or not weights:
                break
            kind = rng.choices(tuple(weights), tuple(weights.values()))[0]
            layout.add(kind)
            # one group of a kind: then a phrase says which is meant
            weights.pop(kind)
        if len(layout.groups) >= 2:
            return layout.scene(), layout.image()


def chain_boxes(scene: Scene) -> dict[str, list[Box]]:
    """The boxes of every entity chain of a scene that has some."""
    boxes: dict[str, list[Box]] = {}
    for k, group in enumerate(scene.groups):
        boxes[f"group{k}"] = [thing.box for thing in group.things]
        if group.partners:
            boxes[f"partner{k}"] = [thing.box for thing in group.partners]
    if scene.water is not None:
        boxes["water"] = [scene.water]
    return boxes


def chain_type(scene: Scene, chain: str) -> str:
    """The coarse type that Flickr30k Entities writes into a phrase."""
    if chain.startswith("group") and chain[5:].isdigit():
        return TYPES.get(scene.groups[int(chain[5:])].kind, "other")
    if chain.startswith("partner"):
        return TYPES.get(scene.groups[int(chain[7:])].partners[0].kind, "other")
    return TYPES.get(chain.split()[0], "other")


def entity_line(pieces: list[Piece], scene: Scene, numbers: dict[str, int]) -> str:
    """A caption with its phrases in the brackets of Flickr30k Entities."""
    words = []
    for position, piece in enumerate(pieces):
        text = piece if isinstance(piece, str) else piece.words
        if position == 0:
            text = text[0].upper() + text[1:]
        if isinstance(piece, Phrase):
            label = f"{numbers[piece.chain]}/{chain_type(scene, piece.chain)}" if piece.chain else "0/notvisual"
            text = f"[/EN#{label} {text}]"
        words.append(text)
    return " ".join(words)


def annotation(name: str, numbers: dict[str, int], boxes: dict[str, list[Box]]) -> str:
    """The XML of one picture: an object for each box of a chain; a chain without one says why it has none."""
    lines = ["<annotation>", f"\t<filename>{name}</filename>"]
    lines.append(f"\t<size><width>{WIDTH}</width><height>{HEIGHT}</height><depth>3</depth></size>")
    for chain, number in numbers.items():
        for x0, y0, x1, y1 in boxes.get(chain, []):
            corners = f"<xmin>{x0 + 1}</xmin><ymin>{y0 + 1}</ymin><xmax>{x1}</xmax><ymax>{y1}</ymax>"
            lines += [
                "\t<object>",
                f"\t\t<name>{number}</name>",
                f"\t\t<bndbox>{corners}</bndbox>",
                "\t</object>",
            ]
        if chain not in boxes:
            scene = int(chain.startswith("ground"))
            flags = f"<scene>{scene}</scene><nobox>{1 - scene}</nobox>"
            lines += ["\t<object>", f"\t\t<name>{number}</name>", f"\t\t{flags}", "\t</object>"]
    return "\n".join([*lines, "</annotation>", ""])


def draw_all(count: int, seed: int) -> Iterator[tuple[str, str, Scene, Image.Image, list[list[Piece]]]]:
    """Image id, split, scene, picture and captions of every picture."""
    chooser = random.Random(f"{seed} pictures")
    ids = chooser.sample(range(100_000_000, 1_000_000_000), count)
    test, valid = max(1, round(count * 2 / 15)), max(1, round(count / 15))
    splits = ["test"] * test + ["val"] * valid + ["train"] * (count - test - valid)
    chooser.shuffle(splits)
    for image_id, split in zip(sorted(ids), splits):
        rng = random.Random(f"{seed} {image_id}")
        scene, image = compose(rng, np.random.default_rng([seed, image_id]))
        yield str(image_id), split, scene, image, Teller(scene, rng).captions()


def write(folder: Path, count: int, seed: int) -> None:
    """Write all files of a data set into an existing, empty folder."""
    for sub in ("images", "entities/Sentences", "entities/Annotations"):
        (folder / sub).mkdir(parents=True)
    images: list[dict[str, Any]] = []
    next_chain = 1
    for number, (image_id, split, scene, image, captions) in enumerate(draw_all(count, seed)):
        name = f"{image_id}.jpg"
        image.save(folder / "images" / name, quality=92)
        chains = dict.fromkeys(p.chain for pieces in captions for p in pieces if isinstance(p, Phrase) and p.chain)
        numbers = {chain: next_chain + k for k, chain in enumerate(chains)}
        next_chain += len(numbers)
        sentences = []
        for k, pieces in enumerate(captions):
            raw = raw_text(pieces) + " ."
            tokens = raw.lower().replace(" ,", "").rstrip(" .").split()
            sentences.append({"tokens": tokens, "raw": raw, "imgid": number, "sentid": 5 * number + k})
        images.append(
            {
                "filename": name,
                "imgid": number,
                "split": split,
                "sentids": [sentence["sentid"] for sentence in sentences],
                "sentences": sentences,
            }
        )
        lines = [f"{entity_line(pieces, scene, numbers)} .\n" for pieces in captions]
        (folder / "entities/Sentences" / f"{image_id}.txt").write_text("".join(lines), encoding="utf-8")
        text = annotation(name, numbers, chain_boxes(scene))
        (folder / "entities/Annotations" / f"{image_id}.xml").write_text(text, encoding="utf-8")
    with open(folder / "dataset.json", "w", encoding="utf-8") as file:
        json.dump({"dataset": "demo", "images": images}, file)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder to write; must not exist")
    parser.add_argument("--images", type=int, default=1500, metavar="N", help="how many (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of all choices, 0 or more (default: %(default)s)")
    args = parser.parse_args()
    if args.images < 3:
        parser.error("--images: at least 3, one for each split")
    if args.seed < 0:
        parser.error("--seed: 0 or more")
    if args.out.exists():
        parser.error(f"--out: {args.out} exists; remove it or choose another folder")
    temporary = args.out.with_name(f".{args.out.name}.{os.getpid()}.part")
    try:
        write(temporary, args.images, args.seed)
        os.replace(temporary, args.out)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    with open(args.out / "dataset.json", encoding="utf-8") as file:
        images = json.load(file)["images"]
    words = Counter(word for image in images for sentence in image["sentences"] for word in sentence["tokens"])
    splits = Counter(image["split"] for image in images)
    counts = ", ".join(f"{splits[name]} {name}" for name in ("train", "val", "test"))
    print(f"{args.out}: {len(images)} pictures ({counts}), {len(words)} different words", file=sys.stderr)


if __name__ == "__main__":
    main()
