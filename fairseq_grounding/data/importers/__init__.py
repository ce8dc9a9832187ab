"""Importers: how regions in the formats of other programs get into a region store.

To add a format, write a subclass of :class:`~.base.Importer` in a file here and name it in ``IMPORTERS``; the
command ``prepare-regions`` takes its name, its line of help and its flags from there.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tqdm import tqdm

from ...errors import GroundingError
from ...files import writing
from ..regions import PLACEHOLDER_BOXES, CheckedImage
from .base import BOX_FORMATS, Importer, Job, Option, Record
from .butd_tsv import ButdTsvImporter
from .captioning_folders import CaptioningFoldersImporter
from .decoding import Decoder, Failure, decoded
from .gvd import GvdImporter
from .hdf5 import Hdf5Importer
from .npy_dir import NpyDirImporter
from .npz_dir import NpzDirImporter
from .resumable import ResumableWriter, fingerprint
from .scan import PosScanImporter, ScanImporter

__all__ = ["BOX_FORMATS", "IMPORTERS", "Importer", "Job", "Option", "Record", "import_regions"]

IMPORTERS: dict[str, type[Importer]] = {
    "butd-tsv": ButdTsvImporter,
    "npz-dir": NpzDirImporter,
    "hdf5": Hdf5Importer,
    "att-box-dirs": CaptioningFoldersImporter,
    "scan": ScanImporter,
    "pos-scan": PosScanImporter,
    "gvd": GvdImporter,
    "npy-dir": NpyDirImporter,
}


def import_regions(
    importers: Importer | Sequence[Importer],
    out: str | os.PathLike[str],
    box_format: str | None = None,
    dtype: str = "float16",
    source: str | None = None,
    *,
    workers: int = 1,
    skip_bad: bool = False,
    resume: bool = False,
    flags: Mapping[str, Any] | None = None,
) -> ResumableWriter:
    """Write every image of the importers into the region store *out*, one at a time.

    A kill or an interrupt leaves ``OUT.partial``, from which *resume* goes on. An error leaves nothing.

    Args:
        importers: where the images come from, one after another.
        out: the store to write.
        box_format: one of :data:`BOX_FORMATS`, what the importers' boxes are; by default what each says.
        dtype: how to store features, ``float16`` or ``float32``.
        source: where the regions come from; by default what the importers know.
        workers: processes that read; what is written does not depend on their number.
        skip_bad: leave out images that cannot be imported, and write ``OUT.skipped.tsv``: id or row, reason.
        resume: go on where a stopped import with the same arguments ended.
        flags: the importers' own flags, which must be the same for *resume*.

    Returns:
        The finished writer, which knows how much it wrote; ``attributes["decisions"]`` is what was decided.

    Raises:
        GroundingError: something cannot be read or is wrong; then *out* is as it was before.
    """
    several = [importers] if isinstance(importers, Importer) else list(importers)
    if workers < 1:
        raise GroundingError(f"--workers {workers}: must be 1 or more")
    formats = [box_format or importer.box_format for importer in several]
    if source is None:
        source = ", ".join(importer.source for importer in several)
    attributes = {"decisions": json.dumps(_decisions(several, formats, box_format), ensure_ascii=False)}
    if not all(importer.has_boxes for importer in several):
        attributes["boxes"] = PLACEHOLDER_BOXES
    plan = {
        "format": [type(importer).__name__ for importer in several],
        "--input": fingerprint([path for importer in several for path in importer.reads]),
        "flag of the format": {name: str(value) for name, value in (flags or {}).items()},
        "--box-format": formats,
        "--dtype": dtype,
        "--source": source,
        "--skip-bad": skip_bad,
    }
    totals = [importer.total for importer in several]
    total = None if None in totals else sum(total or 0 for total in totals)
    with ResumableWriter(out, plan, resume, source, dtype, attributes) as writer:
        images = decoded(Decoder(several, formats, dtype), workers, writer.done)
        bar = tqdm(images, total=total, initial=writer.done, desc="regions", unit=" images", disable=None)
        for number, job, result in bar:
            importer = several[number]
            if isinstance(result, CheckedImage):
                try:
                    writer.check_fits(result)
                except GroundingError as error:
                    result = Failure(f"{importer.where(job.what)}: {error}")
            if isinstance(result, CheckedImage):
                writer.add_checked(result)
            elif skip_bad:
                writer.skip(importer.image_id(job), result.reason)
            else:
                raise GroundingError(result.reason)
        if skip_bad:
            _write_skipped(Path(out), writer.skipped)
    return writer


def _decisions(importers: Sequence[Importer], formats: Sequence[str], given: str | None) -> dict[str, str]:
    """What each importer decided, under one name; where several inputs differ, each with its own words."""
    found: dict[str, dict[str, str]] = {}
    for importer, box_format in zip(importers, formats):
        own = {"box format": f"{box_format} ({'--box-format' if given else 'the format says so'})"}
        for name, words in {**own, **importer.decisions}.items():
            found.setdefault(name, {})[importer.path.name] = words
    return {
        name: next(iter(words.values()))
        if len(set(words.values())) == 1
        else "; ".join(f"{path}: {text}" for path, text in words.items())
        for name, words in found.items()
    }


def _write_skipped(out: Path, skipped: Sequence[tuple[str, str]]) -> None:
    with writing(out.with_name(f"{out.name}.skipped.tsv")) as temporary:
        rows = [("image", "reason"), *skipped]
        lines = ("\t".join(" ".join(cell.split()) for cell in row) for row in rows)
        temporary.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
