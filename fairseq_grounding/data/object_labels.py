"""``objects.json`` from the label files that published grounding results use.

``flickr30k_cleaned_class.json``: ``annotations[]`` of ``image_id``, ``image_size`` (optional) and ``captions[]``,
each with ``tokens``, and for each labelled word its place ``process_idx``, its class ``process_clss`` and one box
``process_bnd_box`` (x0 y0 x1 y1, pixels, taken as they are); ``lemma2w`` (optional) maps a class to words.
``dic_flickr30k.json``: ``wtod``, the classes, and ``wtol``, the lemma of each word of the vocabulary.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..errors import GroundingError
from ..files import read_json
from .captions import Caption, images_of
from .flickr30k_entities import align
from .objects import COUNTS, objects_content, pair_up
from .skipped import Skipped

# pixels; NaN is not below it either
_FAR = 1e9


@dataclass(frozen=True)
class LabelledWord:
    """A word of a sentence with its class and box."""

    word: int
    name: str
    box: tuple[float, float, float, float]
    entity: str | None
    """the id of what the box shows, where the file has it"""


@dataclass(frozen=True)
class LabelledImage:
    """The sentences of an image, as the label file has their words."""

    tokens: list[list[str]]
    words: list[list[LabelledWord]]
    size: tuple[int, int] | None
    """as the file states it: width and height, in this order or the other"""


@dataclass
class ClassLabels:
    """A label file, with its dictionary where there is one."""

    images: dict[str, LabelledImage]
    classes: list[str]
    """sorted"""
    lemmas: dict[str, str] = field(default_factory=dict)
    """the lemma of words, the class itself where the lemma is that of a class"""
    unreachable: list[str] | None = None
    """classes that are not in the vocabulary of ``wtol``, so that published code never finds them in what a
    model says; None without a dictionary"""


def read_class_labels(
    path: str | os.PathLike[str],
    dictionary: str | os.PathLike[str] | None = None,
    skipped: Skipped | None = None,
) -> ClassLabels:
    """Read a label file, and the *dictionary* that belongs to it.

    The classes are those of ``wtod`` and all that occur in the file. As in published code, a word's class is
    the class that has its lemma, and of two classes with one lemma the last one in ``wtod`` takes all words.

    Raises:
        GroundingError: a file has another form; or an image's labels are wrong and *skipped* does not allow
            to leave them out.
    """
    skipped = skipped or Skipped()
    data = read_json(path)
    annotations = data.get("annotations") if isinstance(data, dict) else None
    if not isinstance(annotations, list) or not all(isinstance(annotation, dict) for annotation in annotations):
        raise GroundingError(f"{path}: is not a file of class labels (an object with a list 'annotations' of objects)")
    images: dict[str, LabelledImage] = {}
    for place, annotation in enumerate(annotations):
        image_id = annotation.get("image_id")
        try:
            if not isinstance(image_id, (int, str)) or isinstance(image_id, bool):
                raise _LabelFault(f"annotation number {place} has the image id {image_id!r}, which is of no use")
            if str(image_id) in images:
                raise _LabelFault(f"image {str(image_id)!r} is there more than once; remove one of them")
            images[str(image_id)] = _labelled_image(f"image {str(image_id)!r}", annotation)
        except _LabelFault as fault:
            skipped.leave_out(path, str(image_id), "annotation", str(fault))
    names = {word.name for image in images.values() for words in image.words for word in words}
    if dictionary is None:
        return ClassLabels(images, sorted(names), _words_of_classes(data.get("lemma2w"), names))
    classes, lemma_of = _read_dictionary(dictionary)
    class_of = {lemma_of[name]: name for name in classes if name in lemma_of}
    lemmas = {word: class_of.get(lemma, lemma) for word, lemma in lemma_of.items()}
    unreachable = sorted(name for name in names.union(classes) if name not in lemma_of)
    return ClassLabels(images, sorted(names.union(classes)), lemmas, unreachable)


def build_labelled_objects(
    labels: ClassLabels,
    captions: Sequence[Caption],
    lemmas: Mapping[str, str],
    sizes: Mapping[str, tuple[int, int]],
) -> tuple[dict[str, Any], dict[str, int]]:
    """Tie labelled words to captions.

    Args:
        labels: of :func:`read_class_labels`.
        captions: all captions, those of one image adjacent.
        lemmas: the lemma of each word, for words that the labels' dictionary lacks.
        sizes: width and height of each image in the region store. Boxes of an image that is labelled at
            another size are scaled to it.

    Returns:
        What ``objects.json`` holds, with a further key ``unreachable_classes`` where there is a dictionary, and
        the counts of :func:`.objects.build_objects`, where a labelled word is a phrase.

    Raises:
        GroundingError: sizes differ, and boxes lie outside the stated sizes whichever side is the width.
    """
    counts = Counter(dict.fromkeys(COUNTS, 0))
    images: dict[str, list[list[dict[str, Any]]]] = {}
    tokens: dict[str, list[list[str]]] = {}
    splits: dict[str, str] = {}
    height_first = _is_height_first(labels.images, sizes)
    for image_id, own in images_of(captions).items():
        image = labels.images.get(image_id)
        if image is None:
            continue
        counts["images"] += 1
        scale = _scale(image.size, sizes[image_id], height_first)
        counts["images_rescaled"] += scale is not None
        images[image_id] = []
        for caption, number in zip(own, pair_up(own, image.tokens)):
            counts["captions_without_sentence"] += number is None
            entries = [] if number is None else _entries(caption, image, number, scale)
            images[image_id].append([entry for entry in entries if entry is not None])
            counts["phrases"] += len(entries)
            counts["phrases_not_tied"] += entries.count(None)
        tokens[image_id] = [caption.tokens for caption in own]
        splits[image_id] = own[0].split
    counts["phrases_boxed"] = counts["phrases"] - counts["phrases_not_tied"]
    own_sizes = {image_id: sizes[image_id] for image_id in images}
    objects = objects_content(labels.classes, {**lemmas, **labels.lemmas}, images, tokens, own_sizes, splits)
    if labels.unreachable is not None:
        objects["unreachable_classes"] = labels.unreachable
    return objects, {**counts, "classes": len(labels.classes)}


class _LabelFault(Exception):
    """What is wrong with the labels of one image."""


def _labelled_image(where: str, annotation: Mapping[str, Any]) -> LabelledImage:
    captions = annotation.get("captions")
    if not isinstance(captions, list) or not captions or not all(isinstance(caption, dict) for caption in captions):
        raise _LabelFault(f"{where} has no list 'captions' of objects")
    size = annotation.get("image_size")
    if size is not None and (
        not isinstance(size, list) or len(size) != 2 or not all(isinstance(side, int) and side > 0 for side in size)
    ):
        raise _LabelFault(f"{where} has the 'image_size' {size!r}, which is no pair of whole numbers")
    tokens, words = [], []
    for index, caption in enumerate(captions):
        own = caption.get("tokens")
        if not isinstance(own, list) or not all(isinstance(token, str) for token in own):
            raise _LabelFault(f"caption {index} of {where} has no list 'tokens' of words")
        tokens.append(own)
        words.append(_labelled_words(f"caption {index} of {where}", caption, len(own)))
    return LabelledImage(tokens, words, None if size is None else (size[0], size[1]))


def _labelled_words(where: str, caption: Mapping[str, Any], length: int) -> list[LabelledWord]:
    places, names, boxes = (caption.get(f"process_{key}") for key in ("idx", "clss", "bnd_box"))
    if not isinstance(places, list) or not isinstance(names, list) or not isinstance(boxes, list):
        raise _LabelFault(f"{where} lacks one of the lists process_idx, process_clss, process_bnd_box")
    if not len(places) == len(names) == len(boxes):
        raise _LabelFault(
            f"{where} has {len(places)} process_idx, {len(names)} process_clss and {len(boxes)} process_bnd_box; "
            "they belong together"
        )
    ids = caption.get("process_bbox_id")
    entities = ids if isinstance(ids, list) and len(ids) == len(places) else [None] * len(places)
    words: dict[int, LabelledWord] = {}
    for place, name, box, entity in zip(places, names, boxes, entities):
        if not isinstance(place, int) or isinstance(place, bool) or not 0 <= place < length:
            raise _LabelFault(f"{where} labels the word {place!r}, but has the words 0 to {length - 1}")
        if place in words:
            raise _LabelFault(f"{where} labels the word {place} twice; a word has one box")
        if not isinstance(name, str) or not name:
            raise _LabelFault(f"{where} gives the word {place} the class {name!r}, which is no word")
        if not _is_box(box):
            raise _LabelFault(f"{where} gives the word {place} the box {box!r}, which is not x0 y0 x1 y1 in order")
        words[place] = LabelledWord(place, name, tuple(box), None if entity is None else str(entity))
    return [words[place] for place in sorted(words)]


def _is_box(box: Any) -> bool:
    if not isinstance(box, list) or len(box) != 4:
        return False
    if not all(isinstance(side, (int, float)) and abs(side) < _FAR for side in box):
        return False
    return box[0] <= box[2] and box[1] <= box[3]


def _words_of_classes(words: Any, names: set[str]) -> dict[str, str]:
    lemmas: dict[str, str] = {}
    for name in sorted(names) if isinstance(words, dict) else ():
        own = words.get(name)
        for word in [own] if isinstance(own, str) else own if isinstance(own, list) else []:
            if isinstance(word, str):
                lemmas[word] = name
    return lemmas


def _read_dictionary(path: str | os.PathLike[str]) -> tuple[list[str], dict[str, str]]:
    """The classes in the order of the file, and the lemma of each word."""
    data = read_json(path)
    classes, lemmas = (data.get(key) for key in ("wtod", "wtol")) if isinstance(data, dict) else (None, None)
    if not isinstance(classes, dict) or not isinstance(lemmas, dict):
        raise GroundingError(f"{path}: is not a dictionary of class labels (an object with 'wtod' and 'wtol')")
    for word, lemma in lemmas.items():
        if not isinstance(lemma, str):
            raise GroundingError(f"{path}: 'wtol' gives {word!r} the lemma {lemma!r}, which is no word")
    return list(classes), lemmas


def _is_height_first(images: Mapping[str, LabelledImage], sizes: Mapping[str, tuple[int, int]]) -> bool:
    """Whether the file states heights before widths: told from boxes that would lie outside, at a pixel or more."""
    differing = [
        (image_id, image)
        for image_id, image in images.items()
        if image.size is not None and image_id in sizes and sorted(image.size) != sorted(sizes[image_id])
    ]
    outside = [
        {image_id for image_id, image in differing if image.size and _is_outside(image, image.size[::step])}
        for step in (1, -1)
    ]
    if outside[0] and outside[1]:
        raise GroundingError(
            f"--class-labels: image {min(outside[0])!r} has a box outside its 'image_size', and boxes cannot be "
            "scaled to the region store's size; mend it"
        )
    return bool(outside[0])


def _is_outside(image: LabelledImage, size: Sequence[int]) -> bool:
    return any(word.box[2] > size[0] or word.box[3] > size[1] for words in image.words for word in words)


def _scale(
    stated: tuple[int, int] | None, size: tuple[int, int], height_first: bool
) -> tuple[float, float, float, float] | None:
    if stated is None or sorted(stated) == sorted(size):
        return None
    width, height = stated[::-1] if height_first else stated
    return (size[0] / width, size[1] / height) * 2


def _entries(
    caption: Caption, image: LabelledImage, number: int, scale: tuple[float, float, float, float] | None
) -> list[dict[str, Any] | None]:
    """An entry for each labelled word; None where it is not in the caption."""
    places: Sequence[tuple[int, int] | None]
    if image.tokens[number] == caption.tokens:
        places = [(n, n + 1) for n in range(len(caption.tokens))]
    else:
        places = align(image.tokens[number], caption.tokens)
    entries: list[dict[str, Any] | None] = []
    for word in image.words[number]:
        place = places[word.word]
        if place is None:
            entries.append(None)
            continue
        box = list(word.box) if scale is None else [side * factor for side, factor in zip(word.box, scale)]
        entry = {"word": place[1] - 1, "class": word.name, "boxes": [box], "span": list(place), "types": []}
        entries.append(entry if word.entity is None else {**entry, "entity": word.entity})
    return entries
