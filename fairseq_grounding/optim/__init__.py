"""Learning-rate schedules; fairseq does not import this folder by itself, so the package does."""

from . import epoch_step
