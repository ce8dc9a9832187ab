"""The prepared folder of captions: what ``prepare-captions`` writes and every task reads."""

from __future__ import annotations

import hashlib
import os
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from fairseq.data import Dictionary
from fairseq.data.indexed_dataset import (
    MMapIndexedDataset,
    MMapIndexedDatasetBuilder,
    best_fitting_int_dtype,
)

from ..errors import GroundingError
from ..files import content_hash, read_json, write_json
from .pieces import PieceReader
from .regions import RegionStore

FORMAT = "fairseq_grounding.prepared"
VERSION = 1
OBJECTS_FORMAT = "fairseq_grounding.objects"
OBJECTS_VERSION = 1
SPLITS = ("train", "valid", "test")

# fairseq's index: magic, version, code of the type, number of items; then int32 sizes and int64 addresses
_INDEX_MAGIC = b"MMIDIDX\x00\x00"
_INDEX_HEADER = struct.Struct("<9sQBQ")
_ITEM_BYTES = {1: 1, 4: 4, 5: 8, 8: 2, 9: 4}

# what numpy raises for an archive that is cut short or damaged
_ARCHIVE_ERRORS = (
    *(OSError, EOFError, ValueError, KeyError, TypeError, IndexError, MemoryError, NotImplementedError),
    *(RuntimeError, OverflowError, SyntaxError, tokenize.TokenError, zipfile.BadZipFile, zlib.error),
)

_AGAIN = "run fairseq-grounding prepare-captions again"


@dataclass
class SplitContent:
    """What the writer needs of one split: lists with one entry a caption, captions of an image adjacent."""

    tokens: list[np.ndarray] = field(default_factory=list)
    """token ids, the last is EOS"""
    nouns: list[np.ndarray] = field(default_factory=list)
    """1 where the token is a noun, 0 at EOS; as long as the tokens"""
    image_ids: list[str] = field(default_factory=list)
    caption_index: list[int] = field(default_factory=list)
    """number of the caption within its image"""
    raws: list[str] = field(default_factory=list)
    """the caption as people wrote it"""
    texts: list[str] = field(default_factory=list)
    """the caption's words, joined by one space"""
    pieces: list[np.ndarray] = field(default_factory=list)
    """ids of subword pieces, the last is EOS; empty where captions are not cut into pieces"""


class PreparedSplit:
    """The captions of one split.

    Attributes:
        tokens: fairseq dataset of LongTensors (T,), the last token is EOS
        nouns: fairseq dataset of LongTensors (T,), 1 where the token is a noun, 0 at EOS
        image_ids: one a caption; the captions of one image are adjacent
        caption_index: (M,) int64, number of the caption within its image
        texts: the words of each caption, joined by one space, as they were before ``<unk>``
        raws: each caption as people wrote it
        sizes: (M,) int64, tokens of each caption, EOS included
        pieces: fairseq dataset of LongTensors (T,), the same captions in subword pieces, the last is EOS; None where
            the folder has none

    fairseq hands out the same tensor when an item is asked for twice in a row: do not change it in place.
    Pickling keeps the path alone, so that a data-loading process opens the files itself.
    """

    def __init__(self, folder: str | os.PathLike[str], name: str) -> None:
        self.folder = Path(folder)
        self.name = name
        self.tokens = _open_indexed(self.folder / f"{name}.tokens")
        self.nouns = _open_indexed(self.folder / f"{name}.nouns")
        self.sizes = np.array(self.tokens.sizes, dtype=np.int64)
        has_pieces = (self.folder / f"{name}.pieces.idx").is_file()
        self.pieces = _open_indexed(self.folder / f"{name}.pieces") if has_pieces else None
        captions = self.folder / f"{name}.captions.tsv"
        self.image_ids, numbers, self.raws, self.texts = _read_captions(captions)
        self.caption_index = np.array(numbers, dtype=np.int64)
        if len(self.image_ids) != len(self.sizes) or not np.array_equal(self.nouns.sizes, self.sizes):
            raise GroundingError(
                f"{captions}: does not belong to {name}.tokens and {name}.nouns beside it "
                f"({len(self.image_ids)}, {len(self.sizes)} and {len(self.nouns)} captions); {_AGAIN}"
            )
        if self.pieces is not None and len(self.pieces) != len(self.sizes):
            raise GroundingError(
                f"{self.folder / name}.pieces.idx: has {len(self.pieces)} captions, {name}.tokens {len(self.sizes)};"
                f" {_AGAIN}"
            )

    def __len__(self) -> int:
        return len(self.sizes)

    def __getstate__(self) -> tuple[Path, str]:
        return self.folder, self.name

    def __setstate__(self, state: tuple[Path, str]) -> None:
        self.__init__(*state)  # type: ignore[misc]


class PreparedFolder:
    """A folder written by ``fairseq-grounding prepare-captions``.

    Raises:
        GroundingError: ``meta.json`` is missing or of another version, or a file of a split is missing.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        if not (self.path / "meta.json").is_file():
            raise GroundingError(
                f"{self.path}: is not a prepared folder (no meta.json in it); "
                "make one with fairseq-grounding prepare-captions"
            )
        self.meta: dict[str, Any] = _read_versioned(self.path / "meta.json", FORMAT, VERSION)
        self._check_meta()
        for name in ["dict.txt", "nouns.tsv", "cider_df.npz", *self._split_files(), *self._piece_files()]:
            if not (self.path / name).is_file():
                raise GroundingError(f"{self.path / name}: is missing; {_AGAIN}")

    def _check_meta(self) -> None:
        regions, splits = self.meta.get("regions"), self.meta.get("splits")
        if not isinstance(regions, dict) or not all(
            isinstance(regions.get(key), str) for key in ("path", "absolute_path")
        ):
            raise GroundingError(f"{self.path / 'meta.json'}: names no region store; {_AGAIN}")
        if not isinstance(splits, dict) or not splits or not set(splits) <= set(SPLITS):
            raise GroundingError(f"{self.path / 'meta.json'}: names no splits of {', '.join(SPLITS)}; {_AGAIN}")

    @property
    def regions_path(self) -> Path:
        """The region store: where it lies as seen from this folder, else where it lay at preparation."""
        stored = self.meta["regions"]
        beside = Path(os.path.normpath(self.path.resolve() / stored["path"]))
        absolute = Path(stored["absolute_path"])
        return absolute if absolute.exists() and not beside.exists() else beside

    def region_store(self, path: str | os.PathLike[str] | None = None) -> RegionStore:
        """The regions: those that the folder was prepared with, or another store."""
        return RegionStore(path or self.regions_path)

    def splits(self) -> list[str]:
        """Names of the splits that are there, of ``train``, ``valid`` and ``test``."""
        return list(self.meta["splits"])

    def dictionary(self) -> Dictionary:
        """fairseq's dictionary, with how often each word occurs in the training split.

        Raises:
            GroundingError: it is damaged, or of another size than was prepared.
        """
        return self._dictionary("dict.txt", self.meta.get("dictionary_size"))

    @property
    def has_pieces(self) -> bool:
        """Whether the captions are there in subword pieces too."""
        return self.meta.get("sentencepiece") is not None

    def piece_dictionary(self) -> Dictionary:
        """fairseq's dictionary of subword pieces, with how often each occurs in the training split.

        Raises:
            GroundingError: the folder was prepared without, or it is damaged.
        """
        if not self.has_pieces:
            raise GroundingError(f"{self.path}: holds no subword pieces; prepare it with --sentencepiece")
        return self._dictionary("pieces.dict.txt", self.meta["sentencepiece"].get("dictionary_size"))

    def _dictionary(self, name: str, stated: Any) -> Dictionary:
        path = self.path / name
        try:
            dictionary = Dictionary.load(str(path))
        except (OSError, ValueError, RuntimeError) as error:
            reason = " ".join(str(error).split())
            raise GroundingError(f"{path}: is not a fairseq dictionary ({reason}); {_AGAIN}") from error
        if len(dictionary) != stated:
            raise GroundingError(f"{path}: holds {len(dictionary)} symbols, meta.json says {stated}; {_AGAIN}")
        return dictionary

    def split(self, name: str) -> PreparedSplit:
        """The captions of the split *name*."""
        if name not in self.splits():
            raise GroundingError(f"{self.path}: has no split {name!r}, only {', '.join(self.splits())}")
        return PreparedSplit(self.path, name)

    def noun_table(self) -> dict[str, tuple[int, int]]:
        """For each word of the training captions: times seen, times tagged a noun."""
        return read_noun_table(self.path / "nouns.tsv")

    def pos_table(self) -> dict[str, dict[str, int]]:
        """For each word of the training captions: how often it was tagged as which universal part of speech.

        Raises:
            GroundingError: the folder has none, or it is damaged.
        """
        path = self.path / "pos.tsv"
        if not path.is_file():
            raise GroundingError(
                f"{path}: is missing; run fairseq-grounding prepare-captions again, with --nouns spacy"
            )
        table: dict[str, dict[str, int]] = {}
        for number, (word, pos, count) in _rows(path, 3):
            if not count.isdecimal():
                raise GroundingError(f"{path}: line {number} holds no count; {_AGAIN}")
            table.setdefault(word, {})[pos] = int(count)
        return table

    def document_frequency(self) -> tuple[np.ndarray, np.ndarray, int]:
        """n-grams (K,4) int32, padded with -1; images each occurs in (K,); number of training images."""
        path = self.path / "cider_df.npz"
        try:
            with np.load(path, allow_pickle=False) as file:
                return file["ngrams"], file["count"], int(file["images"])
        except _ARCHIVE_ERRORS as error:
            reason = " ".join(str(error).split()) or type(error).__name__
            raise GroundingError(f"{path}: cannot be read ({reason}); {_AGAIN}") from error

    def objects(self) -> dict[str, Any] | None:
        """``objects.json``: entity boxes tied to words; None where the folder was prepared without."""
        path = self.path / "objects.json"
        return _read_versioned(path, OBJECTS_FORMAT, OBJECTS_VERSION) if path.is_file() else None

    def check(self) -> None:
        """Read every file of the folder; the region store is left alone.

        Raises:
            GroundingError: one of them is damaged, or does not go with the others.
        """
        symbols = len(self.dictionary())
        reader = PieceReader(self.piece_dictionary(), self.dictionary()) if self.has_pieces else None
        for name in self.splits():
            split = self.split(name)
            stated = self.meta["splits"][name]
            counts = {"captions": len(split), "images": len(set(split.image_ids))}
            if stated != counts:
                raise GroundingError(
                    f"{self.path / 'meta.json'}: says {stated} of {name}, which has {counts}; {_AGAIN}"
                )
            for number in range(len(split)):
                tokens, nouns = split.tokens[number], split.nouns[number]
                if not len(tokens) or int(tokens.min()) < 0 or int(tokens.max()) >= symbols or int(nouns.max()) > 1:
                    raise GroundingError(
                        f"{self.path / name}.tokens.bin: caption {number} holds a number that stands for no word, or "
                        f"{name}.nouns.bin one that is not 0 or 1; {_AGAIN}"
                    )
                if reader is not None and split.pieces is not None:
                    pieces = split.pieces[number].long()
                    known = len(pieces) and int(pieces.min()) >= 0 and int(pieces.max()) < len(reader.pieces)
                    read = reader.read(pieces[None])[0][0] if known else pieces
                    # a word may be in the dictionary and not be spelled, or the other way round
                    if len(read) != len(tokens) or not (read.eq(tokens) | read.eq(reader.words.unk())).all():
                        raise GroundingError(
                            f"{self.path / name}.pieces.bin: caption {number} does not spell that of {name}.tokens;"
                            f" {_AGAIN}"
                        )
        self.noun_table()
        if (self.path / "pos.tsv").is_file():
            self.pos_table()
        self.document_frequency()
        self.objects()

    def content_hash(self) -> str:
        """SHA-256 over the dictionary and over the tokens, nouns and captions of all splits."""
        return self._content_hash

    @cached_property
    def _content_hash(self) -> str:
        digest = hashlib.sha256()
        for name in ["dict.txt", *self._split_files()]:
            digest.update(f"{name}\0{content_hash(self.path / name)}\n".encode())
        return digest.hexdigest()

    def _split_files(self) -> list[str]:
        endings = ("tokens.bin", "tokens.idx", "nouns.bin", "nouns.idx", "captions.tsv")
        return [f"{split}.{ending}" for split in self.splits() for ending in endings]

    def _piece_files(self) -> list[str]:
        if not self.has_pieces:
            return []
        own = [f"{split}.pieces.{ending}" for split in self.splits() for ending in ("bin", "idx")]
        return ["pieces.dict.txt", "pieces.model", *own]


def read_noun_table(path: Path) -> dict[str, tuple[int, int]]:
    """Read ``nouns.tsv``: for each word, times seen and times tagged a noun.

    Raises:
        GroundingError: the file is missing, cut short, or holds no counts.
    """
    table = {}
    for number, row in _rows(path, 3):
        try:
            table[row[0]] = int(row[1]), int(row[2])
        except ValueError as error:
            raise GroundingError(f"{path}: line {number} holds no counts; {_AGAIN}") from error
    return table


def write_prepared_folder(
    folder: Path,
    *,
    destination: str | os.PathLike[str],
    regions_path: str | os.PathLike[str],
    regions_hash: str,
    feature_size: int,
    dictionary: Dictionary,
    splits: Mapping[str, SplitContent],
    noun_table: Mapping[str, tuple[int, int]],
    document_frequency: tuple[np.ndarray, np.ndarray, int],
    pos_table: Mapping[str, Mapping[str, int]] | None = None,
    objects: Mapping[str, Any] | None,
    meta: Mapping[str, Any],
    pieces: tuple[Dictionary, bytes] | None = None,
) -> None:
    """Write everything into *folder*, an empty one of :func:`fairseq_grounding.files.writing_folder`.

    *destination* is where that folder will be in the end: the path of the region store is kept as seen from
    there, so that both may be moved together. A split without captions is not written. *pieces* are the
    dictionary and the model of subword pieces, for splits that have them.
    """
    dictionary.save(str(folder / "dict.txt"))
    if pieces is not None:
        pieces[0].save(str(folder / "pieces.dict.txt"))
        (folder / "pieces.model").write_bytes(pieces[1])
    token_type = best_fitting_int_dtype(len(dictionary))
    written = {name: splits[name] for name in SPLITS if name in splits and splits[name].texts}
    for name, split in written.items():
        _write_indexed(folder / f"{name}.tokens", split.tokens, token_type)
        _write_indexed(folder / f"{name}.nouns", split.nouns, np.uint8)
        if pieces is not None:
            _write_indexed(folder / f"{name}.pieces", split.pieces, best_fitting_int_dtype(len(pieces[0])))
        with open(folder / f"{name}.captions.tsv", "w", encoding="utf-8", newline="\n") as file:
            rows = zip(split.image_ids, split.caption_index, split.raws, split.texts)
            for number, row in enumerate(rows):
                print(number, *row, sep="\t", file=file)
    with open(folder / "nouns.tsv", "w", encoding="utf-8", newline="\n") as file:
        for word, counts in sorted(noun_table.items()):
            print(word, *counts, sep="\t", file=file)
    if pos_table is not None:
        with open(folder / "pos.tsv", "w", encoding="utf-8", newline="\n") as file:
            for word, parts in sorted(pos_table.items()):
                for pos, times in parts.items():
                    print(word, pos, times, sep="\t", file=file)
    ngrams, count, images = document_frequency
    np.savez_compressed(folder / "cider_df.npz", ngrams=ngrams, count=count, images=np.int64(images))
    if objects is not None:
        write_json(folder / "objects.json", objects)
    regions = {
        **_paths(Path(regions_path), Path(destination)),
        "content_hash": regions_hash,
        "feature_size": feature_size,
    }
    split_counts = {
        name: {"captions": len(split.texts), "images": len(set(split.image_ids))} for name, split in written.items()
    }
    head = {"format": FORMAT, "version": VERSION, "regions": regions, "splits": split_counts}
    write_json(folder / "meta.json", {**head, **meta})


def _paths(regions: Path, destination: Path) -> dict[str, str]:
    absolute = regions.resolve()
    try:
        relative = os.path.relpath(absolute, destination.resolve())
    except ValueError:
        # two drives of Windows
        relative = str(absolute)
    return {"path": Path(relative).as_posix(), "absolute_path": absolute.as_posix()}


def _write_indexed(prefix: Path, items: Sequence[np.ndarray], dtype: Any) -> None:
    builder = MMapIndexedDatasetBuilder(f"{prefix}.bin", dtype=dtype)
    for item in items:
        builder.add_item(torch.from_numpy(np.asarray(item, dtype=np.int64)))
    builder.finalize(f"{prefix}.idx")


def _open_indexed(prefix: Path) -> MMapIndexedDataset:
    _check_indexed(prefix)
    return MMapIndexedDataset(str(prefix))


def _check_indexed(prefix: Path) -> None:
    # fairseq reads past the end of a truncated file, and asserts on another one: say it in words first
    index, data = Path(f"{prefix}.idx"), Path(f"{prefix}.bin")
    try:
        with open(index, "rb") as file:
            sizes, item_bytes = _read_sizes(file)
        whole = index.stat().st_size == _INDEX_HEADER.size + 12 * len(sizes)
        if not whole or data.stat().st_size != item_bytes * int(sizes.sum(dtype=np.int64)):
            raise ValueError
    except OSError as error:
        raise GroundingError(f"{error.filename}: cannot be read ({error.strerror}); {_AGAIN}") from error
    except (ValueError, KeyError, struct.error) as error:
        raise GroundingError(f"{index}: is not a fairseq index, or it or {data.name} is cut short; {_AGAIN}") from error


def _read_sizes(file: BinaryIO) -> tuple[np.ndarray, int]:
    magic, version, code, items = _INDEX_HEADER.unpack(file.read(_INDEX_HEADER.size))
    if magic != _INDEX_MAGIC or version != 1:
        raise ValueError
    stored = file.read(4 * items) if items < 1 << 40 else b""
    if len(stored) != 4 * items:
        raise ValueError
    return np.frombuffer(stored, dtype="<i4"), _ITEM_BYTES[code]


def _read_captions(path: Path) -> tuple[list[str], list[int], list[str], list[str]]:
    image_ids, numbers, raws, texts = [], [], [], []
    for number, (caption, image_id, index, raw, text) in _rows(path, 5):
        if caption != str(number - 1) or not index.isdecimal():
            raise GroundingError(f"{path}: line {number} is not caption {number - 1}; {_AGAIN}")
        image_ids.append(image_id)
        numbers.append(int(index))
        raws.append(raw)
        texts.append(text)
    return image_ids, numbers, raws, texts


def _rows(path: Path, columns: int) -> list[tuple[int, list[str]]]:
    try:
        text = path.read_bytes().decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise GroundingError(f"{path}: cannot be read ({error}); {_AGAIN}") from error
    *lines, rest = text.split("\n")
    if rest:
        raise GroundingError(f"{path}: is cut short in line {len(lines) + 1}; {_AGAIN}")
    rows = [line.split("\t") for line in lines]
    for number, row in enumerate(rows, 1):
        if len(row) != columns:
            raise GroundingError(f"{path}: line {number} has {len(row)} columns, not {columns}; {_AGAIN}")
    return list(enumerate(rows, 1))


def _read_versioned(path: Path, form: str, version: int) -> dict[str, Any]:
    value = read_json(path)
    if not isinstance(value, dict) or value.get("format") != form:
        raise GroundingError(f"{path}: is not of the form {form}; {_AGAIN}")
    if value.get("version") != version:
        raise GroundingError(f"{path}: is of version {value.get('version')}, this program reads {version}; {_AGAIN}")
    return value
