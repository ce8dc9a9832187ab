"""From a caption file and a region store to a prepared folder."""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import compress
from pathlib import Path
from typing import Any

import numpy as np
from fairseq.data import Dictionary

from ..errors import GroundingError
from ..files import content_hash, read_json, writing_folder
from .caption_formats import FORMATS, caption_files, read_captions
from .captions import IMAGE_KEYS, Caption, images_of, spacing_fault
from .document_frequency import document_frequency
from .noun_files import nouns_by_table, read_tagged
from .nouns import NOUN_POS, NounTagger, check_pos, noun_table, pos_table
from .object_labels import build_labelled_objects, read_class_labels
from .objects import SEVERAL_BOXES, build_objects, read_entities
from .prepared import SplitContent, read_noun_table, write_prepared_folder
from .regions import RegionStore
from .skipped import Skipped
from .spelling import Speller, load_speller
from .split_files import read_splits
from .tokenisers import TOKENISERS, Tokeniser, load_tokeniser

NOUN_SOURCES = ("spacy", "tagged", "table")


def prepare_captions(
    captions_path: str | os.PathLike[str],
    regions_path: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    form: str = "karpathy",
    splits_path: str | os.PathLike[str] | None = None,
    image_key: str = "filename",
    tokeniser: str | None = None,
    entities: str | os.PathLike[str] | None = None,
    several_boxes: str = "each",
    class_labels: str | os.PathLike[str] | None = None,
    class_dictionary: str | os.PathLike[str] | None = None,
    threshold: int = 5,
    min_class_count: int = 2,
    nouns: str = "spacy",
    noun_pos: Sequence[str] = NOUN_POS,
    tagged: str | os.PathLike[str] | None = None,
    noun_table_path: str | os.PathLike[str] | None = None,
    sentencepiece: str | os.PathLike[str] | None = None,
    workers: int = 1,
    skip_bad: bool = False,
    overwrite: bool = False,
) -> dict[str, Any]:
    """Write the prepared folder *out*; see :mod:`fairseq_grounding.cli.prepare_captions` for the arguments.

    Returns:
        What ``meta.json`` holds.

    Raises:
        GroundingError: one of the inputs is wrong; then *out* is left as it was.
    """
    tokeniser = tokeniser or ("file" if form == "karpathy" else "spacy")
    check_pos(noun_pos)
    _check_numbers({"--threshold": threshold, "--min-class-count": min_class_count, "--workers": workers})
    _check_choices(
        {
            "--format": (form, FORMATS),
            "--image-id": (image_key, IMAGE_KEYS),
            "--tokeniser": (tokeniser, TOKENISERS),
            "--nouns": (nouns, NOUN_SOURCES),
            "--several-boxes": (several_boxes, SEVERAL_BOXES),
        }
    )
    _check_together(
        {
            f"--tokeniser file: --format {form} holds no words; choose another": tokeniser == "file"
            and form != "karpathy",
            "--nouns tagged and --tagged FILE belong together; give both": (nouns == "tagged") != (tagged is not None),
            "--nouns table and --noun-table FILE belong together; give both": (nouns == "table")
            != (noun_table_path is not None),
            "--entities and --class-labels: both say where objects are; give one": None not in (entities, class_labels),
            "--class-dictionary: belongs to --class-labels; give that too": class_dictionary is not None
            and class_labels is None,
            f"--several-boxes {several_boxes}: class labels have one box a word; leave it away": class_labels
            is not None
            and several_boxes != "each",
        }
    )
    skipped = Skipped(skip_bad)
    with writing_folder(out, overwrite) as folder:
        cutter = None if tokeniser == "file" else load_tokeniser(tokeniser)
        captions = read_captions(
            captions_path,
            form,
            image_key=image_key,
            splits=None if splits_path is None else read_splits(splits_path),
            words=cutter is None,
            skipped=skipped,
        )
        store = RegionStore(regions_path)
        captions = _with_regions(captions_path, captions, store, skipped)
        captions = _with_words(captions_path, captions, cutter, skipped)
        masks: list[np.ndarray] | None = None
        if tagged is not None:
            read = read_tagged(tagged, captions, noun_pos, skipped)
            captions = list(compress(captions, (mask is not None for mask in read)))
            masks = [mask for mask in read if mask is not None]
        elif noun_table_path is not None:
            noun_table_path = _table_file(noun_table_path)
            masks = nouns_by_table([caption.tokens for caption in captions], read_noun_table(noun_table_path))
        train = [n for n, caption in enumerate(captions) if caption.split == "train"]
        if not train:
            raise GroundingError(f"{captions_path}: has no captions of the split train; nothing to learn from")
        image_ids = list(images_of(captions))
        counts = Counter(word for n in train for word in captions[n].tokens)
        dictionary = build_dictionary(counts, threshold)
        speller = None
        if sentencepiece is not None:
            speller = load_speller(sentencepiece, (" ".join(captions[n].tokens) for n in train))
        piece_dictionary = None if speller is None else speller.dictionary(counts.items())
        annotated = None if entities is None else read_entities(entities, image_ids, skipped)
        labels = None if class_labels is None else read_class_labels(class_labels, class_dictionary, skipped)
        if labels is not None and not any(image_id in labels.images for image_id in image_ids):
            raise GroundingError(f"--class-labels {class_labels}: labels none of the captions' images; check the ids")

        # what takes minutes comes last, so that whatever is wrong with the input is said before
        lemmas: dict[str, str] = {}
        parts_of_speech = None
        tagger = None
        if masks is None or annotated is not None or (labels is not None and class_dictionary is None):
            tagger = NounTagger(noun_pos, workers)
            found, lemmas, tags = tagger.tag([caption.tokens for caption in captions])
            masks = found if masks is None else masks
            parts_of_speech = pos_table([captions[n].tokens for n in train], [tags[n] for n in train])
        table = noun_table([captions[n].tokens for n in train], [masks[n] for n in train])
        encoded = _encode(captions, masks, dictionary)
        if speller is not None and piece_dictionary is not None:
            _add_pieces(encoded, speller, piece_dictionary)
        sizes = {i: (int(w), int(h)) for i in image_ids for w, h in [store.image_sizes[store.index(i)]]}
        objects, object_counts = None, None
        if annotated is not None:
            objects, object_counts = build_objects(
                annotated, captions, masks, lemmas, sizes, min_class_count, several_boxes
            )
        elif labels is not None:
            objects, object_counts = build_labelled_objects(labels, captions, lemmas, sizes)

        words = sum(seen for seen, _ in table.values())
        known_words = sum(seen for word, (seen, _) in table.items() if dictionary.index(word) != dictionary.unk())
        model = None if tagger is None else {"name": tagger.name, "version": tagger.version}
        noun_file = tagged if tagged is not None else noun_table_path
        meta = {
            "captions": {
                "file": Path(captions_path).name,
                "content_hash": _joint_hash(caption_files(captions_path, form)),
                "format": form,
                "image_id": image_key,
                "splits": None if splits_path is None else _file_meta(splits_path),
            },
            "tokeniser": tokeniser,
            "tokeniser_version": None if cutter is None else cutter.version,
            "tagger": {
                **(model if noun_file is None and model is not None else _noun_file_meta(nouns, noun_file)),
                "pos": list(noun_pos),
            },
            "lemmatiser": model,
            "threshold": threshold,
            "dictionary_size": len(dictionary),
            "sentencepiece": None
            if speller is None or piece_dictionary is None
            else _piece_meta(sentencepiece, speller, piece_dictionary, counts),
            "train_words": words,
            "train_word_coverage": known_words / words,
            "train_noun_share": sum(noun for _, noun in table.values()) / words,
            "min_class_count": min_class_count,
            "several_boxes": several_boxes,
            "entities": object_counts,
            "class_labels": None if class_labels is None else _file_meta(class_labels),
            "class_dictionary": None if class_dictionary is None else _file_meta(class_dictionary),
            "regions_without_captions": len(store.image_ids) - len(image_ids),
            "skipped": skipped.counts() if skip_bad else None,
        }
        if skip_bad:
            skipped.write(folder / "skipped.tsv")
        write_prepared_folder(
            folder,
            destination=out,
            regions_path=regions_path,
            regions_hash=store.content_hash(),
            feature_size=store.feature_size,
            dictionary=dictionary,
            splits=encoded,
            noun_table=table,
            pos_table=parts_of_speech,
            document_frequency=document_frequency(encoded["train"].tokens, encoded["train"].image_ids),
            objects=objects,
            meta=meta,
            pieces=None if speller is None or piece_dictionary is None else (piece_dictionary, speller.model),
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


def _check_numbers(values: Mapping[str, int]) -> None:
    for flag, value in values.items():
        if value < 1:
            raise GroundingError(f"{flag} {value}: must be at least 1")


def _check_choices(values: Mapping[str, tuple[str, Sequence[str]]]) -> None:
    for flag, (value, choices) in values.items():
        if value not in choices:
            raise GroundingError(f"{flag} {value}: must be one of {', '.join(choices)}")


def _check_together(faults: Mapping[str, bool]) -> None:
    for message, holds in faults.items():
        if holds:
            raise GroundingError(message)


def _with_regions(
    path: str | os.PathLike[str], captions: Sequence[Caption], store: RegionStore, skipped: Skipped
) -> list[Caption]:
    """The captions whose image has regions."""
    image_ids = list(images_of(captions))
    missing = [i for i in image_ids if i not in store or store.counts[store.index(i)] == 0]
    if missing and not skipped.allowed:
        more = f" and {len(missing) - 1} more images" if len(missing) > 1 else ""
        raise GroundingError(
            f"{path}: image {missing[0]!r}{more} of {len(image_ids)} have no regions in "
            f"{store.path}; add them to the store, or leave their captions out (--skip-bad)"
        )
    for image_id in missing:
        skipped.leave_out(path, image_id, "image", f"image {image_id!r} has no regions in {store.path}")
    without = set(missing)
    return [caption for caption in captions if caption.image_id not in without]


def _with_words(
    path: str | os.PathLike[str], captions: Sequence[Caption], cutter: Tokeniser | None, skipped: Skipped
) -> list[Caption]:
    """The captions with the words of *cutter*, or else their own, where these can be stored."""
    captions = _sound(path, captions, _encoding_fault, skipped)
    if cutter is not None:
        words = cutter.cut([caption.raw for caption in captions])
        captions = [replace(caption, tokens=own) for caption, own in zip(captions, words)]
    # a caption may hold <unk>: then its words were replaced before
    dictionary = Dictionary()
    reserved = {dictionary.bos_word, dictionary.pad_word, dictionary.eos_word}

    def words_fault(caption: Caption) -> str | None:
        taken = reserved.intersection(caption.tokens)
        if not caption.tokens:
            return "has no words left after the tokeniser; remove it"
        if taken:
            return f"has the word {min(taken)!r}, which fairseq uses itself; remove it"
        return spacing_fault(caption.tokens)

    return _sound(path, captions, words_fault, skipped)


def _sound(
    path: str | os.PathLike[str],
    captions: Sequence[Caption],
    fault_of: Callable[[Caption], str | None],
    skipped: Skipped,
) -> list[Caption]:
    """The captions that *fault_of* finds nothing wrong with."""
    kept = []
    for caption in captions:
        fault = fault_of(caption)
        if fault is None:
            kept.append(caption)
        else:
            message = f"caption {caption.index} of image {caption.image_id!r} {fault}"
            skipped.leave_out(path, caption.image_id, f"caption {caption.index}", message)
    return kept


def _encoding_fault(caption: Caption) -> str | None:
    for text in (caption.raw, *caption.tokens):
        try:
            text.encode()
        except UnicodeEncodeError:
            # JSON can say it, files cannot
            return f"has {text!r}, which holds half of a character; mend it"
    return None


def _add_pieces(splits: Mapping[str, SplitContent], speller: Speller, dictionary: Dictionary) -> None:
    for split in splits.values():
        for text in split.texts:
            ids = [dictionary.index(piece) for word in text.split(" ") for piece in speller.spell(word)]
            split.pieces.append(np.array([*ids, dictionary.eos()], dtype=np.int64))


def _piece_meta(given: Any, speller: Speller, dictionary: Dictionary, counts: Mapping[str, int]) -> dict[str, Any]:
    words = sum(counts.values())
    spelled = sum(times for word, times in counts.items() if dictionary.unk_word not in speller.spell(word))
    return {
        "file": None if str(given).isdecimal() else Path(given).name,
        "content_hash": hashlib.sha256(speller.model).hexdigest(),
        "dictionary_size": len(dictionary),
        "train_pieces_per_word": sum(len(speller.spell(word)) * times for word, times in counts.items()) / words,
        "train_word_coverage": spelled / words,
    }


def _table_file(path: str | os.PathLike[str]) -> Path:
    return Path(path) / "nouns.tsv" if Path(path).is_dir() else Path(path)


def _file_meta(path: str | os.PathLike[str]) -> dict[str, str]:
    return {"file": Path(path).name, "content_hash": content_hash(path)}


def _noun_file_meta(nouns: str, path: str | os.PathLike[str] | None) -> dict[str, str]:
    assert path is not None
    files = sorted(Path(path).glob("*_tags.txt")) if Path(path).is_dir() else [Path(path)]
    return {"name": f"{nouns} {Path(path).name}", "version": _joint_hash(files)[:12]}


def _joint_hash(files: Sequence[Path]) -> str:
    """The content hash of a file; of several, the hash of theirs and their names."""
    if len(files) == 1:
        return content_hash(files[0])
    lines = [f"{file.name}\0{content_hash(file)}\n" for file in files]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def _encode(
    captions: Sequence[Caption], nouns: Sequence[np.ndarray], dictionary: Dictionary
) -> dict[str, SplitContent]:
    splits: dict[str, SplitContent] = {}
    place: Counter[str] = Counter()
    for caption, mask in zip(captions, nouns):
        split = splits.setdefault(caption.split, SplitContent())
        ids = [dictionary.index(word) for word in caption.tokens]
        split.tokens.append(np.array([*ids, dictionary.eos()], dtype=np.int64))
        split.nouns.append(np.append(mask, np.uint8(0)))
        split.image_ids.append(caption.image_id)
        # not the number in the file: captions may have been left out before
        split.caption_index.append(place[caption.image_id])
        place[caption.image_id] += 1
        split.raws.append(caption.raw)
        split.texts.append(" ".join(caption.tokens))
    return splits
