"""All-pairs matching scores and the ranking loss, forward and backward, at the size of SCAN's training."""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from fairseq_grounding.criterions.image_text_triplet import triplet_loss
from fairseq_grounding.modules.cross_attention import DIRECTIONS, l2_normalise, region_word_scores

from .measure import IMPLEMENTATIONS, measure

TEMPERATURE = {"t2i": 9.0, "i2t": 4.0}


@dataclass
class Sizes:
    """Of the published training: 128 pairs, 36 regions, 1024 wide."""

    pairs: int = 128
    regions: int = 36
    width: int = 1024
    shortest: int = 8
    longest: int = 19


def make_inputs(sizes: Sizes, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Normalised regions (B,R,H) and words (B,W,H), both wanting gradients, and the captions' lengths (B,)."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(sizes.shortest, sizes.longest + 1, (sizes.pairs,), generator=generator)
    regions = l2_normalise(torch.randn(sizes.pairs, sizes.regions, sizes.width, generator=generator))
    words = l2_normalise(torch.randn(sizes.pairs, int(lengths.max()), sizes.width, generator=generator))
    return regions.requires_grad_(), words.requires_grad_(), lengths


def plain_scores(regions: Tensor, words: Tensor, lengths: Tensor, direction: str) -> Tensor:
    """One caption after another against all images, attended vectors formed (Lee et al., Eqs. 1-12)."""
    columns = []
    for caption, length in zip(words, lengths.tolist()):
        spoken = caption[:length].unsqueeze(0).repeat(len(regions), 1, 1)
        queries, keys = (spoken, regions) if direction == "t2i" else (regions, spoken)
        similarity = F.leaky_relu(torch.bmm(keys, queries.transpose(1, 2)), 0.1)
        similarity = l2_normalise(similarity).transpose(1, 2)
        attention = (similarity * TEMPERATURE[direction]).softmax(-1)
        attended = torch.bmm(attention, keys)
        cosine = (queries * attended).sum(-1) / (queries.norm(dim=-1) * attended.norm(dim=-1)).clamp(min=1e-8)
        columns.append(cosine.mean(1))
    return torch.stack(columns, 1)


def our_scores(regions: Tensor, words: Tensor, lengths: Tensor, direction: str) -> Tensor:
    """The same numbers as the package computes them."""
    region_mask = torch.ones(regions.shape[:2], dtype=torch.bool)
    word_mask = torch.arange(words.shape[1])[None] < lengths[:, None]
    return region_word_scores(
        regions, words, region_mask, word_mask, direction=direction, temperature=TEMPERATURE[direction]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("implementation", choices=IMPLEMENTATIONS)
    parser.add_argument("--direction", choices=DIRECTIONS, default="t2i")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    regions, words, lengths = make_inputs(Sizes())
    scores = our_scores if args.implementation == "ours" else plain_scores

    def work() -> None:
        regions.grad = words.grad = None
        triplet_loss(scores(regions, words, lengths, args.direction)).backward()

    print(json.dumps(measure(work, args.runs)))


if __name__ == "__main__":
    main()
