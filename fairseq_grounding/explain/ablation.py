"""Leaving out one region, or one earlier word, and looking at what the model says then."""

from __future__ import annotations

import torch

from .layerwise import Found
from .rows import Subject, padding_of


@torch.no_grad()
def explain_by_ablation(subject: Subject) -> Found:
    """By how much each word's number falls without a region (masked as if it were not there), or with a word's
    embedding set to 0. An image's only region is not masked: its features are set to 0.
    """
    value, real = subject.value, subject.real
    pad = padding_of(subject.model)
    mask = subject.net_input["src_tokens"].ne(pad)
    regions = value.new_zeros(*value.shape, mask.shape[1])
    for captions, region in subject.chunks(*mask.nonzero(as_tuple=True)):
        rows = subject.rows(captions)
        number = torch.arange(len(captions), device=captions.device)
        alone = mask[captions].sum(1) == 1
        rows.net_input["src_tokens"][number[~alone], region[~alone]] = pad
        rows.features[number[alone], region[alone]] = 0
        regions[captions, :, region] = (value[captions] - rows.numbers()).masked_fill(~real[captions], 0.0)
    words = value.new_zeros(*value.shape, subject.steps)
    for rows, at in subject.words_in_turn():
        for step in range(rows.words.shape[1]):
            others = rows.words.clone()
            others[:, step] = 0
            fall = value[at] - rows.numbers(words=others)
            words[at[0], at[1], step] = fall.masked_fill(~rows.real[:, step], 0.0)
    inputs = regions.sum(2) + words.sum(2)
    zero = torch.zeros_like(value)
    return Found(
        regions=regions,
        words=words,
        value=value,
        global_share=zero,
        sentinel_share=zero,
        ledger={"inputs": inputs, "bias": zero, "epsilon": zero, "rest": value - inputs},
    )
