"""The rules of layer-wise relevance propagation, each on plain tensors.

A layer's outputs z hold relevance R, and a rule says how much of it each input gets. Relevance has one axis more
than the values, right after the batch: the K words that are explained at once, so values are (B,..,F) and relevance
is (B,K,..,F).

The epsilon rule (Bach et al., 2015; for LSTMs Arras et al., 2017) gives input i of output j the share
``x_i w_ji / (z_j + epsilon sign(z_j))`` of R_j, with sign(0) = 1. What of R_j then belongs to no input stays with the
bias and with epsilon, and is counted there. A neuron with a denominator of 0 (z = 0 and epsilon = 0) passes nothing
on; all of it is counted with epsilon. With ``bias="redistribute"`` bias, epsilon and such neurons' relevance is
shared out evenly among all inputs of the layer, and nothing is lost.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from ..errors import GroundingError

BIAS_POLICIES = ("absorb", "redistribute")


@dataclass(frozen=True)
class Rules:
    """What can be chosen.

    Attributes:
        epsilon: of the epsilon rule, 0 or more
        bias: ``absorb``: biases and epsilon keep their part; ``redistribute``: inputs get it in equal parts
        alpha: None: the epsilon rule everywhere; else the alpha-beta rule with beta = alpha - 1 in layers that read
            positive inputs (embeddings of region features), without bias

    Raises:
        GroundingError: one of them is out of range
    """

    epsilon: float = 0.01
    bias: str = "absorb"
    alpha: float | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.epsilon < float("inf"):
            raise GroundingError(f"epsilon {self.epsilon}: give 0 or more")
        if self.bias not in BIAS_POLICIES:
            raise GroundingError(f"bias {self.bias!r}: it can be {' or '.join(BIAS_POLICIES)}")
        if self.alpha is not None and not 1 <= self.alpha < float("inf"):
            raise GroundingError(f"alpha {self.alpha}: give 1 or more (beta is alpha - 1)")

    @property
    def redistributes(self) -> bool:
        """Whether inputs share what biases and epsilon would keep."""
        return self.bias == "redistribute"


class Portions(NamedTuple):
    """R/(z + epsilon sign z) of each output (B,K,..,F), and what bias and epsilon keep of R (B,K,..,F)."""

    scale: Tensor
    by_bias: Tensor
    by_epsilon: Tensor

    @property
    def kept(self) -> Tensor:
        """What no input gets by the rule."""
        return self.by_bias + self.by_epsilon


def quotient(relevance: Tensor, z: Tensor, epsilon: float) -> Tensor:
    """R / (z + epsilon sign(z)), 0 where the denominator is 0: relevance (B,K,..,F), z (B,1,..,F)."""
    denominator = z + epsilon * (1 - 2 * (z < 0).to(z.dtype))
    nothing = denominator == 0
    return (relevance / denominator.masked_fill(nothing, 1.0)).masked_fill(nothing, 0.0)


def portions(relevance: Tensor, z: Tensor, epsilon: float, bias: Tensor | None = None) -> Portions:
    """How the epsilon rule divides outputs: relevance (B,K,..,F), z (B,..,F) with bias (F,) or (B,1,..,F) included."""
    z = z[:, None]
    scale = quotient(relevance, z, epsilon)
    by_bias = torch.zeros_like(scale) if bias is None else bias * scale
    return Portions(scale, by_bias, relevance - z * scale)


def linear(scale: Tensor, x: Tensor, weight: Tensor) -> Tensor:
    """Relevance of a linear layer's input: scale (B,K,..,O), x (B,..,I), weight (O,I) -> (B,K,..,I)."""
    return x[:, None] * (scale @ weight)


def attended(scale: Tensor, attention: Tensor, values: Tensor) -> Tensor:
    """Relevance of what was attended to, attention being a constant: scale (B,K,Q,M,F), attention (B,M,Q,R), values
    (B,R,M,F) -> (B,K,R,M,F). Q queries, M heads."""
    return values[:, None] * torch.einsum("bmqr,bkqmf->bkrmf", attention, scale)


def attended_total(scale: Tensor, attention: Tensor, values: Tensor) -> Tensor:
    """:func:`attended` summed over heads and features, without ever forming it -> (B,K,R)."""
    fits = torch.einsum("bkqmf,brmf->bkqmr", scale, values)
    return torch.einsum("bkqmr,bmqr->bkr", fits, attention)


def positive_parts(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """The sums of positive and of negative products in each output: x (B,..,I), weight (O,I) -> two (B,..,O)."""
    up, down = weight.clamp(min=0), weight.clamp(max=0)
    more, less = x.clamp(min=0), x.clamp(max=0)
    return more @ up.t() + less @ down.t(), more @ down.t() + less @ up.t()


def alpha_beta(relevance: Tensor, x: Tensor, weight: Tensor, alpha: float) -> Tensor:
    """Relevance of a linear layer's input by the alpha-beta rule without bias (Bach et al., 2015, Eq. 60).

    relevance (B,K,..,O), x (B,..,I), weight (O,I) -> (B,K,..,I). An output without positive (negative) products
    passes no positive (negative) part on.
    """
    up, down = weight.clamp(min=0), weight.clamp(max=0)
    more, less = x.clamp(min=0)[:, None], x.clamp(max=0)[:, None]
    for_it, against_it = (quotient(relevance, part[:, None], 0.0) for part in positive_parts(x, weight))
    speaking_for = more * (for_it @ up) + less * (for_it @ down)
    if alpha == 1:
        return speaking_for
    return alpha * speaking_for - (alpha - 1) * (more * (against_it @ down) + less * (against_it @ up))


def alpha_beta_total(relevance: Tensor, x: Tensor, weight: Tensor, alpha: float) -> Tensor:
    """:func:`alpha_beta` summed over the inputs, without ever forming it -> (B,K,..)."""
    for_it, against_it = positive_parts(x, weight)
    share = alpha * (for_it != 0).to(relevance.dtype) - (alpha - 1) * (against_it != 0).to(relevance.dtype)
    return (relevance * share[:, None]).sum(-1)
