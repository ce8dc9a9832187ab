"""SCAN's cross attention between image regions and words (Lee et al., ECCV 2018), for all pairs at once.

Two directions: text to image (``t2i``: each word attends to regions) and image to text (``i2t``: each region
attends to words). What attends is called the query here, what is attended the key.

Nothing as wide as the embeddings is formed for a pair. One matrix product gives every region-word dot product s.
With attention a over the keys, the attended vector's dot product with the query is sum(a * s), and its length is
sqrt(a^T G a), G being the keys' Gram matrix. Words are packed and captions of equal length scored together, so
no padding column is ever computed, and pairs go in chunks whose intermediate results are computed again in the
backward pass instead of being kept.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

DIRECTIONS = ("t2i", "i2t")
NORMS = ("clipped_l2", "paper", "softmax", "l2", "l1", "clipped_l1", "clipped", "none")
AGGREGATES = ("mean", "logsumexp", "max", "sum")
EPSILON = 1e-8

# region-word pairs whose intermediate results are held at once: 16 MB for each of them in float32
CHUNK = 1 << 22
# dot products that are held at once, and kept for the backward pass: 64 MB
SIMILARITIES = 1 << 24


def l2_normalise(vectors: Tensor) -> Tensor:
    """Divide each vector of the last axis by its length plus 1e-8; a zero vector stays zero."""
    return vectors / (torch.linalg.vector_norm(vectors, dim=-1, keepdim=True) + EPSILON)


def _one_of(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ValueError(f"{name} is {value!r}; it can be {', '.join(choices)}")


def _root(squares: Tensor) -> Tensor:
    """Square root whose slope is finite, and 0, at 0."""
    return squares.clamp(min=torch.finfo(squares.dtype).tiny).sqrt()


def normalise_similarity(similarity: Tensor, norm: str, dim: int, mask: Tensor | None = None) -> Tensor:
    """Normalise dot products over the query axis *dim*, before the softmax over keys.

    ``clipped_l2`` is what the published code runs: LeakyReLU(0.1), then s / (|s| + 1e-8). ``paper`` is what the
    papers print: [s]+ / sqrt(sum [s]+^2). The others are SCAN's further choices.

    Args:
        similarity: dot products, any shape
        norm: one of ``NORMS``
        dim: the query axis
        mask: True where real, broadcastable to *similarity*; other entries take no part and become 0
    """
    _one_of("norm", norm, NORMS)
    if norm == "softmax":
        if mask is not None:
            similarity = similarity.masked_fill(~mask, torch.finfo(similarity.dtype).min)
        normed = similarity.softmax(dim)
        return normed if mask is None else normed * mask
    if mask is not None:
        similarity = similarity.masked_fill(~mask, 0.0)
    if norm == "paper":
        similarity = similarity.relu()
    elif norm.startswith("clipped"):
        similarity = F.leaky_relu(similarity, 0.1)
    if norm in ("clipped_l2", "l2", "paper"):
        # over an axis that is not the last, several times faster than torch's own norm
        size = _root(similarity.square().sum(dim, keepdim=True))
    elif norm in ("clipped_l1", "l1"):
        size = similarity.abs().sum(dim, keepdim=True)
    else:
        return similarity
    # a product's backward pass reads less than a quotient's
    return similarity * (size + EPSILON).reciprocal()


def _attention(logits: Tensor, dim: int, mask: Tensor | None) -> Tensor:
    """Softmax over *dim*; masked entries get exactly 0, and so does every entry where all are masked."""
    if mask is None:
        return logits.softmax(dim)
    return logits.masked_fill(~mask, torch.finfo(logits.dtype).min).softmax(dim) * mask


def _aggregate(similarity: Tensor, kind: str, lse_temperature: float, mask: Tensor | None) -> Tensor:
    """Pool query similarities over the last axis; *mask* (True = counts) broadcasts. Nothing that counts gives 0."""
    if kind in ("mean", "sum"):
        if mask is not None:
            similarity = similarity.masked_fill(~mask, 0.0)
        total = similarity.sum(-1)
        if kind == "sum":
            return total
        count = similarity.shape[-1] if mask is None else mask.sum(-1).clamp(min=1)
        return total / count
    if mask is not None:
        similarity = similarity.masked_fill(~mask, torch.finfo(similarity.dtype).min / max(1.0, lse_temperature))
    if kind == "max":
        pooled = similarity.amax(-1)
    else:
        pooled = torch.logsumexp(similarity * lse_temperature, -1) / lse_temperature
    return pooled if mask is None else pooled.masked_fill(~mask.any(-1), 0.0)


def _cosine(similarity: Tensor, attention: Tensor, squared_length: Tensor, query_length: Tensor, dim: int) -> Tensor:
    """Cosine of each query with what it attends to, from dot products alone; 0 where either vector is 0."""
    return (attention * similarity).sum(dim) / (query_length * _root(squared_length)).clamp(min=EPSILON)


def _words_attend(
    similarity: Tensor,
    gram: Tensor,
    word_length: Tensor,
    region_mask: Tensor | None,
    counted: Tensor | None,
    norm: str,
    aggregate: str,
    temperature: float,
    lse_temperature: float,
) -> Tensor:
    """t2i for a block: similarity (n,w,I,R), gram (I,R,R), word_length (n,w), counted (n,w) -> (n,I)."""
    captions, words, images, regions = similarity.shape
    normed = normalise_similarity(similarity, norm, 1)
    attention = _attention(normed * temperature, 3, region_mask)
    # a batch of products an image, read and written where the words are
    by_image = attention.view(captions * words, images, regions).transpose(0, 1)
    reach = torch.bmm(by_image, gram).transpose(0, 1).view_as(attention)
    cosine = _cosine(similarity, attention, (attention * reach).sum(3), word_length[:, :, None], 3)
    pooled = _aggregate(
        cosine.transpose(1, 2), aggregate, lse_temperature, None if counted is None else counted[:, None]
    )
    return pooled if region_mask is None else pooled.masked_fill(~region_mask.any(1), 0.0)


def _regions_attend(
    similarity: Tensor,
    gram: Tensor,
    region_length: Tensor,
    region_mask: Tensor | None,
    norm: str,
    aggregate: str,
    temperature: float,
    lse_temperature: float,
) -> Tensor:
    """i2t for a block: similarity (n,w,I,R), gram (n,w,w), region_length (I,R) -> (n,I)."""
    captions, words, images, regions = similarity.shape
    normed = normalise_similarity(similarity, norm, 3, region_mask)
    attention = (normed * temperature).softmax(1)
    reach = torch.bmm(gram, attention.view(captions, words, images * regions)).view_as(attention)
    cosine = _cosine(similarity, attention, (attention * reach).sum(1), region_length, 1)
    return _aggregate(cosine, aggregate, lse_temperature, region_mask)


def region_word_scores(
    regions: Tensor,
    words: Tensor,
    region_mask: Tensor,
    word_mask: Tensor,
    *,
    direction: str = "t2i",
    norm: str = "clipped_l2",
    aggregate: str = "mean",
    temperature: float = 9.0,
    lse_temperature: float = 6.0,
    aggregate_mask: Tensor | None = None,
) -> Tensor:
    """SCAN's matching score of every image with every caption.

    Follows Lee et al., "Stacked Cross Attention for Image-Text Matching", Eqs. 1-8 (t2i) and 9-12 (i2t), in the
    form that produced the published numbers; ``norm="paper"`` is the printed similarity norm. With
    ``aggregate_mask`` it is Eq. 8 of POS-SCAN (Zhou et al., CVPR 2020): all words attend, only nouns count.
    The vectors are taken as given; normalise them with :func:`l2_normalise` first.

    Args:
        regions: (I,R,H)
        words: (C,W,H)
        region_mask: (I,R) bool, True = real
        word_mask: (C,W) bool, True = real; need not be a prefix, so that a noun mask serves as well
        direction: ``t2i`` (words attend to regions) or ``i2t``
        norm: how dot products are normalised over the query axis, one of ``NORMS``
        aggregate: how query similarities are pooled, one of ``AGGREGATES``
        temperature: factor of the normalised similarity in the softmax over keys
        lse_temperature: factor of ``logsumexp`` pooling
        aggregate_mask: (C,W) bool, the words that count when words' similarities are pooled (t2i only)

    Returns:
        scores (I,C); 0 for a caption without a real word or an image without a real region

    Raises:
        ValueError: an unknown choice, or ``aggregate_mask`` with ``i2t``
    """
    _one_of("direction", direction, DIRECTIONS)
    _one_of("norm", norm, NORMS)
    _one_of("aggregate", aggregate, AGGREGATES)
    if aggregate_mask is not None and direction == "i2t":
        raise ValueError("aggregate_mask is for t2i: in i2t it is regions that are pooled")
    images, region_count, width = regions.shape
    padded = None if bool(region_mask.all()) else region_mask
    if padded is not None:
        # 0 times what padding holds is not 0 where that is NaN or infinity
        regions = regions.masked_fill(~padded[:, :, None], 0.0)
    flat = regions.reshape(images * region_count, width)

    choices = norm, aggregate, temperature, lse_temperature
    gram = regions @ regions.transpose(1, 2) if direction == "t2i" else None
    region_length = torch.linalg.vector_norm(regions, dim=-1) if direction == "i2t" else None

    lengths = word_mask.sum(1)
    order = lengths.argsort(stable=True)
    most_words = max(1, SIMILARITIES // len(flat))
    piece = lengths[order].cumsum(0) // most_words
    rows = []
    for captions in order.split(torch.unique_consecutive(piece, return_counts=True)[1].tolist()):
        spoken, places = word_mask[captions].nonzero(as_tuple=True)
        packed = words[captions[spoken], places]
        counted = None if aggregate_mask is None else aggregate_mask[captions[spoken], places]
        groups = torch.stack(lengths[captions].unique(return_counts=True), 1).tolist()
        sizes = [length * count for length, count in groups]
        counts = [None] * len(sizes) if counted is None else counted.split(sizes)
        parts = zip(groups, (packed @ flat.t()).split(sizes), packed.split(sizes), counts)
        for (length, count), similarity, group, counting in parts:
            group = group.view(count, length, width)
            if length == 0:
                # zeros that a loss can still go backward through
                rows.append(group.sum((1, 2))[:, None] + regions[:, :0].sum((1, 2)))
                continue
            similarity = similarity.view(count, length, images, region_count)
            step = max(1, CHUNK // similarity[0].numel())
            if gram is not None:
                word_length = torch.linalg.vector_norm(group, dim=-1).split(step)
                marks = [None] * count if counting is None else counting.view(count, length).split(step)
                for block, size, mark in zip(similarity.split(step), word_length, marks):
                    rows.append(_block(_words_attend, block, gram, size, padded, mark, *choices))
            else:
                word_gram = (group @ group.transpose(1, 2)).split(step)
                for block, square in zip(similarity.split(step), word_gram):
                    rows.append(_block(_regions_attend, block, square, region_length, padded, *choices))
    return torch.cat(rows)[order.argsort()].t()


def _block(function, *arguments):
    """Call *function*; with gradients wanted, keep its inputs only and compute its inside again for them."""
    if torch.is_grad_enabled() and any(isinstance(a, Tensor) and a.requires_grad for a in arguments):
        return checkpoint(function, *arguments, use_reentrant=False, preserve_rng_state=False)
    return function(*arguments)


def attend_pairs(
    regions: Tensor,
    words: Tensor,
    region_mask: Tensor,
    word_mask: Tensor,
    *,
    norm: str = "clipped_l2",
    temperature: float = 9.0,
) -> tuple[Tensor, Tensor]:
    """Where each word of a caption looks in its own image (t2i attention of matching pairs).

    Args:
        regions: (B,R,H)
        words: (B,W,H)
        region_mask: (B,R) bool, True = real
        word_mask: (B,W) bool, True = real; only these words take part in the norm over words
        norm: one of ``NORMS``; ``none`` gives the softmax of temperature times the dot product itself
        temperature: factor in the softmax over regions

    Returns:
        similarity (B,W): cosine of each word with what it attends to; attention (B,W,R): rows sum to 1.
        Both are 0 at words and regions that are not real.
    """
    regions = regions.masked_fill(~region_mask[:, :, None], 0.0)
    words = words.masked_fill(~word_mask[:, :, None], 0.0)
    similarity = words @ regions.transpose(1, 2)
    real = word_mask[:, :, None] & region_mask[:, None, :]
    normed = normalise_similarity(similarity, norm, 1, word_mask[:, :, None])
    attention = _attention(normed * temperature, 2, real)
    gram = regions @ regions.transpose(1, 2)
    squared = (attention * (attention @ gram)).sum(2)
    cosine = _cosine(similarity, attention, squared, torch.linalg.vector_norm(words, dim=-1), 2)
    return cosine.masked_fill(~word_mask, 0.0), attention


def pair_scores(
    regions: Tensor,
    words: Tensor,
    region_mask: Tensor,
    word_mask: Tensor,
    *,
    direction: str = "t2i",
    norm: str = "clipped_l2",
    aggregate: str = "mean",
    temperature: float = 9.0,
    lse_temperature: float = 6.0,
    aggregate_mask: Tensor | None = None,
) -> Tensor:
    """The matching score of each caption with its own image alone: the diagonal of :func:`region_word_scores`.

    Args:
        regions: (B,R,H)
        words: (B,W,H)
        region_mask: (B,R) bool, True = real
        word_mask: (B,W) bool, True = real
        direction, norm, aggregate, temperature, lse_temperature: as there
        aggregate_mask: (B,W) bool, the words that count when words' similarities are pooled (t2i only)

    Returns:
        scores (B,); 0 for a caption without a real word or an image without a real region

    Raises:
        ValueError: an unknown choice, or ``aggregate_mask`` with ``i2t``
    """
    _one_of("direction", direction, DIRECTIONS)
    _one_of("aggregate", aggregate, AGGREGATES)
    if aggregate_mask is not None and direction == "i2t":
        raise ValueError("aggregate_mask is for t2i: in i2t it is regions that are pooled")
    if direction == "t2i":
        similarity, _ = attend_pairs(regions, words, region_mask, word_mask, norm=norm, temperature=temperature)
        counted = word_mask if aggregate_mask is None else aggregate_mask & word_mask
    else:
        similarity, _ = attend_pairs(words, regions, word_mask, region_mask, norm=norm, temperature=temperature)
        counted = region_mask
    pooled = _aggregate(similarity, aggregate, lse_temperature, counted)
    return pooled.masked_fill(~(word_mask.any(1) & region_mask.any(1)), 0.0)
