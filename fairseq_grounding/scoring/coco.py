"""COCO's annotation, as far as hallucination is judged by it: each image's categories and captions."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..errors import GroundingError
from ..files import read_json


@dataclass
class CocoImage:
    """The categories annotated in an image, and its captions."""

    categories: set[str] = field(default_factory=set)
    captions: list[str] = field(default_factory=list)


def read_coco(
    instances: Iterable[str | os.PathLike[str]], captions: Iterable[str | os.PathLike[str]] = ()
) -> dict[int, CocoImage]:
    """Read instance and caption files, of several splits too, by image number.

    The files are COCO's own (``instances_val2014.json``, ``captions_val2014.json``), or lists of images with
    ``image_id``, ``captions`` and ``boxes`` with a ``category``, which hold both.

    Raises:
        GroundingError: a file is of another shape, or an image has instances and no caption.
    """
    images: dict[int, CocoImage] = {}
    for flag, paths, read in (("--instances", instances, _read_instances), ("--captions", captions, _read_captions)):
        for path in paths:
            content = read_json(path)
            try:
                (_read_list if isinstance(content, list) else read)(content, images)
            except (KeyError, TypeError, AttributeError, ValueError) as error:
                raise GroundingError(
                    f"{flag} {path}: is not COCO's annotation ({type(error).__name__}: {error}); give its "
                    f"{flag[2:]}_*.json, or a list of images with image_id, captions, boxes"
                ) from error
    if not any(image.captions for image in images.values()):
        raise GroundingError("--captions: what people mention is there too; give COCO's captions_*.json")
    return images


def image_number(image_id: str) -> int:
    """The number at the end of an image id: 42 of ``COCO_val2014_000000000042``."""
    found = re.search(r"(\d+)(?:\.\w+)?$", image_id)
    if found is None:
        raise GroundingError(f"image {image_id!r}: has no number at its end, by which COCO knows images")
    return int(found[1])


def _read_instances(content: Mapping[str, Any], images: dict[int, CocoImage]) -> None:
    names = {category["id"]: str(category["name"]) for category in content["categories"]}
    for image in content["images"]:
        images.setdefault(int(image["id"]), CocoImage())
    for instance in content["annotations"]:
        images.setdefault(int(instance["image_id"]), CocoImage()).categories.add(names[instance["category_id"]])


def _read_captions(content: Mapping[str, Any], images: dict[int, CocoImage]) -> None:
    for annotation in content["annotations"]:
        images.setdefault(int(annotation["image_id"]), CocoImage()).captions.append(str(annotation["caption"]))


def _read_list(content: list[Any], images: dict[int, CocoImage]) -> None:
    for entry in content:
        image = images.setdefault(int(entry["image_id"]), CocoImage())
        image.categories.update(str(box["category"]) for box in entry["boxes"])
        image.captions.extend(map(str, entry["captions"]))
