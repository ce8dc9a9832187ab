"""In how many training images each n-gram occurs, as CIDEr-D weighs n-grams."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

MAX_N = 4


def document_frequency(captions: Sequence[np.ndarray], image_ids: Sequence[str]) -> tuple[np.ndarray, np.ndarray, int]:
    """Count the n-grams of 1 to 4 tokens; one counts once an image, however often its captions hold it.

    Args:
        captions: the token ids (T,) of each caption, whole, with EOS, which is a token like others.
        image_ids: the image of each caption.

    Returns:
        n-grams (K,4) int32, shorter ones padded with -1, sorted by length and then by token ids;
        images with that n-gram (K,) int64; number of images.
    """
    number: dict[str, int] = {}
    images = np.array([number.setdefault(image_id, len(number)) for image_id in image_ids], dtype=np.int64)
    sizes = np.array([len(caption) for caption in captions], dtype=np.int64)
    tokens = np.concatenate([np.asarray(caption, dtype=np.int64) for caption in captions])
    image = images.repeat(sizes)
    # tokens from each place to the end of its caption: an n-gram starts where at least n are left
    left = np.concatenate([np.arange(size, 0, -1) for size in sizes])
    vocabulary = int(tokens.max()) + 1

    all_ngrams, all_counts = [], []
    starts = np.arange(len(tokens))
    # the n-gram at each start as its rank among the n-grams: small enough to make one integer with a further
    # token, whatever the size of the vocabulary
    rank = np.zeros(len(tokens), dtype=np.int64)
    for n in range(1, MAX_N + 1):
        kept = left[starts] >= n
        starts = starts[kept]
        if not len(starts):
            break
        _, first, rank = np.unique(
            rank[kept] * vocabulary + tokens[starts + n - 1], return_index=True, return_inverse=True
        )
        ngrams = np.full((len(first), MAX_N), -1, dtype=np.int32)
        for column in range(n):
            ngrams[:, column] = tokens[starts[first] + column]
        once = np.unique(rank * len(number) + image[starts])
        all_ngrams.append(ngrams)
        all_counts.append(np.bincount(once // len(number), minlength=len(first)))
    return np.concatenate(all_ngrams), np.concatenate(all_counts), len(number)
