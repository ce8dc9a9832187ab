"""Files that say which split each image is in."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..errors import GroundingError
from ..files import read_json
from .captions import SPLIT_NAMES
from .text_lines import read_lines

# split files and SCAN's folders also say `dev`
ALL_SPLIT_NAMES = {**SPLIT_NAMES, "dev": "valid"}


def read_splits(path: str | os.PathLike[str]) -> dict[str, str]:
    """The split, ``train``, ``valid`` or ``test``, of each image id in a file.

    Three forms: JSON ``{split: [ids]}``; JSON with a list ``images`` of objects with ``id`` and ``split``,
    as ``dic_flickr30k.json`` has it; lines ``id<TAB>split``. Ids may be numbers.

    Raises:
        GroundingError: the file has none of these forms, an unknown split, or an image in two splits.
    """
    splits: dict[str, str] = {}
    pairs = _json_pairs(path, read_json(path)) if Path(path).suffix.lower() == ".json" else _table_pairs(path)
    for where, image_id, split in pairs:
        if not isinstance(split, str) or split not in ALL_SPLIT_NAMES:
            raise GroundingError(f"{where}: the split {split!r} is none of {', '.join(ALL_SPLIT_NAMES)}")
        if not isinstance(image_id, (str, int)) or isinstance(image_id, bool):
            raise GroundingError(f"{where}: {image_id!r} is no image id; give strings or whole numbers")
        if splits.setdefault(str(image_id), ALL_SPLIT_NAMES[split]) != ALL_SPLIT_NAMES[split]:
            raise GroundingError(f"{where}: image {str(image_id)!r} is in two splits; remove it from one")
    if not splits:
        raise GroundingError(f"{path}: names no images; give JSON {{split: [ids]}} or lines id<TAB>split")
    return splits


def _json_pairs(path: str | os.PathLike[str], data: Any) -> Iterator[tuple[str, Any, Any]]:
    images = data.get("images") if isinstance(data, dict) else None
    if isinstance(images, list):
        for number, image in enumerate(images):
            if not isinstance(image, dict) or "id" not in image:
                raise GroundingError(f"{path}: image number {number} is no object with 'id' and 'split'")
            yield f"{path}: image number {number}", image["id"], image.get("split")
    elif isinstance(data, dict) and all(isinstance(ids, list) for ids in data.values()):
        for split, ids in data.items():
            for image_id in ids:
                yield str(path), image_id, split
    else:
        raise GroundingError(f"{path}: is not a split file: give JSON {{split: [ids]}} or lines id<TAB>split")


def _table_pairs(path: str | os.PathLike[str]) -> Iterator[tuple[str, str, str]]:
    for number, line in read_lines(path):
        cells = line.split("\t")
        if len(cells) != 2:
            raise GroundingError(f"{path}: line {number} has {len(cells)} columns, not 2: id<TAB>split")
        yield f"{path}: line {number}", cells[0].strip(), cells[1].strip()
