"""A teacher's attention on all captions of a prepared folder, computed once and read by memory map."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import numpy as np
import torch
from torch import Tensor

from ..errors import GroundingError
from ..files import writing

FORMAT = "fairseq_grounding.teacher_attention"
VERSION = 1
_AGAIN = "run fairseq-grounding cache-teacher again"


class Origin(NamedTuple):
    """What a cache was made of, kept as attributes of the file: equal origins give equal attention."""

    folder: str
    """content hash of the prepared folder"""
    regions: str
    """content hash of the region store that the teacher saw"""
    teacher: str
    """hash of the teacher's weights"""
    readout: str
    """``normalised`` or ``similarity``"""
    nouns_only: bool
    """whether the teacher attends at nouns alone"""


class SplitAttention(NamedTuple):
    """What the writer needs of one split."""

    words: np.ndarray
    """(C,) words of each caption"""
    regions: np.ndarray
    """(C,) regions of each caption's image"""
    rows: Iterable[tuple[Tensor, Tensor]]
    """of each caption, in order, the attention (W,R) and which words the teacher grounds (W,)"""


def write_teacher_cache(
    path: str | os.PathLike[str], origin: Origin, splits: Mapping[str, SplitAttention], dtype: str
) -> None:
    """Write a cache, caption by caption.

    Args:
        path: of the HDF5 file
        origin: see :class:`Origin`
        splits: by name
        dtype: ``float32`` or ``float16``

    Raises:
        GroundingError: the file cannot be written
    """
    with writing(path) as temporary, h5py.File(temporary, "w") as file:
        file.attrs.update({"format": FORMAT, "version": VERSION, **origin._asdict()})
        for name, split in splits.items():
            offsets = np.concatenate([[0], np.cumsum(split.words.astype(np.int64) * split.regions)])
            group = file.create_group(name)
            # contiguous, so that it can be mapped
            flat = group.create_dataset("attention", (int(offsets[-1]),), dtype)
            group["words"], group["regions"] = split.words.astype(np.int32), split.regions.astype(np.int32)
            group["offsets"] = offsets
            grounded = []
            for number, (rows, mask) in enumerate(split.rows):
                flat[offsets[number] : offsets[number + 1]] = rows.numpy().astype(dtype).reshape(-1)
                grounded.append(mask.numpy().astype(np.uint8))
            group["grounded"] = np.concatenate(grounded)


class TeacherCache:
    """Reads a cache; each process maps the file itself.

    Raises:
        GroundingError: no such file, or it is no cache
    """

    def __init__(self, path: str | os.PathLike[str]):
        self.path = Path(path)
        if not self.path.is_file():
            raise GroundingError(f"--teacher-attention {path}: no such file; fairseq-grounding cache-teacher writes it")
        self._splits: dict[str, tuple[np.ndarray, ...]] = {}
        try:
            with h5py.File(self.path) as file:
                if file.attrs.get("format") != FORMAT or file.attrs.get("version") != VERSION:
                    raise GroundingError(f"--teacher-attention {path}: is not a teacher's attention; {_AGAIN}")
                values = [file.attrs[name] for name in Origin._fields]
                self.origin = Origin(*(value.item() if hasattr(value, "item") else value for value in values))
                self.splits = list(file)
        except (OSError, KeyError, RuntimeError) as error:
            raise GroundingError(
                f"--teacher-attention {path}: cannot be read as HDF5 or is cut short; {_AGAIN}"
            ) from error

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_splits": {}}

    def _open(self, name: str) -> tuple[np.ndarray, ...]:
        if name not in self._splits:
            if name not in self.splits:
                raise GroundingError(
                    f"--teacher-attention {self.path}: holds {', '.join(self.splits) or 'nothing'}, not the split"
                    f" {name!r}; run fairseq-grounding cache-teacher with --split {','.join([*self.splits, name])}"
                )
            try:
                with h5py.File(self.path) as file:
                    group = file[name]
                    stored = group["attention"]
                    index = tuple(group[part][:] for part in ("words", "regions", "offsets", "grounded"))
                    place, shape, dtype = stored.id.get_offset(), stored.shape, stored.dtype
                # an empty data set has no place in the file
                flat = np.zeros(0, dtype) if place is None else np.memmap(self.path, dtype, "r", place, shape)
            except (OSError, KeyError, RuntimeError, ValueError) as error:
                raise GroundingError(f"--teacher-attention {self.path}: is damaged; {_AGAIN}") from error
            self._splits[name] = (flat, *index)
        return self._splits[name]

    def shapes(self, split: str) -> tuple[np.ndarray, np.ndarray]:
        """How many words each caption of *split* has, and how many regions its image: (C,) and (C,)."""
        _, words, regions, *_ = self._open(split)
        return words, regions

    def attention(self, split: str, captions: list[int], words: int, regions: int) -> tuple[Tensor, Tensor]:
        """Where each word of these captions looks (B,W,R), and which of them the teacher grounds (B,W).

        Attention is in single precision, zero at padding.

        Args:
            split: name
            captions: B numbers within the split
            words: W, at least as many as any of them has
            regions: R, at least as many as any of their images has
        """
        flat, own_words, own_regions, offsets, grounded = self._open(split)
        found = torch.zeros(len(captions), words, regions)
        mask = torch.zeros(len(captions), words, dtype=torch.bool)
        first_words = np.cumsum(own_words, dtype=np.int64) - own_words
        for row, number in enumerate(captions):
            shape = int(own_words[number]), int(own_regions[number])
            block = np.array(flat[offsets[number] : offsets[number + 1]], np.float32)
            found[row, : shape[0], : shape[1]] = torch.from_numpy(block.reshape(shape))
            start = int(first_words[number])
            mask[row, : shape[0]] = torch.from_numpy(grounded[start : start + shape[0]] > 0)
        return found, mask
