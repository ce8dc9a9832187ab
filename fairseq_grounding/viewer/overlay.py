"""A photograph with the attended box of each content word, and the caption underneath in the same colours."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple, Union

from PIL import Image, ImageDraw, ImageFont

RGB = tuple[int, int, int]
Rectangle = tuple[float, float, float, float]
Font = Union[ImageFont.FreeTypeFont, ImageFont.ImageFont]

# Okabe and Ito's colours ("Color Universal Design", 2008), told apart also by colour-blind readers
PALETTE: tuple[RGB, ...] = (
    (230, 159, 0),
    (0, 114, 178),
    (0, 158, 115),
    (204, 121, 167),
    (86, 180, 233),
    (213, 94, 0),
    (240, 228, 66),
    (0, 0, 0),
)
# words that say nothing to look at, for when no list of nouns is given
_STOP_TEXT = """
a an the some several this that these those one two three four five many few other another each and or but
while as of in on at by to from with without into onto over under above below behind beside between near
next through across along around against out up down off front there here it its he she they them him her
his their who which what is are was were be been being am has have had do does did can will not no very s
</s> <unk> . , ; : ! ? ' " -
"""
STOP_WORDS = frozenset(_STOP_TEXT.split())
MIN_WIDTH, MAX_WIDTH = 640, 1280
MARGIN = 14
TEXT_SIZE, LABEL_SIZE, WEIGHT_SIZE, HEADING_SIZE = 22, 17, 12, 17
PAPER: RGB = (255, 255, 255)
INK: RGB = (34, 34, 34)
QUIET: RGB = (110, 110, 110)


class Mark(NamedTuple):
    """A word to draw: its place in the caption, its colour, its box in pixels of the drawing."""

    position: int
    word: str
    colour: RGB
    box: Rectangle
    weight: float | None


def draw_caption(
    image: Image.Image,
    row: Mapping[str, Any],
    *,
    words: Collection[str] | None = None,
    max_words: int = 8,
    box_size: tuple[int, int] | None = None,
    heading: str | None = None,
) -> Image.Image:
    """Draw one caption of a grounding dump on its photograph.

    Args:
        image: the photograph, of any size; it is scaled to a width of at least 640 pixels.
        row: a row of a grounding dump; boxes are (x0, y0, x1, y1) in pixels of the original photograph.
        words: the words to draw (nouns, say); by default all but articles, prepositions and the like.
        max_words: draw no more than the first of them.
        box_size: (width, height) of the photograph that the boxes were measured on, where *image* is a copy of
            another size or shape; by default that of *image*.
        heading: a line above the photograph, the model's name say.

    Returns: an RGB picture: the photograph, each word's box and attention weight on it, the caption underneath.
    """
    width, height = box_size or image.size
    photograph = _enlarged(image, height / width)
    scale = photograph.width / width, photograph.height / height
    marks = _marks(row, words, max_words, scale, photograph.size)
    _draw_marks(photograph, marks)
    top = _heading(heading, photograph.width) if heading else None
    bottom = _caption(row, marks, photograph.width)
    return stack([part for part in (top, photograph, bottom) if part is not None])


def stack(pictures: Sequence[Image.Image], gap: int = 0) -> Image.Image:
    """Pictures one under the other on white, *gap* pixels apart."""
    width = max(picture.width for picture in pictures)
    height = sum(picture.height for picture in pictures) + gap * (len(pictures) - 1)
    sheet = Image.new("RGB", (width, height), PAPER)
    y = 0
    for picture in pictures:
        sheet.paste(picture, (0, y))
        y += picture.height + gap
    return sheet


def _enlarged(image: Image.Image, aspect: float) -> Image.Image:
    """The photograph as RGB, MIN_WIDTH to MAX_WIDTH wide, and *aspect* times as high: a squashed copy is undone."""
    width = min(max(image.width, MIN_WIDTH), MAX_WIDTH)
    size = (width, max(1, round(width * aspect)))
    # resize returns a copy also where the size stays
    return image.convert("RGB").resize(size, Image.Resampling.LANCZOS)


def _marks(
    row: Mapping[str, Any],
    words: Collection[str] | None,
    max_words: int,
    scale: tuple[float, float],
    size: tuple[int, int],
) -> list[Mark]:
    marks: list[Mark] = []
    for position, step in enumerate(row["steps"]):
        word = step["token"]
        if step["box"] is None or not is_drawn(word, words):
            continue
        if len(marks) == max_words:
            break
        x0, y0, x1, y1 = (value * scale[k % 2] for k, value in enumerate(step["box"]))
        # an outline at the very edge of the picture would be cut in half, and a box may reach beyond it
        x0, y0 = min(max(x0, 2), size[0] - 9), min(max(y0, 2), size[1] - 9)
        box = (x0, y0, max(min(x1, size[0] - 3), x0 + 6), max(min(y1, size[1] - 3), y0 + 6))
        weight = step["attention"][step["region"]] if step["attention"] else None
        marks.append(Mark(position, one_line(word), PALETTE[len(marks) % len(PALETTE)], box, weight))
    return marks


def is_drawn(word: str, words: Collection[str] | None) -> bool:
    """Whether a word is one of *words* to draw; without any, whether it is no article, preposition or the like."""
    return word.lower() not in STOP_WORDS if words is None else word in words or word.lower() in words


def _draw_marks(photograph: Image.Image, marks: Sequence[Mark]) -> None:
    draw = ImageDraw.Draw(photograph)
    seen: dict[Rectangle, int] = {}
    for mark in marks:
        # words that share a box get nested outlines, so that every colour shows
        inset = 5 * seen.setdefault(mark.box, 0)
        seen[mark.box] += 1
        x0, y0, x1, y1 = mark.box
        inset = max(0, int(min(inset, (x1 - x0) / 2 - 4, (y1 - y0) / 2 - 4)))
        inner = (x0 + inset, y0 + inset, x1 - inset, y1 - inset)
        draw.rectangle((inner[0] - 1, inner[1] - 1, inner[2] + 1, inner[3] + 1), outline=ink_on(mark.colour))
        draw.rectangle(inner, outline=mark.colour, width=3)
    placed: list[Rectangle] = []
    for mark in marks:
        placed.append(_draw_label(draw, mark, placed, photograph.size))


def _draw_label(draw: ImageDraw.ImageDraw, mark: Mark, placed: Sequence[Rectangle], size: tuple[int, int]) -> Rectangle:
    """Draw a word and its weight at its box, clear of the labels in *placed*; where it was drawn."""
    font, small = font_of(LABEL_SIZE), font_of(WEIGHT_SIZE)
    weight = "" if mark.weight is None else f"{mark.weight:.2f}"
    word_width = draw.textlength(mark.word, font=font)
    wide = word_width + 10 + (draw.textlength(weight, font=small) + 6 if weight else 0)
    high = LABEL_SIZE + 8.0
    spot = label_spot(mark.box, wide, high, placed, size)
    draw.rectangle(spot, fill=mark.colour)
    ink = ink_on(mark.colour)
    baseline = spot[1] + LABEL_SIZE + 1
    draw.text((spot[0] + 5, baseline), mark.word, fill=ink, font=font, anchor="ls")
    if weight:
        draw.text((spot[0] + 11 + word_width, baseline), weight, fill=ink, font=small, anchor="ls")
    return spot


def label_spot(
    box: Rectangle, wide: float, high: float, placed: Sequence[Rectangle], size: tuple[int, int]
) -> Rectangle:
    """The first free place for a label: above the box, inside its top, at its foot, then further down."""
    x0, y0, x1, y1 = box
    corners = [(x0 - 1, y0 - high), (x1 - wide, y0 - high), (x0, y0), (x1 - wide, y0), (x0, y1 - high), (x0, y1)]
    corners += [(x0, y0 + k * (high + 1)) for k in range(1, 8)]
    spots = []
    for left, top in corners:
        left = min(max(left, 0), max(0, size[0] - wide - 1))
        top = min(max(top, 0), max(0, size[1] - high - 1))
        spots.append((left, top, left + wide, top + high))
    return next((spot for spot in spots if not any(_overlap(spot, other) for other in placed)), spots[0])


def _overlap(a: Rectangle, b: Rectangle) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


def _caption(row: Mapping[str, Any], marks: Sequence[Mark], width: int) -> Image.Image:
    """The caption's words, wrapped to *width*; a drawn word stands on its colour."""
    font = font_of(TEXT_SIZE)
    space, line_height = font.getlength(" "), TEXT_SIZE + 14
    colours = {mark.position: mark.colour for mark in marks}
    placed: list[tuple[float, float, str, RGB | None]] = []
    x, y = float(MARGIN), float(MARGIN)
    for position, word in enumerate(map(one_line, row["tokens"])):
        colour = colours.get(position)
        wide = font.getlength(word) + (12 if colour else 0)
        if x > MARGIN and x + wide > width - MARGIN:
            x, y = float(MARGIN), y + line_height
        placed.append((x, y, word, colour))
        x += wide + space
    panel = Image.new("RGB", (width, int(y + line_height + MARGIN / 2)), PAPER)
    draw = ImageDraw.Draw(panel)
    for x, y, word, colour in placed:
        if colour:
            chip = (x, y, x + font.getlength(word) + 12, y + line_height - 5)
            draw.rounded_rectangle(chip, 5, fill=colour)
        left, baseline = x + (6 if colour else 0), y + TEXT_SIZE + 1
        draw.text((left, baseline), word, fill=ink_on(colour) if colour else INK, font=font, anchor="ls")
    return panel


def one_line(token: str) -> str:
    """A token as it can be drawn: a subword piece may hold a line break."""
    return " ".join(token.split())


def _heading(text: str, width: int) -> Image.Image:
    panel = Image.new("RGB", (width, HEADING_SIZE + 16), PAPER)
    draw = ImageDraw.Draw(panel)
    draw.text((MARGIN, HEADING_SIZE + 6), text, fill=QUIET, font=font_of(HEADING_SIZE), anchor="ls")
    return panel


def ink_on(colour: RGB) -> RGB:
    """Black or white, whichever is easier to read on *colour*."""
    red, green, blue = colour
    return INK if 0.299 * red + 0.587 * green + 0.114 * blue > 125 else PAPER


@cache
def font_of(size: int) -> Font:
    """Pillow's own font, *size* pixels high."""
    return ImageFont.load_default(size=size)
