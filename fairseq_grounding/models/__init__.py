"""Architectures, one file each; fairseq imports them all when it is given ``--user-dir``."""

from . import adaptive_attention, dvsa, grounded_transformer, multihead_attention, multimodal_rnn, scan, up_down
