"""How often a captioner in training reads a word of its own in place of the caption's."""

from dataclasses import dataclass, field

from fairseq.dataclass import FairseqDataclass

from ..errors import GroundingError


@dataclass
class ScheduledSamplingConfig(FairseqDataclass):
    """Flags of every recurrent captioner."""

    scheduled_sampling_increase: float = field(
        default=0.0,
        metadata={
            "help": "in training an input word is, with a probability, one that the model itself would say: the"
            " probability starts at 0 and grows by so much (0: never; as published: 0.05)"
        },
    )
    scheduled_sampling_every: int = field(
        default=5, metadata={"help": "epochs between two increases; the first is after so many epochs"}
    )
    scheduled_sampling_max: float = field(
        default=0.25, metadata={"help": "at most this probability of an own word, 0 to 1"}
    )


class ScheduledSampling:
    """The probability of an own word, by epoch (Bengio et al., NeurIPS 2015, with the published captioners' steps).

    min(increase * floor((epoch - 1) / every), max), epochs counted from 1: with 0.05, 5 and 0.25 epochs 1 to 5
    have none, 6 to 10 have 0.05, and from 26 on it is 0.25.

    Args:
        cfg: the flags
        task: whose ``epoch`` it is
    """

    def __init__(self, cfg: ScheduledSamplingConfig, task):
        for name in ("increase", "max"):
            value = getattr(cfg, f"scheduled_sampling_{name}")
            if not 0 <= value <= 1:
                raise GroundingError(f"--scheduled-sampling-{name} {value}: is a probability; give 0 to 1")
        if cfg.scheduled_sampling_every < 1:
            raise GroundingError(f"--scheduled-sampling-every {cfg.scheduled_sampling_every}: give at least 1")
        self.increase, self.every = cfg.scheduled_sampling_increase, cfg.scheduled_sampling_every
        self.most = cfg.scheduled_sampling_max
        self._task = task

    def probability(self) -> float:
        """That of the task's present epoch."""
        if self.increase == 0:
            return 0.0
        return min(self.increase * ((self._task.epoch - 1) // self.every), self.most)

    def __deepcopy__(self, memo):
        # a copy of the model, such as an average of its weights, must not bring a copy of the data
        return self
