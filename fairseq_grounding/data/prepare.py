"""From a caption file and a region store to a prepared folder."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from fairseq.data import Dictionary

from ..errors import GroundingError
from ..files import content_hash, read_json, writing_folder
from .captions import Caption, images_of, read_karpathy
from .document_frequency import document_frequency
from .nouns import NOUN_POS, NounTagger, noun_table
from .objects import build_objects, read_entities
from .prepared import SplitContent, write_prepared_folder
from .regions import RegionStore


def prepare_captions(
    captions_path: str | os.PathLike[str],
    regions_path: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    entities: str | os.PathLike[str] | None = None,
    threshold: int = 5,
    min_class_count: int = 2,
    noun_pos: Sequence[str] = NOUN_POS,
    overwrite: bool = False,
) -> dict[str, Any]:
    """Write the prepared folder *out*; see :mod:`fairseq_grounding.cli.prepare_captions` for the arguments.

    Returns:
        What ``meta.json`` holds.

    Raises:
        GroundingError: one of the inputs is wrong; then *out* is left as it was.
    """
    for flag, value in (("--threshold", threshold), ("--min-class-count", min_class_count)):
        if value < 1:
            raise GroundingError(f"{flag} {value}: must be at least 1")
    with writing_folder(out, overwrite) as folder:
        captions = read_karpathy(captions_path)
        store = RegionStore(regions_path)
        train = [n for n, caption in enumerate(captions) if caption.split == "train"]
        if not train:
            raise GroundingError(f"{captions_path}: has no captions of the split train; nothing to learn from")
        image_ids = list(images_of(captions))
        _check_regions(captions_path, store, image_ids)
        _check_words(captions_path, captions)
        dictionary = build_dictionary(Counter(word for n in train for word in captions[n].tokens), threshold)
        annotated = None if entities is None else read_entities(entities, image_ids)

        # what takes minutes comes last, so that whatever is wrong with the input is said before
        tagger = NounTagger(noun_pos)
        nouns, lemmas = tagger.tag([caption.tokens for caption in captions])
        table = noun_table([captions[n].tokens for n in train], [nouns[n] for n in train])
        splits = _encode(captions, nouns, dictionary)
        objects, entity_counts = None, None
        if annotated is not None:
            sizes = {i: (int(w), int(h)) for i in annotated for w, h in [store.image_sizes[store.index(i)]]}
            objects, entity_counts = build_objects(annotated, captions, nouns, lemmas, sizes, min_class_count)

        words = sum(seen for seen, _ in table.values())
        known = sum(seen for word, (seen, _) in table.items() if dictionary.index(word) != dictionary.unk())
        meta = {
            "captions": {"file": Path(captions_path).name, "content_hash": content_hash(captions_path)},
            "tokeniser": "file",
            "tagger": {"name": tagger.name, "version": tagger.version, "pos": list(tagger.pos)},
            "threshold": threshold,
            "dictionary_size": len(dictionary),
            "train_words": words,
            "train_word_coverage": known / words,
            "train_noun_share": sum(noun for _, noun in table.values()) / words,
            "min_class_count": min_class_count,
            "entities": entity_counts,
        }
        write_prepared_folder(
            folder,
            destination=out,
            regions_path=regions_path,
            regions_hash=store.content_hash(),
            feature_size=store.feature_size,
            dictionary=dictionary,
            splits=splits,
            noun_table=table,
            document_frequency=document_frequency(splits["train"].tokens, splits["train"].image_ids),
            objects=objects,
            meta=meta,
        )
        written: dict[str, Any] = read_json(folder / "meta.json")
    return written


def build_dictionary(counts: Mapping[str, int], threshold: int) -> Dictionary:
    """fairseq's dictionary of the words that occur at least *threshold* times, by count and then alphabet."""
    dictionary = Dictionary()
    reserved = set(dictionary.symbols)
    for word, count in counts.items():
        if word not in reserved:
            dictionary.add_symbol(word, n=count)
    dictionary.finalize(threshold=threshold, padding_factor=1)
    if len(dictionary) == dictionary.nspecial:
        raise GroundingError(f"--threshold {threshold}: no word occurs that often in the split train; lower it")
    return dictionary


def _check_regions(captions_path: str | os.PathLike[str], store: RegionStore, image_ids: list[str]) -> None:
    missing = [i for i in image_ids if i not in store or store.counts[store.index(i)] == 0]
    if missing:
        more = f" and {len(missing) - 1} more images" if len(missing) > 1 else ""
        raise GroundingError(
            f"{captions_path}: image {missing[0]!r}{more} of {len(image_ids)} have no regions in "
            f"{store.path}; add them to the store, or leave their captions out"
        )


def _check_words(captions_path: str | os.PathLike[str], captions: Sequence[Caption]) -> None:
    # a caption may hold <unk>: then its words were replaced before
    dictionary = Dictionary()
    reserved = {dictionary.bos_word, dictionary.pad_word, dictionary.eos_word}
    for caption in captions:
        taken = reserved.intersection(caption.tokens)
        if taken:
            raise GroundingError(
                f"{captions_path}: caption {caption.index} of image {caption.image_id!r} has the word "
                f"{min(taken)!r}, which fairseq uses itself; remove it"
            )


def _encode(
    captions: Sequence[Caption], nouns: Sequence[np.ndarray], dictionary: Dictionary
) -> dict[str, SplitContent]:
    splits: dict[str, SplitContent] = {}
    for caption, mask in zip(captions, nouns):
        split = splits.setdefault(caption.split, SplitContent())
        ids = [dictionary.index(word) for word in caption.tokens]
        split.tokens.append(np.array([*ids, dictionary.eos()], dtype=np.int64))
        split.nouns.append(np.append(mask, np.uint8(0)))
        split.image_ids.append(caption.image_id)
        split.caption_index.append(caption.index)
        split.raws.append(caption.raw)
        split.texts.append(" ".join(caption.tokens))
    return splits
