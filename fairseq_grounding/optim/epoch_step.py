"""The learning rate of the published captioners: multiplied by a factor every few epochs."""

import math
from dataclasses import dataclass, field
from typing import Any, Dict, List

from fairseq.dataclass import FairseqDataclass
from fairseq.optim.lr_scheduler import FairseqLRScheduler, register_lr_scheduler
from omegaconf import II

from ..errors import GroundingError


@dataclass
class EpochStepConfig(FairseqDataclass):
    step_epochs: int = field(
        default=3, metadata={"help": "epochs between two steps of the learning rate (SCAN's published run: 15)"}
    )
    step_factor: float = field(
        default=0.8, metadata={"help": "what each step multiplies it by (SCAN's published run: 0.1)"}
    )
    lr: List[float] = II("optimization.lr")  # noqa: RUF009


@register_lr_scheduler("epoch_step", dataclass=EpochStepConfig)
class EpochStepSchedule(FairseqLRScheduler):
    """lr * factor ** floor((epoch - 1) / epochs), epochs counted from 1.

    It depends on the epoch alone, so a resumed run goes on exactly. Between loading a checkpoint and the start of an
    epoch the learning rate is the checkpoint's, as in fairseq's own schedules.
    """

    def __init__(self, cfg: EpochStepConfig, optimizer):
        super().__init__(cfg, optimizer)
        if cfg.step_epochs < 1:
            raise GroundingError(f"--step-epochs {cfg.step_epochs}: give at least 1")
        if not (math.isfinite(cfg.step_factor) and cfg.step_factor > 0):
            raise GroundingError(f"--step-factor {cfg.step_factor}: give more than 0 (0.8 as published)")
        if len(cfg.lr) != 1:
            given = ",".join(str(rate) for rate in cfg.lr)
            raise GroundingError(f"--lr {given}: --lr-scheduler epoch_step steps by itself; give one learning rate")
        self.lr: float = cfg.lr[0]
        self.optimizer.set_lr(self.lr)

    def state_dict(self) -> Dict[str, Any]:
        """The best loss, and the learning rate of this epoch."""
        return {**super().state_dict(), "lr": self.lr}

    def load_state_dict(self, state_dict: Dict[str, Any]) -> None:
        """Take up that of another run, or of another schedule."""
        self.best = state_dict.get("best")
        self.lr = state_dict.get("lr", self.lr)

    def step_begin_epoch(self, epoch: int) -> float:
        """Set the learning rate of *epoch*."""
        self.lr = self.cfg.lr[0] * self.cfg.step_factor ** ((epoch - 1) // self.cfg.step_epochs)
        return self.step_update(0)

    def step_update(self, num_updates: int) -> float:
        """Within an epoch it stays."""
        self.optimizer.set_lr(self.lr)
        return self.optimizer.get_lr()
