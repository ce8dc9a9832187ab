"""Additive attention over regions, one decoding step at a time."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class AdditiveAttention(nn.Module):
    """softmax over regions of w . tanh(key + query) (Anderson et al., CVPR 2018, Eq. 4).

    The keys come projected, since they are the same at every step.
    """

    def __init__(self, query_size: int, key_size: int):
        super().__init__()
        self.query_projection = nn.Linear(query_size, key_size)
        self.score = nn.Linear(key_size, 1)

    def logits(self, query: Tensor, keys: Tensor, mask: Tensor) -> Tensor:
        """How well regions fit: projected query (N,A), keys (N,R,A), mask (N,R) True = real -> (N,R).

        The least number there is for a region that is not real: after softmax it has exactly 0.
        """
        logits = self.score(torch.tanh(keys + query[:, None])).squeeze(-1)
        return logits.masked_fill(~mask, torch.finfo(logits.dtype).min)

    def forward(self, query: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Attend: query (N,Q), keys (N,R,A), values (N,R,H), mask (N,R) True = real -> (N,H), (N,R).

        A region that is not real gets exactly 0.
        """
        attention = self.logits(self.query_projection(query), keys, mask).softmax(-1)
        return torch.bmm(attention[:, None], values).squeeze(1), attention


class AdaptiveAttention(AdditiveAttention):
    """Additive attention that may look at a sentinel in place of regions (Lu et al., CVPR 2017, Eq. 6 to 13).

    The sentinel competes with the regions for the weight beta; regions share the rest in the proportions that they
    have among themselves. What is returned as attention is those proportions, a distribution over regions.
    """

    def __init__(self, query_size: int, key_size: int):
        super().__init__(query_size, key_size)
        self.sentinel_projection = nn.Linear(query_size, key_size)

    def weights(self, query: Tensor, sentinel: Tensor, keys: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """query (N,H), sentinel (N,H), keys (N,R,A), mask (N,R) -> attention over regions (N,R), beta (N,1)."""
        projected = self.query_projection(query)
        logits = self.logits(projected, keys, mask)
        own = self.score(torch.tanh(self.sentinel_projection(sentinel) + projected))
        return logits.softmax(-1), torch.cat([logits, own], 1).softmax(-1)[:, -1:]

    def attend(
        self, query: Tensor, sentinel: Tensor, keys: Tensor, values: Tensor, mask: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """beta sentinel + (1 - beta) attended regions (N,H), attention (N,R) and beta (N,1)."""
        attention, beta = self.weights(query, sentinel, keys, mask)
        attended = torch.bmm(attention[:, None], values).squeeze(1)
        return beta * sentinel + (1 - beta) * attended, attention, beta
