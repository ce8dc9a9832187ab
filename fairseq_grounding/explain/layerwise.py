"""Relevance of regions and words, layer by layer, for all words of all captions at once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import GroundingError
from . import lrp
from .architectures import Replay, description_of, model_name
from .asked import Asked
from .tape import Node, Tape

# of float32 and float64: how far a description's logits may be from the model's, as a share of the largest
_TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-6}


@dataclass
class Found:
    """Relevance for K words: regions (B,K,R), words (B,K,S) of S steps, value and shares (B,K); ledger, layers and
    heads as an Explanation has them."""

    regions: Tensor
    words: Tensor
    value: Tensor
    global_share: Tensor
    sentinel_share: Tensor
    ledger: dict[str, Tensor] = field(default_factory=dict)
    layers: dict[str, tuple[Tensor, Tensor]] = field(default_factory=dict)
    heads: Tensor | None = None


@torch.no_grad()
def propagate(model: Any, net_input: Mapping[str, Tensor], logits: Tensor, asked: Asked, rules: lrp.Rules) -> Found:
    """Layer-wise relevance of what *asked* asks.

    Args:
        model: in evaluation mode
        net_input: the batch
        logits: the model's own (B,K,V) at the places asked for
        asked: with rivals met
        rules: epsilon, bias policy, alpha

    Raises:
        GroundingError: the model, or a layer of it, has no rules; or its description computes other logits
    """
    description = description_of(model)
    tape = Tape(rules, len(asked.places))
    replay = description.replay(tape, net_input, asked.places)
    layer = description.projection()
    read = torch.stack([node.value for node in replay.outputs], 1)
    _same(model, layer(read), logits, asked.real)

    seeds, kept = through_projection(layer, read, asked.seeds(logits), rules)
    passed = [*replay.global_vector, *replay.sentinel, *replay.heads]
    relevance = tape.propagate(
        [(node, seeds[:, None, number], number) for number, node in enumerate(replay.outputs)],
        [*replay.regions, *replay.words, *passed],
    )
    by_node = dict(zip([*replay.regions, *replay.words, *passed], relevance))
    layers = dict(tape.ledger)
    if not rules.redistributes:
        layers["output projection"] = kept
    heads = _by_head(tape, replay, by_node) if replay.heads else None
    regions = sum((by_node[node] for node in replay.regions[1:]), by_node[replay.regions[0]])
    words = _of_words(replay, by_node)
    zero = words.new_zeros(words.shape[:2])
    value = asked.values(logits).masked_fill(~asked.real, 0.0)
    ledger = {
        "inputs": regions.sum(2) + words.sum(2),
        "bias": sum((bias for bias, _ in layers.values()), zero),
        "epsilon": sum((epsilon for _, epsilon in layers.values()), zero),
    }
    ledger["rest"] = value - sum(ledger.values(), zero)
    return Found(
        regions=regions,
        words=words,
        value=value,
        global_share=sum((by_node[node].flatten(2).sum(2) for node in replay.global_vector), zero),
        sentinel_share=sum((by_node[node].flatten(2).sum(2) for node in replay.sentinel), zero),
        ledger=ledger,
        layers=layers,
        heads=heads,
    )


def _same(model: Any, described: Tensor, logits: Tensor, real: Tensor) -> None:
    apart = (described - logits)[real].abs().max()
    if not apart <= _TOLERANCE.get(logits.dtype, 1e-2) * (1 + logits[real].abs().max()):
        raise GroundingError(
            f"lrp: the rules for {model_name(model)} describe another forward pass than this model's (logits differ by"
            f" {float(apart):.3g}); choose a method of gradients, or ablation"
        )


def through_projection(
    layer: nn.Linear, read: Tensor, seeds: list[tuple[Tensor, Tensor]], rules: lrp.Rules
) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """Relevance of what the vocabulary projection reads (B,K,O), and what its bias and epsilon keep, two (B,K).

    Of the V outputs only those that hold relevance are looked at.
    """
    relevance = torch.zeros_like(read)
    bias_part, epsilon_part = (read.new_zeros(read.shape[:2]) for _ in range(2))
    for words, held in seeds:
        weight = layer.weight[words]
        bias = torch.zeros_like(held) if layer.bias is None else layer.bias[words]
        scale = lrp.quotient(held, (weight * read).sum(2) + bias, rules.epsilon)
        by_bias = bias * scale
        by_epsilon = held - scale * (weight * read).sum(2) - by_bias
        relevance += weight * read * scale[:, :, None]
        bias_part += by_bias
        epsilon_part += by_epsilon
    if rules.redistributes:
        relevance += ((bias_part + epsilon_part) / read.shape[2])[:, :, None]
    return relevance, (bias_part, epsilon_part)


def _of_words(replay: Replay, relevance: dict[Node, Tensor]) -> Tensor:
    """(B,K,S): one node for each step, or one for all of them."""
    found = [relevance[node] for node in replay.words]
    return found[0] if found[0].dim() == 3 else torch.stack(found, 2)


def _by_head(tape: Tape, replay: Replay, relevance: dict[Node, Tensor]) -> Tensor:
    """(B,K,M,R): what each head read, on its own the rest of the way to the regions."""
    heads = []
    for number in range(replay.number_of_heads):
        seeds = []
        for node in replay.heads:
            own = torch.zeros_like(relevance[node]).unflatten(-1, (replay.number_of_heads, -1))
            own[..., number, :] = relevance[node].unflatten(-1, (replay.number_of_heads, -1))[..., number, :]
            seeds.append((node, own.flatten(-2), 0))
        found = tape.propagate(seeds, replay.regions)
        heads.append(sum(found[1:], found[0]))
    return torch.stack(heads, 2)
