"""What an explanation holds."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor


@dataclass
class Explanation:
    """For every word of every caption, what spoke for it and what against it.

    B captions, T words (the end symbol is one), R regions. Numbers are signed (positive: for the word), in the unit
    of what is explained. They are exactly 0 at padding, for words that were not asked for, and for words that come
    later.

    Attributes:
        method: how it was computed
        target: what is explained: ``logit``, ``margin`` or ``probability``; of matching models ``similarity``
        regions: (B,T,R) relevance of each region, by whatever way it reached the word
        words: (B,T,T) relevance of each word read before: ``words[b,t,s]`` is that of the decoder's input at step s,
            so s = 0 is the start symbol and s the word s-1 of the caption; s <= t. By a matching model, which reads the
            whole caption, that of its word s
        global_share: (B,T) how much relevance went through the vector of the whole image; it is in ``regions`` already
            (but for what, by ``lrp``, the biases of its embedding keep); 0 where the method does not tell
        sentinel_share: (B,T) how much relevance went through the sentinel (by ``attention``: its weight); 0 for models
            without, and for methods that do not tell
        logit: (B,T) the number that is explained
        ledger: where that number went, each (B,T), together exactly it: ``inputs`` (all regions and words), ``bias``
            and ``epsilon`` (kept by them), ``rest`` (what the method leaves unexplained). By ``integrated_gradients``
            ``bias`` is the number without any features and words
        layers: by ``lrp``, for each layer what its bias and its epsilon kept, two (B,T)
        heads: (B,T,M,R) relevance of each region by the head that saw it; None for models without heads
    """

    method: str
    target: str
    regions: Tensor
    words: Tensor
    global_share: Tensor
    sentinel_share: Tensor
    logit: Tensor
    ledger: dict[str, Tensor]
    layers: dict[str, tuple[Tensor, Tensor]] = field(default_factory=dict)
    heads: Tensor | None = None
