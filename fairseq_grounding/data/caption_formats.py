"""Readers of caption files that hold sentences without words, and the choice among all readers."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import GroundingError
from ..files import read_json
from .captions import Caption, file_stem, is_usable_id, read_karpathy
from .skipped import Skipped
from .split_files import ALL_SPLIT_NAMES
from .text_lines import read_lines

FORMATS = ("karpathy", "coco", "scan", "tsv")
SCAN_SPLITS = ("train", "dev", "test")
# captions an image in SCAN's folders, unless there is one row of features a caption
_SCAN_CAPTIONS = 5


def caption_files(path: str | os.PathLike[str], form: str) -> list[Path]:
    """The files that *path* stands for: itself, or those of its format in a folder."""
    whole = Path(path)
    if form == "scan":
        names = [f"{split}_{kind}.txt" for split in SCAN_SPLITS for kind in ("caps", "ids")]
        files = [whole / name for name in names if (whole / name).is_file()]
        if not any(file.name.endswith("_caps.txt") for file in files):
            raise GroundingError(f"{path}: is no folder with {{train,dev,test}}_caps.txt; name the one that has them")
        return files
    if form == "coco" and whole.is_dir():
        files = sorted(whole.glob("captions_*.json"))
        if not files:
            raise GroundingError(f"{path}: has no file captions_*.json; name a folder that has, or one file")
        return files
    return [whole]


def read_captions(
    path: str | os.PathLike[str],
    form: str = "karpathy",
    *,
    image_key: str = "filename",
    splits: Mapping[str, str] | None = None,
    words: bool = True,
    skipped: Skipped | None = None,
) -> list[Caption]:
    """Read captions of any format, those of one image one after another.

    Args:
        path: ``karpathy`` and ``tsv``: a file. ``coco``: a file, or a folder of ``captions_*.json``.
            ``scan``: a folder with ``{train,dev,test}_caps.txt`` and ``{train,dev,test}_ids.txt``.
        form: one of ``FORMATS``.
        image_key: ``filename`` or ``cocoid``: what the image id is in ``karpathy`` and ``coco``.
        splits: the split of each image id. ``coco`` needs it, ``tsv`` unless it has a third column; ``scan``
            takes none.
        words: take the words of a ``karpathy`` file; of other formats, the captions have none.
        skipped: where to note what is wrong and left out; without it, that raises.

    Raises:
        GroundingError: names the file and the image or the line.
    """
    skipped = skipped or Skipped()
    if form == "karpathy":
        captions = read_karpathy(path, image_key=image_key, splits=splits, words=words, skipped=skipped)
    else:
        collected = _Collected(path, splits, skipped)
        if form == "coco":
            if splits is None:
                raise GroundingError(f"{path}: COCO's caption files name no splits; give them by --splits")
            for file in caption_files(path, form):
                _read_coco(file, image_key, collected)
        elif form == "scan":
            if splits is not None:
                raise GroundingError("--splits: SCAN's folders hold their splits; leave it away with --format scan")
            caption_files(path, form)  # refuses a folder without any
            for split in SCAN_SPLITS:
                _read_scan(Path(path), split, collected)
        else:
            _read_tsv(path, collected)
        captions = collected.captions()
    if splits is not None:
        read = {caption.image_id for caption in captions} | {image_id for image_id, _, _ in skipped.rows}
        _report_captionless(path, (image_id for image_id in splits if image_id not in read), skipped)
    return captions


def _report_captionless(path: str | os.PathLike[str], image_ids: Iterable[str], skipped: Skipped) -> None:
    missing = list(image_ids)
    more = f" and {len(missing) - 1} more of --splits have" if len(missing) > 1 and not skipped.allowed else " has"
    for image_id in missing:
        skipped.leave_out(path, image_id, "image", f"image {image_id!r}{more} no captions; add them")


@dataclass
class _Image:
    split: str
    raws: list[tuple[int, int, str]]


class _Collected:
    """Sentences in the order of their files, to be put image by image."""

    def __init__(self, path: str | os.PathLike[str], splits: Mapping[str, str] | None, skipped: Skipped) -> None:
        self.path = path
        self.splits = splits
        self.skipped = skipped
        self._images: dict[str, _Image] = {}
        self._refused: set[str] = set()
        self._number = 0
        self._seen: dict[str, int] = {}

    def add_image(self, where: object, image_id: str, split: str | None) -> None:
        """Note an image, once: *split* is what its own file says, None where that says nothing."""
        if image_id in self._images or image_id in self._refused:
            return
        if self.splits is not None:
            own = self.splits.get(image_id)
            message = f"image {image_id!r} is in no split of --splits; add it there"
        else:
            own = ALL_SPLIT_NAMES.get(split or "")
            message = f"image {image_id!r} has the split {split!r}, which is none of {', '.join(ALL_SPLIT_NAMES)}"
        if own is None:
            self._refused.add(image_id)
            self.skipped.leave_out(where, image_id, "image", message)
        else:
            self._images[image_id] = _Image(own, [])

    def add_sentence(self, where: object, image_id: str, sentence: Any) -> None:
        """Note a sentence of an image that was noted before; one that was refused is passed over."""
        number, self._number = self._number, self._number + 1
        if image_id not in self._images:
            return
        index = self._seen.get(image_id, 0)
        self._seen[image_id] = index + 1
        raw = " ".join(sentence.split()) if isinstance(sentence, str) else ""
        if raw:
            self._images[image_id].raws.append((number, index, raw))
        else:
            message = f"caption {index} of image {image_id!r} is empty; remove it"
            self.skipped.leave_out(where, image_id, f"caption {index}", message)

    def leave_out(self, where: object, image_id: str, what: str, message: str) -> None:
        """Note a sentence that belongs to no image that can be used."""
        self._number += 1
        self.skipped.leave_out(where, image_id, what, message)

    def split_of(self, image_id: str) -> str | None:
        return self._images[image_id].split if image_id in self._images else None

    def captions(self) -> list[Caption]:
        """All of them; an image without any sentence is left out or refused."""
        for image_id in self._images:
            if not self._seen.get(image_id):
                message = f"image {image_id!r} has no captions; add them"
                self.skipped.leave_out(self.path, image_id, "image", message)
        return [
            Caption(image_id, image.split, index, [], raw, number)
            for image_id, image in self._images.items()
            for number, index, raw in image.raws
        ]


def _read_coco(path: Path, image_key: str, collected: _Collected) -> None:
    data = read_json(path)
    images: Any
    annotations: Any
    images, annotations = (data.get(name) if isinstance(data, dict) else None for name in ("images", "annotations"))
    for part in (images, annotations):
        if not isinstance(part, list) or not all(isinstance(entry, dict) for entry in part):
            raise GroundingError(
                f"{path}: is not a caption file of COCO's form (lists 'images' and 'annotations' of objects)"
            )
    ids: dict[Any, str] = {}
    for place, image in enumerate(images):
        key = image.get("id")
        name = image.get("file_name")
        image_id = str(key) if image_key == "cocoid" else file_stem(name) if isinstance(name, str) else ""
        fault = None
        if not isinstance(key, (int, str)) or isinstance(key, bool) or not is_usable_id(image_id):
            fault = f"image number {place} has no usable 'id' and 'file_name' (they are {key!r} and {name!r})"
        elif key in ids or collected.split_of(image_id) is not None:
            fault = f"image {image_id!r} is there more than once; remove one of them"
        if fault is not None:
            collected.skipped.leave_out(path, image_id or f"number {place}", "image", fault)
            continue
        ids[key] = image_id
        collected.add_image(path, image_id, None)
    for place, annotation in enumerate(annotations):
        key = annotation.get("image_id")
        if not isinstance(key, (int, str)) or key not in ids:
            message = f"annotation number {place} is of the image {key!r}, which 'images' lacks; add it there"
            collected.leave_out(path, str(key), f"caption number {place}", message)
        else:
            collected.add_sentence(path, ids[key], annotation.get("caption"))


def _read_scan(folder: Path, split: str, collected: _Collected) -> None:
    path, ids_path = (folder / f"{split}_{kind}.txt" for kind in ("caps", "ids"))
    if not path.is_file():
        return
    if not ids_path.is_file():
        raise GroundingError(f"{ids_path}: is missing; without it, nothing says which image a caption is of")
    sentences, ids = read_lines(path), read_lines(ids_path)
    if len(sentences) not in (len(ids), _SCAN_CAPTIONS * len(ids)):
        raise GroundingError(
            f"{path}: has {len(sentences)} captions, but {ids_path.name} {len(ids)} images: there must be "
            f"{_SCAN_CAPTIONS} captions an image, or one line of ids a caption"
        )
    if not sentences:
        return
    repeat = len(sentences) // len(ids)
    for (line, sentence), (_, image_id) in zip(sentences, (pair for pair in ids for _ in range(repeat))):
        image_id = image_id.strip()
        where = f"{path}: line {line}"
        if not is_usable_id(image_id):
            collected.leave_out(where, f"line {line}", "caption of no image", f"the image id {image_id!r} is of no use")
            continue
        if collected.split_of(image_id) not in (None, ALL_SPLIT_NAMES[split]):
            raise GroundingError(f"{where}: image {image_id!r} is in an earlier split too; remove it from one")
        collected.add_image(where, image_id, split)
        collected.add_sentence(where, image_id, sentence)


def _read_tsv(path: str | os.PathLike[str], collected: _Collected) -> None:
    columns = 2 if collected.splits is not None else 3
    for line, text in read_lines(path):
        where = f"{path}: line {line}"
        cells = text.split("\t")
        image_id = cells[0].strip()
        split = cells[2].strip() if len(cells) == 3 else None
        fault = None
        if not 2 <= len(cells) <= 3:
            fault = f"has {len(cells)} columns, not {columns}: image id, caption{', split' if columns == 3 else ''}"
        elif split is None and collected.splits is None:
            fault = "has no split; add it as a third column, or give --splits"
        elif not is_usable_id(image_id):
            fault = f"has the image id {image_id!r}, which is of no use"
        if fault is not None:
            collected.leave_out(where, image_id or f"line {line}", f"caption in line {line}", fault)
            continue
        collected.add_image(where, image_id, split)
        own = collected.split_of(image_id)
        if collected.splits is None and own is not None and ALL_SPLIT_NAMES.get(split or "") != own:
            message = f"image {image_id!r} is in the split {split!r} here, and in {own!r} before; put it in one"
            collected.leave_out(where, image_id, f"caption in line {line}", message)
            continue
        collected.add_sentence(where, image_id, cells[1])
