"""Leaving out one region, or one earlier word, and looking at what the captioner says then."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from .asked import Asked
from .gradients import chunk_rows, row_chunks
from .layerwise import Found
from .rows import Rows


@torch.no_grad()
def explain_by_ablation(model: Any, net_input: Mapping[str, Tensor], logits: Tensor, asked: Asked) -> Found:
    """By how much each word's number falls without a region (masked as if it were not there), or with a word's
    embedding set to 0. An image's only region is not masked: its features are set to 0.
    """
    pad = model.decoder.dictionary.pad()
    mask = net_input["src_tokens"].ne(pad)
    value = asked.values(logits).masked_fill(~asked.real, 0.0)
    regions = value.new_zeros(*value.shape, mask.shape[1])
    captions, left_out = mask.nonzero(as_tuple=True)
    places = torch.tensor(asked.places, device=mask.device)
    ends = (asked.real * places).max(1).values
    size = chunk_rows(model, net_input, asked)
    for begin in range(0, len(captions), size):
        mine, region = captions[begin : begin + size], left_out[begin : begin + size]
        rows = Rows(model, net_input, mine, ends[mine])
        number = torch.arange(len(mine), device=mine.device)
        alone = mask[mine].sum(1) == 1
        rows.net_input["src_tokens"][number[~alone], region[~alone]] = pad
        rows.features[number[alone], region[alone]] = 0
        all_logits = rows.all_logits()
        without = asked.values(all_logits[:, places.clamp(max=all_logits.shape[1] - 1)], mine)
        regions[mine, :, region] = (value[mine] - without).masked_fill(~asked.real[mine], 0.0)
    words = value.new_zeros(*value.shape, max(asked.places) + 1)
    for rows, at in row_chunks(model, net_input, asked):
        for step in range(rows.words.shape[1]):
            others = rows.words.clone()
            others[:, step] = 0
            fall = value[at] - asked.values(rows.logits(words=others), at)
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
