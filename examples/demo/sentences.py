"""Five captions of a scene in varied grammar, with its phrases tied to entity chains."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import NamedTuple, Union

Box = tuple[int, int, int, int]  # x0 y0 x1 y1 in pixels; x1 and y1 are the first ones outside


@dataclass
class Thing:
    """One drawn object."""

    kind: str
    colour: str
    box: Box


@dataclass
class Group:
    """What a phrase speaks of: one object or several of a kind, and what they carry or stand on."""

    kind: str
    pose: str
    size: str  # "small", "big" or "" for the usual
    base: int  # the row on which it stands; further down is nearer
    things: list[Thing] = field(default_factory=list)
    partners: list[Thing] = field(default_factory=list)

    @property
    def middle(self) -> float:
        return sum(thing.box[0] + thing.box[2] for thing in self.things) / (2 * len(self.things))


@dataclass
class Scene:
    """What is in a picture; boxes are those of the drawn pixels."""

    place: str
    light: str
    water: Box | None
    groups: list[Group]


class Phrase(NamedTuple):
    """A phrase of a caption and the entity chain that it belongs to."""

    words: str
    chain: str


Piece = Union[str, Phrase]

TYPES = {
    **dict.fromkeys(("man", "woman", "boy"), "people"),
    **dict.fromkeys(("dog", "cat", "bird"), "animals"),
    **dict.fromkeys(("car", "boat"), "vehicles"),
    **dict.fromkeys(("house", "water", "ground"), "scene"),
    "hat": "clothing",
}
PLURALS = {
    "man": "men",
    "woman": "women",
    "person": "people",
    "lady": "ladies",
    "puppy": "puppies",
    "child": "children",
}
HYPERNYMS = {
    **dict.fromkeys(("man", "woman", "boy"), "person"),
    **dict.fromkeys(("dog", "cat", "bird"), "animal"),
    **dict.fromkeys(("ball", "balloon", "kite"), "toy"),
    "car": "vehicle",
    "house": "building",
}
SYNONYMS = {"woman": "lady", "boy": "child", "cup": "mug", "boat": "ship", "dog": "puppy"}
FLYING = ("balloon", "kite")

# third person, plural, participle
VERBS: dict[tuple[str, str], tuple[tuple[str, str, str], ...]] = {
    ("dog", "run"): (("runs", "run", "running"), ("plays", "play", "playing")),
    ("dog", "sit"): (("sits", "sit", "sitting"),),
    ("dog", "stand"): (("stands", "stand", "standing"), ("walks", "walk", "walking")),
    ("cat", "sit"): (("sits", "sit", "sitting"), ("rests", "rest", "resting")),
    ("cat", "stand"): (("stands", "stand", "standing"), ("walks", "walk", "walking")),
    ("bird", "fly"): (("flies", "fly", "flying"),),
    ("bird", "stand"): (("stands", "stand", "standing"), ("sits", "sit", "sitting")),
    ("ball", ""): (("lies", "lie", "lying"), ("rests", "rest", "resting")),
    ("balloon", ""): (("floats", "float", "floating"), ("flies", "fly", "flying")),
    ("boat", "sail"): (("sails", "sail", "sailing"), ("floats", "float", "floating")),
    ("boat", "motor"): (("floats", "float", "floating"), ("waits", "wait", "waiting")),
    ("car", ""): (("drives", "drive", "driving"), ("waits", "wait", "waiting")),
    ("flower", ""): (("grows", "grow", "growing"),),
}
PERSON_VERBS = {
    "stand": (("stands", "stand", "standing"), ("waits", "wait", "waiting")),
    "walk": (("walks", "walk", "walking"),),
    "hold": (("stands", "stand", "standing"), ("waves", "wave", "waving")),
}
STANDS = (("stands", "stand", "standing"),)

# preposition and phrase; the chain "water" has a box, "ground" is a scene without one
PLACES: dict[str, tuple[tuple[str, str, str], ...]] = {
    "field": (("on", "the grass", "ground"), ("in", "the grass", "ground"), ("in", "a green field", "ground"),
              ("in", "a field", "ground"), ("in", "the park", "ground")),
    "beach": (("on", "the beach", "ground"), ("on", "the sand", "ground"), ("near", "the water", "water")),
    "lake": (("by", "the water", "water"), ("near", "a lake", "water"), ("on", "the grass", "ground")),
    "street": (("on", "the street", "ground"), ("on", "the road", "ground"),
               ("on", "a city street", "ground")),
    "room": (("in", "a room", "ground"), ("on", "the floor", "ground"), ("in", "the room", "ground")),
}  # fmt: skip
TIMES: dict[str, tuple[tuple[str, str], ...]] = {
    "day": (("on", "a sunny day"), ("in", "the sunlight"), ("on", "a nice day"), ("in", "the afternoon")),
    "evening": (("in", "the evening"), ("in", "the last sunlight")),
    "cloudy": (("on", "a cloudy day"), ("in", "the afternoon")),
    "room": (("in", "the daylight"), ("in", "the afternoon")),
}


def with_article(words: str) -> str:
    """Put "a" or "an" before *words*."""
    return f"{'an' if words[0] in 'aeiou' else 'a'} {words}"


class Teller:
    """Tells one scene; *rng* decides every choice."""

    def __init__(self, scene: Scene, rng: random.Random) -> None:
        self.scene, self.rng = scene, rng

    def chance(self, probability: float) -> bool:
        return self.rng.random() < probability

    def _noun_phrase(self, kind: str, things: list[Thing], size: str, chain: str, general: float) -> Phrase:
        rng, count = self.rng, len(things)
        noun = kind
        if self.chance(general):
            noun = HYPERNYMS.get(kind, kind)
        elif self.chance(0.14):
            noun = SYNONYMS.get(kind, kind)
        words = []
        if size and self.chance(0.6):
            words.append(rng.choice({"small": ("small", "little"), "big": ("big", "large")}[size]))
        colours = {thing.colour for thing in things}
        # people wear the colour of their clothes, and a tree is green without saying so
        if len(colours) == 1 and TYPES.get(kind) != "people" and self.chance(0.15 if kind == "tree" else 0.6):
            words.append(next(iter(colours)))
        if kind == "table" and words == ["brown"]:
            words = ["wooden"]
        if count == 1:
            words.append(noun)
            text = " ".join(words)
            return Phrase(f"the {text}" if self.chance(0.1) else with_article(text), chain)
        words.append(PLURALS.get(noun, f"{noun}s"))
        number = {2: ("two", "two", "a pair of", "some"), 3: ("three", "three", "several", "some")}[count]
        return Phrase(" ".join([rng.choice(number), *words]), chain)

    def subject(self, index: int, general: float = 0.12) -> list[Piece]:
        """The noun phrase of a group, often with what it carries."""
        group = self.scene.groups[index]
        head = self._noun_phrase(group.kind, group.things, group.size, f"group{index}", general)
        if group.kind == "boat" and self.chance(0.5):
            return [head, "on", Phrase(self.rng.choice(("the water", "the lake")), "water")]
        if not group.partners or self.chance(0.3):
            return [head]
        partner = self._noun_phrase(group.partners[0].kind, group.partners, "", f"partner{index}", 0.05)
        ways: dict[str, tuple[list[Piece], ...]] = {
            "man": ([head, "in", partner], [head, "wearing", partner], [head, "with", partner]),
            "woman": ([head, "with", partner], [head, "holding", partner], [head, "under", partner]),
            "boy": ([head, "with", partner], [head, "flying", partner], [head, "holding", partner]),
            "table": (
                [head, "with", partner, "on", Phrase("it", "")],
                [partner, "on", head],
                [head, "with", partner],
            ),
        }
        return list(self.rng.choice(ways[group.kind]))

    def _forms(self, group: Group) -> tuple[str, str, str]:
        if TYPES.get(group.kind) == "people":
            return self.rng.choice(PERSON_VERBS[group.pose])
        return self.rng.choice(VERBS.get((group.kind, group.pose)) or VERBS.get((group.kind, "")) or STANDS)

    def is_plural(self, index: int, said: list[Piece]) -> bool:
        """Whether the phrase *said* of a group is plural; it may begin with the partner ("a cup on a table")."""
        group = self.scene.groups[index]
        first = said[0]
        assert isinstance(first, Phrase)
        return len(group.partners if first.chain.startswith("partner") else group.things) > 1

    def verb(self, index: int, plural: bool) -> str:
        third, base, participle = self._forms(self.scene.groups[index])
        if self.chance(0.5):
            return base if plural else third
        return f"{'are' if plural else 'is'} {participle}"

    def participle(self, index: int) -> str:
        return self._forms(self.scene.groups[index])[2]

    def in_the_air(self, index: int) -> bool:
        group = self.scene.groups[index]
        return group.kind in FLYING or (group.kind, group.pose) == ("bird", "fly")

    def where(self, index: int) -> list[Piece]:
        """A place for a group: the ground, the water, or the air."""
        group = self.scene.groups[index]
        if self.in_the_air(index):
            if self.scene.place == "room" or self.chance(0.4):
                return ["in", Phrase("the air", "the air")]
            return ["in", Phrase("the sky", "ground sky")]
        if group.kind == "boat":
            return ["on", Phrase(self.rng.choice(("the water", "the lake")), "water")]
        preposition, words, chain = self.rng.choice(PLACES[self.scene.place])
        return [preposition, Phrase(words, chain if chain == "water" else f"ground {words}")]

    def when(self, probability: float = 0.3) -> list[Piece]:
        if not self.chance(probability):
            return []
        preposition, words = self.rng.choice(TIMES["room" if self.scene.place == "room" else self.scene.light])
        return [preposition, Phrase(words, words)]

    def relation(self, first: int, second: int) -> str:
        """A preposition that is true of two groups."""
        one, two = self.scene.groups[first], self.scene.groups[second]
        high, low = self.in_the_air(first), self.in_the_air(second)
        if high and not low:
            return self.rng.choice(("above", "over", "above"))
        if low and not high:
            return self.rng.choice(("below", "under", "below"))
        if not high and abs(one.base - two.base) > 14 and abs(one.middle - two.middle) < 70:
            return "in front of" if one.base > two.base else "behind"
        if abs(one.middle - two.middle) > 60 and self.chance(0.25):
            return "to the left of" if one.middle < two.middle else "to the right of"
        return self.rng.choice(("beside", "next to", "near", "beside"))

    def caption(self, main: int) -> list[Piece]:
        """One caption about the group *main* and, often, others."""
        rng = self.rng
        others = [k for k in range(len(self.scene.groups)) if k != main]
        rng.shuffle(others)
        subject = self.subject(main)
        plural = self.is_plural(main, subject)
        kinds = ["place"]
        if others:
            kinds += ["relation", "relation", "fragment", "there", "both", "list", "fronted", "while"]
            if self.scene.groups[others[0]].kind in ("tree", "house"):
                kinds += ["background"] * 3
        kind = rng.choice(kinds)
        if kind == "place":
            if self.chance(0.25):
                return [*subject, *self.where(main), *self.when()]
            return [*subject, self.verb(main, plural), *self.where(main), *self.when()]
        other = self.subject(others[0])
        relation = self.relation(main, others[0])
        if kind == "relation":
            return [*subject, self.verb(main, plural), relation, *other, *self.when(0.2)]
        if kind == "fragment":
            return [*subject, self.participle(main), relation, *other, *self.when(0.2)]
        if kind == "there":
            return ["there", "are" if plural else "is", *subject, relation, *other, *self.when(0.2)]
        if kind == "both":
            return [*subject, "and", *other, *self.when(1.0)]
        if kind == "list":
            opening = rng.choice(("a picture of", "a photo of", "this scene shows", "this picture shows", "a view of"))
            middle: list[Piece] = [",", *self.subject(others[1])] if len(others) > 1 and self.chance(0.6) else []
            return [opening, *subject, *middle, "and", *other]
        if kind == "fronted":
            return [*self.where(main), ",", *subject, self.verb(main, plural), relation, *other]
        if kind == "while":
            return [*subject, self.verb(main, plural), "while", *other,
                    self.verb(others[0], self.is_plural(others[0], other))]  # fmt: skip
        return [
            *subject,
            self.verb(main, plural),
            "with",
            *other,
            "in",
            Phrase("the background", "the background"),
        ]

    def captions(self, count: int = 5) -> list[list[Piece]]:
        """*count* captions; each group is the main one of at least one of them while they last."""
        order: list[int] = []
        while len(order) < count:
            turn = list(range(len(self.scene.groups)))
            self.rng.shuffle(turn)
            order += turn
        return [self.caption(main) for main in order[:count]]


def raw_text(pieces: list[Piece]) -> str:
    """The caption as a line of text, its first letter a capital."""
    text = " ".join(piece if isinstance(piece, str) else piece.words for piece in pieces)
    return text[0].upper() + text[1:]
