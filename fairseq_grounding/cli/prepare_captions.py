"""Captions, nouns and entity boxes into a folder that fairseq trains on.

Formats of captions:
  karpathy  JSON of Karpathy's splits: images[].filename, split, sentences[].tokens and raw. The split val becomes
            valid, restval joins train.
  coco      COCO's JSON: images[].id and file_name, annotations[].image_id and caption; or a folder of
            captions_*.json. Needs --splits.
  scan      a folder with {train,dev,test}_caps.txt, a caption a line, and {train,dev,test}_ids.txt, a line an image
            (of five captions) or a line a caption.
  tsv       lines image_id<TAB>caption, and <TAB>split unless --splits says it.

The image id is the file name without its ending, or as --image-id says, and must be in the region store. Captions of
one image are put together. A split without captions is not written.

Boxes for measuring come from Flickr30k Entities (--entities): the class of a phrase is the lemma of its last noun. Or
from the label files of published code (--class-labels, --class-dictionary): their classes and boxes are taken as they
are.
"""

from __future__ import annotations

import argparse
from typing import Any


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags."""
    add = parser.add_argument
    add("--captions", required=True, metavar="PATH", help="the caption file, or the folder of a format with folders")
    add("--regions", required=True, metavar="H5", help="the region store, of prepare-regions")
    add("--out", required=True, metavar="DIR", help="the folder to write")
    add(
        "--format",
        default="karpathy",
        choices=("karpathy", "coco", "scan", "tsv"),
        help="what --captions is, see above (default: karpathy)",
    )
    add(
        "--splits",
        metavar="FILE",
        help="the split of each image: JSON {split: [ids]}, JSON with images[].id and split, or lines id<TAB>split; "
        "splits are train, restval, val, valid, dev, test (default: as the caption file says)",
    )
    add(
        "--image-id",
        default="filename",
        choices=("filename", "cocoid"),
        help="karpathy and coco: the image id is the file name without its ending, or COCO's number "
        "(default: filename)",
    )
    add(
        "--tokeniser",
        choices=("file", "ptb", "spacy", "whitespace"),
        help="file: the words of a karpathy file as they are. The others cut the sentences as written, in lower "
        "case. ptb: as the caption metrics do, without punctuation (pycocoevalcap and Java); spacy: spaCy's English "
        "rules, without punctuation; whitespace: at white space alone (default: file for karpathy, else spacy)",
    )
    add(
        "--entities",
        metavar="DIR",
        help="Flickr30k Entities: a folder with Sentences/ID.txt and Annotations/ID.xml (pixels from 1, as "
        "published); images without these files are left out of objects.json (default: no boxes)",
    )
    add(
        "--several-boxes",
        default="each",
        choices=("each", "union", "largest"),
        help="of an entity with several boxes keep each of them, their union, or the largest (default: each)",
    )
    add(
        "--class-labels",
        metavar="JSON",
        help="in place of --entities: flickr30k_cleaned_class.json or a file of its form (one box and class a word; "
        "pixels as they are)",
    )
    add(
        "--class-dictionary",
        metavar="JSON",
        help="with --class-labels: dic_flickr30k.json, whose wtod are the classes and wtol the lemmas (default: the "
        "classes that occur, and spaCy's lemmas)",
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
        help="with --entities: a noun's lemma is an object class if it heads at least N boxed phrases (default: 2)",
    )
    add(
        "--nouns",
        default="spacy",
        choices=("spacy", "tagged", "table"),
        help="what says which words are nouns: spaCy's tagger, --tagged, or --noun-table (default: spacy)",
    )
    add(
        "--noun-pos",
        default="NOUN,PROPN",
        metavar="POS",
        help="universal parts of speech that count as nouns, joined by commas (default: NOUN,PROPN)",
    )
    add(
        "--tagged",
        metavar="FILE",
        help="a tag for each word (Penn Treebank or universal), a line a caption in the order of the caption file, or "
        "id<TAB>number of the caption within its image, from 0<TAB>tags; or a folder with SCAN's "
        "{train,dev,test}_tags.txt",
    )
    add(
        "--noun-table",
        metavar="FILE",
        help="nouns.tsv of another prepared folder, or that folder: a word is a noun if it was tagged so in more than "
        "half of its uses",
    )
    add(
        "--sentencepiece",
        metavar="MODEL|SIZE",
        help="write the captions in subword pieces too, for captioners that write pieces: of this SentencePiece model, "
        "or of a new one with SIZE pieces, trained on the split train (unigram, without normalisation). Matching "
        "models, nouns and metrics stay on words (default: words alone)",
    )
    add(
        "--workers",
        type=int,
        default=1,
        metavar="N",
        help="processes that tag; the result is the same (default: 1)",
    )
    add(
        "--skip-bad",
        action="store_true",
        help="leave out images, captions and annotations that are wrong, and list them with reasons in "
        "DIR/skipped.tsv (default: refuse the first)",
    )
    add("--overwrite", action="store_true", help="replace DIR where it is there and not empty")


def run(args: argparse.Namespace) -> None:
    """Prepare the folder and print what is in it."""
    from ..data.prepare import prepare_captions

    meta = prepare_captions(
        args.captions,
        args.regions,
        args.out,
        form=args.format,
        splits_path=args.splits,
        image_key=args.image_id,
        tokeniser=args.tokeniser,
        entities=args.entities,
        several_boxes=args.several_boxes,
        class_labels=args.class_labels,
        class_dictionary=args.class_dictionary,
        threshold=args.threshold,
        min_class_count=args.min_class_count,
        nouns=args.nouns,
        noun_pos=args.noun_pos.split(","),
        tagged=args.tagged,
        noun_table_path=args.noun_table,
        sentencepiece=args.sentencepiece,
        workers=args.workers,
        skip_bad=args.skip_bad,
        overwrite=args.overwrite,
    )
    print("\n".join(summary(meta)))


def summary(meta: dict[str, Any]) -> list[str]:
    """What ``meta.json`` says, in a few lines."""
    lines = [
        f"{name}: {counts['captions']} captions of {counts['images']} images" for name, counts in meta["splits"].items()
    ]
    tokeniser = " ".join(part for part in (meta["tokeniser"], meta["tokeniser_version"]) if part)
    lines.append(f"words: of {tokeniser}" if meta["tokeniser"] != "file" else "words: as the file has them")
    lines.append(
        f"dictionary: {meta['dictionary_size']} symbols; words that occur at least {meta['threshold']} times "
        f"are {meta['train_word_coverage']:.2%} of the training words"
    )
    pieces = meta["sentencepiece"]
    if pieces is not None:
        lines.append(
            f"pieces: {pieces['dictionary_size']} symbols; {pieces['train_pieces_per_word']:.2f} a training word, "
            f"{pieces['train_word_coverage']:.2%} of the training words can be spelled"
        )
    tagger = meta["tagger"]
    lines.append(
        f"nouns: {meta['train_noun_share']:.1%} of the training words "
        f"({'+'.join(tagger['pos'])} of {tagger['name']} {tagger['version']})"
    )
    if meta["regions_without_captions"]:
        lines.append(f"regions: {meta['regions_without_captions']} images of the region store have no captions here")
    if meta["skipped"] is not None:
        counts = meta["skipped"]
        lines.append(
            f"skipped: {counts['images']} images, {counts['captions']} captions, {counts['annotations']} annotations; "
            "skipped.tsv says why"
        )
    if meta["class_labels"] is not None:
        counts = meta["entities"]
        lines.append(
            f"class labels: {counts['images']} images, {counts['phrases_boxed']} of {counts['phrases']} labelled words "
            f"found in the captions, {counts['classes']} classes"
        )
    elif meta["entities"] is not None:
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
    if meta["entities"] is not None:
        counts = meta["entities"]
        if counts["captions_without_sentence"]:
            lines.append(f"  warning: {counts['captions_without_sentence']} captions have no annotated sentence")
        if counts["images_rescaled"]:
            lines.append(
                f"  warning: {counts['images_rescaled']} annotations state another image size than the "
                "region store; their boxes were scaled to the store's"
            )
    return lines
