"""Phrases of 1,000 captions: the Markov random field of DVSA's alignment, maximised for all captions at once."""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass

import torch
from torch import Tensor

from fairseq_grounding.modules.alignment import smooth_alignment

from .measure import IMPLEMENTATIONS, measure


@dataclass
class Sizes:
    """1,000 captions of 20 words over 36 regions."""

    captions: int = 1000
    shortest: int = 20
    longest: int = 20
    regions: int = 36
    beta: float = 1.0


def make_inputs(sizes: Sizes, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Scores (B,W,R) and the captions' lengths (B,)."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(sizes.shortest, sizes.longest + 1, (sizes.captions,), generator=generator)
    return torch.randn(sizes.captions, sizes.longest, sizes.regions, generator=generator), lengths


def plain_paths(scores: Tensor, lengths: Tensor, beta: float) -> list[list[int]]:
    """One caption after another in plain Python, with the same shortcut: a word stays, or goes where it is best."""
    paths = []
    for table, length in zip(scores.tolist(), lengths.tolist()):
        total = table[0]
        previous = []
        for row in table[1:length]:
            best = max(total)
            where = total.index(best)
            origins, sums = [], []
            for region, (before, score) in enumerate(zip(total, row)):
                stays = before + beta > best
                origins.append(region if stays else where)
                sums.append(score + (before + beta if stays else best))
            previous.append(origins)
            total = sums
        path = [total.index(max(total))]
        for origins in reversed(previous):
            path.append(origins[path[-1]])
        paths.append(path[::-1])
    return paths


def our_paths(scores: Tensor, lengths: Tensor, beta: float) -> list[list[int]]:
    """The same as the package computes it."""
    word_mask = torch.arange(scores.shape[1])[None] < lengths[:, None]
    region_mask = torch.ones(len(scores), scores.shape[2], dtype=torch.bool)
    paths, _ = smooth_alignment(scores, word_mask, region_mask, beta)
    return [path[:length] for path, length in zip(paths.tolist(), lengths.tolist())]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("implementation", choices=IMPLEMENTATIONS)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    sizes = Sizes()
    scores, lengths = make_inputs(sizes)
    paths = our_paths if args.implementation == "ours" else plain_paths
    print(json.dumps(measure(lambda: paths(scores, lengths, sizes.beta), args.runs)))


if __name__ == "__main__":
    main()
