"""The model inside what fairseq's trainer wraps around it."""

from __future__ import annotations

from torch import nn


def unwrap(model: nn.Module) -> nn.Module:
    """The user's model: without the wrappers of distributed training."""
    while isinstance(inner := getattr(model, "module", None), nn.Module):
        model = inner
    return model
