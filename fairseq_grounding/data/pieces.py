"""From the subword pieces that a captioner writes to the words that teachers, rewards and metrics read."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from fairseq.data import Dictionary
from torch import Tensor

# SentencePiece's sign for the space before a word
MARK = "▁"


class PieceReader:
    """Finds the words in captions of pieces.

    A piece that begins with :data:`MARK` begins a word. Captions that a model writes may have marks without a word:
    such a mark belongs to the word after it, or at the end to the word before it.

    Args:
        pieces: the captioner's dictionary
        words: the teacher's side: the dictionary of words of the same prepared folder
    """

    def __init__(self, pieces: Dictionary, words: Dictionary):
        self.pieces = pieces
        self.words = words
        self._begins = torch.tensor([symbol.startswith(MARK) for symbol in pieces.symbols])
        self._bare = torch.tensor([symbol == MARK for symbol in pieces.symbols])
        self._ends = torch.zeros(len(pieces), dtype=torch.bool)
        self._ends[[pieces.pad(), pieces.eos(), pieces.bos()]] = True
        self._spelled: dict[tuple[int, ...], int] = {}

    def word_index(self, tokens: Tensor) -> Tensor:
        """The word that each piece belongs to.

        Args:
            tokens: (B,T) with or without end symbol, padding after it

        Returns:
            (B,T) int64, words counted from 0; -1 at the end symbol, at padding, and where a caption has marks alone
        """
        begins, bare, ends = (table.to(tokens.device)[tokens] for table in (self._begins, self._bare, self._ends))
        spelling = ~ends & ~bare
        # a mark after which nothing is spelled is no beginning, nor is what follows a mark
        spelled_later = spelling.flip(1).cummax(1).values.flip(1) if tokens.shape[1] else spelling
        starts = begins & spelled_later
        starts[:, 1:] &= ~bare[:, :-1]
        starts[:, :1] = spelled_later[:, :1]
        return (starts.cumsum(1) - 1).masked_fill(ends, -1)

    def read(self, tokens: Tensor, unknown: int | None = None) -> tuple[Tensor, Tensor]:
        """Captions of pieces as captions of words.

        Args:
            tokens: (B,T) with or without end symbol, padding after it
            unknown: what stands for a word that the dictionary of words lacks (default: its ``<unk>``). Where captions
                are scored against references give a number that no reference has, such as the dictionary's size:
                otherwise any string of pieces would match the references' rare words

        Returns:
            word ids (B,W) with W at least 1, the end symbol where the caption has one, padding after it;
            word_index (B,T)
        """
        index = self.word_index(tokens)
        unk, eos = self.words.unk(), self.words.eos()
        other = unk if unknown is None else unknown
        rows = []
        for pieces, places in zip(tokens.tolist(), index.tolist()):
            words: list[list[int]] = [[] for _ in range(max(places, default=-1) + 1)]
            for piece, place in zip(pieces, places):
                if place >= 0:
                    words[place].append(piece)
            found = [self._word(tuple(word)) for word in words]
            row = [other if word == unk else word for word in found]
            rows.append([*row, eos] if eos in pieces else row)
        ids = tokens.new_full((len(rows), max([1, *map(len, rows)])), self.words.pad())
        for number, row in enumerate(rows):
            ids[number, : len(row)] = torch.tensor(row, dtype=ids.dtype)
        return ids, index

    def strings(self, tokens: Sequence[int]) -> list[str]:
        """The words of one caption, spelled out; a piece that is unknown reads ``<unk>``."""
        (index,) = self.word_index(torch.tensor([list(tokens)], dtype=torch.long)).tolist()
        words = [""] * (max(index, default=-1) + 1)
        for token, place in zip(tokens, index):
            if place >= 0:
                words[place] += self._text(token)
        return words

    def _text(self, piece: int) -> str:
        return self.pieces[piece].replace(MARK, "")

    def _word(self, pieces: tuple[int, ...]) -> int:
        if pieces not in self._spelled:
            found = self.words.index("".join(map(self._text, pieces)))
            # a model may spell out the name of padding
            known = self.pieces.unk() not in pieces and found >= self.words.nspecial
            self._spelled[pieces] = found if known else self.words.unk()
        return self._spelled[pieces]
