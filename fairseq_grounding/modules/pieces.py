"""A captioner's attention, given for each subword piece, as attention for each word."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

WORD_ATTENTION = ("first", "mean")


def word_attention(attention: Tensor, word_index: Tensor, words: int, how: str) -> Tensor:
    """What a word attends to.

    Args:
        attention: (B,T,R) of each piece
        word_index: (B,T) the word of each piece in ascending order, -1 where there is none
        words: W
        how: ``first``: as its first piece; ``mean``: the mean of its pieces

    Returns:
        (B,W,R), zeros where a caption has no such word
    """
    if how not in WORD_ATTENTION:
        raise ValueError(f"how is {how!r}; it can be {', '.join(WORD_ATTENTION)}")
    real = word_index >= 0
    if how == "first":
        first = real.clone()
        first[:, 1:] &= word_index[:, 1:] != word_index[:, :-1]
        share = first.to(attention.dtype)
    else:
        share = real.to(attention.dtype)
    # one matrix product: its backward sends each word's gradient to its pieces
    belongs = torch.arange(words, device=word_index.device)[None, :, None] == word_index[:, None, :]
    weights = belongs * share[:, None, :]
    return torch.bmm(weights / weights.sum(2, keepdim=True).clamp(min=1.0), attention)


def by_words(sample: dict[str, Any], attention: Tensor, how: str) -> tuple[dict[str, Any], Tensor]:
    """A batch and its captioner's attention (B,T,R) as a teacher of words reads them.

    Of a batch whose tokens are words both are as they were. Of one in pieces ``target`` (B,W) and ``noun_mask`` (B,W)
    are the words', the attention is (B,W,R) as *how* says (:func:`word_attention`), and everything else stays.
    """
    words = sample.get("words")
    if words is None:
        return sample, attention
    return {**sample, **words}, word_attention(attention, words["word_index"], words["target"].shape[1], how)
