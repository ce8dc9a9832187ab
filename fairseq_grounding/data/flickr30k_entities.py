"""Flickr30k Entities: phrases of captions, their boxes, and where the phrases are in other wordings."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from xml.sax import SAXParseException
from xml.sax.handler import ContentHandler

from ..errors import GroundingError
from .text_lines import read_lines

_OPENING = "[/EN#"
_HEADER = re.compile(r"\[/EN#([^/\s\[\]]+)((?:/[^/\s\[\]]+)+)")
_NOT_A_LETTER = re.compile(r"[\W_]+")


@dataclass(frozen=True)
class Phrase:
    """A marked phrase of a sentence: the words ``first`` up to, not including, ``stop``."""

    entity: str
    """the same for all phrases of an image that mean the same thing; ``0`` for what cannot be seen"""
    types: tuple[str, ...]
    first: int
    stop: int


@dataclass(frozen=True)
class Sentence:
    """A caption's words as the annotation has them, punctuation included, and its phrases."""

    words: list[str]
    phrases: list[Phrase]


@dataclass
class Annotation:
    """The boxes of one image.

    Boxes are x0 y0 x1 y1 in pixels, counted from 0; the last pixel belongs to the box, as in the
    dataset's own parser, which subtracts 1 from the numbers in the file.
    """

    size: tuple[int, int]
    """width, height"""
    boxes: dict[str, list[tuple[int, int, int, int]]] = field(default_factory=dict)
    """one or several an entity"""
    scenes: set[str] = field(default_factory=set)
    """entities that are the whole scene"""
    without_box: set[str] = field(default_factory=set)
    """entities that were looked for and have no box"""


def read_sentences(path: str | os.PathLike[str]) -> list[Sentence]:
    """Read ``Sentences/ID.txt``: one caption a line, phrases as ``[/EN#<id>/<type>[/<type>...] words]``.

    An empty line between others is a sentence without words, so that numbers of sentences stay right.

    Raises:
        GroundingError: names the file and the line that is malformed.
    """
    return [_parse_sentence(f"{path}: line {number}", line) for number, line in read_lines(path)]


def _parse_sentence(where: str, line: str) -> Sentence:
    words: list[str] = []
    phrases: list[Phrase] = []
    opened: tuple[str, tuple[str, ...], int] | None = None
    for word in line.split():
        if word.startswith(_OPENING):
            header = _HEADER.fullmatch(word)
            if opened is not None or header is None:
                what = "opens a phrase within a phrase" if opened else "is not [/EN#<id>/<type> and words]"
                raise GroundingError(f"{where}: {word!r} {what}; mend the line")
            opened = header[1], tuple(header[2][1:].split("/")), len(words)
        elif opened is not None and word.endswith("]"):
            entity, types, first = opened
            if word != "]":
                words.append(word[:-1])
            if len(words) == first:
                raise GroundingError(f"{where}: the phrase of entity {entity} has no words; mend the line")
            phrases.append(Phrase(entity, types, first, len(words)))
            opened = None
        else:
            words.append(word)
    if opened is not None:
        raise GroundingError(f"{where}: the phrase of entity {opened[0]} is not closed by ']'; mend the line")
    return Sentence(words, phrases)


def read_annotation(path: str | os.PathLike[str]) -> Annotation:
    """Read ``Annotations/ID.xml``: the image's size, and the boxes of each entity.

    An object has one or several ids, and a box or a flag ``scene`` or ``nobox``. XML entities and document
    types are refused: the dataset has none, and they can make a parser read other files.

    Raises:
        GroundingError: names the file and the line that is malformed.
    """
    import defusedxml.sax
    from defusedxml import DefusedXmlException

    handler = _TreeHandler()
    try:
        with open(path, "rb") as file:
            defusedxml.sax.parse(file, handler, forbid_dtd=True)
    except OSError as error:
        raise GroundingError(f"{path}: cannot be read ({error.strerror})") from error
    except SAXParseException as error:
        raise GroundingError(
            f"{path}: line {error.getLineNumber()}: is not well-formed XML ({error.getMessage()})"
        ) from error
    except DefusedXmlException as error:
        raise GroundingError(
            f"{path}: line {handler.line()}: has a document type or entity, which is refused; remove it"
        ) from error
    except (LookupError, ValueError) as error:
        # an encoding that the head of the file names: unknown, or not what its bytes are in
        reason = " ".join(str(error).split())
        raise GroundingError(f"{path}: is not well-formed XML ({reason}); save it as UTF-8") from error
    root = handler.root
    size = root.child("size", path)
    annotation = Annotation((size.number("width", path), size.number("height", path)))
    if min(annotation.size) < 1:
        raise GroundingError(f"{path}: line {size.line}: the image's size is {annotation.size}; mend it")
    for element in root.children:
        if element.tag == "object":
            _add_object(annotation, element, path)
    return annotation


def _add_object(annotation: Annotation, element: _Element, path: str | os.PathLike[str]) -> None:
    ids = [child.text.strip() for child in element.children if child.tag == "name"]
    if not ids or not all(ids):
        raise GroundingError(f"{path}: line {element.line}: the object has no <name> with an entity's id")
    flags = {child.tag for child in element.children if child.tag in ("scene", "nobox") and child.text.strip() == "1"}
    boxes = [child for child in element.children if child.tag == "bndbox"]
    if not boxes and not flags:
        raise GroundingError(f"{path}: line {element.line}: the object has neither <bndbox> nor <scene>1 nor <nobox>1")
    for entity in ids:
        if "scene" in flags:
            annotation.scenes.add(entity)
        if "nobox" in flags:
            annotation.without_box.add(entity)
    for child in boxes:
        x0, y0, x1, y1 = (child.number(name, path) - 1 for name in ("xmin", "ymin", "xmax", "ymax"))
        if x1 < x0 or y1 < y0:
            raise GroundingError(f"{path}: line {child.line}: the box ends before it starts")
        for entity in ids:
            annotation.boxes.setdefault(entity, []).append((x0, y0, x1, y1))


class _Element:
    """An XML element that knows its line."""

    def __init__(self, tag: str, line: int) -> None:
        self.tag, self.line, self.text = tag, line, ""
        self.children: list[_Element] = []

    def child(self, tag: str, path: str | os.PathLike[str]) -> _Element:
        for child in self.children:
            if child.tag == tag:
                return child
        raise GroundingError(f"{path}: line {self.line}: <{self.tag}> has no <{tag}>")

    def number(self, tag: str, path: str | os.PathLike[str]) -> int:
        child = self.child(tag, path)
        try:
            return int(child.text)
        except ValueError as error:
            raise GroundingError(
                f"{path}: line {child.line}: <{tag}> is {child.text.strip()!r}, not a whole number"
            ) from error


class _TreeHandler(ContentHandler):
    """Builds the elements; SAX, because ElementTree keeps no lines."""

    def __init__(self) -> None:
        super().__init__()
        self._locator = None
        self._open: list[_Element] = []
        self.root = _Element("", 1)

    def line(self) -> int:
        return (self._locator.getLineNumber() if self._locator else None) or 1

    def startElement(self, name: str, attrs: object) -> None:
        element = _Element(name, self.line())
        if self._open:
            self._open[-1].children.append(element)
        else:
            self.root = element
        self._open.append(element)

    def endElement(self, name: str) -> None:
        self._open.pop()

    def characters(self, content: str) -> None:
        self._open[-1].text += content


def normalise(word: str) -> str:
    """A word without case and punctuation; "" when nothing is left."""
    return _NOT_A_LETTER.sub("", word).casefold()


def align(annotated: Sequence[str], tokens: Sequence[str]) -> list[tuple[int, int] | None]:
    """Find each word of one wording of a sentence in another wording of it.

    Case and punctuation do not matter. Words that are the same in both are paired by their longest common
    runs; between these, a stretch that has the same letters in both but is cut into words elsewhere
    (``t-shirt``, ``t shirt``) is paired by its letters.

    Args:
        annotated: W words.
        tokens: the words to find them in.

    Returns:
        For each word the range (first, stop) of *tokens* that holds its letters; None when it was not found,
        or has no letters.
    """
    left = [(n, text) for n, text in enumerate(map(normalise, annotated)) if text]
    right = [(n, text) for n, text in enumerate(map(normalise, tokens)) if text]
    found: list[tuple[int, int] | None] = [None] * len(annotated)
    matcher = difflib.SequenceMatcher(None, [text for _, text in left], [text for _, text in right], False)
    for kind, left_start, left_stop, right_start, right_stop in matcher.get_opcodes():
        ours, theirs = left[left_start:left_stop], right[right_start:right_stop]
        if kind == "equal" or "".join(text for _, text in ours) == "".join(text for _, text in theirs):
            # the token of each letter of the stretch
            owner = [n for n, text in theirs for _ in text]
            letter = 0
            for n, text in ours:
                found[n] = owner[letter], owner[letter + len(text) - 1] + 1
                letter += len(text)
    return found


def tie(sentence: Sentence, tokens: Sequence[str]) -> list[tuple[int, int] | None]:
    """The range (first, stop) of *tokens* that each phrase of *sentence* covers.

    None for a phrase with a word that was not found (words without letters aside), or without any letters.
    """
    found = align(sentence.words, tokens)
    ranges: list[tuple[int, int] | None] = []
    for phrase in sentence.phrases:
        spelled = [n for n in range(phrase.first, phrase.stop) if normalise(sentence.words[n])]
        places = [place for n in spelled if (place := found[n]) is not None]
        whole = bool(spelled) and len(places) == len(spelled)
        ranges.append((places[0][0], places[-1][1]) if whole else None)
    return ranges
