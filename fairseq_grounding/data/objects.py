"""``objects.json``: the boxes of Flickr30k Entities tied to the words of prepared captions."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from ..errors import GroundingError
from .captions import Caption, images_of
from .flickr30k_entities import Annotation, Sentence, normalise, read_annotation, read_sentences, tie
from .prepared import OBJECTS_FORMAT, OBJECTS_VERSION
from .skipped import Skipped

Box = tuple[int, int, int, int]

SEVERAL_BOXES = ("each", "union", "largest")

# what meta.json says of the annotation; phrases left out are counted by the first reason that holds
COUNTS = (
    "images",
    "images_rescaled",
    "phrases",
    "phrases_boxed",
    "phrases_not_visual",
    "phrases_without_box",
    "phrases_not_tied",
    "phrases_without_noun",
    "captions_without_sentence",
)


def read_entities(
    folder: str | os.PathLike[str], image_ids: Iterable[str], skipped: Skipped | None = None
) -> dict[str, tuple[list[Sentence], Annotation]]:
    """Read ``Sentences/ID.txt`` and ``Annotations/ID.xml`` in *folder*, of the images that have them.

    An image whose files are wrong is noted in *skipped*, and goes without annotation; without it, that raises.

    Raises:
        GroundingError: the folder has no file for any image or one file of a pair, or a file is malformed.
    """
    sentences, annotations = Path(folder) / "Sentences", Path(folder) / "Annotations"
    for part in (sentences, annotations):
        if not part.is_dir():
            raise GroundingError(
                f"--entities {folder}: has no folder {part.name}; give the one with Sentences and Annotations"
            )
    skipped = skipped or Skipped()
    read = {}
    for image_id in tqdm(image_ids, desc="entities", unit=" images", disable=None):
        pair = sentences / f"{image_id}.txt", annotations / f"{image_id}.xml"
        there = [path.is_file() for path in pair]
        if all(there):
            try:
                read[image_id] = read_sentences(pair[0]), read_annotation(pair[1])
            except GroundingError as error:
                if not skipped.allowed:
                    raise
                skipped.leave_out(folder, image_id, "annotation", str(error))
        elif any(there):
            missing, found = pair[there.index(False)], pair[there.index(True)]
            message = f"is missing, but {found} is there; add it, or remove the other"
            skipped.leave_out(missing, image_id, "annotation", message)
    if not read:
        raise GroundingError(f"--entities {folder}: has files for none of the captions' images; check the ids")
    return read


def build_objects(
    entities: Mapping[str, tuple[list[Sentence], Annotation]],
    captions: Sequence[Caption],
    nouns: Sequence[np.ndarray],
    lemmas: Mapping[str, str],
    sizes: Mapping[str, tuple[int, int]],
    min_class_count: int,
    several_boxes: str = "each",
) -> tuple[dict[str, Any], dict[str, int]]:
    """Tie phrases to captions.

    The class of a phrase is the lemma of its head noun, which is its last noun. The published label file has
    one box a word, and nothing says how one was made of several: hence *several_boxes*.

    Args:
        entities: of :func:`read_entities`.
        captions: all captions, those of one image adjacent.
        nouns: for each caption (W,), 1 where the word is a noun.
        lemmas: the lemma of each word.
        sizes: width and height of each image in the region store. Boxes of an annotation that states another
            size are scaled to it.
        min_class_count: phrases whose head noun has a lemma that heads fewer boxed phrases get no class.
        several_boxes: of an entity with several boxes, ``each`` is kept, or their ``union``, or the
            ``largest``, the first among equals.

    Returns:
        What ``objects.json`` holds, and counts for ``meta.json``.
    """
    counts = Counter(dict.fromkeys(COUNTS, 0))
    images: dict[str, list[list[dict[str, Any]]]] = {}
    tokens: dict[str, list[list[str]]] = {}
    splits: dict[str, str] = {}
    mask_of = {(caption.image_id, caption.index): mask for caption, mask in zip(captions, nouns)}
    for image_id, own in images_of(captions).items():
        if image_id not in entities:
            continue
        sentences, annotation = entities[image_id]
        counts["images"] += 1
        boxes = _scaled_boxes(annotation, sizes[image_id], several_boxes)
        counts["images_rescaled"] += annotation.size != tuple(sizes[image_id])
        images[image_id] = []
        for caption, number in zip(own, pair_up(own, [sentence.words for sentence in sentences])):
            if number is None:
                counts["captions_without_sentence"] += 1
                images[image_id].append([])
            else:
                mask = mask_of[image_id, caption.index]
                images[image_id].append(_entries(caption, mask, sentences[number], boxes, lemmas, counts))
        tokens[image_id] = [caption.tokens for caption in own]
        splits[image_id] = own[0].split
    classes = _set_classes(images, min_class_count)
    own_sizes = {image_id: sizes[image_id] for image_id in images}
    objects = objects_content(classes, lemmas, images, tokens, own_sizes, splits)
    return objects, {**counts, "classes": len(classes)}


def objects_content(
    classes: Sequence[str],
    lemmas: Mapping[str, str],
    images: Mapping[str, list[list[dict[str, Any]]]],
    tokens: Mapping[str, list[list[str]]],
    sizes: Mapping[str, tuple[int, int]],
    splits: Mapping[str, str],
) -> dict[str, Any]:
    """What ``objects.json`` holds."""
    return {
        "format": OBJECTS_FORMAT,
        "version": OBJECTS_VERSION,
        "classes": list(classes),
        "lemmas": dict(sorted(lemmas.items())),
        "images": images,
        "tokens": tokens,
        "sizes": {image_id: list(size) for image_id, size in sizes.items()},
        "splits": splits,
    }


def pair_up(captions: Sequence[Caption], sentences: Sequence[Sequence[str]]) -> list[int | None]:
    """Which of *sentences*, given as words, is each caption of the same image; None where none is left.

    By wording where that is the same, since files list captions in different orders; else by number.
    """
    wording = {n: "".join(map(normalise, words)) for n, words in enumerate(sentences)}
    left = set(wording)
    paired: list[int | None] = []
    for caption in captions:
        own = "".join(map(normalise, caption.tokens))
        same = [n for n in sorted(left) if wording[n] == own]
        number = caption.index if caption.index in same else next(iter(same), None)
        paired.append(number)
        left -= {number}
    for place, caption in enumerate(captions):
        if paired[place] is None and caption.index in left:
            paired[place] = caption.index
            left.remove(caption.index)
    return paired


def _scaled_boxes(annotation: Annotation, size: tuple[int, int], several_boxes: str) -> dict[str, list[list[float]]]:
    scale = np.array([size[0] / annotation.size[0], size[1] / annotation.size[1]] * 2)
    chosen = {entity: _choose_boxes(boxes, several_boxes) for entity, boxes in annotation.boxes.items()}
    if (scale == 1).all():
        return {entity: [list(box) for box in boxes] for entity, boxes in chosen.items()}
    return {entity: (np.array(boxes) * scale).tolist() for entity, boxes in chosen.items()}


def _choose_boxes(boxes: Sequence[Box], several_boxes: str) -> Sequence[Box]:
    if several_boxes == "each":
        return boxes
    if several_boxes == "largest":
        return [max(boxes, key=lambda box: (box[2] - box[0] + 1) * (box[3] - box[1] + 1))]
    x0, y0, x1, y1 = zip(*boxes)
    return [(min(x0), min(y0), max(x1), max(y1))]


def _entries(
    caption: Caption,
    nouns: np.ndarray,
    sentence: Sentence,
    boxes: Mapping[str, list[list[float]]],
    lemmas: Mapping[str, str],
    counts: Counter[str],
) -> list[dict[str, Any]]:
    entries = []
    for phrase, span in zip(sentence.phrases, tie(sentence, caption.tokens)):
        counts["phrases"] += 1
        if phrase.entity == "0":
            counts["phrases_not_visual"] += 1
        elif phrase.entity not in boxes:
            counts["phrases_without_box"] += 1
        elif span is None:
            counts["phrases_not_tied"] += 1
        elif not nouns[span[0] : span[1]].any():
            counts["phrases_without_noun"] += 1
        else:
            counts["phrases_boxed"] += 1
            head = span[0] + int(np.flatnonzero(nouns[span[0] : span[1]])[-1])
            entries.append(
                {
                    "word": head,
                    "class": lemmas[caption.tokens[head]],
                    "boxes": boxes[phrase.entity],
                    "span": list(span),
                    "types": list(phrase.types),
                    "entity": phrase.entity,
                }
            )
    return entries


def _set_classes(images: Mapping[str, list[list[dict[str, Any]]]], min_class_count: int) -> list[str]:
    entries = [entry for captions in images.values() for caption in captions for entry in caption]
    times = Counter(entry["class"] for entry in entries)
    for entry in entries:
        if times[entry["class"]] < min_class_count:
            entry["class"] = None
    return sorted(lemma for lemma, count in times.items() if count >= min_class_count)
