"""Which words are explained, and which number of each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

TARGETS = ("logit", "margin", "probability")


@dataclass
class Asked:
    """The words to explain: K places in each of B captions.

    Attributes:
        target: ``logit``; ``margin``: logit minus that of the strongest other word; ``probability``
        places: the K places, ascending
        tokens: (B,K) whose logit it is, 0 where there is no word
        real: (B,K) False where the caption has ended
        rivals: (B,K) the strongest other words, once :meth:`meet` saw the logits
    """

    target: str
    places: list[int]
    tokens: Tensor
    real: Tensor
    rivals: Tensor | None = None

    def meet(self, logits: Tensor) -> None:
        """Note the strongest other word of each (for margins), from the captioner's logits (B,K,V)."""
        others = logits.scatter(2, self.tokens[:, :, None], -float("inf"))
        self.rivals = others.argmax(2)

    def values(self, logits: Tensor, rows: Any = None) -> Tensor:
        """The explained number: logits (B,K,V) -> (B,K).

        *rows* picks words of (B,K): with two tensors (N,) logits are (N,V), with one of captions (N,K,V).
        """
        tokens = self.tokens if rows is None else self.tokens[rows]
        own = _pick(logits, tokens)
        if self.target == "margin":
            assert self.rivals is not None
            return own - _pick(logits, self.rivals if rows is None else self.rivals[rows])
        if self.target == "probability":
            return _pick(logits.softmax(-1), tokens)
        return own

    def seeds(self, logits: Tensor) -> list[tuple[Tensor, Tensor]]:
        """What relevance starts from: words (B,K) of the vocabulary, and the relevance (B,K) of each.

        A logit starts with itself; a margin with the word's logit and minus the rival's; a probability with itself, at
        the word's logit.
        """
        values = self.values(logits).masked_fill(~self.real, 0.0)
        if self.target != "margin":
            return [(self.tokens, values)]
        assert self.rivals is not None
        pairs = ((self.tokens, 1.0), (self.rivals, -1.0))
        return [(words, (sign * _pick(logits, words)).masked_fill(~self.real, 0.0)) for words, sign in pairs]


def _pick(logits: Tensor, words: Tensor) -> Tensor:
    return logits.gather(-1, words[..., None])[..., 0]
