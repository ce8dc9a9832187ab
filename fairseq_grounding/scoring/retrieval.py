"""Recall of image-sentence retrieval from a matrix of matching scores."""

from __future__ import annotations

import csv
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import GroundingError
from ..files import writing

KS = (1, 5, 10)
# captions whose columns are compared at once: bounds the memory at this many columns of booleans
_BLOCK = 512


def recall_at_k(scores: Any, caption_image: Any) -> dict[str, float]:
    """Recall at 1, 5 and 10 both ways, as the retrieval literature reports it (Lee et al., SCAN, ECCV 2018).

    *scores* (I, C), higher is better, and *caption_image* (C,), the row of *scores* that each caption belongs
    to; NumPy arrays or tensors. An image may have any number of captions; one without any is no query for
    ``i2t`` but still a candidate for ``t2i``.

    Returns ``i2t_r1``, ``i2t_r5``, ``i2t_r10`` (percent of images with one of their captions among the best
    k), ``t2i_r1``, ``t2i_r5``, ``t2i_r10`` (percent of captions whose image is among the best k),
    ``i2t_medr``, ``t2i_medr`` (floor of the median rank from 0, plus 1) and ``rsum``, the sum of the six
    recalls.

    Ties are decided as in the published evaluation, by the order of ``numpy.argsort(row)[::-1]``. That sort
    is not stable, so equal scores come in an order that has little to do with who is right, and that may
    differ on another processor. Only rows in which the right answer ties with a wrong one are sorted;
    elsewhere counting the better ones is enough.
    """
    return _recalls(caption_and_image_ranks(scores, caption_image))


def retrieval_scores(ranks: Mapping[str, NDArray[np.int64]]) -> dict[str, float]:
    """All figures that SCAN's evaluation prints of ranks: :func:`recall_at_k`, and the mean ranks.

    *ranks* is what :func:`caption_and_image_ranks` returned; ``i2t_meanr`` and ``t2i_meanr`` count from 1.
    """
    means = {f"{way}_meanr": float(values.mean() + 1) for way, values in ranks.items()}
    return {**_recalls(ranks), **means}


def mean_of_folds(folds: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The mean of each figure over folds, as the 1K figures of COCO's 5K test images are reported."""
    return {name: float(np.mean([fold[name] for fold in folds])) for name in folds[0]}


def caption_and_image_ranks(scores: Any, caption_image: Any) -> dict[str, NDArray[np.int64]]:
    """Where the right answer of each query stands, from 0; arguments and ties as in :func:`recall_at_k`.

    Returns ``i2t``: of the best of its own captions, for each image that has any, in their order; ``t2i``: of its
    own image, for each caption.
    """
    matrix = _array(scores)
    image = _array(caption_image).astype(np.int64)
    if matrix.ndim != 2 or image.shape != (matrix.shape[1],) or matrix.size == 0:
        raise GroundingError(
            f"retrieval: needs scores (images, captions) and an image number a caption, "
            f"got {matrix.shape} and {image.shape}"
        )
    if image.min() < 0 or image.max() >= len(matrix):
        raise GroundingError(f"retrieval: image numbers of captions must be from 0 to {len(matrix) - 1}")
    return {"i2t": _image_ranks(matrix, image), "t2i": _caption_ranks(matrix, image)}


def fold_bounds(images: int, folds: int) -> list[tuple[int, int]]:
    """First image and end of each of *folds* equal parts of *images* images, in their order.

    Raises:
        GroundingError: the folds would differ in size
    """
    if images % folds or folds > images:
        raise GroundingError(
            f"--folds {folds}: does not divide {images} images into equal folds; give another number, or with"
            " --images one that it divides"
        )
    size = images // folds
    return [(first, first + size) for first in range(0, images, size)]


def split_ranks(scores: NDArray[Any], first_caption: Any, bounds: tuple[int, int]) -> dict[str, NDArray[np.int64]]:
    """:func:`caption_and_image_ranks` among some neighbouring images and their captions alone.

    *scores* (I, C), *first_caption* (I+1,): the captions of image n are the columns from ``first_caption[n]`` to
    ``first_caption[n + 1]``; *bounds*: first image and end.
    """
    first, end = bounds
    owner = np.repeat(np.arange(end - first), np.diff(first_caption[first : end + 1]))
    return caption_and_image_ranks(scores[first:end, first_caption[first] : first_caption[end]], owner)


def write_ranks(
    path: str | os.PathLike[str],
    sets: Sequence[tuple[str, tuple[int, int], Mapping[str, NDArray[np.int64]]]],
    image_ids: Sequence[str],
    first_caption: Any,
) -> None:
    """Write where each query's right answer stands as CSV: ``images``, ``way``, ``image_id``, ``caption``, ``rank``.

    *sets*: name, bounds and ranks, as :func:`split_ranks` takes and returns them; every image must have a caption.
    ``caption`` is the number of the caption within its image, empty where the image is the query; ranks count from 1.
    """
    with writing(path) as temporary, open(temporary, "w", newline="", encoding="utf-8") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(["images", "way", "image_id", "caption", "rank"])
        for name, (first, end), ranks in sets:
            for image, rank in zip(range(first, end), ranks["i2t"]):
                table.writerow([name, "i2t", image_ids[image], "", int(rank) + 1])
            captions = ((n, c) for n in range(first, end) for c in range(first_caption[n + 1] - first_caption[n]))
            for (image, caption), rank in zip(captions, ranks["t2i"]):
                table.writerow([name, "t2i", image_ids[image], caption, int(rank) + 1])


def _recalls(ranks: Mapping[str, NDArray[np.int64]]) -> dict[str, float]:
    result = {**_summary("i2t", ranks["i2t"]), **_summary("t2i", ranks["t2i"])}
    result["rsum"] = sum(result[f"{way}_r{k}"] for way in ("i2t", "t2i") for k in KS)
    return result


def _image_ranks(matrix: NDArray[Any], image: NDArray[np.int64]) -> NDArray[np.int64]:
    """The rank, from 0, of the best of its own captions for each image that has any."""
    by_image = np.argsort(image, kind="stable")
    bounds = np.searchsorted(image[by_image], np.arange(len(matrix) + 1))
    ranks = []
    for row, first, last in zip(matrix, bounds[:-1], bounds[1:]):
        if first == last:
            continue
        own = by_image[first:last]
        best = row[own].max()
        _refuse_nan(best, row)
        better = int(np.count_nonzero(row > best))
        if np.count_nonzero(row == best) > np.count_nonzero(row[own] == best):
            better = int(np.flatnonzero(np.isin(np.argsort(row)[::-1], own))[0])
        ranks.append(better)
    return np.array(ranks, dtype=np.int64)


def _caption_ranks(matrix: NDArray[Any], image: NDArray[np.int64]) -> NDArray[np.int64]:
    """The rank, from 0, of its own image for each caption."""
    ranks = np.empty(len(image), dtype=np.int64)
    for first in range(0, len(image), _BLOCK):
        block = matrix[:, first : first + _BLOCK]
        own = block[image[first : first + _BLOCK], np.arange(block.shape[1])]
        ranks[first : first + _BLOCK] = (block > own).sum(axis=0)
        for tied in np.flatnonzero((block == own).sum(axis=0) > 1):
            order = np.argsort(block[:, tied])[::-1]
            ranks[first + tied] = np.flatnonzero(order == image[first + tied])[0]
    return ranks


def _refuse_nan(best: Any, row: NDArray[Any]) -> None:
    if np.isnan(best) or np.isnan(row).any():
        raise GroundingError("retrieval: a score is not a number (NaN); did the model diverge?")


def _summary(way: str, ranks: NDArray[np.int64]) -> dict[str, float]:
    result = {f"{way}_r{k}": float(100.0 * np.count_nonzero(ranks < k) / len(ranks)) for k in KS}
    result[f"{way}_medr"] = float(np.floor(np.median(ranks)) + 1)
    return result


def _array(value: Any) -> NDArray[Any]:
    if hasattr(value, "detach"):
        value = value.detach().cpu()
        # NumPy knows no bfloat16
        value = value.float() if str(value.dtype) == "torch.bfloat16" else value
    return np.asarray(value)
