"""What is left out of the input because it is wrong, and why."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from ..errors import GroundingError


class Skipped:
    """The list behind ``--skip-bad``.

    Args:
        allowed: keep a list of what is left out; otherwise the first wrong thing raises.

    Attributes:
        rows: image id, what of it (``image``, ``caption N`` by its place in the file, ``annotation``), reason.
    """

    def __init__(self, allowed: bool = False) -> None:
        self.allowed = allowed
        self.rows: list[tuple[str, str, str]] = []

    def leave_out(self, where: object, image_id: str, what: str, message: str) -> None:
        """Note *what* of an image; the caller goes on without it.

        Raises:
            GroundingError: leaving things out is not allowed; "*where*: *message*".
        """
        if not self.allowed:
            raise GroundingError(f"{where}: {message}")
        self.rows.append((image_id, what, message))

    def counts(self) -> dict[str, int]:
        """How many images, captions and annotations were left out."""
        kinds = Counter(what.split()[0] for _, what, _ in self.rows)
        return {f"{kind}s": kinds[kind] for kind in ("image", "caption", "annotation")}

    def write(self, path: Path) -> None:
        """Write the rows, tab-separated, under a line of headings."""
        with open(path, "w", encoding="utf-8", errors="backslashreplace", newline="\n") as file:
            for row in (("image_id", "what", "reason"), *self.rows):
                print(*(" ".join(cell.split()) for cell in row), sep="\t", file=file)
