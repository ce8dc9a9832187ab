"""CHAIR: objects of COCO that a caption mentions and its image lacks.

Rohrbach et al., "Object hallucination in image captioning", EMNLP 2018. An object is there if it is annotated or if
one of the image's captions mentions it. CHAIRs is the share of captions that mention an object that is not there,
CHAIRi the share of mentions. The list of synonyms is the user's file (the authors publish theirs).

Two variants:

``strict``
    Word for word what the published code does, for figures that are comparable with published ones. Words go through
    NLTK's tokenizer and the singularizer of the library pattern (here from textblob, which took it over). Its quirks:
    a word of the list with a capital or a second space before it (iPhone) never matches; every final s goes (bus
    becomes bu, which no list has); pairs of words are joined, never three; mentions after a seat that is left out
    beside a toilet have a place that is one less.
``mended``
    The same rules without the quirks and without libraries: case and spaces of the list do not matter, a word is
    taken for a plural only where the list has its singular, the longest entry of the list that fits is taken.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

from ..errors import GroundingError
from .hallucination import JudgedCaption, Mention, judge, summarise
from .synonyms import names_by_word

VARIANTS = ("strict", "mended")

# the metric's own rules, which are no part of the list of synonyms
_PAIRS = (  # noqa: SIM905
    "air plane, baseball bat, baseball glove, bow tie, cell phone, fire hydrant, hair drier, home plate, hot dog, "
    "laptop computer, mobile phone, motor bike, motor cycle, parking meter, potted plant, sports ball, stop light, "
    "stop sign, stove top oven, street light, suit case, teddy bear, tennis racket, traffic light, traffic signal, "
    "train track, wine glass"
).split(", ")
_NO_OBJECTS = ("home plate", "train track")
_ANIMALS = "animal bear bird cat cow cub dog elephant giraffe horse sheep zebra".split()  # noqa: SIM905
_VEHICLES = ("jet", "train")
_QUALIFIED = {
    **{f"{age} {animal}": animal for age in ("baby", "adult") for animal in _ANIMALS},
    **{f"passenger {vehicle}": vehicle for vehicle in _VEHICLES},
    "bow tie": "tie",
    "toilet seat": "toilet",
}

_IRREGULAR = {
    "children": "child",
    "feet": "foot",
    "geese": "goose",
    "mice": "mouse",
    "oxen": "ox",
    "people": "person",
    "teeth": "tooth",
}
_WORD = re.compile(r"[a-z0-9]+")


class Chair:
    """Find and judge mentions of COCO's objects.

    *synonyms* are the lines of the list (:func:`read_synonyms`). Raises :class:`GroundingError` for an unknown
    variant, and for ``strict`` without nltk and textblob.
    """

    def __init__(self, synonyms: Sequence[Sequence[str]], variant: str = "strict") -> None:
        if variant not in VARIANTS:
            raise GroundingError(f"CHAIR variant {variant!r} is unknown; choose one of {', '.join(VARIANTS)}")
        self.variant = variant
        self._reader: _Strict | _Mended = (_Strict if variant == "strict" else _Mended)(synonyms)

    def mentions(self, caption: str) -> list[Mention]:
        """The objects that a caption mentions, every time that it does."""
        return self._reader.read(caption)[1]

    def words(self, caption: str) -> list[str]:
        """A caption's words as they are compared with the list."""
        return self._reader.read(caption)[0]

    def objects(self, categories: Iterable[str], captions: Iterable[str]) -> set[str]:
        """The objects that are there: of annotated categories, and those that people mention."""
        unknown = [category for category in categories if self._reader.name(category) is None]
        if unknown:
            raise GroundingError(
                f"--synonyms: has no line with the category {unknown[0]!r} of --instances; the list must name them all"
            )
        there = {str(self._reader.name(category)) for category in categories}
        return there.union(mention.object for caption in captions for mention in self.mentions(caption))

    def score(
        self, captions: Mapping[str, str], objects: Mapping[str, set[str]], rounds: int, seed: int
    ) -> dict[str, Any]:
        """Score one caption an image against the objects that are there.

        Returns ``chair_s`` and ``chair_i`` (None without a mention) beside what :func:`summarise` does.
        """
        judged = self.judge(captions, objects)
        summary = summarise(judged, rounds, seed)
        return {
            "variant": self.variant,
            "chair_s": summary["caption_share"],
            "chair_i": summary["mention_share"],
            **summary,
        }

    def judge(self, captions: Mapping[str, str], objects: Mapping[str, set[str]]) -> list[JudgedCaption]:
        """Each caption with what it mentions and what of that is not there."""
        return [judge(image, text, self.mentions(text), objects[image]) for image, text in captions.items()]


class _Strict:
    def __init__(self, synonyms: Sequence[Sequence[str]]) -> None:
        self._tokenize, self._singular = _published_tools()
        self._names = {word: line[0] for line in synonyms for word in line}
        # what the singularizer makes of glass
        self._pairs = {**{pair: pair for pair in _PAIRS}, **_QUALIFIED, "wine glas": "wine glass"}

    def name(self, category: str) -> str | None:
        return self._names.get(category)

    def read(self, caption: str) -> tuple[list[str], list[Mention]]:
        single = [self._singular(word) for word in self._tokenize(caption.lower())]
        words, places = [], []
        place = 0
        while place < len(single):
            places.append(place)
            pair = " ".join(single[place : place + 2])
            words.append(self._pairs.get(pair, single[place]))
            place += 2 if pair in self._pairs else 1
        kept = [word for word in words if word != "seat"] if "toilet" in words else words
        # places are not those of the kept words: so it is in the published code
        mentions = [Mention(word, self._names[word], place) for word, place in zip(kept, places) if word in self._names]
        return words, mentions


class _Mended:
    def __init__(self, synonyms: Sequence[Sequence[str]]) -> None:
        self._names = names_by_word([list(line) for line in synonyms])
        entries: dict[str, str | None] = {**dict.fromkeys(_NO_OBJECTS), **self._names}
        entries.update({pair: entries[word] for pair, word in _QUALIFIED.items() if word in entries})
        self._entries = {" ".join(_WORD.findall(entry)): name for entry, name in entries.items()}
        self._longest = max(len(entry.split()) for entry in self._entries)

    def name(self, category: str) -> str | None:
        return self._names.get(category.strip().lower())

    def read(self, caption: str) -> tuple[list[str], list[Mention]]:
        single = _WORD.findall(re.sub(r"['\u2019]s\b", "", caption.lower()))
        words: list[str] = []
        found: list[Mention] = []
        place = 0
        while place < len(single):
            length, entry = self._longest_entry(single[place:])
            name = self._entries.get(entry)
            if name is not None and not (entry == "seat" and any(word in ("toilet", "toilets") for word in single)):
                found.append(Mention(entry, name, place))
            words.append(entry)
            place += length
        return words, found

    def _longest_entry(self, words: Sequence[str]) -> tuple[int, str]:
        for length in range(min(self._longest, len(words)), 0, -1):
            for last in _singulars(words[length - 1]):
                entry = " ".join([*words[: length - 1], last])
                if entry in self._entries:
                    return length, entry
        return 1, words[0]


def _singulars(word: str) -> Iterator[str]:
    """The word itself, and what it may be the plural of."""
    yield word
    if word in _IRREGULAR:
        yield _IRREGULAR[word]
    for plural, singulars in (("men", ["man"]), ("ies", ["y"]), ("ves", ["f", "fe"]), ("es", [""])):
        if word.endswith(plural):
            yield from (word[: -len(plural)] + singular for singular in singulars)
    if word.endswith("s") and not word.endswith("ss"):
        yield word[:-1]


def _published_tools() -> tuple[Callable[[str], list[str]], Callable[[str], str]]:
    try:
        from nltk.tokenize import NLTKWordTokenizer
        from textblob.en.inflect import singularize
    except ImportError as error:
        raise GroundingError(
            "--variant strict needs the published code's word rules: pip install nltk textblob; "
            "or score with --variant mended"
        ) from error
    return NLTKWordTokenizer().tokenize, lru_cache(maxsize=None)(lambda word: str(singularize(word)))
