"""Phrases and their regions as a prepared folder of its own, to train a captioner that describes regions.

Each region that a phrase was aligned to is an "image" of that folder, with the id ``IMAGE#REGION``, and its phrases are
its captions, in the split of the caption that they came from. In the folder's own region store, ``regions.h5`` in it,
such an image has two regions: row 0 is the region itself, row 1 the whole image (the region that covers it, the largest
of several; or, where none does, the mean of all regions), with the image for a box. Words have the numbers that they
have in the folder of whole captions; their counts are those of the training phrases.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from fairseq.data import Dictionary

from .data.document_frequency import document_frequency
from .data.nouns import noun_table
from .data.prepared import PreparedFolder, PreparedSplit, SplitContent, write_prepared_folder
from .data.regions import RegionStore, RegionWriter
from .errors import GroundingError
from .files import writing_folder
from .modules.regions import whole_image

# of meta.json: what is written anew, and what phrases do not have
_NOT_KEPT = ("format", "version", "regions", "splits", "entities", "class_labels", "class_dictionary", "sentencepiece")


class Snippets:
    """Gathers phrases by region; :func:`writing_snippets` makes it."""

    def __init__(self, regions: RegionWriter, store: RegionStore, max_regions: int, min_words: int) -> None:
        self.regions, self.store = regions, store
        self.max_regions, self.min_words = max_regions, min_words
        self.contents: dict[str, SplitContent] = {}
        self._image: tuple[str, str] | None = None
        self._pending: dict[int, list[tuple[np.ndarray, np.ndarray, str]]] = {}

    def add(self, split: PreparedSplit, number: int, phrases: Sequence[tuple[int, int, int]]) -> None:
        """Add the phrases (start, stop, region) of a caption; the captions of an image come one after another."""
        image = split.name, split.image_ids[number]
        if image != self._image:
            self.flush()
            self._image = image
        words = split.texts[number].split()
        tokens, nouns = split.tokens[number].numpy(), split.nouns[number].numpy()
        for start, stop, region in phrases:
            if stop - start >= self.min_words:
                snippet = tokens[start:stop].copy(), nouns[start:stop].copy(), " ".join(words[start:stop])
                self._pending.setdefault(region, []).append(snippet)

    def flush(self) -> None:
        """Write the regions of the image whose phrases came last."""
        if self._image is None or not self._pending:
            return
        name, image_id = self._image
        number = self.store.index(image_id)
        features = self.store.features(number, limit=self.max_regions)
        boxes = self.store.boxes(number, limit=self.max_regions)
        width, height = (int(side) for side in self.store.image_sizes[number])
        frame = np.array([0, 0, width, height], np.float32)
        relative = torch.from_numpy(boxes / frame[[2, 3, 2, 3]])[None]
        whole = whole_image(torch.from_numpy(features)[None], relative, torch.ones(1, len(boxes), dtype=torch.bool))
        content = self.contents.setdefault(name, SplitContent())
        for region, phrases in sorted(self._pending.items()):
            own = f"{image_id}#{region}"
            pair = np.stack([features[region], whole[0].numpy()])
            self.regions.add(own, pair, np.stack([boxes[region], frame]), (width, height))
            for place, (tokens, nouns, text) in enumerate(phrases):
                content.tokens.append(tokens)
                content.nouns.append(np.append(nouns, 0).astype(np.uint8))
                content.image_ids.append(own)
                content.caption_index.append(place)
                content.raws.append(text)
                content.texts.append(text)
        self._pending = {}


@contextmanager
def writing_snippets(
    out: Path,
    folder: PreparedFolder,
    store: RegionStore,
    *,
    max_regions: int,
    min_words: int,
    overwrite: bool,
    meta: dict[str, Any],
) -> Iterator[Snippets]:
    """Yield what takes the phrases; when the block ends without an error, the folder *out* is there.

    Args:
        out: new or empty, unless *overwrite*
        folder: of the captions that the phrases come from
        store: its regions
        max_regions: of an image, the store's first; of those the whole image is the mean
        min_words: phrases of fewer words are left out
        overwrite: replace *out*
        meta: how the phrases came about, for ``meta.json``

    Raises:
        GroundingError: *out* is refused or cannot be written, or no phrase came
    """
    with writing_folder(out, overwrite) as temporary:
        kept = temporary / "regions.h5"
        source = f"snippets of {store.path.name}"
        with RegionWriter(kept, store.feature_size, source, store.dtype.name) as regions:
            snippets = Snippets(regions, store, max_regions, min_words)
            yield snippets
            snippets.flush()
            if not snippets.contents:
                raise GroundingError(f"--min-words {min_words}: no phrase has so many; lower it")
        _write_folder(temporary, out, folder, RegionStore(kept), snippets.contents, {"min_words": min_words, **meta})


def _write_folder(
    temporary: Path,
    out: Path,
    folder: PreparedFolder,
    store: RegionStore,
    contents: dict[str, SplitContent],
    how: dict[str, Any],
) -> None:
    old = folder.dictionary()
    # without a training split, what is there says how words are used
    base = contents.get("train") or next(iter(contents.values()))
    counts: Counter[int] = Counter()
    for content in contents.values():
        if content is base:
            counts.update(np.concatenate(content.tokens).tolist())
        content.tokens = [np.append(tokens, old.eos()) for tokens in content.tokens]
    dictionary = Dictionary()
    for number in range(old.nspecial, len(old)):
        dictionary.add_symbol(old[number], n=counts[number])
    table = noun_table([text.split() for text in base.texts], base.nouns)
    words = sum(seen for seen, _ in table.values())
    write_prepared_folder(
        temporary,
        destination=out,
        regions_path=out / "regions.h5",
        regions_hash=store.content_hash(),
        feature_size=store.feature_size,
        dictionary=dictionary,
        splits=contents,
        noun_table=table,
        document_frequency=document_frequency(base.tokens, base.image_ids),
        objects=None,
        meta={
            **{key: value for key, value in folder.meta.items() if key not in _NOT_KEPT},
            "snippets": {**how, "folder_content_hash": folder.content_hash()},
            "dictionary_size": len(dictionary),
            "train_words": words,
            "train_word_coverage": 1 - counts[old.unk()] / words,
            "train_noun_share": sum(noun for _, noun in table.values()) / words,
            "regions_without_captions": 0,
            "skipped": None,
        },
    )
