"""From grounding dumps and a folder of photographs to a folder of drawn captions."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Optional

from PIL import Image
from tqdm import tqdm

from ..dump import read_dump
from ..errors import GroundingError
from ..files import new_folders, writing
from .overlay import draw_caption, stack

ENDINGS = (".jpg", ".jpeg", ".png")
Row = dict[str, Any]
BoxSize = Callable[[str], Optional[tuple[int, int]]]


def draw_dumps(
    dumps: Sequence[str | os.PathLike[str]],
    images: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    limit: int = 8,
    image_ids: Sequence[str] | None = None,
    prepared: str | os.PathLike[str] | None = None,
    max_words: int = 8,
) -> list[Path]:
    """Write ``out/ID.png`` for images that are in every dump: their first caption by each model.

    Args:
        dumps: grounding dumps; with several, each photograph is repeated under the name of each model.
        images: folder of ``ID.jpg``, ``ID.jpeg`` or ``ID.png``.
        out: folder to write, made if absent.
        limit: no more than so many images, in the order of the first dump; without effect on *image_ids*.
        image_ids: draw exactly these.
        prepared: a prepared folder, for the list of nouns and the sizes of the original photographs.
        max_words: no more than so many boxes in a picture.

    Returns: the files written. Raises :class:`GroundingError` for a dump without boxes, an image that is in no
    dump or has no photograph, and a photograph that cannot be read.
    """
    for flag, value in (("--limit", limit), ("--max-words", max_words)):
        if value < 1:
            raise GroundingError(f"{flag}: {value} is below 1")
    folder = Path(images)
    if not folder.is_dir():
        raise GroundingError(f"{folder}: is not a folder; --images wants the folder of photographs")
    by_dump = [first_rows(path) for path in dumps]
    chosen = chosen_images(dumps, by_dump, limit, image_ids)
    photographs = {image_id: find_photograph(folder, image_id) for image_id in chosen}
    nouns, box_size = nouns_and_sizes(prepared)
    headings: Sequence[str | None] = model_names(dumps, by_dump) if len(dumps) > 1 else [None]
    target = Path(out)
    written = []
    with new_folders(target):
        for image_id in tqdm(chosen, desc="drawing", unit="image", disable=None):
            photograph = open_photograph(photographs[image_id])
            drawn = [
                draw_caption(
                    photograph,
                    rows[image_id],
                    words=nouns,
                    max_words=max_words,
                    box_size=box_size(image_id),
                    heading=heading,
                )
                for rows, heading in zip(by_dump, headings)
            ]
            written.append(save_picture(stack(drawn, gap=8), target, image_id))
    return written


def save_picture(picture: Image.Image, folder: Path, image_id: str) -> Path:
    """Write *picture* as ``folder/ID.png``; the file written."""
    path = folder / f"{image_id.replace('/', '_')}.png"
    with writing(path) as temporary:
        picture.save(temporary, format="PNG")
    return path


def first_rows(path: str | os.PathLike[str]) -> dict[str, Row]:
    """The first caption of every image of a dump, by image id."""
    rows: dict[str, Row] = {}
    has_boxes = False
    for row in read_dump(path):
        rows.setdefault(row["image_id"], row)
        has_boxes = has_boxes or any(step["box"] is not None for step in row["steps"])
    if not has_boxes:
        raise GroundingError(f"{path}: has no boxes to draw; dump a model that returns attention over regions")
    return rows


def chosen_images(
    dumps: Sequence[str | os.PathLike[str]],
    by_dump: Sequence[dict[str, Row]],
    limit: int,
    image_ids: Sequence[str] | None,
) -> list[str]:
    """The images to draw: *image_ids*, refused where a dump lacks one, or the first *limit* that are in all dumps."""
    if image_ids is not None:
        for image_id in image_ids:
            for path, rows in zip(dumps, by_dump):
                if image_id not in rows:
                    raise GroundingError(f"{path}: has no caption of image {image_id}; mend --image-ids")
        return list(dict.fromkeys(image_ids))
    chosen = [image_id for image_id in by_dump[0] if all(image_id in rows for rows in by_dump)]
    if not chosen:
        raise GroundingError(f"{', '.join(map(str, dumps))}: no image is in all of these dumps")
    return chosen[:limit]


def find_photograph(folder: Path, image_id: str) -> Path:
    """The photograph of an image; a :class:`GroundingError` where *folder* has none."""
    for ending in ENDINGS:
        path = folder / f"{image_id}{ending}"
        if path.is_file():
            return path
    raise GroundingError(f"{folder}: has no photograph of image {image_id} ({image_id}.jpg, .jpeg or .png)")


def open_photograph(path: Path) -> Image.Image:
    """A photograph as RGB; a :class:`GroundingError` where the file is none."""
    try:
        with Image.open(path) as file:
            return file.convert("RGB")
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        # SyntaxError and ValueError: Pillow's, for chunks of a PNG that are broken or cut short
        reason = " ".join(str(error).split())
        raise GroundingError(f"{path}: cannot be read as a picture ({reason}); replace the file") from error


def nouns_and_sizes(prepared: str | os.PathLike[str] | None) -> tuple[set[str] | None, BoxSize]:
    """The nouns of a prepared folder, and the sizes of the original photographs by image id."""
    if prepared is None:
        return None, lambda image_id: None

    # fairseq's dictionary and data sets come with the prepared folder, and drawing alone does without
    from ..data.noun_files import nouns_of_table
    from ..data.prepared import PreparedFolder
    from ..data.regions import RegionStore

    data = PreparedFolder(prepared)
    nouns = nouns_of_table(data.noun_table())
    store = RegionStore(data.regions_path)

    def box_size(image_id: str) -> tuple[int, int]:
        width, height = store.image_sizes[store.index(image_id)]
        return int(width), int(height)

    return nouns, box_size


def model_names(dumps: Sequence[str | os.PathLike[str]], by_dump: Sequence[dict[str, Row]]) -> list[str]:
    """The models' names; where two dumps say the same one, the name of the file with it."""
    names = [next(iter(rows.values()))["model"] for rows in by_dump]
    times = Counter(names)
    return [name if times[name] == 1 else f"{Path(path).stem} ({name})" for path, name in zip(dumps, names)]
