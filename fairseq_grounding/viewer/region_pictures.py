"""A photograph with the boxes of described regions, numbered, and their captions underneath."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from PIL import Image

from .overlay import draw_caption


def draw_described(
    photograph: Image.Image, described: Mapping[str, Any], box_size: tuple[int, int], most: int = 8
) -> Image.Image:
    """Draw the first regions of a row that ``describe-regions`` wrote.

    Args:
        photograph: of any size
        described: ``{"regions": [{"box", "text"}, ..]}``, boxes in pixels of the original photograph
        box_size: width and height of the original photograph
        most: draw no more regions than so many

    Returns:
        an RGB picture: the photograph, each region's box with its number, and underneath each number on its box's
        colour before its caption
    """
    regions = described["regions"][:most]
    steps: list[dict[str, Any]] = []
    for number, region in enumerate(regions, 1):
        words = (str(number), *region["text"].split())
        boxes = (region["box"], *[None] * (len(words) - 1))
        steps += [{"token": word, "box": box, "region": None, "attention": None} for word, box in zip(words, boxes)]
    row = {"tokens": [step["token"] for step in steps], "steps": steps}
    numbers = {str(number) for number in range(1, len(regions) + 1)}
    return draw_caption(photograph, row, words=numbers, max_words=most, box_size=box_size)
