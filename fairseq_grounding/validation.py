"""Metrics over a whole validation split, which no sum over batches gives."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import sacrebleu
import torch
from fairseq.data import Dictionary

from .data.noun_files import noun_lookup
from .modules.all_pairs import CAPTION_BLOCK, CaptionBlock, padded, score_blocks
from .modules.matching import Encoded, MatchingModel
from .scoring.cider import CiderD
from .scoring.grounding import GroundingScorer
from .scoring.retrieval import recall_at_k

HALLUCINATION = ("hallucination_rate", "object_precision")
# as many as the published code takes on Flickr30k where it detects hallucinated words
FREQUENT = 20


def _gather(mine: dict[int, Any]) -> dict[int, Any]:
    """The entries of all processes."""
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return mine
    parts: list[Any] = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(parts, mine)
    return {key: value for part in parts for key, value in part.items()}


class SplitPass:
    """One pass over a split: what each batch leaves, and the metrics once all of it is there.

    Args:
        expected: captions (or images) in the split
    """

    def __init__(self, expected: int):
        self.expected = expected
        self.seen = 0
        self.images: dict[int, Any] = {}
        self.captions: dict[int, Any] = {}
        self.generated: dict[int, Any] = {}
        self.read: dict[int, Any] = {}
        self.result: dict[str, float] = {}

    def count(self, items: int, compute: Callable[[SplitPass], dict[str, float]]) -> None:
        """Note that all processes together saw *items* more; on the last, compute the metrics."""
        self.seen += items
        if self.seen >= self.expected and not self.result:
            for name in ("images", "captions", "generated", "read"):
                setattr(self, name, _gather(getattr(self, name)))
            self.result = compute(self)
            self.images, self.captions, self.generated, self.read = {}, {}, {}, {}

    @property
    def complete(self) -> bool:
        """Whether the whole split was seen."""
        return self.seen >= self.expected

    def add_encoded(self, encoded: Encoded, image_numbers: np.ndarray, caption_numbers: list[int]) -> None:
        """Keep a batch's embeddings: image_numbers (I,), caption_numbers (C,) and the image of each caption."""
        for row, number in enumerate(image_numbers.tolist()):
            self.images[number] = encoded.regions[row, encoded.region_mask[row]].cpu()
        for row, number in enumerate(caption_numbers):
            mask = encoded.word_mask[row]
            self.captions[number] = encoded.words[row, mask].cpu(), encoded.noun_mask[row, mask].cpu()


def retrieval_metrics(
    model: MatchingModel, images: dict[int, Any], captions: dict[int, Any], image_of_caption: np.ndarray
) -> dict[str, float]:
    """Recall at 1, 5 and 10 both ways, and their sum, over all images and captions that were kept."""
    image_numbers, caption_numbers = sorted(images), sorted(captions)
    place = {number: row for row, number in enumerate(image_numbers)}
    blocks = (
        _caption_block([captions[n] for n in caption_numbers[start : start + CAPTION_BLOCK]])
        for start in range(0, len(caption_numbers), CAPTION_BLOCK)
    )
    scores = list(score_blocks(model, *padded([images[n] for n in image_numbers]), blocks))
    owners = np.array([place[int(image_of_caption[n])] for n in caption_numbers])
    recalls = recall_at_k(np.concatenate(scores, 1), owners)
    return {name: float(value) for name, value in recalls.items()}


def _caption_block(captions: list[tuple[torch.Tensor, torch.Tensor]]) -> CaptionBlock:
    words, word_mask = padded([words for words, _ in captions])
    return CaptionBlock(words, word_mask, padded([nouns for _, nouns in captions])[0])


def caption_metrics(
    generated: dict[int, list[int]],
    references: dict[int, list[list[int]]],
    document_frequency: tuple[np.ndarray, np.ndarray, int],
) -> dict[str, float]:
    """CIDEr-D and BLEU-4 of one caption an image, on token ids; both as fractions (0.6, not 60).

    Args:
        generated: token ids of each image's caption, end symbol included
        references: the same for each image's own captions
        document_frequency: as the prepared folder holds it
    """
    numbers = sorted(generated)
    scorer = CiderD.from_references([references[n] for n in numbers], document_frequency)
    cider = scorer.score([generated[n] for n in numbers], np.arange(len(numbers)))
    spoken = [" ".join(map(str, generated[n][:-1])) for n in numbers]
    most = max(len(references[n]) for n in numbers)
    # sacrebleu wants the k-th reference of all images together, and None where an image has fewer
    columns: list[Any] = [
        [" ".join(map(str, references[n][k][:-1])) if k < len(references[n]) else None for n in numbers]
        for k in range(most)
    ]
    bleu = sacrebleu.corpus_bleu(spoken, columns, tokenize="none", force=True, lowercase=False)
    return {"cider": float(cider.mean()), "bleu4": bleu.score / 100}


def grounding_metrics(objects: dict[str, Any], rows: list[dict[str, Any]]) -> dict[str, float]:
    """F1_all and F1_loc of generated rows, attention accuracy of rows that were read; 0 where undefined."""
    scores = GroundingScorer(objects, protocol="gvd").score(rows)
    names = ("attention_accuracy", "f1_all", "f1_loc")
    return {name: float(scores.get(name) or 0.0) for name in names}


def hallucination_metrics(
    generated: dict[int, list[int]],
    references: dict[int, list[list[int]]],
    words: Dictionary,
    noun_table: Mapping[str, tuple[int, int]],
) -> dict[str, float]:
    """How far nouns that were written are in the captions of the image; a lower bound, since captions leave things out
    and another form or name of the same thing counts as wrong. Images and words as in :func:`caption_metrics`.

    Args:
        words: the captions' dictionary
        noun_table: times seen and times tagged a noun in training

    Returns:
        ``hallucination_rate``: the nouns that no reference has, over all nouns; ``object_precision``: of each of the
        :data:`FREQUENT` nouns that training had most, the captions rightly with it over those with it, and the mean
        over those that were written (the "mAP" of Sun et al., arXiv 2001.01037, is this precision). 0 where undefined
    """
    noun = noun_lookup(words.symbols, noun_table, words.nspecial)
    order = sorted((number for number in range(len(words)) if noun[number]), key=lambda number: -words.count[number])
    frequent = set(order[:FREQUENT])
    said: Counter[int] = Counter()
    right: Counter[int] = Counter()
    mentions = wrong = 0
    for image, tokens in generated.items():
        there = {token for caption in references[image] for token in caption}
        # a word that the dictionary lacks has a number past its end
        nouns = [token for token in tokens if token < len(noun) and noun[token]]
        mentions += len(nouns)
        wrong += sum(token not in there for token in nouns)
        for token in frequent.intersection(nouns):
            said[token] += 1
            right[token] += token in there
    precision = sum(right[token] / said[token] for token in said) / max(1, len(said))
    return {"hallucination_rate": wrong / max(1, mentions), "object_precision": precision}
