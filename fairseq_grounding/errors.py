"""Errors that the user can mend, and how they are shown."""

from __future__ import annotations

import sys
from types import TracebackType

# what stands between the message of an exception and its origin when a data-loading process raised it
_WORKER_MARK = "Original Traceback"


class GroundingError(Exception):
    """Something in a file or a flag that the user can mend.

    The message is one line: it names the file, the image id or the flag, and says what to do. Commands print
    it without a traceback and exit with 1.
    """

    def __str__(self) -> str:
        text = super().__str__()
        if _WORKER_MARK in text:
            # torch re-raises a worker's exception with its whole traceback as the message
            text = text.rstrip().rpartition(f"{type(self).__name__}: ")[2]
        return text


def mendable(error: BaseException) -> GroundingError | None:
    """The :class:`GroundingError` that *error* is or came from; fairseq wraps some in one that says less."""
    chain: BaseException | None = error
    while chain is not None:
        if isinstance(chain, GroundingError):
            return chain
        chain = chain.__cause__ or chain.__context__
    return None


def install_excepthook() -> None:
    """Show an uncaught :class:`GroundingError` as one line, also in fairseq's own commands."""
    previous = sys.excepthook
    if getattr(previous, "shows_grounding_errors", False):
        return

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        cause = mendable(error)
        if cause is not None:
            print(f"error: {cause}", file=sys.stderr)
        else:
            previous(kind, error, trace)

    hook.shows_grounding_errors = True  # type: ignore[attr-defined]
    sys.excepthook = hook
