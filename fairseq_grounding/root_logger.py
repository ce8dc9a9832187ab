"""Undoing what an import does to everybody's logging."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def unchanged_root_logger() -> Iterator[None]:
    """Give the root logger its level and handlers back at the end of the block.

    One of fairseq's model files calls ``basicConfig(level=DEBUG)``, so that a program that imports it before
    setting up its own logging prints what every library notes, and fairseq's commands lose their format.
    """
    root = logging.getLogger()
    level, handlers = root.level, list(root.handlers)
    # with a handler there, basicConfig does nothing
    root.addHandler(logging.NullHandler())
    try:
        yield
    finally:
        root.setLevel(level)
        root.handlers[:] = handlers
