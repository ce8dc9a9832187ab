"""The arithmetic of self-critical training: what a reward is, what it is compared to, and the loss."""

from __future__ import annotations

from typing import Optional

import torch
from torch import Tensor

BASELINES = ("greedy", "leave-one-out")


def total_reward(cider: Tensor, matching: Optional[Tensor], cider_weight: float, scan_weight: float) -> Tensor:
    """cider_weight * CIDEr-D + scan_weight * matching score (POS-SCAN, Eq. 19), as they are, on no common scale."""
    return cider_weight * cider if matching is None else cider_weight * cider + scan_weight * matching


def baselines(reward: Tensor, kind: str, greedy: Optional[Tensor] = None) -> Tensor:
    """What each sample's reward is compared to.

    Args:
        reward: (I,S) of S samples for each of I images
        kind: ``greedy``: the reward of the image's greedy caption (Rennie et al., CVPR 2017); ``leave-one-out``:
            the mean reward of the image's other samples
        greedy: (I,) for ``greedy``

    Returns:
        (I,S)
    """
    if kind == "greedy":
        assert greedy is not None
        return greedy[:, None].expand_as(reward)
    if kind != "leave-one-out":
        raise ValueError(f"kind is {kind!r}; it can be {', '.join(BASELINES)}")
    return (reward.sum(1, keepdim=True) - reward) / (reward.shape[1] - 1)


def reward_loss(logprobs: Tensor, advantage: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """The policy gradient's loss: minus log-probability times advantage, over all tokens that were drawn.

    Args:
        logprobs: (B,T) of the drawn tokens; what stands where nothing was drawn is not read
        advantage: (B,) reward less baseline of each caption; no gradient goes into it
        mask: (B,T) True where a token was drawn: through the first end symbol, which was drawn too

    Returns:
        the sum, and the number of tokens, by which the published code divides
    """
    chosen = mask.bool()
    weight = advantage.detach()[:, None].expand_as(logprobs)[chosen].to(logprobs.dtype)
    return -(logprobs[chosen] * weight).sum(), chosen.sum()


def entropy(log_probabilities: Tensor) -> Tensor:
    """Entropy (N,) in nats of distributions (N,V) given as logarithms, which may be minus infinity."""
    return torch.special.entr(log_probabilities.exp()).sum(-1)
