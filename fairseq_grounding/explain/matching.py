"""Why a word matches what it looks at: matching models as subjects of gradients and ablation."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import GroundingError
from . import gradients
from .ablation import explain_by_ablation
from .architectures import model_name
from .layerwise import Found
from .rows import Rows, Subject, embedding_of

METHODS = (*gradients.METHODS, "ablation", "attention")


class MatchingRows(Rows):
    """Whole captions in their own images; what is explained is a word's similarity with what it attends to."""

    def __init__(self, subject: MatchingSubject, captions: Tensor, words: Tensor | None):
        self.subject, self.word = subject, words
        tokens = subject.target[captions]
        self.noun_mask = subject.noun_mask[captions]
        super().__init__(subject.model, subject.net_input, captions, tokens, subject.word_mask[captions])

    def numbers(self, features: Tensor | None = None, words: Tensor | None = None) -> Tensor:
        ours = self.words if words is None else words

        def our_words(module: nn.Module, arguments: tuple[Tensor, ...], output: Tensor) -> Tensor:
            return torch.where(self.real[:, :, None], ours, output)

        def keep_embedded(module: nn.Module, arguments: tuple[Tensor, ...], output: Tensor) -> None:
            # a whole image that is added comes after the regions
            self.embedded = output if self.embedded is None else self.embedded

        self.embedded = None
        with ExitStack() as hooks:
            hooks.callback(embedding_of(self.model).register_forward_hook(our_words).remove)
            projection = getattr(self.model, "region_projection", None)
            if isinstance(projection, nn.Module):
                hooks.callback(projection.register_forward_hook(keep_embedded).remove)
            similarity, _ = self.subject.read(
                {**self.net_input, "features": self.features if features is None else features},
                self.tokens,
                self.noun_mask,
            )
        return similarity if self.word is None else similarity.gather(1, self.word[:, None])[:, 0]


class MatchingSubject(Subject):
    """The words of captions that attend, as a matching model reads them in their own images.

    Args:
        model: a matching model
        net_input: as checked
        target: (B,T); noun_mask: (B,T)
        readout: see :meth:`~fairseq_grounding.modules.matching.MatchingModel.attend`
        places: explain these words alone, None for all
    """

    def __init__(
        self,
        model: Any,
        net_input: Mapping[str, Tensor],
        target: Tensor,
        noun_mask: Tensor,
        readout: str,
        places: list[int] | None,
    ):
        self.model, self.target, self.noun_mask, self.readout = model, target, noun_mask, readout
        self.net_input = {name: t for name, t in net_input.items() if name not in ("prev_output_tokens", "src_lengths")}
        self.net_input["src_lengths"] = net_input["src_tokens"].ne(model.words.pad()).sum(1)
        self.steps = target.shape[1]
        with torch.no_grad():
            encoded = self._encode(self.net_input, target, noun_mask)
            similarity, self.attention = self.read(self.net_input, target, noun_mask)
        self.word_mask = encoded.word_mask
        self.real = model.attending(encoded.word_mask, encoded.noun_mask)
        if places is not None:
            asked = torch.zeros_like(self.real[:1])
            asked[:, places] = True
            self.real = self.real & asked
        self.value = similarity.masked_fill(~self.real, 0.0)

    def rows(self, captions: Tensor, words: Tensor | None = None) -> MatchingRows:
        return MatchingRows(self, captions, words)

    def read(self, net_input: Mapping[str, Tensor], target: Tensor, noun_mask: Tensor) -> tuple[Tensor, Tensor]:
        """Each word's similarity with what it attends to (N,T), and its attention (N,T,R)."""
        encoded = self._encode(net_input, target, noun_mask)
        return self.model.attend_own(encoded, net_input["image_index"], self.readout)

    def _encode(self, net_input: Mapping[str, Tensor], target: Tensor, noun_mask: Tensor) -> Any:
        read = {name: tensor for name, tensor in net_input.items() if name != "src_lengths"}
        return self.model.encode(**read, target=target, noun_mask=noun_mask)


def explain_matching(subject: MatchingSubject, method: str, steps: int) -> Found:
    """Explain the words of a matching model; K is T.

    Raises:
        GroundingError: a method that cannot serve it
    """
    if method not in METHODS:
        raise GroundingError(
            f"{method}: there are no rules for the layers of {model_name(subject.model)}; it can be explained by"
            f" {', '.join(METHODS)}"
        )
    if method == "ablation":
        return explain_by_ablation(subject)
    if method != "attention":
        return gradients.explain_by_gradients(subject, method, steps)
    zero = torch.zeros_like(subject.value)
    return Found(
        regions=subject.attention.masked_fill(~subject.real[:, :, None], 0.0),
        words=zero.new_zeros(*zero.shape, subject.steps),
        value=subject.value,
        global_share=zero,
        sentinel_share=zero,
        ledger={"inputs": zero, "bias": zero, "epsilon": zero, "rest": subject.value},
    )
