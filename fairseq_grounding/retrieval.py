"""Ranking a whole split with one matching model or several: the score of every image with every caption."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from .checkpoints import load_matching_model
from .data.grounded_caption_dataset import GroundedCaptionDataset
from .modules.all_pairs import CAPTION_BLOCK, CaptionBlock, padded, score_blocks
from .modules.teacher import Teacher

# images whose features are in memory at once; what stays of them is as wide as the joint space
IMAGE_BLOCK = 64


def load_ensemble(
    paths: Sequence[str | os.PathLike[str]], dataset: GroundedCaptionDataset, flag: str = "--path"
) -> list[Teacher]:
    """The matching models of some checkpoints, each reading the words of *dataset* by name.

    Raises:
        GroundingError: a file is no checkpoint of a matching model, its features differ in width from those of the
            region store, or it knows less than 95% of the words of the training captions
    """
    return [
        Teacher(
            load_matching_model(path, flag),
            dataset.dictionary,
            dataset.store.feature_size,
            f"{flag} {os.fspath(path)}",
        )
        for path in paths
    ]


@torch.no_grad()
def score_matrix(
    models: Sequence[Teacher], dataset: GroundedCaptionDataset, images: int, device: torch.device
) -> np.ndarray:
    """The scores of the first *images* images with all their captions, the mean of the models' scores.

    An ensemble averages scores, as SCAN's t2i + i2t does (Lee et al., ECCV 2018, Table 1). Each model embeds each
    image and each caption once. Held at a time are this matrix and one model's embedded regions; of words, one
    block.

    Args:
        models: see :func:`load_ensemble`
        dataset: with ``items`` ``image``
        images: from the first of the split
        device: to compute on

    Returns:
        (I,C) float32
    """
    captions = int(dataset.first_caption[images])
    total = np.zeros((images, captions), dtype=np.float32)
    for number, teacher in enumerate(models, start=1):
        teacher.model.to(device)
        label = f" {number} of {len(models)}" if len(models) > 1 else ""
        with tqdm(total=images, desc=f"images{label}", disable=None) as bar:
            embedded = []
            for first in range(0, images, IMAGE_BLOCK):
                block = range(first, min(first + IMAGE_BLOCK, images))
                embedded += _embedded_images(teacher, dataset, list(block), device)
                bar.update(len(block))
        with tqdm(total=captions, desc=f"captions{label}", disable=None) as bar:
            start = 0
            blocks = _embedded_captions(teacher, dataset, captions, device)
            for scores in score_blocks(teacher.model, embedded, blocks):
                total[:, start : start + scores.shape[1]] += scores
                start += scores.shape[1]
                bar.update(scores.shape[1])
        teacher.model.cpu()
    total /= len(models)
    return total


def _embedded_images(
    teacher: Teacher, dataset: GroundedCaptionDataset, images: list[int], device: torch.device
) -> list[Tensor]:
    net_input = dataset.collater(images)["net_input"]
    regions = teacher.model.encode_regions(net_input["features"].to(device), net_input["boxes"].to(device))
    return [row[: int(count)].clone() for row, count in zip(regions, dataset.region_counts[images])]


def _embedded_captions(
    teacher: Teacher, dataset: GroundedCaptionDataset, captions: int, device: torch.device
) -> Iterator[CaptionBlock]:
    most = dataset.max_tokens - 1
    for first in range(0, captions, CAPTION_BLOCK):
        block = range(first, min(first + CAPTION_BLOCK, captions))
        # the end symbol is no word
        tokens, word_mask = padded([dataset.split.tokens[number][:-1][:most].long() for number in block])
        nouns = padded([dataset.split.nouns[number][:-1][:most] for number in block])[0]
        tokens = teacher.table[tokens].masked_fill(~word_mask, teacher.model.words.pad()).to(device)
        word_mask = word_mask.to(device)
        words = teacher.model.encode_words(tokens, word_mask) * word_mask[:, :, None]
        yield CaptionBlock(words, word_mask, nouns.bool().to(device) & word_mask)
