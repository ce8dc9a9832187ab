"""Relevance as weights of what a captioner says its next word from: LRP-inference (Sun et al., arXiv 2001.01037).

No gradient goes through any of these weights, as published.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ..modules.sampling import evaluating
from .architectures import description_of
from .explain import explain
from .layerwise import through_projection
from .lrp import Rules
from .tape import Tape

STATISTICS = ("mean", "positive-mean", "quantile")


@torch.no_grad()
def context_weights(
    model: Any, parts: Sequence[Tensor], carried: Sequence[Tensor], silent: Tensor, epsilon: float = 0.01
) -> tuple[Tensor, ...]:
    """Weights 1 + R / max|R| in [0, 2] for each part of the context, R being its relevance for the likeliest word.

    Args:
        model: a captioner whose description has ``say``; its dropout before the vocabulary is left out
        parts: P contexts, each part (P,.)
        carried: what else the word is said from, each (P,.)
        silent: (V,) True = words for which all weights are 1
        epsilon: of the epsilon rule

    Returns:
        weights of the parts' shapes; 1 where a part has no relevance
    """
    description = description_of(model)
    tape = Tape(Rules(epsilon), 1)
    nodes = [tape.input(part, total=False) for part in parts]
    output = description.say(tape, nodes, carried)
    layer = description.projection()
    logits = layer(output.value)
    held, words = logits.max(1, keepdim=True)
    relevance, _ = through_projection(layer, output.value[:, None], [(words, held)], Rules(epsilon))
    found = tape.propagate([(output, relevance, 0)], nodes)
    speaks = ~silent.to(words.device)[words]
    return tuple(1 + _normalised(part[:, 0]) * speaks for part in found)


@torch.no_grad()
def logit_weights(
    model: Any, sample: Mapping[str, Any], silent: Tensor, statistic: str = "mean", epsilon: float = 0.01
) -> tuple[Tensor, Tensor]:
    """The likeliest word at each place of the given captions, and 1 + s for its logit, each (B,T).

    s in [-1, 1] is a statistic over the image's regions of R / max|R|: the ``mean``, the mean of positive ones
    (``positive-mean``), or the 0.9-``quantile``. At padding and for *silent* words (V,) the weight is 1.
    """
    with evaluating(model):
        logits, _ = model(**sample["net_input"])
    words = logits.argmax(2)
    explanation = explain(model, sample, "lrp", token=words, epsilon=epsilon)
    regions = _normalised(explanation.regions)
    pad = model.words.pad()
    there = sample["net_input"]["src_tokens"].ne(pad)[:, None]
    if statistic == "quantile":
        s = regions.masked_fill(~there, torch.nan).nanquantile(0.9, 2)
    else:
        counted = there & (regions > 0) if statistic == "positive-mean" else there.expand_as(regions)
        s = regions.masked_fill(~counted, 0.0).sum(2) / counted.sum(2).clamp(min=1)
    speaks = ~silent.to(words.device)[words] & sample["target"].ne(pad)
    return words, 1 + s * speaks


def _normalised(relevance: Tensor) -> Tensor:
    most = relevance.abs().amax(-1, keepdim=True)
    return relevance / most.masked_fill(most == 0, 1.0)
