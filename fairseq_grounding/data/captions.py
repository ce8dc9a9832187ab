"""Captions as records, and Karpathy's JSON; other files are read by :mod:`.caption_formats`."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

from ..errors import GroundingError
from ..files import read_json
from .skipped import Skipped

# the names that caption files use -> the names of fairseq; Karpathy's `restval` are further training images
SPLIT_NAMES = {"train": "train", "restval": "train", "val": "valid", "valid": "valid", "test": "test"}
IMAGE_KEYS = ("filename", "cocoid")


@dataclass(frozen=True)
class Caption:
    """One caption of one image."""

    image_id: str
    split: str
    """``train``, ``valid`` or ``test``"""
    index: int
    """number of the caption within its image in the file, from 0"""
    tokens: list[str]
    """its words; empty until a tokeniser has been over it where the file has none"""
    raw: str
    """the sentence as people wrote it, on one line"""
    number: int = field(default=0, compare=False)
    """its place among all captions of the file or files, from 0"""


def read_karpathy(
    path: str | os.PathLike[str],
    *,
    image_key: str = "filename",
    splits: Mapping[str, str] | None = None,
    words: bool = True,
    skipped: Skipped | None = None,
) -> list[Caption]:
    """Read a JSON file of Karpathy's splits: ``images[].filename, split, sentences[].tokens, raw``.

    The split ``val`` becomes ``valid``, ``restval`` joins ``train``. Captions of one image come one after
    another, in the order of the file.

    Args:
        path: the file.
        image_key: the image id is the file name without folder and ending, or ``images[].cocoid``.
        splits: the split of each image id, in place of the file's own; of :func:`.split_files.read_splits`.
        words: take the file's own words; otherwise ``raw`` is required and the captions have no words.
        skipped: where to note what is wrong and left out; without it, that raises.

    Raises:
        GroundingError: the file has another form, an image twice, an empty caption, or a word with
            white space.
    """
    skipped = skipped or Skipped()
    data = read_json(path)
    images = data.get("images") if isinstance(data, dict) else None
    if not isinstance(images, list) or not all(isinstance(image, dict) for image in images):
        raise GroundingError(
            f"{path}: is not a caption file of Karpathy's form (an object with a list 'images' of objects)"
        )
    captions: list[Caption] = []
    seen: set[str] = set()
    number = 0
    for place, image in enumerate(images):
        sentences = image.get("sentences")
        first, number = number, number + (len(sentences) if isinstance(sentences, list) else 0)
        image_id = _image_id(image, image_key)
        fault = _image_fault(image_id, place, image, image_key, seen, splits)
        if fault is not None:
            skipped.leave_out(path, image_id or f"number {place}", "image", fault)
            continue
        seen.add(image_id)
        split = SPLIT_NAMES[image["split"]] if splits is None else splits[image_id]
        for index, sentence in enumerate(image["sentences"]):
            tokens, raw = _tokens(sentence) if words else [], _raw(sentence)
            fault = _words_fault(tokens) if words else None if raw else "has no text 'raw'"
            if fault is not None:
                skipped.leave_out(path, image_id, f"caption {index}", f"caption {index} of image {image_id!r} {fault}")
                continue
            captions.append(Caption(image_id, split, index, tokens or [], raw or " ".join(tokens or []), first + index))
    return captions


def images_of(captions: Iterable[Caption]) -> dict[str, list[Caption]]:
    """The captions of each image, images in the order in which they first come."""
    images: dict[str, list[Caption]] = {}
    for caption in captions:
        images.setdefault(caption.image_id, []).append(caption)
    return images


def is_usable_id(image_id: str) -> bool:
    """Whether an image id can stand in a table: not empty, without tabs and line ends."""
    return bool(image_id) and image_id.isprintable()


def file_stem(name: str) -> str:
    """A file's name without folder and ending."""
    return PurePosixPath(name).stem


def _image_id(image: Mapping[str, Any], key: str) -> str:
    """ "" where the image has none that can be used."""
    value = image.get(key)
    if key == "cocoid":
        return str(value) if isinstance(value, int) and not isinstance(value, bool) else ""
    image_id = file_stem(value) if isinstance(value, str) else ""
    return image_id if is_usable_id(image_id) else ""


def _image_fault(
    image_id: str,
    place: int,
    image: Mapping[str, Any],
    key: str,
    seen: set[str],
    splits: Mapping[str, str] | None,
) -> str | None:
    if not image_id:
        return f"image number {place} has no usable {key!r} (it is {image.get(key)!r})"
    if image_id in seen:
        return f"image {image_id!r} is there more than once; remove one of them"
    if splits is not None:
        if image_id not in splits:
            return f"image {image_id!r} is in no split of --splits; add it there"
    elif "split" not in image:
        return f"image {image_id!r} has no 'split'; give each image one of {', '.join(SPLIT_NAMES)}"
    elif not isinstance(image["split"], str) or image["split"] not in SPLIT_NAMES:
        return f"image {image_id!r} has the split {image['split']!r}, which is none of {', '.join(SPLIT_NAMES)}"
    if not isinstance(image.get("sentences"), list) or not image["sentences"]:
        return f"image {image_id!r} has no list 'sentences' of captions; add them"
    return None


def _raw(sentence: Any) -> str:
    raw = sentence.get("raw") if isinstance(sentence, dict) else None
    return " ".join(raw.split()) if isinstance(raw, str) else ""


def _tokens(sentence: Any) -> Any:
    return sentence.get("tokens") if isinstance(sentence, dict) else None


def _words_fault(tokens: Any) -> str | None:
    if not isinstance(tokens, list) or not all(isinstance(token, str) for token in tokens):
        return "has no list 'tokens' of words"
    if not tokens:
        return "is empty; remove it"
    return spacing_fault(tokens)


def spacing_fault(tokens: Sequence[str]) -> str | None:
    """What is wrong with words that are joined and split at spaces later, if anything is."""
    for token in tokens:
        if token.split() != [token]:
            return f"has the word {token!r}, which is empty or holds white space; split it or remove it"
    return None
