"""Region-word alignment of DVSA (Karpathy and Fei-Fei, CVPR 2015): scores of images with captions, and phrases.

A score is made of region-word dot products alone, so one matrix product gives those of all pairs. Captions go in
blocks of about equal length under a memory bound; what a block's pooling keeps for the backward pass is one region's
number a word and image, not the dot products.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from ..errors import GroundingError

ALIGNMENTS = ("max", "relu-sum", "region-max")

# dot products that are held at once: 64 MB in float32
SIMILARITIES = 1 << 24


def _check_kind(kind: str) -> None:
    if kind not in ALIGNMENTS:
        raise ValueError(f"kind is {kind!r}; it can be {', '.join(ALIGNMENTS)}")


def _pool(similarity: Tensor, word_mask: Tensor, region_mask: Tensor, kind: str) -> Tensor:
    """Dot products (c,w,i,R) to scores (c,i); word_mask (c,w); region_mask (1 or c,i,R)."""
    words, regions = word_mask[:, :, None], region_mask.unsqueeze(1)
    if kind == "relu-sum":
        return (similarity.relu() * regions).sum(3).masked_fill(~words, 0.0).sum(1)
    if kind == "max":
        if not bool(region_mask.all()):
            similarity = similarity.masked_fill(~regions, -torch.inf)
        best = similarity.max(3).values
        real = words & regions.any(3)
        return best.masked_fill(~real, 0.0).sum(1)
    best = similarity.masked_fill(~words[..., None], -torch.inf).max(1).values
    said = word_mask.any(1)[:, None, None]
    return best.masked_fill(~(said & region_mask), 0.0).sum(2)


def _block_scores(words: Tensor, flat: Tensor, word_mask: Tensor, region_mask: Tensor, kind: str) -> Tensor:
    """A block of captions (c,w,H) with all regions (I*R,H) -> (c,I)."""
    similarity = (words @ flat.t()).view(*words.shape[:2], *region_mask.shape)
    return _pool(similarity, word_mask, region_mask[None], kind)


def alignment_scores(
    regions: Tensor, words: Tensor, region_mask: Tensor, word_mask: Tensor, *, kind: str = "max"
) -> Tensor:
    """DVSA's score of every image with every caption, from plain dot products of the vectors as given.

    Args:
        regions: (I,R,H)
        words: (C,W,H)
        region_mask: (I,R) bool, True = real
        word_mask: (C,W) bool, True = real
        kind: ``max``: each word takes its best region, summed over words (Eq. 8); ``relu-sum``: the positive dot
            products of all words and regions, summed (Eq. 7); ``region-max``: each region takes its best word,
            summed over regions (not the paper's: a reading of its ranking loss that is seen in notes on it)

    Returns:
        scores (I,C); 0 for a caption without a real word or an image without a real region

    Raises:
        ValueError: an unknown kind
    """
    _check_kind(kind)
    # 0 times what padding holds is not 0 where that is NaN or infinity
    flat = regions.masked_fill(~region_mask[:, :, None], 0.0).flatten(0, 1)
    words = words.masked_fill(~word_mask[:, :, None], 0.0)
    # up to the last real word: a mask need not be a prefix
    ends = (word_mask * torch.arange(1, word_mask.shape[1] + 1, device=word_mask.device)).amax(1)
    order = ends.argsort(descending=True, stable=True)
    lengths = ends[order].tolist()
    # the rectified sum alone keeps all dot products for its backward pass: computed again there
    again = kind == "relu-sum" and torch.is_grad_enabled() and (regions.requires_grad or words.requires_grad)
    rows, start = [], 0
    while start < len(lengths):
        longest = max(1, lengths[start])
        block = order[start : start + max(1, SIMILARITIES // max(1, longest * len(flat)))]
        arguments = words[block, :longest], flat, word_mask[block, :longest], region_mask, kind
        if again:
            rows.append(checkpoint(_block_scores, *arguments, use_reentrant=False, preserve_rng_state=False))
        else:
            rows.append(_block_scores(*arguments))
        start += len(block)
    return torch.cat(rows)[order.argsort()].t()


def own_alignment_scores(
    regions: Tensor, words: Tensor, region_mask: Tensor, word_mask: Tensor, *, kind: str = "max"
) -> Tensor:
    """The score of each caption with its own image alone: the diagonal of :func:`alignment_scores`.

    Args:
        regions: (B,R,H); words: (B,W,H); region_mask: (B,R); word_mask: (B,W)
        kind: as there

    Returns:
        (B,)
    """
    _check_kind(kind)
    similarity = words @ regions.transpose(1, 2)
    return _pool(similarity[:, :, None], word_mask, region_mask[:, None], kind)[:, 0]


def check_beta(beta: float, flag: str = "beta") -> float:
    """*beta* itself, if it is one; a :class:`GroundingError` that names *flag* otherwise."""
    if not (math.isfinite(beta) and beta >= 0):
        raise GroundingError(
            f"{flag} {beta:g}: give a finite number of 0 or more; a large one puts a caption on one region"
        )
    return beta


@torch.no_grad()
def smooth_alignment(scores: Tensor, word_mask: Tensor, region_mask: Tensor, beta: float) -> tuple[Tensor, Tensor]:
    """The regions of a caption's words that maximise their scores plus *beta* for each two neighbours that agree.

    The chain-structured Markov random field of Karpathy and Fei-Fei (CVPR 2015, section 3.1.3), E(a) = sum_j s[j,a_j] +
    beta * sum_j [a_j = a_{j+1}], maximised exactly by dynamic programming (the paper says minimised, of an energy that
    it writes as a score). A word either keeps its neighbour's region or leaves it for the best there is, whichever
    region that was, so a step is O(R) and not O(R^2). All captions go at once, on the device of *scores*.

    Args:
        scores: (B,W,R) of each word with each region of its own image
        word_mask: (B,W) bool, True = real; need not be a prefix: neighbours are real words with none between them
        region_mask: (B,R) bool, True = real
        beta: 0 gives each word's best region

    Returns:
        regions (B,W) int64, -1 where the word is not real or its image has no region; energy (B,), in the type of
        *scores*. Of equal maxima one is returned; with beta 0 each word's first.

    Raises:
        GroundingError: beta is negative or not finite, or a score of a real word and region is not finite
    """
    check_beta(beta)
    real = word_mask & region_mask.any(1, keepdim=True)
    counted = real[:, :, None] & region_mask[:, None, :]
    broken = (~torch.isfinite(scores) & counted).flatten(1).any(1)
    if bool(broken.any()):
        raise GroundingError(f"the scores of caption {int(broken.int().argmax())} of the batch hold NaN or infinity")
    # sums of float32 in float64 are all but exact, so that the path is the maximum and not one beside it
    work = scores.double().masked_fill(~counted, 0.0).masked_fill(~region_mask[:, None, :], -torch.inf)
    captions, length, count = scores.shape
    same = torch.arange(count, device=scores.device).expand(captions, -1)
    started = real.cumsum(1) > real.long()
    # of the best path that ends in each region, less that of the best of all: no rounding grows along the caption
    total = torch.zeros_like(work[:, 0]) if length else work.new_zeros(captions, count)
    total = total.masked_fill(~region_mask, -torch.inf)
    previous = []
    for place in range(length):
        best, where = total.max(1, keepdim=True)
        stay = total + beta * started[:, place, None]
        stays = stay > best
        spoken = real[:, place, None]
        previous.append(torch.where(stays | ~spoken, same, where))
        step = work[:, place] + torch.where(stays, stay, best)
        total = torch.where(spoken, step - step.amax(1, keepdim=True), total)
    path = torch.zeros(captions, length, dtype=torch.int64, device=scores.device)
    region = total.argmax(1, keepdim=True)
    for place in reversed(range(length)):
        path[:, place] = region[:, 0]
        region = previous[place].gather(1, region)
    agree = (path[:, 1:] == path[:, :-1]) & real[:, 1:] & started[:, 1:]
    own = work.gather(2, path[:, :, None])[:, :, 0].masked_fill(~real, 0.0)
    energy = own.sum(1) + beta * agree.sum(1)
    return path.masked_fill(~real, -1), energy.to(scores.dtype)
