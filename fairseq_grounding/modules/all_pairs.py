"""Scoring every image of a split with every caption, a block of captions at a time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from .matching import Encoded, MatchingModel

# captions scored against all images at once
CAPTION_BLOCK = 256


class CaptionBlock(NamedTuple):
    """Embedded captions: words (C,W,H), word_mask and noun_mask (C,W)."""

    words: Tensor
    word_mask: Tensor
    noun_mask: Tensor


def padded(rows: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Rows of different lengths (N,.) as one tensor (B,N,.), zeros at the ends, and its mask (B,N), True = real."""
    lengths = torch.tensor([len(row) for row in rows], device=rows[0].device)
    batch = pad_sequence(list(rows), batch_first=True)
    return batch, torch.arange(batch.shape[1], device=batch.device)[None, :] < lengths[:, None]


@torch.no_grad()
def score_blocks(
    model: MatchingModel, regions: Tensor, region_mask: Tensor, captions: Iterable[CaptionBlock]
) -> Iterator[np.ndarray]:
    """The scores of all images with each block of captions.

    Args:
        model: on the device that it is to compute on
        regions: embedded (I,R,H)
        region_mask: (I,R) True = real
        captions: embedded, no more than ``CAPTION_BLOCK`` or so in a block; lazily, so that all of them together
            need never be held

    Yields:
        (I,C) float32 of each block
    """
    device = next(model.parameters()).device
    regions, region_mask = regions.to(device), region_mask.to(device)
    for block in captions:
        words, word_mask, noun_mask = (part.to(device) for part in block)
        scores = model.scores(Encoded(regions, region_mask, words, word_mask, noun_mask))
        yield scores.float().cpu().numpy()
