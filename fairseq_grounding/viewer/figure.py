"""A figure for print: what several models looked at, words and their regions in one colour, all weights as strips.

As Figures 1 and 4 of Zhou et al., "More Grounded Image Captioning by Distilling Image-Text Matching Model" (CVPR
2020): for each photograph the models one under the other, and for each of them the caption, its words in the colours
of the regions that they attended to most, and for each such word the weights of all regions, darker for bigger.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image, ImageDraw

from ..errors import GroundingError
from ..files import writing
from .files import chosen_images, find_photograph, first_rows, model_names, nouns_and_sizes, open_photograph
from .overlay import INK, PALETTE, PAPER, QUIET, RGB, Rectangle, font_of, ink_on, is_drawn, label_spot, one_line

FORMATS = {".png": "PNG", ".pdf": "PDF"}
# more than overlay's eight: a figure gives every word of all its models a colour of its own
COLOURS: tuple[RGB, ...] = (*PALETTE, (136, 34, 85), (127, 127, 127), (101, 67, 33), (85, 60, 190))
NO_WEIGHT: RGB = (246, 246, 246)
FULL_WEIGHT: RGB = (20, 20, 20)
MAX_PIXELS = 200_000_000


@dataclass(frozen=True)
class Sizes:
    """Lengths of a figure in pixels: *width* of one photograph's column, from points (1/72 inch) at *dpi*."""

    width: int
    dpi: int

    def points(self, length: float) -> int:
        """A length in points as pixels, at least one."""
        return max(1, round(length * self.dpi / 72))

    @property
    def text(self) -> int:
        return self.points(9)

    @property
    def small(self) -> int:
        return self.points(6.5)

    @property
    def gap(self) -> int:
        return self.points(6)


@dataclass(frozen=True)
class Word:
    """A word to draw: its place in the caption, its colour, its box on the original, and its weights."""

    position: int
    text: str
    colour: RGB
    box: Sequence[float]
    region: int
    weights: Sequence[float]


def write_figure(
    dumps: Sequence[str | os.PathLike[str]],
    images: str | os.PathLike[str],
    image_ids: Sequence[str],
    out: str | os.PathLike[str],
    *,
    names: Sequence[str] | None = None,
    prepared: str | os.PathLike[str] | None = None,
    words: str = "nouns",
    max_words: int = 8,
    width: float = 7.0,
    columns: int = 1,
    dpi: int = 200,
) -> Path:
    """Draw *image_ids* as each of *dumps* describes them, into one PNG or PDF (its first caption of each image).

    Args:
        dumps: grounding dumps, one a model, drawn in this order
        images: folder of ``ID.jpg``, ``ID.jpeg`` or ``ID.png``
        image_ids: the photographs, drawn in this order
        out: ``FILE.png`` or ``FILE.pdf``
        names: what the models are called; default as the dumps say
        prepared: a prepared folder, for its list of nouns and the sizes of the original photographs
        words: ``nouns`` (without *prepared*: no function words) or ``all``
        max_words: no more than so many words a caption
        width: inches, of the whole figure
        columns: photographs side by side
        dpi: pixels an inch

    Raises:
        GroundingError: an image without photograph or caption, a dump without boxes, a value out of range
    """
    target = Path(out)
    _check(target, dumps, names, image_ids, words, max_words, width, columns, dpi)
    folder = Path(images)
    if not folder.is_dir():
        raise GroundingError(f"{folder}: is not a folder; --images wants the folder of photographs")
    by_dump = [first_rows(path) for path in dumps]
    chosen = chosen_images(dumps, by_dump, len(image_ids), image_ids)
    photographs = [find_photograph(folder, image_id) for image_id in chosen]
    nouns, box_size = nouns_and_sizes(prepared)
    titles = list(names or model_names(dumps, by_dump))
    gap = max(1, round(width * dpi / 40))
    sizes = Sizes((round(width * dpi) - gap * (columns - 1)) // columns, dpi)
    units = []
    for image_id, path in zip(chosen, photographs):
        photograph = open_photograph(path)
        rows = [rows[image_id] for rows in by_dump]
        marked = words_of(rows, nouns, words == "all", max_words)
        size = box_size(image_id) or photograph.size
        panels = [_panel(photograph, size, row, own, title, sizes) for row, own, title in zip(rows, marked, titles)]
        units.append(_grid(panels, 1, sizes.gap))
    figure = _grid(units, columns, gap)
    with writing(target) as temporary:
        if FORMATS[target.suffix.lower()] == "PDF":
            # PDF holds the picture as JPEG: at this quality letters have no visible fringe
            figure.save(temporary, format="PDF", resolution=dpi, quality=95, subsampling=0)
        else:
            figure.save(temporary, format="PNG", dpi=(dpi, dpi))
    return target


def words_of(
    rows: Sequence[Mapping[str, Any]], nouns: Collection[str] | None, every: bool, max_words: int
) -> list[list[Word]]:
    """The words to draw of the captions of one image, the same word in the same colour in all of them.

    Args:
        rows: rows of grounding dumps, one a model
        nouns: the words to draw; None: all but function words
        every: draw every word that attends, whatever *nouns* says
        max_words: no more than the first of them, in each caption; a word that comes again is one more
    """
    colours: dict[str, RGB] = {}
    result = []
    for row in rows:
        found: list[Word] = []
        for position, step in enumerate(row["steps"]):
            text = one_line(step["token"])
            if len(found) == max_words or step["box"] is None or not step["attention"]:
                continue
            if every or is_drawn(step["token"], nouns):
                colour = colours.setdefault(text.lower(), COLOURS[len(colours) % len(COLOURS)])
                found.append(Word(position, text, colour, step["box"], step["region"], step["attention"]))
        result.append(found)
    return result


def _check(
    target: Path,
    dumps: Sequence[Any],
    names: Sequence[str] | None,
    image_ids: Sequence[str],
    words: str,
    max_words: int,
    width: float,
    columns: int,
    dpi: int,
) -> None:
    if target.suffix.lower() not in FORMATS:
        raise GroundingError(f"--out {target}: give a name that ends in .png or .pdf")
    if names is not None and len(names) != len(dumps):
        raise GroundingError(f"--names: gives {len(names)} names for {len(dumps)} dumps; give one each")
    if not image_ids:
        raise GroundingError("--image-ids: names no image")
    if words not in ("nouns", "all"):
        raise GroundingError(f"--words {words}: can be nouns or all")
    for flag, value in (("--max-words", max_words), ("--columns", columns)):
        if value < 1:
            raise GroundingError(f"{flag}: {value} is below 1")
    if not 36 <= dpi <= 1200:
        raise GroundingError(f"--dpi {dpi}: give 36 to 1200 pixels an inch")
    if not 2 * columns <= width <= 60:
        raise GroundingError(f"--width {width:g}: give 2 inches or more for each of --columns {columns}, 60 at most")


def _panel(
    photograph: Image.Image,
    original: tuple[int, int],
    row: Mapping[str, Any],
    words: Sequence[Word],
    title: str,
    sizes: Sizes,
) -> Image.Image:
    """One model: the photograph with its boxes to the left; name, caption and strips to the right."""
    # upright photographs are no wider than they leave room for the text beside them, and no taller than it needs
    aspect = original[1] / original[0]
    left = max(1, round(sizes.width * min(0.44, 0.37 / aspect)))
    picture = photograph.resize((left, max(1, round(left * aspect))), Image.Resampling.LANCZOS)
    _draw_boxes(picture, words, (left / original[0], picture.height / original[1]), sizes)
    text = _text(row, words, title, sizes.width - left - sizes.gap, sizes)
    panel = Image.new("RGB", (sizes.width, max(picture.height, text.height)), PAPER)
    panel.paste(picture, (0, 0))
    panel.paste(text, (left + sizes.gap, 0))
    return panel


def _draw_boxes(picture: Image.Image, words: Sequence[Word], scale: tuple[float, float], sizes: Sizes) -> None:
    draw = ImageDraw.Draw(picture)
    line, hair = sizes.points(1.5), sizes.points(0.4)
    inset = line + hair
    seen: dict[Rectangle, list[RGB]] = {}
    boxes = []
    for word in words:
        x0, y0, x1, y1 = (value * scale[k % 2] for k, value in enumerate(word.box))
        x0, y0 = min(max(x0, 0), picture.width - 3 * line), min(max(y0, 0), picture.height - 3 * line)
        x1 = max(min(x1, picture.width - 1), x0 + 2 * line)
        y1 = max(min(y1, picture.height - 1), y0 + 2 * line)
        box = (x0, y0, x1, y1)
        boxes.append(box)
        drawn = seen.setdefault(box, [])
        if word.colour in drawn:
            continue
        # words that share a box get nested outlines, so that every colour shows
        move = max(0, min(inset * len(drawn), (x1 - x0) / 2 - line, (y1 - y0) / 2 - line))
        drawn.append(word.colour)
        inner = (x0 + move, y0 + move, x1 - move, y1 - move)
        draw.rectangle(inner, outline=ink_on(word.colour), width=line + hair)
        draw.rectangle(inner, outline=word.colour, width=line)
    placed: list[Rectangle] = []
    labelled: set[tuple[Rectangle, str]] = set()
    font = font_of(sizes.small)
    for word, box in zip(words, boxes):
        if (box, word.text.lower()) in labelled:
            continue
        labelled.add((box, word.text.lower()))
        pad = sizes.points(1.5)
        wide, high = font.getlength(word.text) + 2 * pad, sizes.small + 2.0 * pad
        spot = label_spot(box, wide, high, placed, picture.size)
        placed.append(spot)
        draw.rectangle(spot, fill=word.colour)
        draw.text((spot[0] + pad, (spot[1] + spot[3]) / 2), word.text, ink_on(word.colour), font=font, anchor="lm")


def _text(row: Mapping[str, Any], words: Sequence[Word], title: str, width: int, sizes: Sizes) -> Image.Image:
    """The model's name, the caption with its words on their colours, and a strip of weights for each word."""
    sheet = Image.new("RGB", (width, sizes.points(4000)), PAPER)
    draw = ImageDraw.Draw(sheet)
    y = _wrapped(draw, [(part, None) for part in title.split()], width, 0, sizes.small, QUIET)
    colours = {word.position: word.colour for word in words}
    caption = [(one_line(token), colours.get(position)) for position, token in enumerate(row["tokens"])]
    y = _wrapped(draw, caption, width, y + sizes.points(2), sizes.text, INK)
    if words:
        y = _strips(draw, words, width, y + sizes.points(4), sizes)
    return sheet.crop((0, 0, width, y))


def _wrapped(
    draw: ImageDraw.ImageDraw, words: Sequence[tuple[str, RGB | None]], width: int, y: int, size: int, ink: RGB
) -> int:
    """Write words from *y* down, wrapped to *width*; those with a colour stand on it. Where the text ends."""
    font = font_of(size)
    pad, line = size / 5, round(size * 1.5)
    x = 0.0
    for text, colour in words:
        if x and x + font.getlength(text) + 2 * pad > width:
            x, y = 0.0, y + line
        text = _fitting(text, width - 2 * pad, size)
        end = x + font.getlength(text) + 2 * pad
        if colour:
            draw.rounded_rectangle((x, y + 1, end, y + line - 2), pad, fill=colour)
        draw.text((x + pad, y + line / 2), text, ink_on(colour) if colour else ink, font=font, anchor="lm")
        x = end + pad / 2
    return y + line


def _fitting(text: str, width: float, size: int) -> str:
    """*text*, or as much of its beginning as fits with an ellipsis."""
    font = font_of(size)
    if font.getlength(text) <= width:
        return text
    while text and font.getlength(text + "...") > width:
        text = text[:-1]
    return text + "..."


def _strips(draw: ImageDraw.ImageDraw, words: Sequence[Word], width: int, y: int, sizes: Sizes) -> int:
    """A row of cells for each word, one a region in the store's order; the heaviest is framed in the word's colour.

    Shades go from nothing at weight 0 to dark at the row's biggest weight, which stands at the end.
    """
    font = font_of(sizes.small)
    label = min(round(width * 0.3), round(max(font.getlength(word.text) for word in words)) + sizes.points(5))
    number = round(font.getlength("0.00")) + sizes.points(3)
    regions = max(len(word.weights) for word in words)
    cell = (width - label - number) / regions
    high = sizes.points(9)
    frame = sizes.points(1.2)
    for word in words:
        middle = y + high / 2
        draw.rectangle((0, y, label - sizes.points(3), y + high), fill=word.colour)
        text = _fitting(word.text, label - sizes.points(5), sizes.small)
        draw.text((sizes.points(1), middle), text, ink_on(word.colour), font=font, anchor="lm")
        top = max(word.weights)
        for region, weight in enumerate(word.weights):
            x0, x1 = label + region * cell, label + (region + 1) * cell
            draw.rectangle((x0, y, x1 - 1, y + high), fill=_shade(weight / top if top > 0 else 0.0))
        x0 = label + word.region * cell
        # a frame never gets narrower than it is thick, however many regions there are
        x1 = max(x0 + cell - 1, x0 + 3 * frame)
        draw.rectangle((x0, y - frame / 2, x1, y + high + frame / 2), outline=word.colour, width=frame)
        draw.text((width, middle), f"{top:.2f}", QUIET, font=font, anchor="rm")
        y += high + sizes.points(3)
    draw.text((label, y), f"weights of {regions} regions, darker is bigger", QUIET, font=font, anchor="lt")
    return y + sizes.small + sizes.points(2)


def _shade(share: float) -> RGB:
    share = min(max(share, 0.0), 1.0)
    red, green, blue = (round(low + share * (high - low)) for low, high in zip(NO_WEIGHT, FULL_WEIGHT))
    return red, green, blue


def _grid(pictures: Sequence[Image.Image], columns: int, gap: int) -> Image.Image:
    """Pictures of one width in rows of *columns*, *gap* pixels apart, on white."""
    lines = [pictures[first : first + columns] for first in range(0, len(pictures), columns)]
    heights = [max(picture.height for picture in line) for line in lines]
    width = pictures[0].width * columns + gap * (columns - 1)
    height = sum(heights) + gap * (len(lines) - 1)
    if width * height > MAX_PIXELS:
        raise GroundingError(
            f"the figure would have {width} x {height} pixels; give fewer --image-ids or models, or a smaller --dpi"
        )
    sheet = Image.new("RGB", (width, height), PAPER)
    y = 0
    for line, high in zip(lines, heights):
        for column, picture in enumerate(line):
            sheet.paste(picture, (column * (picture.width + gap), y))
        y += high + gap
    return sheet
