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

    def forward(self, query: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Attend: query (N,Q), keys (N,R,A), values (N,R,H), mask (N,R) True = real -> (N,H), (N,R).

        A region that is not real gets exactly 0.
        """
        hidden = torch.tanh(keys + self.query_projection(query)[:, None])
        logits = self.score(hidden).squeeze(-1)
        attention = logits.masked_fill(~mask, torch.finfo(logits.dtype).min).softmax(-1)
        return torch.bmm(attention[:, None], values).squeeze(1), attention
