"""CIDEr-D on token ids: the reward of self-critical training and a validation score.

Vedantam, Zitnick and Parikh, "CIDEr: Consensus-based image description evaluation", CVPR 2015, section 5
(CIDEr-D), with the details that published captioning results were computed with: the length in the Gaussian
penalty is the number of bigrams, and the end of the sentence is a token like any other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import GroundingError

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

ORDERS = 4
SIGMA = 6.0
SCALE = 10.0


class CiderD:
    """CIDEr-D against fixed references; build it with :meth:`from_references`.

    An n-gram is one 64-bit integer, exactly: (number of its first n-1 tokens among the known (n-1)-grams, its
    last token). The references' weighted vectors are computed once; :meth:`score` reads them and changes
    nothing, so that a reward costs the same after a million captions.
    """

    def __init__(
        self, grams: _Grams, log_images: float, idf: list[Floats], references: _References, first_row: Ints
    ) -> None:
        self._grams = grams
        self._log_images = log_images
        self._idf = idf
        self._references = references
        self._first_row = first_row

    @classmethod
    def from_references(
        cls,
        refs: Sequence[Sequence[Sequence[int]]],
        document_frequency: tuple[Any, Any, Any] | None = None,
    ) -> CiderD:
        """Weigh the references.

        *refs* ``[image][caption]`` are token ids with the end of sentence included: what is scored against.
        *document_frequency* is ``(ngrams (K, 4) padded with -1, count (K,), images)`` as in ``cider_df.npz``:
        in how many of *images* images each n-gram occurs. Without it, frequencies are counted on *refs*.
        Raises :class:`GroundingError` for an image without references and for negative ids.
        """
        per_image = np.array([len(captions) for captions in refs], dtype=np.int64)
        if len(per_image) == 0:
            raise GroundingError("CIDEr-D: there are no references")
        if per_image.min() == 0:
            raise GroundingError(f"CIDEr-D: image number {per_image.argmin()} has no reference caption")
        flat, lengths = _flatten([caption for captions in refs for caption in captions])
        known, known_lengths = flat, lengths
        if document_frequency is not None:
            ngrams, count, images = (np.asarray(part) for part in document_frequency)
            _check_document_frequency(ngrams, count, images)
            real = ngrams >= 0
            gram_lengths = real.sum(axis=1)
            known = np.concatenate([flat, ngrams[real].astype(np.int64)])
            known_lengths = np.concatenate([lengths, gram_lengths])
        grams = _Grams(known, known_lengths)

        image_of_row = np.repeat(np.arange(len(per_image)), per_image)
        sequences = _Positions(flat, lengths)
        codes = grams.codes(flat, sequences.left)
        frequency: list[Floats] = []
        if document_frequency is None:
            log_images = float(np.log(len(per_image)))
            image = image_of_row[sequences.sequence]
            for order, code in enumerate(codes):
                here = code >= 0
                seen = np.unique(image[here] * grams.sizes[order] + code[here])
                gram = seen % grams.sizes[order]
                frequency.append(_sums(gram, np.ones(len(gram)), grams.sizes[order]))
        else:
            log_images = float(np.log(float(images)))
            listed = _Positions(known[len(flat) :], gram_lengths)
            first = np.concatenate([[0], np.cumsum(gram_lengths)[:-1]]).astype(np.int64)
            for order, code in enumerate(grams.codes(known[len(flat) :], listed.left)):
                of_order = gram_lengths == order + 1
                total = np.zeros(grams.sizes[order])
                total[code[first[of_order]]] = count[of_order]
                frequency.append(total)
        idf = [log_images - np.log(np.maximum(1.0, total)) for total in frequency]
        references = _References(sequences, codes, idf, len(lengths))
        return cls(grams, log_images, idf, references, np.concatenate([[0], np.cumsum(per_image)]))

    def score(self, hypotheses: Sequence[Sequence[int]], image_index: Sequence[int] | Ints) -> Floats:
        """CIDEr-D (N,) of each of N hypotheses against all references of its image, 10 at most.

        *hypotheses* are token ids, the end of sentence included where the caption has ended; *image_index*
        (N,) are rows of the *refs* that :meth:`from_references` was given.
        """
        images = np.asarray(image_index, dtype=np.int64).reshape(-1)
        total = len(images)
        if len(hypotheses) != total:
            raise GroundingError(f"CIDEr-D: {len(hypotheses)} hypotheses but {total} image numbers")
        if total == 0:
            return np.zeros(0)
        if images.min() < 0 or images.max() >= len(self._first_row) - 1:
            raise GroundingError(f"CIDEr-D: image numbers must be from 0 to {len(self._first_row) - 2}")
        flat, lengths = _flatten(hypotheses)
        positions = _Positions(flat, lengths)
        rows_each = self._first_row[images + 1] - self._first_row[images]
        pair_start = np.concatenate([[0], np.cumsum(rows_each)])
        pair_hypothesis = np.repeat(np.arange(total), rows_each)
        pair_row = _ranges(self._first_row[images], rows_each)

        refs = self._references
        bigrams = np.maximum(lengths - 1, 0)
        difference = bigrams[pair_hypothesis] - refs.bigrams[pair_row]
        summed = np.zeros(len(pair_row))
        counted = _count_grams(flat, positions)
        known = self._grams.codes(flat, positions.left)
        for order, (where, count) in enumerate(counted):
            code = known[order][where]
            hypothesis = positions.sequence[where]
            # an n-gram that no image has weighs as much as one that a single image has
            weight = np.where(code >= 0, self._idf[order][code], self._log_images) * count.astype(np.float64)
            norm = np.sqrt(_sums(hypothesis, weight * weight, total))

            seen = code >= 0
            entry = np.repeat(np.flatnonzero(seen), rows_each[hypothesis[seen]])
            pair = _ranges(pair_start[hypothesis[seen]], rows_each[hypothesis[seen]])
            at, found = _find(refs.keys[order], pair_row[pair] * self._grams.sizes[order] + code[entry])
            theirs = refs.weights[order][at[found]]
            product = np.minimum(weight[entry[found]], theirs) * theirs
            similarity = _sums(pair[found], product, len(pair_row))
            norms = norm[pair_hypothesis] * refs.norms[order][pair_row]
            summed += np.divide(similarity, norms, out=similarity, where=norms > 0)
        summed *= np.exp(-(difference**2) / (2 * SIGMA**2))
        return _sums(pair_hypothesis, summed, total) / ORDERS / rows_each * SCALE


class _Positions:
    """Of every token in concatenated sequences: the sequence it is in, and how many tokens are left in it."""

    def __init__(self, flat: Ints, lengths: Ints) -> None:
        self.sequence = np.repeat(np.arange(len(lengths)), lengths)
        self.left = np.cumsum(lengths)[self.sequence] - np.arange(len(flat))


class _Grams:
    """Numbers the n-grams of some sequences; ``sizes[n-1]`` is how many n-grams there are (at least 1)."""

    def __init__(self, flat: Ints, lengths: Ints) -> None:
        left = _Positions(flat, lengths).left
        self._tables: list[Ints] = []
        self._tables.append(np.unique(flat))
        self._tokens = max(1, len(self._tables[0]))
        token = np.searchsorted(self._tables[0], flat)
        code = token
        for order in range(1, ORDERS):
            start = np.flatnonzero(left > order)
            table, inverse = np.unique(code[start] * self._tokens + token[start + order], return_inverse=True)
            self._tables.append(table)
            code = np.full(len(flat), -1)
            code[start] = inverse
        self.sizes = [max(1, len(table)) for table in self._tables]

    def codes(self, flat: Ints, left: Ints) -> list[Ints]:
        """For n = 1..4, the number of the n-gram that starts at each position, -1 where unknown."""
        at, found = _find(self._tables[0], flat)
        token = np.where(found, at, -1)
        codes = [token]
        for order in range(1, ORDERS):
            start = np.flatnonzero(left > order)
            start = start[(codes[-1][start] >= 0) & (token[start + order] >= 0)]
            at, found = _find(self._tables[order], codes[-1][start] * self._tokens + token[start + order])
            code = np.full(len(flat), -1)
            code[start[found]] = at[found]
            codes.append(code)
        return codes


class _References:
    """The references' weighted n-gram vectors as sparse rows: sorted keys (row, n-gram) and their weights."""

    def __init__(self, positions: _Positions, codes: list[Ints], idf: list[Floats], rows: int) -> None:
        self.keys: list[Ints] = []
        self.weights: list[Floats] = []
        self.norms: list[Floats] = []
        for code, scale in zip(codes, idf):
            here = code >= 0
            keys, times = np.unique(positions.sequence[here] * len(scale) + code[here], return_counts=True)
            weights = times * scale[keys % len(scale)]
            self.keys.append(keys)
            self.weights.append(weights)
            self.norms.append(np.sqrt(_sums(keys // len(scale), weights * weights, rows)))
        self.bigrams = np.bincount(positions.sequence[positions.left > 1], minlength=rows)


def _count_grams(flat: Ints, positions: _Positions) -> list[tuple[Ints, Ints]]:
    """For n = 1..4, the distinct n-grams within each sequence: a position of each, and its count."""
    tokens, token = np.unique(flat, return_inverse=True)
    code = positions.sequence
    counted = []
    for order in range(ORDERS):
        start = np.flatnonzero(positions.left > order)
        _, first, inverse, times = np.unique(
            code[start] * max(1, len(tokens)) + token[start + order],
            return_index=True,
            return_inverse=True,
            return_counts=True,
        )
        counted.append((start[first], times))
        code = np.full(len(flat), -1)
        code[start] = inverse
    return counted


def _find(table: Ints, keys: Ints) -> tuple[Ints, NDArray[np.bool_]]:
    """Where each key is in the sorted *table*, and whether it is there at all."""
    if len(table) == 0:
        return np.zeros(len(keys), dtype=np.int64), np.zeros(len(keys), dtype=bool)
    at = np.minimum(np.searchsorted(table, keys), len(table) - 1)
    return at, table[at] == keys


def _sums(index: Ints, values: Floats, size: int) -> Floats:
    # bincount of nothing is a sum of integers
    return np.bincount(index, values, minlength=size).astype(np.float64, copy=False)


def _ranges(start: Ints, count: Ints) -> Ints:
    """start[0], start[0]+1, ... (count[0] of them), start[1], ..."""
    before = np.cumsum(count) - count
    return np.arange(int(count.sum())) + np.repeat(start - before, count)


def _flatten(sequences: Sequence[Sequence[int]]) -> tuple[Ints, Ints]:
    arrays = [np.asarray(sequence, dtype=np.int64).reshape(-1) for sequence in sequences]
    flat = np.concatenate([np.zeros(0, dtype=np.int64), *arrays])
    if len(flat) and flat.min() < 0:
        raise GroundingError("CIDEr-D: a token id is negative; leave padding out")
    return flat, np.array([len(array) for array in arrays], dtype=np.int64)


def _check_document_frequency(ngrams: NDArray[Any], count: NDArray[Any], images: NDArray[Any]) -> None:
    if ngrams.ndim != 2 or ngrams.shape[1] != ORDERS or count.shape != (len(ngrams),) or images.size != 1:
        raise GroundingError(
            f"CIDEr-D: document frequencies need ngrams (K, 4), count (K,) and one number of images; "
            f"got {ngrams.shape}, {count.shape}, {images.shape}"
        )
    real = ngrams >= 0
    if not real[:, 0].all() or (real[:, 1:] & ~real[:, :-1]).any():
        raise GroundingError("CIDEr-D: in document frequencies, -1 may only follow an n-gram's tokens")
    if not images.item() >= 1:
        raise GroundingError(f"CIDEr-D: document frequencies over {images.item()} images; there must be one")
