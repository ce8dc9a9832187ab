"""``explain(model, sample, method)``: what spoke for each word of a caption, and what against it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ..errors import GroundingError
from ..modules.matching import MatchingModel
from ..modules.wrapped import unwrap
from . import gradients
from .ablation import explain_by_ablation
from .architectures import model_name
from .asked import TARGETS, Asked
from .explanation import Explanation
from .layerwise import Found, propagate
from .lrp import Rules
from .matching import MatchingSubject, explain_matching
from .rows import CaptionerSubject, padding_of

METHODS = ("lrp", *gradients.METHODS, "ablation", "attention")


def explain(
    model: Any,
    sample: Mapping[str, Any],
    method: str = "lrp",
    *,
    target: str = "logit",
    token: int | Tensor | None = None,
    epsilon: float = 0.01,
    bias: str = "absorb",
    alpha: float | None = None,
    steps: int = 32,
    positions: Sequence[int] | None = None,
    readout: str = "normalised",
) -> Explanation:
    """Explain every word of every caption of a batch.

    Args:
        model: a captioner; ``lrp`` needs a description of its layers (:mod:`.architectures`), the others none. Or a
            matching model: then each word's similarity with the regions that it attends to is explained, ``lrp`` is
            not there, and *target* and *token* are left as they are
        sample: a batch as the data set hands it out, on the model's device: ``net_input`` with
            ``prev_output_tokens``, and ``target`` (B,T), padding after the end; ``id`` and ``image_ids``, where they
            are there, name captions in errors
        method: one of :data:`METHODS`
        target: what is explained: a word's ``logit``, ``margin`` (minus the strongest other word's) or ``probability``
        token: another word to explain in place of the target: a number, or (B,T)
        epsilon, bias, alpha: of lrp, see :class:`~fairseq_grounding.explain.lrp.Rules`
        steps: of integrated_gradients: points on the path
        positions: explain these words alone, 0 the first of a caption; every caption must have them
        readout: of matching models, how words attend: ``normalised`` or ``similarity``

    Returns:
        an :class:`Explanation` in the model's type, on its device; the model's mode and gradients are left alone

    Raises:
        GroundingError: an unknown or unfit method, a caption without any region, features that are not finite, a
            position past a caption's end, a token that is no word
    """
    if method not in METHODS:
        raise GroundingError(f"method {method!r}: it can be {', '.join(METHODS)}")
    if target not in TARGETS:
        raise GroundingError(f"target {target!r}: it can be {', '.join(TARGETS)}")
    if steps < 1:
        raise GroundingError(f"steps {steps}: give at least 1")
    rules = Rules(epsilon, bias, alpha)
    model = unwrap(model)
    if sample.get("target") is None:
        raise GroundingError("the batch holds no captions to explain (--items image hands out none)")
    net_input = _checked_input(model, sample)
    if isinstance(model, MatchingModel) and (target != "logit" or token is not None):
        raise GroundingError(
            f"{model_name(model)} is a matching model and gives words no logits: leave target and token"
        )
    asked = _asked(model, sample, target, token, positions)
    training = model.training
    model.eval()
    try:
        # cuDNN runs no recurrent layer backwards in evaluation mode
        with torch.backends.cudnn.flags(enabled=False):
            if isinstance(model, MatchingModel):
                nouns = sample.get("noun_mask", torch.zeros_like(sample["target"]))
                subject = MatchingSubject(model, net_input, sample["target"], nouns, readout, asked.places)
                found = explain_matching(subject, method, steps)
                asked = Asked("similarity", list(range(subject.steps)), sample["target"], subject.real)
            else:
                found = _found(model, net_input, asked, method, rules, steps)
    finally:
        model.train(training)
    return _spread(found, asked, method, sample["target"].shape[1])


def _found(model: Any, net_input: dict[str, Tensor], asked: Asked, method: str, rules: Rules, steps: int) -> Found:
    with torch.no_grad():
        all_logits, extra = model(**net_input)
    logits = all_logits[:, asked.places]
    asked.meet(logits)
    if method == "lrp":
        return propagate(model, net_input, logits, asked, rules)
    if method == "attention":
        return _attention(model, extra, logits, asked)
    subject = CaptionerSubject(model, net_input, logits, asked)
    if method == "ablation":
        return explain_by_ablation(subject)
    return gradients.explain_by_gradients(subject, method, steps)


def _attention(model: Any, extra: Any, logits: Tensor, asked: Asked) -> Found:
    """The captioner's own attention; ``sentinel`` beside ``attn`` is the sentinel's weight, [(B,T)]."""
    attention = extra.get("attn") if isinstance(extra, Mapping) else None
    if not attention or attention[0] is None:
        raise GroundingError(f"attention: {model_name(model)} returns none; choose another method")
    value = asked.values(logits).masked_fill(~asked.real, 0.0)
    regions = attention[0][:, asked.places].masked_fill(~asked.real[:, :, None], 0.0)
    zero = torch.zeros_like(value)
    heads = None
    if extra.get("heads"):
        heads = extra["heads"][0][:, asked.places].masked_fill(~asked.real[:, :, None, None], 0.0)
    sentinel = extra["sentinel"][0][:, asked.places].masked_fill(~asked.real, 0.0) if extra.get("sentinel") else zero
    return Found(
        regions=regions,
        words=value.new_zeros(*value.shape, max(asked.places) + 1),
        value=value,
        global_share=zero,
        sentinel_share=sentinel,
        ledger={"inputs": zero, "bias": zero, "epsilon": zero, "rest": value},
        heads=heads,
    )


def _checked_input(model: Any, sample: Mapping[str, Any]) -> dict[str, Tensor]:
    net_input = dict(sample["net_input"])
    kind = next(parameter.dtype for parameter in model.parameters() if parameter.is_floating_point())
    net_input["features"] = net_input["features"].to(kind)
    net_input["boxes"] = net_input["boxes"].to(kind)
    real = net_input["src_tokens"].ne(padding_of(model))
    empty = ~real.any(1)
    if empty.any():
        raise GroundingError(f"caption {_name(sample, empty)}: all regions of its image are masked; leave it out")
    features, images = net_input["features"], net_input["image_index"]
    wrong = ((~features.isfinite()).any(2)[images] & real).any(1)
    if wrong.any():
        raise GroundingError(
            f"caption {_name(sample, wrong)}: its image's features hold NaN or infinity; mend the region store"
        )
    # of regions that are not real nobody may read, but 0 times NaN is NaN
    net_input["features"] = features.masked_fill(~_real_regions(real, images, len(features))[:, :, None], 0.0)
    return net_input


def _real_regions(real: Tensor, images: Tensor, count: int) -> Tensor:
    mask = torch.zeros(count, real.shape[1], dtype=torch.bool, device=real.device)
    mask[images] = real
    return mask


def _name(sample: Mapping[str, Any], wrong: Tensor) -> str:
    row = int(wrong.nonzero()[0])
    name = str(sample["id"][row]) if isinstance(sample.get("id"), list) else None
    if name is None:
        name = str(int(sample["id"][row])) if "id" in sample else f"{row} of the batch"
    return f"{name} (image {sample['image_ids'][row]})" if "image_ids" in sample else name


def _asked(
    model: Any,
    sample: Mapping[str, Any],
    target: str,
    token: int | Tensor | None,
    positions: Sequence[int] | None,
) -> Asked:
    tokens = sample["target"]
    real = tokens.ne(padding_of(model))
    if isinstance(model, MatchingModel):
        real &= tokens.ne(model.words.eos())
    if not real.any():
        raise GroundingError("the batch holds no words to explain")
    places = list(range(int(real.any(0).nonzero().max()) + 1)) if positions is None else sorted(set(positions))
    if not places or places[0] < 0:
        raise GroundingError(f"positions {positions}: give numbers from 0 on")
    if positions is not None:
        short = real.sum(1) <= places[-1]
        if short.any():
            row = int(short.nonzero()[0])
            raise GroundingError(
                f"position {places[-1]}: is past the end of caption {_name(sample, short)}; it has those from 0 to"
                f" {int(real[row].sum()) - 1}"
            )
    if token is not None:
        words = torch.as_tensor(token, device=tokens.device)
        count = len(model.decoder.dictionary)
        if words.is_floating_point() or words.min() < 0 or words.max() >= count:
            raise GroundingError(f"token {token}: is no word; the dictionary holds the numbers 0 to {count - 1}")
        tokens = words.expand_as(tokens)
    real = real[:, places]
    return Asked(target, places, tokens[:, places].masked_fill(~real, 0), real)


def _spread(found: Found, asked: Asked, method: str, length: int) -> Explanation:
    """From the K words asked for to all T."""

    def at_places(part: Tensor) -> Tensor:
        whole = part.new_zeros(len(part), length, *part.shape[2:])
        whole[:, asked.places] = part
        return whole.masked_fill(~whole_real.view(*whole_real.shape, *(1 for _ in part.shape[2:])), 0.0)

    whole_real = torch.zeros(len(asked.real), length, dtype=torch.bool, device=asked.real.device)
    whole_real[:, asked.places] = asked.real
    words = found.words.new_zeros(*found.words.shape[:2], length)
    words[:, :, : found.words.shape[2]] = found.words
    return Explanation(
        method=method,
        target=asked.target,
        regions=at_places(found.regions),
        words=at_places(words),
        global_share=at_places(found.global_share),
        sentinel_share=at_places(found.sentinel_share),
        logit=at_places(found.value),
        ledger={name: at_places(part) for name, part in found.ledger.items()},
        layers={name: (at_places(bias), at_places(epsilon)) for name, (bias, epsilon) in found.layers.items()},
        heads=None if found.heads is None else at_places(found.heads),
    )
