"""Readers of caption files; each returns the same records, whatever the form of its file."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from ..errors import GroundingError
from ..files import read_json

# the names that caption files use -> the names of fairseq; Karpathy's `restval` are further training images
SPLIT_NAMES = {"train": "train", "restval": "train", "val": "valid", "valid": "valid", "test": "test"}


@dataclass(frozen=True)
class Caption:
    """One caption of one image."""

    image_id: str
    split: str
    """``train``, ``valid`` or ``test``"""
    index: int
    """number of the caption within its image, from 0"""
    tokens: list[str]
    """its words as the file has them"""
    raw: str
    """the sentence as people wrote it, on one line"""


def read_karpathy(path: str | os.PathLike[str]) -> list[Caption]:
    """Read a JSON file of Karpathy's splits: ``images[].filename, split, sentences[].tokens, raw``.

    The image id is the file name without folder and ending. The split ``val`` becomes ``valid``, ``restval``
    joins ``train``. Captions of one image come one after another, in the order of the file.

    Raises:
        GroundingError: the file has another form, an image twice, an empty caption, or a word with
            white space.
    """
    data = read_json(path)
    images = data.get("images") if isinstance(data, dict) else None
    if not isinstance(images, list) or not all(isinstance(image, dict) for image in images):
        raise GroundingError(
            f"{path}: is not a caption file of Karpathy's form (an object with a list 'images' of objects)"
        )
    captions: list[Caption] = []
    seen: set[str] = set()
    for number, image in enumerate(images):
        image_id = _image_id(path, number, image)
        if image_id in seen:
            raise GroundingError(f"{path}: image {image_id!r} is there more than once; remove one of them")
        seen.add(image_id)
        split = _split(path, image_id, image)
        sentences = image.get("sentences")
        if not isinstance(sentences, list) or not sentences:
            raise GroundingError(f"{path}: image {image_id!r} has no list 'sentences' of captions; add them")
        for index, sentence in enumerate(sentences):
            where = f"{path}: caption {index} of image {image_id!r}"
            tokens = _tokens(where, sentence)
            raw = sentence.get("raw")
            text = " ".join(raw.split()) if isinstance(raw, str) else ""
            captions.append(Caption(image_id, split, index, tokens, text or " ".join(tokens)))
    return captions


def images_of(captions: Iterable[Caption]) -> dict[str, list[Caption]]:
    """The captions of each image, images in the order in which they first come."""
    images: dict[str, list[Caption]] = {}
    for caption in captions:
        images.setdefault(caption.image_id, []).append(caption)
    return images


def _image_id(path: str | os.PathLike[str], number: int, image: dict[str, Any]) -> str:
    name = image.get("filename")
    image_id = PurePosixPath(name).stem if isinstance(name, str) else ""
    if not image_id or not image_id.isprintable():
        raise GroundingError(f"{path}: image number {number} has no usable 'filename' (it is {name!r})")
    return image_id


def _split(path: str | os.PathLike[str], image_id: str, image: dict[str, Any]) -> str:
    if "split" not in image:
        raise GroundingError(
            f"{path}: image {image_id!r} has no 'split'; give each image one of {', '.join(SPLIT_NAMES)}"
        )
    split = image["split"]
    if not isinstance(split, str) or split not in SPLIT_NAMES:
        raise GroundingError(
            f"{path}: image {image_id!r} has the split {split!r}, which is none of {', '.join(SPLIT_NAMES)}"
        )
    return SPLIT_NAMES[split]


def _tokens(where: str, sentence: Any) -> list[str]:
    tokens = sentence.get("tokens") if isinstance(sentence, dict) else None
    if not isinstance(tokens, list) or not all(isinstance(token, str) for token in tokens):
        raise GroundingError(f"{where} has no list 'tokens' of words")
    if not tokens:
        raise GroundingError(f"{where} is empty; remove it")
    for token in tokens:
        if token.split() != [token]:
            raise GroundingError(
                f"{where} has the word {token!r}, which is empty or holds white space; split it or remove it"
            )
    return tokens
