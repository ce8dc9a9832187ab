"""Architectures, one file each; fairseq imports them all when it is given ``--user-dir``."""

from . import dvsa, grounded_transformer, multimodal_rnn, scan, up_down
