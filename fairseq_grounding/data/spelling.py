"""Words spelled in the pieces of a SentencePiece model."""

from __future__ import annotations

import io
import os
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from fairseq.data import Dictionary

from ..errors import GroundingError
from .pieces import MARK

FLAG = "--sentencepiece"


class Speller:
    """Spells words, one at a time, so that every word begins with a piece that says so.

    Args:
        model: a SentencePiece model's bytes
        name: the flag and what it was given, named in errors

    Raises:
        GroundingError: it is no such model, or one whose pieces do not say where a word begins
    """

    def __init__(self, model: bytes, name: str):
        self.model = model
        try:
            self._processor = _sentencepiece().SentencePieceProcessor(model_proto=model)
        except (RuntimeError, OSError) as error:
            raise GroundingError(f"{name}: is not a SentencePiece model") from error
        spells = self._processor
        usual = [n for n in range(spells.get_piece_size()) if not (spells.is_control(n) or spells.is_unknown(n))]
        self.pieces = [spells.id_to_piece(n) for n in usual]
        """in the model's order, without its control symbols"""
        if any(map(spells.is_byte, usual)):
            raise GroundingError(f"{name}: spells in bytes (byte_fallback), which are no text; train one without")
        if MARK not in self.pieces or not spells.encode("a", out_type=str)[0].startswith(MARK):
            raise GroundingError(
                f"{name}: its words do not begin with {MARK!r}; give a model of type unigram, bpe or char with"
                " SentencePiece's own way of marking spaces"
            )
        self._known = frozenset(self.pieces)
        self._unk = Dictionary().unk_word
        self._spelled: dict[str, list[str]] = {}

    def spell(self, word: str) -> list[str]:
        """The pieces of a word; the mark and ``<unk>`` for one that the model cannot spell as one word."""
        if word not in self._spelled:
            # a mark in a word would be taken for the space before another
            pieces = [] if word == self._unk or MARK in word else self._processor.encode(word, out_type=str)
            text = "".join(pieces)
            one_word = text.startswith(MARK) and MARK not in text[1:] and len(text) > 1
            self._spelled[word] = pieces if one_word and pieces[0] in self._known else [MARK, self._unk]
        return self._spelled[word]

    def dictionary(self, words: Iterable[tuple[str, int]]) -> Dictionary:
        """fairseq's dictionary of all pieces, by how often they occur in *words* (word, times), then by alphabet."""
        dictionary = Dictionary()
        reserved = set(dictionary.symbols)
        counts = dict.fromkeys((piece for piece in self.pieces if piece not in reserved), 0)
        for word, times in words:
            for piece in self.spell(word):
                if piece in counts:
                    counts[piece] += times
        for piece, count in counts.items():
            dictionary.add_symbol(piece, n=count)
        dictionary.finalize(threshold=0, padding_factor=1)
        return dictionary


def load_speller(given: str | os.PathLike[str], sentences: Iterable[str]) -> Speller:
    """The model that ``--sentencepiece`` names, or a new one.

    Args:
        given: the path of a model, or the number of pieces of one to train
        sentences: words joined by spaces; what a new one is trained on

    Raises:
        GroundingError: sentencepiece is not installed, the file cannot be read, or the sentences do not yield so many
            pieces
    """
    name = f"{FLAG} {given}"
    if str(given).isdecimal():
        return Speller(_train(int(str(given)), sentences, name), name)
    try:
        model = Path(given).read_bytes()
    except OSError as error:
        raise GroundingError(f"{name}: cannot be read ({error.strerror})") from error
    return Speller(model, name)


def _train(size: int, sentences: Iterable[str], name: str) -> bytes:
    written = io.BytesIO()
    try:
        # words stay as they are: a normalised one would not be the teacher's
        _sentencepiece().SentencePieceTrainer.train(
            sentence_iterator=iter(sentences),
            model_writer=written,
            vocab_size=size,
            model_type="unigram",
            normalization_rule_name="identity",
            character_coverage=1.0,
            bos_id=-1,
            eos_id=-1,
            num_threads=1,
            minloglevel=2,
        )
    except (RuntimeError, OSError) as error:
        # after the place in its source and what it expected there
        reason = " ".join(str(error).split()).rpartition("] ")[2]
        raise GroundingError(
            f"{name}: no model of so many pieces comes from the training captions ({reason})"
        ) from error
    return written.getvalue()


def _sentencepiece() -> Any:
    if find_spec("sentencepiece") is None:
        raise GroundingError(f"{FLAG} needs SentencePiece: pip install 'fairseq-grounding[subwords]'")
    import sentencepiece

    return sentencepiece
