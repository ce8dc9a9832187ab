"""Which words of captions are nouns, as files say: a tag for each word, or a table of words."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from ..errors import GroundingError
from .captions import Caption
from .nouns import UNIVERSAL_POS
from .skipped import Skipped
from .text_lines import read_lines

# the Penn Treebank's tags, with those that spaCy's and NLTK's taggers add, as universal parts of speech
_PENN = {
    "ADJ": "AFX JJ JJR JJS",
    "ADP": "IN RP",
    "ADV": "RB RBR RBS WRB",
    "AUX": "MD",
    "CCONJ": "CC CONJ",
    "DET": "DT PDT WDT",
    "INTJ": "UH",
    "NOUN": "NN NNS",
    "NUM": "CD",
    "PART": "POS TO PRT",
    "PRON": "EX PRP PRP$ WP WP$",
    "PROPN": "NNP NNPS",
    "PUNCT": ". , : `` '' \" -LRB- -RRB- ( ) HYPH NFP",
    "SYM": "# $",
    "VERB": "VB VBD VBG VBN VBP VBZ",
    "X": "ADD FW GW LS XX",
}
_POS_OF = {tag: pos for pos, tags in _PENN.items() for tag in tags.split()} | {pos: pos for pos in UNIVERSAL_POS}
_PAD = "PAD"


def read_tagged(
    path: str | os.PathLike[str], captions: Sequence[Caption], noun_pos: Sequence[str], skipped: Skipped | None = None
) -> list[np.ndarray | None]:
    """Read a tag for each word of each caption.

    A line is the tags of a caption, with spaces between: a line for each caption of the caption file, in its
    order; or ``id<TAB>index<TAB>tags`` in any order, where *index* is the number of the caption within its
    image, from 0. Tags are universal parts of speech or the Penn Treebank's. A folder stands for SCAN's
    ``{train,dev,test}_tags.txt``, one after another. ``PAD`` before and behind a line's tags is dropped.

    Args:
        path: the file or folder.
        captions: the captions to tag.
        noun_pos: universal parts of speech that count as nouns.
        skipped: where to note captions that are left out; without it, the first one raises.

    Returns:
        For each caption (W,) uint8, 1 where the word is a noun; None where the caption is left out.

    Raises:
        GroundingError: a caption has no tags, another number of tags than words, or an unknown tag.
    """
    skipped = skipped or Skipped()
    masks: list[np.ndarray | None] = []
    for caption, (where, line) in zip(captions, _lines_of(path, captions, skipped)):
        tags = [] if line is None else _without_pad(line.split())
        fault = "has no tags; add them" if line is None else _tags_fault(tags, caption.tokens)
        if fault is None:
            masks.append(np.array([_POS_OF[tag] in noun_pos for tag in tags], dtype=np.uint8))
        else:
            masks.append(None)
            message = f"caption {caption.index} of image {caption.image_id!r} {fault}"
            skipped.leave_out(where, caption.image_id, f"caption {caption.index}", message)
    return masks


def nouns_of_table(table: Mapping[str, tuple[int, int]]) -> set[str]:
    """The words that are nouns in more than half of the times they were seen."""
    return {word for word, (seen, tagged) in table.items() if 2 * tagged > seen}


def nouns_by_table(captions: Sequence[Sequence[str]], table: Mapping[str, tuple[int, int]]) -> list[np.ndarray]:
    """For each caption (W,) uint8, 1 where *table* counts the word as a noun in more than half of its uses.

    Args:
        captions: the words of each.
        table: times seen and times tagged a noun of each word; a word that it lacks is no noun.
    """
    nouns = nouns_of_table(table)
    return [np.array([word in nouns for word in words], dtype=np.uint8) for words in captions]


def noun_lookup(symbols: Sequence[str], table: Mapping[str, tuple[int, int]], specials: int) -> np.ndarray:
    """For each symbol of a dictionary (V,) uint8, 1 where *table* makes it a noun: the nouns of captions that no
    tagger saw.

    Args:
        symbols: the dictionary's, in its order.
        table: times seen and times tagged a noun of each word.
        specials: so many symbols at the start stand for no word.
    """
    (mask,) = nouns_by_table([symbols], table)
    mask[:specials] = 0
    return mask


def _tag_files(path: str | os.PathLike[str]) -> list[Path]:
    if not Path(path).is_dir():
        return [Path(path)]
    there = [file for split in ("train", "dev", "test") if (file := Path(path) / f"{split}_tags.txt").is_file()]
    if not there:
        raise GroundingError(
            f"--tagged {path}: has no file {{train,dev,test}}_tags.txt; name a file, or a folder that has"
        )
    return there


def _lines_of(
    path: str | os.PathLike[str], captions: Sequence[Caption], skipped: Skipped
) -> list[tuple[str, str | None]]:
    """Where the tags of each caption are, and what is there; None where there are none."""
    rows = [(f"{file}: line {number}", line) for file in _tag_files(path) for number, line in read_lines(file)]
    if not rows or "\t" not in rows[0][1]:
        if len(rows) > len(captions) and not skipped.rows:
            raise GroundingError(
                f"{path}: has {len(rows)} lines, but there are {len(captions)} captions; one line is one caption"
            )
        return [rows[c.number] if c.number < len(rows) else (str(path), None) for c in captions]
    by_caption: dict[tuple[str, str], tuple[str, str]] = {}
    for where, line in rows:
        cells = line.split("\t")
        if len(cells) != 3:
            raise GroundingError(f"{where}: has {len(cells)} columns, not 3: image id, number of the caption, tags")
        key = cells[0].strip(), cells[1].strip()
        if key in by_caption:
            raise GroundingError(f"{where}: caption {key[1]} of image {key[0]!r} is tagged twice; remove one line")
        by_caption[key] = where, cells[2]
    return [by_caption.get((c.image_id, str(c.index)), (str(path), None)) for c in captions]


def _without_pad(tags: list[str]) -> list[str]:
    padded = len(tags) >= 2 and tags[0] == tags[-1] == _PAD
    return tags[1:-1] if padded else tags


def _tags_fault(tags: Sequence[str], words: Sequence[str]) -> str | None:
    if len(tags) != len(words):
        return f"has {len(words)} words, but {len(tags)} tags; tag the words that the tokeniser gives"
    for tag in tags:
        if tag not in _POS_OF:
            return f"has the tag {tag!r}, which is neither the Penn Treebank's nor a universal part of speech"
    return None
