"""Explanations in HDF5: all numbers, unrounded, for whoever computes with them.

The layout of the file (N captions, caption n has T_n words, the end symbol left out, and R_n regions):

================= ====================== ======================================================================
dataset           shape, type            meaning
================= ====================== ======================================================================
``ids``           (N,) UTF-8 string      the caption's ``id`` in the JSON lines
``image_ids``     (N,) UTF-8 string
``word_offsets``  (N + 1,) int64         caption n owns the words ``word_offsets[n]:word_offsets[n + 1]``
``region_counts`` (N,) int64             R_n
``tokens``        (sum of T,) UTF-8      the words
``regions``       (sum of T R,) float32  (T_n, R_n) of each caption, one after another
``words``         (sum of T T,) float32  (T_n, T_n) of each caption; column 0 the start symbol, s the word s - 1
``logit`` ...     (sum of T,) float32    also ``global``, ``sentinel``, ``inputs``, ``bias``, ``epsilon``, ``rest``
================= ====================== ======================================================================

Attributes: ``format``, ``version``, and how it was made: ``method``, ``target``, ``model`` and others.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any

import h5py
import numpy as np

from ..errors import GroundingError

FORMAT = "fairseq_grounding.explanations"
VERSION = 1
PER_WORD = ("logit", "global", "sentinel", "inputs", "bias", "epsilon", "rest")

_STRING = h5py.string_dtype("utf-8")
_TYPES = {
    **dict.fromkeys(("ids", "image_ids", "tokens"), _STRING),
    **dict.fromkeys(("word_offsets", "region_counts"), np.dtype(np.int64)),
    **dict.fromkeys(("regions", "words", *PER_WORD), np.dtype(np.float32)),
}


class ExplanationWriter:
    """Adds captions to a new HDF5 file; *made* becomes its attributes (values None are left out)."""

    def __init__(self, path: str | os.PathLike[str], made: Mapping[str, Any]) -> None:
        self._file = h5py.File(path, "w")
        self._words = 0
        self._file.attrs.update({"format": FORMAT, "version": VERSION})
        self._file.attrs.update({name: value for name, value in made.items() if value is not None})
        for name, kind in _TYPES.items():
            self._file.create_dataset(name, (0,), kind, maxshape=(None,), chunks=(4096,))
        self._append("word_offsets", [0])

    def add(self, caption_id: Any, image_id: str, tokens: list[str], numbers: Mapping[str, np.ndarray]) -> None:
        """Add one caption: T tokens; *numbers* holds ``regions`` (T,R), ``words`` (T,T) and :data:`PER_WORD` (T,)."""
        self._words += len(tokens)
        self._append("ids", [str(caption_id)])
        self._append("image_ids", [image_id])
        self._append("word_offsets", [self._words])
        self._append("region_counts", [numbers["regions"].shape[1]])
        self._append("tokens", tokens)
        for name in ("regions", "words", *PER_WORD):
            self._append(name, numbers[name].ravel())

    def close(self) -> None:
        """Write what is left."""
        self._file.close()

    def _append(self, name: str, values: Any) -> None:
        dataset = self._file[name]
        before = len(dataset)
        dataset.resize((before + len(values),))
        if len(values):
            dataset[before:] = values


def read_explanations(path: str | os.PathLike[str]) -> Iterator[dict[str, Any]]:
    """Yield captions: ``id``, ``image_id``, ``tokens``, ``regions`` (T,R), ``words`` (T,T) and :data:`PER_WORD` (T,).

    Raises:
        GroundingError: it cannot be read as such a file
    """
    try:
        with h5py.File(path, "r") as file:
            if file.attrs.get("format") != FORMAT or file.attrs.get("version") != VERSION:
                raise GroundingError(f"{path}: holds no explanations that this program reads; write them again")
            offsets, counts = file["word_offsets"][()], file["region_counts"][()]
            ids, image_ids = (file[name].asstr()[()] for name in ("ids", "image_ids"))
            regions_begin = words_begin = 0
            for number, (begin, end) in enumerate(zip(offsets[:-1], offsets[1:])):
                length, regions = int(end - begin), int(counts[number])
                regions_end, words_end = regions_begin + length * regions, words_begin + length**2
                yield {
                    "id": ids[number],
                    "image_id": image_ids[number],
                    "tokens": file["tokens"].asstr()[begin:end].tolist(),
                    "regions": file["regions"][regions_begin:regions_end].reshape(length, regions),
                    "words": file["words"][words_begin:words_end].reshape(length, length),
                    **{name: file[name][begin:end] for name in PER_WORD},
                }
                regions_begin, words_begin = regions_end, words_end
    except (OSError, RuntimeError, ValueError, KeyError, TypeError) as error:
        reason = " ".join(str(error).split())
        raise GroundingError(f"{path}: cannot be read as explanations ({reason}); is it cut short?") from error
