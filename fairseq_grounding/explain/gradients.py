"""Methods of gradients: what a small change of regions and words would do to a word.

All take the gradient of one number, the logit (or what is asked for) of a word, through the whole captioner: the
attention, every earlier step and the global vector included.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from ..errors import GroundingError
from .architectures import model_name
from .layerwise import Found
from .rows import Rows, Subject

METHODS = ("gradient", "gradient_input", "guided", "grad_cam", "guided_grad_cam", "integrated_gradients")

_RELUS = (torch.relu, torch.relu_, Tensor.relu, Tensor.relu_, F.relu, F.relu_)


class _GuidedRelu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.clamp(min=0)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        (x,), (gradient,) = ctx.saved_tensors, gradients
        return gradient.clamp(min=0) * (x > 0)


class Guided(TorchFunctionMode):
    """Inside, every ReLU lets only positive gradients back (Springenberg et al., 2015). ``seen`` counts them."""

    seen = 0

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func in _RELUS:
            self.seen += 1
            return _GuidedRelu.apply(args[0])
        return func(*args, **(kwargs or {}))


def grad_cam(activations: Tensor, gradients: Tensor, mask: Tensor) -> Tensor:
    """Grad-CAM over regions (Selvaraju et al., 2017): activations, gradients (N,R,H), mask (N,R) -> (N,R).

    A channel's weight is the mean of its gradient over the real regions, a region's score the positive part of its
    weighted channels. Not divided by the largest score.
    """
    real = mask[:, :, None]
    weights = gradients.masked_fill(~real, 0.0).sum(1, keepdim=True) / real.sum(1, keepdim=True)
    return (activations * weights).sum(2).relu().masked_fill(~mask, 0.0)


def explain_by_gradients(subject: Subject, method: str, steps: int = 32) -> Found:
    """What the gradient of each asked word says; *method* is one of :data:`METHODS`.

    ``gradient``: summed over a region's features (a word's embedding). ``gradient_input``: the product with them,
    summed. ``guided``: as gradient, negative gradients stopped at every ReLU. ``grad_cam``: weights of embedded
    regions' channels from the mean gradient, positive part; words as by gradient_input. ``guided_grad_cam``: guided
    times grad_cam; words as by guided. ``integrated_gradients`` (Sundararajan et al., 2017): gradients averaged over
    *steps* points between zero features and embeddings and the given ones, times them; boxes stay as they are.

    Raises:
        GroundingError: the model cannot serve the method
    """
    value = subject.value
    found = Found(
        regions=value.new_zeros(*value.shape, subject.net_input["src_tokens"].shape[1]),
        words=value.new_zeros(*value.shape, subject.steps),
        value=value,
        global_share=torch.zeros_like(value),
        sentinel_share=torch.zeros_like(value),
    )
    start = torch.zeros_like(value)
    for rows, at in subject.words_in_turn():
        ours = _Gradients(rows, method, steps)
        found.regions[at] = ours.regions
        found.words[at[0], at[1], : ours.words.shape[1]] = ours.words
        found.global_share[at] = ours.global_share
        start[at] = ours.at_baseline
    inputs = found.regions.sum(2) + found.words.sum(2)
    zero = torch.zeros_like(value)
    found.ledger = {"inputs": inputs, "bias": start, "epsilon": zero, "rest": value - inputs - start}
    return found


class _Gradients:
    """One method on one chunk of rows: regions (N,R), words (N,S), global_share and at_baseline (N,)."""

    def __init__(self, rows: Rows, method: str, steps: int):
        self.rows, self.method, self.mask = rows, method, rows.mask
        self.at_baseline = rows.features.new_zeros(len(rows.features))
        if method == "integrated_gradients":
            self.regions, self.words, self.global_share = self._along_the_path(steps)
            with torch.no_grad():
                zeros = torch.zeros_like(rows.features), torch.zeros_like(rows.words)
                self.at_baseline = rows.numbers(*zeros)
        elif method in ("guided", "guided_grad_cam"):
            with Guided() as guided:
                self.regions, self.words, self.global_share = self._at(1.0, "gradient")
            if not guided.seen:
                raise GroundingError(f"{method}: {model_name(rows.model)} has no ReLU to guide; choose gradient")
            if method == "guided_grad_cam":
                self.regions = self.regions * self._at(1.0, "grad_cam")[0]
                self.global_share = torch.zeros_like(self.global_share)
        else:
            self.regions, self.words, self.global_share = self._at(1.0, method)

    def _along_the_path(self, steps: int) -> tuple[Tensor, Tensor, Tensor]:
        points, weights = np.polynomial.legendre.leggauss(steps)
        parts = [self._at((point + 1) / 2, "gradient_input") for point in points.tolist()]
        shares = torch.from_numpy(weights / 2).to(self.rows.features)
        regions, words, share = (torch.tensordot(shares, torch.stack(kind), 1) for kind in zip(*parts))
        return regions, words, share

    def _at(self, scale: float, method: str) -> tuple[Tensor, Tensor, Tensor]:
        """The method where features and words are *scale* times what they are; products are with the whole ones."""
        rows = self.rows
        features = (rows.features * scale).requires_grad_()
        words = (rows.words * scale).requires_grad_()
        with torch.enable_grad():
            number = rows.numbers(features, words).sum()
        global_vector = rows.encoded.get("global")
        wanted = [features, words]
        if method == "grad_cam":
            if rows.embedded is None:
                raise GroundingError(
                    f"{self.method}: the encoder of {model_name(rows.model)} has no module 'region_embedding' to look"
                    " at; choose another method"
                )
            wanted.append(rows.embedded)
        if global_vector is not None:
            wanted.append(global_vector)
        found = torch.autograd.grad(number, wanted, retain_graph=True, allow_unused=True)
        by_input = [torch.zeros_like(w) if g is None else g for w, g in zip(wanted, found)]
        through_global = torch.zeros_like(features)
        if global_vector is not None and global_vector.requires_grad:
            (through,) = torch.autograd.grad(global_vector, features, by_input[-1], allow_unused=True)
            through_global = through_global if through is None else through
        of_input = method in ("gradient_input", "grad_cam")
        regions, words_found, share = (
            ((gradient * whole) if of_input else gradient).sum(2)
            for gradient, whole in (
                (by_input[0], rows.features),
                (by_input[1], rows.words),
                (through_global, rows.features),
            )
        )
        regions, words_found = regions.masked_fill(~self.mask, 0.0), words_found.masked_fill(~rows.real, 0.0)
        share = share.masked_fill(~self.mask, 0.0).sum(1)
        if method == "grad_cam":
            assert rows.embedded is not None
            regions, share = grad_cam(rows.embedded.detach(), by_input[2], self.mask), torch.zeros_like(share)
        return regions, words_found, share
