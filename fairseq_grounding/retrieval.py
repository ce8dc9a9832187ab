"""Ranking a whole split with one matching model or several: the score of every image with every caption."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from fairseq.data import data_utils
from torch import Tensor
from tqdm import tqdm

from .checkpoints import load_matching_model
from .data.grounded_caption_dataset import GroundedCaptionDataset
from .modules.all_pairs import CAPTION_BLOCK, CaptionBlock, score_blocks
from .modules.matching import Encoded
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
        regions, region_mask = _embedded_images(teacher, dataset, images, device, f"images{label}")
        with tqdm(total=captions, desc=f"captions{label}", disable=None) as bar:
            start = 0
            blocks = _embedded_captions(teacher, dataset, captions, device)
            for scores in score_blocks(teacher.model, regions, region_mask, blocks):
                total[:, start : start + scores.shape[1]] += scores
                start += scores.shape[1]
                bar.update(scores.shape[1])
        # before the next model's take as much room again
        del regions, region_mask
        teacher.model.cpu()
    total /= len(models)
    return total


# a model embeds images and captions together: each pass hands it the least of the other side


def _embedded_images(
    teacher: Teacher, dataset: GroundedCaptionDataset, images: int, device: torch.device, label: str
) -> tuple[Tensor, Tensor]:
    """Embedded regions (I,R,H) of the first images, and their mask (I,R)."""
    most = int(dataset.region_counts[:images].max())
    held = None
    with tqdm(total=images, desc=label, disable=None) as bar:
        for first in range(0, images, IMAGE_BLOCK):
            block = list(range(first, min(first + IMAGE_BLOCK, images)))
            net_input = dataset.collater(block)["net_input"]
            word = torch.tensor([[dataset.dictionary.unk(), dataset.dictionary.eos()]] * len(block))
            encoded = _encode(teacher, net_input, word, torch.zeros_like(word), device)
            width = encoded.regions.shape[1]
            if held is None:
                # one tensor from the start: a list of parts would have to be copied together; a model may add columns
                size = images, most + width - net_input["features"].shape[1]
                held = encoded.regions.new_zeros(*size, encoded.regions.shape[2]), encoded.region_mask.new_zeros(size)
            held[0][block, :width] = encoded.regions
            held[1][block, :width] = encoded.region_mask
            bar.update(len(block))
    assert held is not None
    return held


def _embedded_captions(
    teacher: Teacher, dataset: GroundedCaptionDataset, captions: int, device: torch.device
) -> Iterator[CaptionBlock]:
    most = dataset.max_tokens - 1
    pad, unk, eos = dataset.dictionary.pad(), dataset.dictionary.unk(), dataset.dictionary.eos()
    for first in range(0, captions, CAPTION_BLOCK):
        block = range(first, min(first + CAPTION_BLOCK, captions))
        tokens = [_cut(dataset.split.tokens[number], most, eos) for number in block]
        nouns = [_cut(dataset.split.nouns[number], most, 0) for number in block]
        net_input = {
            "src_tokens": torch.full((len(block), 1), unk),
            "features": torch.zeros(1, 1, dataset.store.feature_size),
            "boxes": torch.tensor([[[0.0, 0.0, 1.0, 1.0]]]),
            "image_index": torch.zeros(len(block), dtype=torch.long),
        }
        target, noun_mask = data_utils.collate_tokens(tokens, pad), data_utils.collate_tokens(nouns, 0)
        encoded = _encode(teacher, net_input, target, noun_mask, device)
        yield CaptionBlock(encoded.words, encoded.word_mask, encoded.noun_mask)


def _encode(
    teacher: Teacher, net_input: dict[str, Tensor], target: Tensor, noun_mask: Tensor, device: torch.device
) -> Encoded:
    moved = {name: tensor.to(device) for name, tensor in net_input.items()}
    return teacher.encode({"net_input": moved, "target": target.to(device), "noun_mask": noun_mask.to(device)})


def _cut(tokens: Tensor, most: int, end: int) -> Tensor:
    """A caption's first *most* words, and *end*."""
    words = tokens[:-1][:most].long()
    return torch.cat([words, words.new_tensor([end])])
