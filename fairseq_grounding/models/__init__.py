"""Architectures, one file each; fairseq imports them all when it is given ``--user-dir``."""

from . import scan, up_down
