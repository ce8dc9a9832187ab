"""The task; fairseq imports this folder when it is given ``--user-dir``."""

from . import grounded_caption
