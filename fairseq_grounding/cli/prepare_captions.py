"""Captions, nouns and entity boxes into a folder that fairseq trains on.

Reads a JSON file of Karpathy's splits (images[].filename, split, sentences[].tokens). The image id is the
file name without its ending, and must be in the region store. The split val becomes valid, restval joins
train; a split without captions is not written. Words are kept as the file has them.
"""

from __future__ import annotations

import argparse
from typing import Any


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags."""
    add = parser.add_argument
    add("--captions", required=True, metavar="JSON", help="captions in the form of Karpathy's splits")
    add("--regions", required=True, metavar="H5", help="the region store, of prepare-regions")
    add("--out", required=True, metavar="DIR", help="the folder to write")
    add(
        "--entities",
        metavar="DIR",
        help="Flickr30k Entities: a folder with Sentences/ID.txt and Annotations/ID.xml (pixels from 1, as "
        "published); images without these files are left out of objects.json (default: no boxes)",
    )
    add(
        "--threshold",
        type=int,
        default=5,
        metavar="N",
        help="keep words that occur at least N times in the split train; others become <unk> (default: 5)",
    )
    add(
        "--min-class-count",
        type=int,
        default=2,
        metavar="N",
        help="a noun's lemma is an object class if it heads at least N boxed phrases (default: 2)",
    )
    add(
        "--noun-pos",
        default="NOUN,PROPN",
        metavar="POS",
        help="universal parts of speech that count as nouns, joined by commas (default: NOUN,PROPN)",
    )
    add("--overwrite", action="store_true", help="replace DIR where it is there and not empty")


def run(args: argparse.Namespace) -> None:
    """Prepare the folder and print what is in it."""
    from ..data.prepare import prepare_captions

    meta = prepare_captions(
        args.captions,
        args.regions,
        args.out,
        entities=args.entities,
        threshold=args.threshold,
        min_class_count=args.min_class_count,
        noun_pos=args.noun_pos.split(","),
        overwrite=args.overwrite,
    )
    print("\n".join(summary(meta)))


def summary(meta: dict[str, Any]) -> list[str]:
    """What ``meta.json`` says, in a few lines."""
    lines = [
        f"{name}: {counts['captions']} captions of {counts['images']} images" for name, counts in meta["splits"].items()
    ]
    lines.append(
        f"dictionary: {meta['dictionary_size']} symbols; words that occur at least {meta['threshold']} times "
        f"are {meta['train_word_coverage']:.2%} of the training words"
    )
    tagger = meta["tagger"]
    lines.append(
        f"nouns: {meta['train_noun_share']:.1%} of the training words "
        f"({'+'.join(tagger['pos'])} of {tagger['name']} {tagger['version']})"
    )
    if meta["entities"] is not None:
        counts = meta["entities"]
        lines.append(
            f"entities: {counts['images']} images, {counts['phrases_boxed']} of {counts['phrases']} phrases "
            f"tied to a noun and with boxes, {counts['classes']} classes"
        )
        lines.append(
            f"  left out: {counts['phrases_not_visual']} not visual, {counts['phrases_without_box']} without "
            f"a box, {counts['phrases_not_tied']} not found in the caption, "
            f"{counts['phrases_without_noun']} without a noun"
        )
        if counts["captions_without_sentence"]:
            lines.append(f"  warning: {counts['captions_without_sentence']} captions have no annotated sentence")
        if counts["images_rescaled"]:
            lines.append(
                f"  warning: {counts['images_rescaled']} annotations state another image size than the "
                "region store; their boxes were scaled to the store's"
            )
    return lines
