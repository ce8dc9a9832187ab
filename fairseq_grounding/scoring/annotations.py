"""What annotates: ``objects.json`` of a prepared folder; its boxes are inclusive pixels counted from 0."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import GroundingError
from ..files import read_json
from .iou import Box


@dataclass(frozen=True)
class AnnotatedWord:
    """A word of a ground-truth caption that has a class and boxes (x0, y0, x1, y1) of one entity.

    ``entity`` names what is the same thing in several captions of an image.
    """

    word: int
    name: str
    boxes: Sequence[Box]
    entity: str = ""


@dataclass(frozen=True)
class Reference:
    """A ground-truth caption: its words' lemmas, and those of its words that have a class and boxes."""

    lemmas: Sequence[str]
    words: Sequence[AnnotatedWord]


def load_objects(objects: str | os.PathLike[str] | Mapping[str, Any]) -> Mapping[str, Any]:
    """Read ``objects.json``, or check its content."""
    if isinstance(objects, Mapping):
        content, name = objects, "objects"
    else:
        content, name = read_json(objects), str(objects)
    if not isinstance(content, Mapping) or content.get("format") != "fairseq_grounding.objects":
        raise GroundingError(f"{name}: is not an objects.json written by fairseq-grounding prepare-captions")
    missing = [key for key in ("classes", "lemmas", "images", "tokens", "splits") if key not in content]
    if missing:
        raise GroundingError(f"{name}: lacks {', '.join(missing)}; run prepare-captions again")
    return content


def references_of(objects: Mapping[str, Any], image: str) -> list[Reference]:
    """The ground-truth captions of an image; an entity without an id is what has the same boxes."""
    lemmas = objects["lemmas"]
    return [
        Reference(
            [lemmas.get(word, word) for word in words],
            [
                AnnotatedWord(
                    entry["word"], entry["class"], entry["boxes"], str(entry.get("entity", sorted(entry["boxes"])))
                )
                for entry in entries
                if entry["class"] is not None
            ],
        )
        for words, entries in zip(objects["tokens"][image], objects["images"][image])
    ]


def coverage(expected: Sequence[str], there: Iterable[str], objects: Mapping[str, Any]) -> dict[str, Any]:
    """How many of the *expected* images are *there*, and their splits."""
    return {
        "images": len(expected),
        "images_missing": len(set(expected) - set(there)),
        "splits": sorted({objects["splits"][image] for image in expected}),
    }
