"""Objects and backgrounds of the demo's pictures, drawn from polygons and ellipses.

Every object is drawn in unit coordinates (u to the right, v downwards, both 0 to 1) on a transparent layer
of its own, so that its box is exactly that of its pixels.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageDraw, ImageFilter

RGB = tuple[int, int, int]
Points = Sequence[tuple[float, float]]

WIDTH, HEIGHT = 240, 180
OVERSAMPLING = 3
MARGIN = 0.15  # of the layer, on each side: room for what a rotation moves out of the unit square

COLOURS: dict[str, RGB] = {
    "red": (203, 48, 44),
    "blue": (46, 92, 190),
    "green": (52, 145, 78),
    "yellow": (240, 200, 56),
    "orange": (230, 128, 44),
    "purple": (128, 74, 156),
    "pink": (236, 142, 172),
    "black": (48, 45, 50),
    "white": (238, 236, 230),
    "brown": (134, 88, 52),
    "grey": (140, 140, 146),
}
SKIN: tuple[RGB, ...] = ((244, 204, 170), (222, 172, 132), (176, 122, 84), (120, 80, 56))
HAIR: tuple[RGB, ...] = ((52, 38, 32), (96, 62, 36), (172, 120, 60), (206, 172, 96))
DARK: RGB = (36, 32, 34)


def shade(colour: RGB, factor: float) -> RGB:
    """Darken (*factor* below 1) or lighten (above 1, towards white) a colour."""
    if factor <= 1:
        return tuple(round(c * factor) for c in colour)  # type: ignore[return-value]
    return tuple(round(c + (255 - c) * (factor - 1)) for c in colour)  # type: ignore[return-value]


def vary(colour: RGB, rng: random.Random, amount: int = 14) -> RGB:
    """Move a colour a little, all channels together and each by itself."""
    together = rng.uniform(-amount, amount)
    return tuple(  # type: ignore[return-value]
        max(0, min(255, round(c + together + rng.uniform(-amount / 2, amount / 2)))) for c in colour
    )


class Pen:
    """Draws on a layer in unit coordinates; line widths and radii are in units of the layer's height."""

    def __init__(self, draw: ImageDraw.ImageDraw, left: float, top: float, width: float, height: float) -> None:
        self.draw, self.left, self.top, self.width, self.height = draw, left, top, width, height

    def at(self, u: float, v: float) -> tuple[float, float]:
        return self.left + u * self.width, self.top + v * self.height

    def polygon(self, points: Points, fill: RGB) -> None:
        self.draw.polygon([self.at(u, v) for u, v in points], fill=fill)

    def ellipse(self, u: float, v: float, ru: float, rv: float, fill: RGB) -> None:
        self.draw.ellipse([self.at(u - ru, v - rv), self.at(u + ru, v + rv)], fill=fill)

    def circle(self, u: float, v: float, r: float, fill: RGB) -> None:
        self.ellipse(u, v, r * self.height / self.width, r, fill)

    def rectangle(self, u0: float, v0: float, u1: float, v1: float, fill: RGB, radius: float = 0.0) -> None:
        self.draw.rounded_rectangle([self.at(u0, v0), self.at(u1, v1)], radius * self.height, fill=fill)

    def line(self, points: Points, width: float, fill: RGB) -> None:
        pixels = [self.at(u, v) for u, v in points]
        thick = max(2, round(width * self.height))
        self.draw.line(pixels, fill=fill, width=thick, joint="curve")
        for x, y in (pixels[0], pixels[-1]):
            self.draw.ellipse([x - thick / 2, y - thick / 2, x + thick / 2, y + thick / 2], fill=fill)

    def arc(self, u: float, v: float, ru: float, rv: float, start: float, end: float, width: float, fill: RGB) -> None:
        thick = max(2, round(width * self.height))
        self.draw.arc([self.at(u - ru, v - rv), self.at(u + ru, v + rv)], start, end, fill=fill, width=thick)


def dog(pen: Pen, rng: random.Random, colour: RGB, pose: str) -> None:
    far, ear = shade(colour, 0.78), shade(colour, 0.6) if sum(colour) > 240 else shade(colour, 1.25)
    belly = shade(colour, 1.25)
    collar = COLOURS[rng.choice(("red", "blue", "green"))]
    if pose == "sit":
        head_u, head_v = 0.72, 0.22
        pen.line([(0.30, 0.92), (0.12, 0.86), (0.05, 0.70 - rng.uniform(0, 0.1))], 0.07, colour)
        pen.ellipse(0.40, 0.78, 0.24, 0.21, colour)
        pen.polygon([(0.26, 0.70), (0.56, 0.30), (0.76, 0.36), (0.74, 0.74), (0.52, 0.96)], colour)
        pen.line([(0.60, 0.62), (0.60, 0.95)], 0.09, far)
        pen.line([(0.70, 0.58), (0.72, 0.95), (0.77, 0.95)], 0.09, colour)
        pen.line([(0.38, 0.94), (0.54, 0.95)], 0.09, far)
        pen.ellipse(0.71, 0.52, 0.06, 0.14, belly)
        pen.line([(0.58, 0.38), (0.76, 0.40)], 0.05, collar)
    else:
        head_u, head_v = 0.79, 0.27 + rng.uniform(-0.03, 0.05)
        stride = 0.13 if pose == "run" else 0.02
        for u, direction, tone in ((0.26, 1, far), (0.66, 1, far), (0.20, -1, colour), (0.60, -1, colour)):
            knee = (u + 0.5 * direction * stride + 0.02, 0.76)
            foot = (u + direction * stride * 1.3, 0.95)
            pen.line([(u + 0.02, 0.58), knee, foot, (foot[0] + 0.03, 0.95)], 0.09, tone)
        pen.line([(0.16, 0.48), (0.07, 0.32), (0.03, 0.14 + rng.uniform(0, 0.2))], 0.07, colour)
        pen.ellipse(0.28, 0.52, 0.17, 0.18, colour)
        pen.ellipse(0.58, 0.52, 0.18, 0.20, colour)
        pen.rectangle(0.26, 0.36, 0.60, 0.66, colour)
        pen.ellipse(0.44, 0.66, 0.20, 0.04, belly)
        pen.polygon(
            [(0.54, 0.40), (head_u - 0.10, head_v - 0.02), (head_u + 0.06, head_v + 0.12), (0.74, 0.56)],
            colour,
        )
        pen.line([(0.64, 0.34), (0.75, 0.47)], 0.05, collar)
    pen.ellipse(head_u, head_v, 0.12, 0.14, colour)
    pen.rectangle(head_u + 0.04, head_v - 0.01, head_u + 0.20, head_v + 0.11, shade(colour, 1.12), 0.05)
    pen.circle(head_u + 0.19, head_v + 0.02, 0.035, DARK)
    pen.circle(head_u + 0.05, head_v - 0.04, 0.026, DARK if sum(colour) > 200 else (240, 236, 220))
    pen.polygon([(head_u - 0.08, head_v - 0.13), (head_u - 0.15, head_v + 0.12), (head_u - 0.02, head_v + 0.05)], ear)


def cat(pen: Pen, rng: random.Random, colour: RGB, pose: str) -> None:
    stripe, inside = shade(colour, 0.68) if sum(colour) > 240 else shade(colour, 1.22), (232, 160, 160)
    striped = rng.random() < 0.6
    if pose == "sit":
        head_u, head_v = 0.54, 0.29
        pen.line([(0.62, 0.93), (0.88, 0.90), (0.94, 0.74), (0.86, 0.62 - rng.uniform(0, 0.1))], 0.075, colour)
        pen.ellipse(0.52, 0.74, 0.27, 0.24, colour)
        pen.ellipse(0.53, 0.54, 0.19, 0.22, colour)
        if striped:
            for v in (0.60, 0.70, 0.80):
                pen.arc(0.52, v, 0.25, 0.10, 20, 75, 0.03, stripe)
        pen.ellipse(0.53, 0.66, 0.09, 0.16, shade(colour, 1.35))
        pen.ellipse(0.44, 0.94, 0.09, 0.05, shade(colour, 1.2))
        pen.ellipse(0.62, 0.94, 0.09, 0.05, shade(colour, 1.2))
    else:
        head_u, head_v = 0.80, 0.36
        curl = rng.uniform(-0.06, 0.06)
        pen.line([(0.16, 0.58), (0.07, 0.42), (0.07 + curl, 0.22), (0.15 + curl, 0.08)], 0.075, colour)
        for u, tone in (
            (0.28, shade(colour, 0.8)),
            (0.64, shade(colour, 0.8)),
            (0.20, colour),
            (0.58, colour),
        ):
            pen.line([(u, 0.62), (u + rng.uniform(-0.03, 0.04), 0.95)], 0.085, tone)
        pen.rectangle(0.13, 0.48, 0.72, 0.76, colour, 0.14)
        if striped:
            for u in (0.26, 0.37, 0.48, 0.59):
                pen.line([(u, 0.50), (u - 0.02, 0.62)], 0.03, stripe)
    ear_u, ear_v = 0.15, 0.25
    for side in (-1, 1):
        tip = (head_u + side * ear_u * 0.95, head_v - ear_v)
        pen.polygon([(head_u + side * ear_u, head_v), tip, (head_u + side * 0.03, head_v - 0.12)], colour)
        pen.polygon(
            [
                (head_u + side * ear_u * 0.85, head_v - 0.1),
                (tip[0] - side * 0.012, tip[1] + 0.05),
                (head_u + side * 0.06, head_v - 0.12),
            ],
            inside,
        )
    pen.ellipse(head_u, head_v, 0.18, 0.165, colour)
    pen.ellipse(head_u, head_v + 0.08, 0.09, 0.065, shade(colour, 1.35))
    for side in (-1, 1):
        pen.ellipse(head_u + side * 0.075, head_v - 0.02, 0.035, 0.038, (212, 220, 110))
        pen.ellipse(head_u + side * 0.075, head_v - 0.02, 0.013, 0.034, DARK)
    pen.polygon([(head_u - 0.025, head_v + 0.04), (head_u + 0.025, head_v + 0.04), (head_u, head_v + 0.075)], inside)


def bird(pen: Pen, rng: random.Random, colour: RGB, pose: str) -> None:
    wing, beak = shade(colour, 0.7), (240, 170, 50)
    if pose == "fly":
        lift = rng.uniform(-0.06, 0.1)
        pen.polygon([(0.50, 0.55), (0.36, 0.08 + lift), (0.66, 0.48)], shade(wing, 0.85))
        pen.polygon([(0.02, 0.44), (0.06, 0.64), (0.36, 0.66), (0.30, 0.50)], wing)
        pen.ellipse(0.50, 0.60, 0.27, 0.16, colour)
        pen.ellipse(0.54, 0.67, 0.20, 0.08, shade(colour, 1.35))
        pen.polygon([(0.38, 0.56), (0.16, 0.04 + lift), (0.34, 0.12 + lift), (0.62, 0.56)], wing)
        head_u, head_v = 0.78, 0.50
    else:
        for u in (0.46, 0.54):
            pen.line([(u, 0.74), (u, 0.96), (u + 0.06, 0.96)], 0.03, (210, 130, 50))
        pen.polygon([(0.02, 0.72), (0.10, 0.84), (0.40, 0.66), (0.34, 0.50)], wing)
        pen.ellipse(0.48, 0.57, 0.26, 0.23, colour)
        pen.ellipse(0.56, 0.63, 0.15, 0.15, shade(colour, 1.35))
        pen.ellipse(0.40, 0.57, 0.18, 0.12, wing)
        head_u, head_v = 0.68, 0.30
    pen.polygon([(head_u + 0.10, head_v - 0.05), (head_u + 0.25, head_v + 0.02), (head_u + 0.10, head_v + 0.07)], beak)
    pen.circle(head_u, head_v, 0.15, colour)
    pen.circle(head_u + 0.05, head_v - 0.03, 0.035, DARK if sum(colour) > 250 else (250, 250, 250))


def _legs(pen: Pen, pose: str, hip: float, width: float, trousers: RGB, skin: RGB, bare: float) -> None:
    """Two legs from *hip* to the ground, bare from *bare* downwards, apart when walking."""
    spread = 0.20 if pose == "walk" else 0.07
    for side, tone in ((-1, 0.85), (1, 1.0)):
        foot = (0.5 + side * (0.09 + spread), 0.965)
        knee = (0.5 + side * (0.10 + spread * 0.45), bare)
        pen.line([knee, foot], width * 0.8, shade(skin, tone))
        pen.line([(0.5 + side * 0.10, hip), knee], width, shade(trousers, tone))
        pen.line([foot, (foot[0] + 0.10, 0.97)], 0.045, DARK)


def _arms(pen: Pen, pose: str, shoulder: float, reach: float, sleeve: RGB, skin: RGB, half: float) -> None:
    """Two arms; the right one is raised when the pose is to hold something."""
    for side in (-1, 1):
        raised = side == 1 and pose == "hold"
        elbow = (0.5 + side * (half + 0.16), shoulder + (0.09 if raised else reach * 0.5))
        hand = (0.5 + side * (half + (0.30 if raised else 0.14)), shoulder + (-0.05 if raised else reach))
        pen.line([elbow, hand], 0.05, skin)
        pen.line([(0.5 + side * half, shoulder + 0.03), elbow], 0.065, sleeve)


def _face(pen: Pen, skin: RGB, v: float, r: float) -> None:
    pen.circle(0.5, v, r, skin)
    for side in (-1, 1):
        pen.circle(0.5 + side * 0.09, v - 0.005, 0.012, DARK)
    pen.arc(0.5, v + 0.02, 0.09, 0.03, 20, 160, 0.012, shade(skin, 0.6))


def man(pen: Pen, rng: random.Random, colour: RGB, pose: str) -> None:
    skin, hair = rng.choice(SKIN), rng.choice(HAIR)
    trousers = vary(rng.choice(((52, 62, 96), (84, 78, 70), (60, 60, 62), (120, 104, 78))), rng)
    _legs(pen, pose, 0.56, 0.085, trousers, trousers, 0.76)
    _arms(pen, pose, 0.24, 0.30, shade(colour, 0.88), skin, 0.24)
    pen.rectangle(0.26, 0.20, 0.74, 0.58, colour, 0.06)
    pen.rectangle(0.44, 0.17, 0.56, 0.23, shade(skin, 0.9))
    pen.circle(0.5, 0.075, 0.075, hair)
    _face(pen, skin, 0.105, 0.078)
    if rng.random() < 0.4:
        pen.arc(0.5, 0.115, 0.17, 0.068, 20, 160, 0.03, hair)


def woman(pen: Pen, rng: random.Random, colour: RGB, pose: str) -> None:
    skin, hair = rng.choice(SKIN), rng.choice(HAIR)
    pen.rectangle(0.29, 0.05, 0.71, 0.30 + rng.uniform(0, 0.08), hair, 0.08)
    _legs(pen, pose, 0.66, 0.05, skin, skin, 0.78)
    _arms(pen, pose, 0.24, 0.27, shade(colour, 0.88), skin, 0.17)
    pen.polygon([(0.34, 0.22), (0.66, 0.22), (0.64, 0.42), (0.88, 0.76), (0.12, 0.76), (0.36, 0.42)], colour)
    pen.line([(0.37, 0.43), (0.63, 0.43)], 0.022, shade(colour, 0.65))
    pen.rectangle(0.45, 0.17, 0.55, 0.23, shade(skin, 0.9))
    _face(pen, skin, 0.115, 0.075)
    pen.draw.pieslice([pen.at(0.29, 0.03), pen.at(0.71, 0.19)], 180, 360, fill=hair)


def boy(pen: Pen, rng: random.Random, colour: RGB, pose: str) -> None:
    skin, hair = rng.choice(SKIN), rng.choice(HAIR)
    shorts = vary(rng.choice(((60, 80, 130), (150, 130, 90), (70, 70, 74))), rng)
    _legs(pen, pose, 0.64, 0.09, shorts, skin, 0.77)
    _arms(pen, pose, 0.36, 0.24, colour, skin, 0.20)
    pen.rectangle(0.28, 0.32, 0.72, 0.66, colour, 0.06)
    for v in (0.42, 0.52):
        pen.rectangle(0.28, v, 0.72, v + 0.04, shade(colour, 1.5))
    pen.circle(0.5, 0.14, 0.125, hair)
    _face(pen, skin, 0.185, 0.125)


def hat(pen: Pen, rng: random.Random, colour: RGB, pose: str) -> None:
    if pose == "cap":
        pen.draw.pieslice([pen.at(0.10, 0.05), pen.at(0.80, 1.75)], 180, 360, fill=colour)
        pen.rectangle(0.45, 0.76, 0.99, 0.96, shade(colour, 0.75), 0.1)
        pen.ellipse(0.45, 0.08, 0.05, 0.07, shade(colour, 0.7))
    else:
        pen.rectangle(0.24, 0.06, 0.76, 0.86, colour, 0.2)
        pen.rectangle(0.24, 0.58, 0.76, 0.76, shade(colour, 0.5))
        pen.ellipse(0.5, 0.84, 0.49, 0.14, shade(colour, 0.88))


def ball(pen: Pen, rng: random.Random, colour: RGB, pose: str) -> None:
    other = (245, 243, 236) if sum(colour) < 640 else (60, 60, 66)
    pen.ellipse(0.5, 0.5, 0.49, 0.49, colour)
    turn = rng.uniform(0, 360)
    for k in range(3):
        pen.draw.pieslice([pen.at(0.01, 0.01), pen.at(0.99, 0.99)], turn + 120 * k, turn + 120 * k + 55, fill=other)
    pen.ellipse(0.5, 0.5, 0.12, 0.12, shade(colour, 0.8))
    pen.ellipse(0.33, 0.27, 0.10, 0.07, (255, 255, 255))


def balloon(pen: Pen, rng: random.Random, colour: RGB, pose: str) -> None:
    sway = rng.uniform(-0.12, 0.12)
    pen.line([(0.5, 0.62), (0.5 + sway, 0.80), (0.5 - sway, 0.99)], 0.015, (90, 90, 90))
    pen.polygon([(0.42, 0.65), (0.5, 0.56), (0.58, 0.65)], shade(colour, 0.7))
    pen.ellipse(0.5, 0.31, 0.46, 0.30, colour)
    pen.ellipse(0.34, 0.20, 0.10, 0.07, shade(colour, 1.6))


def kite(pen: Pen, rng: random.Random, colour: RGB, pose: str) -> None:
    other = COLOURS[rng.choice(("yellow", "white", "blue", "pink"))]
    top, right, bottom, left, middle = (0.5, 0.02), (0.95, 0.30), (0.5, 0.70), (0.05, 0.30), (0.5, 0.30)
    bend = rng.uniform(-0.2, 0.2)
    pen.line([bottom, (0.5 + bend, 0.80), (0.5 - bend, 0.90), (0.5 + bend, 0.98)], 0.02, (90, 80, 80))
    for t, v in ((bend * 0.6, 0.79), (-bend * 0.6, 0.88)):
        pen.polygon(
            [
                (0.5 + t - 0.12, v - 0.03),
                (0.5 + t + 0.12, v + 0.03),
                (0.5 + t + 0.12, v - 0.03),
                (0.5 + t - 0.12, v + 0.03),
            ],
            other,
        )
    for points, tone in (
        ((top, right, middle), colour),
        ((right, bottom, middle), shade(colour, 0.72)),
        ((bottom, left, middle), colour),
        ((left, top, middle), shade(colour, 1.3)),
    ):
        pen.polygon(points, tone)
    pen.line([top, bottom], 0.012, shade(colour, 0.5))
    pen.line([left, right], 0.012, shade(colour, 0.5))


def boat(pen: Pen, rng: random.Random, colour: RGB, pose: str) -> None:
    pen.polygon([(0.02, 0.74), (0.98, 0.74), (0.84, 0.98), (0.16, 0.98)], colour)
    pen.rectangle(0.02, 0.72, 0.98, 0.78, shade(colour, 0.65))
    if pose == "sail":
        pen.rectangle(0.48, 0.04, 0.51, 0.74, (110, 80, 56))
        sail = rng.choice(((246, 244, 236), (246, 232, 190), (236, 200, 196)))
        pen.polygon([(0.53, 0.06), (0.53, 0.66), (0.90 + rng.uniform(-0.08, 0.05), 0.66)], sail)
        pen.polygon([(0.46, 0.14), (0.46, 0.66), (0.14 + rng.uniform(-0.05, 0.08), 0.66)], shade(sail, 0.86))
    else:
        pen.rectangle(0.30, 0.40, 0.74, 0.73, (240, 238, 230))
        pen.rectangle(0.26, 0.34, 0.78, 0.42, shade(colour, 0.8))
        for u in (0.36, 0.50, 0.63):
            pen.rectangle(u, 0.48, u + 0.08, 0.60, (110, 160, 190))
        pen.rectangle(0.60, 0.10, 0.68, 0.36, shade(colour, 0.6))


def car(pen: Pen, rng: random.Random, colour: RGB, pose: str) -> None:
    roof = rng.uniform(0.02, 0.12)
    front, back = rng.uniform(0.66, 0.76), rng.uniform(0.14, 0.26)
    pen.polygon(
        [(back - 0.06, 0.48), (back + 0.06, roof), (front - 0.06, roof), (front + 0.10, 0.48)],
        shade(colour, 0.9),
    )
    glass = (178, 208, 222)
    middle = (back + front) / 2
    pen.polygon(
        [
            (back + 0.02, 0.44),
            (back + 0.09, roof + 0.08),
            (middle - 0.02, roof + 0.08),
            (middle - 0.02, 0.44),
        ],
        glass,
    )
    pen.polygon(
        [
            (middle + 0.02, 0.44),
            (middle + 0.02, roof + 0.08),
            (front - 0.08, roof + 0.08),
            (front + 0.03, 0.44),
        ],
        glass,
    )
    pen.rectangle(0.01, 0.42, 0.99, 0.84, colour, 0.14)
    pen.rectangle(0.01, 0.70, 0.99, 0.80, shade(colour, 0.7), 0.04)
    pen.ellipse(0.95, 0.56, 0.03, 0.06, (255, 240, 170))
    pen.rectangle(middle + 0.04, 0.52, middle + 0.10, 0.55, shade(colour, 0.5))
    for u in (0.22, 0.78):
        pen.circle(u, 0.80, 0.18, (34, 34, 36))
        pen.circle(u, 0.80, 0.09, (190, 190, 194))


def tree(pen: Pen, rng: random.Random, colour: RGB, pose: str) -> None:
    trunk = vary((112, 78, 50), rng)
    if pose == "pine":
        pen.rectangle(0.43, 0.80, 0.57, 0.99, trunk)
        for k, (top, bottom, half) in enumerate(((0.44, 0.84, 0.48), (0.22, 0.62, 0.38), (0.01, 0.38, 0.27))):
            pen.polygon([(0.5, top), (0.5 + half, bottom), (0.5 - half, bottom)], shade(colour, 0.78 + 0.1 * k))
            pen.polygon([(0.5, top), (0.5 + half, bottom), (0.5, bottom)], shade(colour, 0.66 + 0.1 * k))
    else:
        pen.polygon([(0.42, 0.99), (0.46, 0.5), (0.54, 0.5), (0.60, 0.99)], trunk)
        pen.line([(0.5, 0.66), (0.66, 0.48)], 0.03, trunk)
        blobs = [(0.28, 0.42), (0.72, 0.42), (0.5, 0.50), (0.36, 0.22), (0.64, 0.24), (0.5, 0.34)]
        for u, v in blobs:
            pen.ellipse(u, v + 0.02, 0.26, 0.17, shade(colour, 0.78))
        for u, v in blobs:
            pen.ellipse(u + rng.uniform(-0.04, 0.04), v - 0.02, 0.20, 0.13, vary(colour, rng, 10))
        if rng.random() < 0.25:
            for _ in range(7):
                pen.circle(rng.uniform(0.2, 0.8), rng.uniform(0.15, 0.52), 0.022, (206, 52, 46))


def house(pen: Pen, rng: random.Random, colour: RGB, pose: str) -> None:
    roof = vary(rng.choice(((150, 66, 50), (92, 84, 88), (112, 82, 60))), rng)
    pen.rectangle(0.72, 0.06, 0.82, 0.34, shade(roof, 0.75))
    pen.rectangle(0.08, 0.40, 0.92, 0.98, colour)
    pen.rectangle(0.08, 0.90, 0.92, 0.98, shade(colour, 0.72))
    pen.polygon([(0.01, 0.44), (0.28 + rng.uniform(-0.06, 0.2), 0.06), (0.72, 0.06), (0.99, 0.44)], roof)
    door = rng.choice((0.18, 0.42, 0.66))
    pen.rectangle(door, 0.60, door + 0.17, 0.98, shade(roof, 0.7))
    pen.circle(door + 0.13, 0.80, 0.015, (230, 200, 90))
    for u in {0.15, 0.42, 0.69} - {min((0.15, 0.42, 0.69), key=lambda x: abs(x - door))}:
        pen.rectangle(u - 0.015, 0.535, u + 0.195, 0.785, (250, 248, 240))
        pen.rectangle(u, 0.55, u + 0.18, 0.77, (136, 178, 204))
        pen.rectangle(u + 0.08, 0.55, u + 0.10, 0.77, (250, 248, 240))


def table(pen: Pen, rng: random.Random, colour: RGB, pose: str) -> None:
    dark = shade(colour, 0.7)
    for u in (0.18, 0.76):
        pen.rectangle(u, 0.20, u + 0.05, 0.86, shade(dark, 0.8))
    for u in (0.05, 0.88):
        pen.rectangle(u, 0.24, u + 0.07, 0.99, dark)
    pen.rectangle(0.05, 0.20, 0.95, 0.36, dark)
    pen.polygon([(0.10, 0.02), (0.90, 0.02), (0.99, 0.22), (0.01, 0.22)], colour)
    pen.rectangle(0.01, 0.22, 0.99, 0.28, shade(colour, 0.82))
    pen.line([(0.14, 0.11), (0.86, 0.11)], 0.012, shade(colour, 0.9))


def cup(pen: Pen, rng: random.Random, colour: RGB, pose: str) -> None:
    dark = shade(colour, 0.72)
    pen.arc(0.74, 0.48, 0.22, 0.24, -95, 100, 0.11, dark)
    pen.polygon([(0.06, 0.12), (0.76, 0.12), (0.68, 0.92), (0.14, 0.92)], colour)
    pen.polygon([(0.58, 0.12), (0.76, 0.12), (0.68, 0.92), (0.54, 0.92)], dark)
    pen.ellipse(0.41, 0.92, 0.27, 0.06, dark)
    pen.ellipse(0.41, 0.13, 0.35, 0.11, shade(colour, 1.3))
    pen.ellipse(0.41, 0.15, 0.28, 0.08, (96, 58, 36))


def flower(pen: Pen, rng: random.Random, colour: RGB, pose: str) -> None:
    stem = vary((60, 128, 58), rng)
    lean = rng.uniform(-0.08, 0.08)
    pen.line([(0.5 + lean, 0.98), (0.5, 0.34)], 0.05, stem)
    pen.polygon([(0.5, 0.82), (0.16, 0.60), (0.30, 0.84)], stem)
    pen.polygon([(0.5, 0.78), (0.86, 0.58), (0.70, 0.82)], shade(stem, 0.85))
    petals, turn = rng.choice((5, 6, 8)), rng.uniform(0, 1)
    for k in range(petals):
        angle = 2 * math.pi * (k + turn) / petals
        pen.ellipse(
            0.5 + 0.30 * math.cos(angle),
            0.25 + 0.155 * math.sin(angle),
            0.19,
            0.095,
            shade(colour, 1.0 if k % 2 else 0.85),
        )
    pen.ellipse(0.5, 0.25, 0.16, 0.08, (244, 200, 60) if colour[2] > 100 or colour[1] < 150 else (120, 70, 36))


def umbrella(pen: Pen, rng: random.Random, colour: RGB, pose: str) -> None:
    pen.rectangle(0.485, 0.02, 0.515, 0.92, (92, 72, 58))
    pen.arc(0.55, 0.92, 0.06, 0.06, 0, 180, 0.03, (92, 72, 58))
    other = shade(colour, 1.7) if rng.random() < 0.4 else shade(colour, 0.78)
    pen.draw.pieslice([pen.at(0.01, 0.05), pen.at(0.99, 0.95)], 180, 360, fill=colour)
    pen.draw.pieslice([pen.at(0.22, 0.05), pen.at(0.78, 0.95)], 180, 360, fill=other)
    pen.draw.pieslice([pen.at(0.40, 0.05), pen.at(0.60, 0.95)], 180, 360, fill=colour)
    pen.ellipse(0.5, 0.04, 0.02, 0.03, (92, 72, 58))


class Kind(NamedTuple):
    """How a kind of object looks: its painter, width over height, height in pixels at middle distance."""

    paint: Callable[[Pen, random.Random, RGB, str], None]
    aspect: float
    height: float
    colours: tuple[str, ...]
    poses: tuple[str, ...] = ("",)


KINDS: dict[str, Kind] = {
    "dog": Kind(dog, 1.30, 42, ("brown", "black", "white", "grey", "orange"), ("run", "sit", "stand")),
    "cat": Kind(cat, 1.00, 36, ("orange", "grey", "black", "white"), ("sit", "stand")),
    "bird": Kind(bird, 1.20, 24, ("red", "blue", "yellow", "black", "white"), ("fly", "stand")),
    "man": Kind(man, 0.42, 82, ("blue", "red", "green", "white", "grey", "orange"), ("stand", "walk", "hold")),
    "woman": Kind(woman, 0.42, 76, ("red", "pink", "purple", "yellow", "green", "blue"), ("stand", "walk", "hold")),
    "boy": Kind(boy, 0.52, 58, ("red", "green", "yellow", "blue", "orange"), ("stand", "walk", "hold")),
    "hat": Kind(hat, 1.75, 20, ("red", "blue", "green", "black", "yellow", "brown"), ("cap", "brim")),
    "ball": Kind(ball, 1.00, 24, ("red", "blue", "yellow", "green", "orange")),
    "balloon": Kind(balloon, 0.50, 52, ("red", "yellow", "blue", "green", "pink", "purple")),
    "kite": Kind(kite, 0.62, 54, ("red", "green", "yellow", "blue", "purple", "orange")),
    "boat": Kind(boat, 1.25, 54, ("red", "blue", "white", "green", "brown"), ("sail", "motor")),
    "car": Kind(car, 2.00, 42, ("red", "blue", "yellow", "black", "white", "green")),
    "tree": Kind(tree, 0.72, 88, ("green",), ("round", "pine")),
    "house": Kind(house, 1.15, 80, ("white", "yellow", "red", "blue", "grey", "brown")),
    "table": Kind(table, 1.75, 50, ("brown", "white", "black")),
    "cup": Kind(cup, 1.10, 19, ("white", "red", "blue", "green", "yellow")),
    "flower": Kind(flower, 0.52, 36, ("red", "yellow", "pink", "purple", "white", "orange")),
    "umbrella": Kind(umbrella, 1.10, 54, ("red", "blue", "green", "yellow", "purple", "black")),
}


def sprite(kind: str, colour: str, pose: str, height: float, rng: random.Random, flip: bool) -> Image.Image:
    """One object as an RGBA image cropped to its pixels, about *height* pixels high."""
    look = KINDS[kind]
    width = height * look.aspect * rng.uniform(0.92, 1.08)
    size = (round(width * (1 + 2 * MARGIN) * OVERSAMPLING), round(height * (1 + 2 * MARGIN) * OVERSAMPLING))
    layer = Image.new("RGBA", size)
    pen = Pen(
        ImageDraw.Draw(layer),
        MARGIN * width * OVERSAMPLING,
        MARGIN * height * OVERSAMPLING,
        width * OVERSAMPLING,
        height * OVERSAMPLING,
    )
    look.paint(pen, rng, vary(COLOURS[colour], rng), pose)
    if flip:
        layer = layer.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    tilt = {
        "kite": 28.0,
        "ball": 0.0,
        "balloon": 6.0,
        "bird": 8.0,
        "table": 0.0,
        "house": 0.0,
        "car": 1.0,
    }.get(kind, 3.0)
    layer = layer.resize((size[0] // OVERSAMPLING, size[1] // OVERSAMPLING), Image.Resampling.BOX)
    layer = layer.rotate(rng.uniform(-tilt, tilt), Image.Resampling.BICUBIC)
    box = layer.getchannel("A").point(lambda a: 255 if a > 90 else 0).getbbox()
    assert box is not None, "every painter draws something"
    return layer.crop(box)


def _gradient(height: int, top: RGB, bottom: RGB) -> Image.Image:
    ramp = np.linspace(0, 1, max(2, height))[:, None, None]
    rows = np.asarray(top) * (1 - ramp) + np.asarray(bottom) * ramp
    return Image.fromarray(np.repeat(rows, WIDTH, axis=1).astype(np.uint8))


DAY = ((108, 170, 226), (206, 230, 242))
EVENING = ((98, 104, 168), (246, 190, 140))
CLOUDY = ((156, 170, 184), (216, 222, 226))


class Background(NamedTuple):
    """A drawn place: the picture, the row where its ground begins, the box of its water, if any."""

    image: Image.Image
    horizon: int
    water: tuple[int, int, int, int] | None


def background(place: str, light: str, rng: random.Random, grain: np.random.Generator) -> Background:
    """Draw an empty *place* (field, beach, lake, street, room) under a *light* (day, evening, cloudy)."""
    horizon = round(HEIGHT * rng.uniform(0.42, 0.54))
    water = None
    if place == "room":
        horizon = round(HEIGHT * rng.uniform(0.56, 0.64))
        wall = vary(rng.choice(((226, 212, 184), (190, 208, 206), (222, 196, 188), (200, 204, 222))), rng)
        image = _gradient(horizon, shade(wall, 1.15), wall)
        ground = ((168, 126, 88), (134, 96, 64))
    else:
        sky = {"day": DAY, "evening": EVENING, "cloudy": CLOUDY}[light]
        image = _gradient(horizon, vary(sky[0], rng, 8), vary(sky[1], rng, 8))
        ground = {
            "field": ((134, 178, 92), (78, 136, 60)),
            "lake": ((120, 170, 90), (84, 140, 66)),
            "beach": ((232, 212, 160), (214, 186, 128)),
            "street": ((126, 126, 130), (88, 88, 94)),
        }[place]
    whole = Image.new("RGB", (WIDTH, HEIGHT))
    whole.paste(image, (0, 0))
    whole.paste(_gradient(HEIGHT - horizon, vary(ground[0], rng, 8), vary(ground[1], rng, 8)), (0, horizon))
    big = whole.resize((WIDTH * OVERSAMPLING, HEIGHT * OVERSAMPLING), Image.Resampling.BILINEAR)
    draw = ImageDraw.Draw(big)
    s = OVERSAMPLING
    w, h, y = WIDTH * s, HEIGHT * s, horizon * s
    if place == "room":
        draw.rectangle([0, y - 5 * s, w, y], fill=(244, 240, 230))
        for k in range(1, 5):
            row = y + (h - y) * k * k / 22
            draw.line([0, row, w, row], fill=(120, 84, 56), width=s)
        left, top = rng.randint(20, 160) * s, rng.randint(10, 22) * s
        if rng.random() < 0.7:
            draw.rectangle([left, top, left + 52 * s, top + 42 * s], fill=(248, 246, 240))
            draw.rectangle([left + 3 * s, top + 3 * s, left + 49 * s, top + 39 * s], fill=(166, 206, 230))
            draw.rectangle([left + 24 * s, top, left + 27 * s, top + 42 * s], fill=(248, 246, 240))
            draw.rectangle([left, top + 20 * s, left + 52 * s, top + 22 * s], fill=(248, 246, 240))
        if rng.random() < 0.6:
            rug = vary(rng.choice(((150, 70, 70), (80, 100, 140), (190, 170, 130))), rng)
            middle = rng.randint(70, 170) * s
            draw.ellipse([middle - 70 * s, y + 22 * s, middle + 70 * s, y + 58 * s], fill=shade(rug, 0.8))
            draw.ellipse([middle - 64 * s, y + 24 * s, middle + 64 * s, y + 55 * s], fill=rug)
    else:
        if light == "day" and rng.random() < 0.6:
            u, v, r = rng.randint(15, WIDTH - 15) * s, rng.randint(12, 30) * s, rng.randint(8, 12) * s
            draw.ellipse([u - r, v - r, u + r, v + r], fill=(255, 240, 176))
        for _ in range(rng.randint(0, 3)):
            u, v = rng.randint(0, WIDTH) * s, rng.randint(10, horizon // 2) * s
            for _ in range(4):
                r = rng.randint(6, 11) * s
                x, z = u + rng.randint(-16, 16) * s, v + rng.randint(-2, 3) * s
                draw.ellipse([x - 1.5 * r, z - r * 0.6, x + 1.5 * r, z + r * 0.6], fill=shade((236, 240, 246), 1.0))
        if place == "street":
            x = -5
            while x < WIDTH:
                wide, high = rng.randint(22, 44), rng.randint(14, 40)
                tone = vary(rng.choice(((186, 172, 156), (160, 158, 166), (176, 150, 136))), rng)
                draw.rectangle([x * s, y - high * s, (x + wide) * s, y], fill=tone)
                for a in range(x + 4, x + wide - 6, 9):
                    for b in range(horizon - high + 5, horizon - 6, 10):
                        draw.rectangle([a * s, b * s, (a + 4) * s, (b + 5) * s], fill=shade(tone, 0.8))
                x += wide
            draw.rectangle([0, y, w, y + 10 * s], fill=(182, 178, 172))
            row = (horizon + (HEIGHT - horizon) * 0.55) * s
            for a in range(rng.randint(-20, 0), WIDTH, 44):
                draw.rectangle([a * s, row, (a + 22) * s, row + 3 * s], fill=(226, 220, 196))
        else:
            far = vary((128, 160, 130) if place != "beach" else (142, 160, 178), rng, 10)
            points = [(0.0, float(y))]
            base, phase = rng.uniform(4, 14), rng.uniform(0, 6)
            for a in range(0, WIDTH + 1, 6):
                points.append((a * s, y - s * max(0.0, base + 6 * math.sin(a / 31 + phase) + 4 * math.sin(a / 13))))
            draw.polygon([*points, (w, float(y))], fill=far)
        if place in ("lake", "beach"):
            share = rng.uniform(0.52, 0.62) if place == "lake" else rng.uniform(0.22, 0.32)
            shore = round(horizon + (HEIGHT - horizon) * share)
            blue = vary((72, 138, 178) if light == "day" else (92, 124, 150), rng, 10)
            sea = _gradient(shore - horizon, shade(blue, 1.25), shade(blue, 0.9)).resize((w, (shore - horizon) * s))
            big.paste(sea, (0, y))
            for _ in range(26):
                a, b = rng.randint(0, WIDTH) * s, rng.randint(horizon + 2, shore - 2) * s
                draw.line([a, b, a + rng.randint(6, 18) * s, b], fill=shade(blue, 1.45), width=s)
            water = (0, horizon, WIDTH, shore)
        if place in ("field", "lake"):
            first = horizon if water is None else water[3]
            for _ in range(90):
                a, b = rng.randint(0, WIDTH) * s, rng.randint(first + 4, HEIGHT) * s
                green = vary((96, 152, 70), rng, 16)
                draw.line([a, b, a + rng.randint(-2, 2) * s, b - rng.randint(2, 5) * s], fill=green, width=s)
    small = big.resize((WIDTH, HEIGHT), Image.Resampling.BOX)
    # soft, low-contrast patches, so that two windows of one background are not the same pixels
    patches = Image.fromarray(grain.integers(0, 255, (HEIGHT // 12, WIDTH // 12), dtype=np.uint8))
    patches = patches.resize((WIDTH, HEIGHT), Image.Resampling.BICUBIC).filter(ImageFilter.GaussianBlur(2))
    offset = (np.asarray(patches, dtype=np.float32) - 127)[:, :, None] * 0.03
    pixels = np.clip(np.asarray(small, dtype=np.float32) + offset, 0, 255)
    return Background(Image.fromarray(pixels.astype(np.uint8)), horizon, water)


def finish(image: Image.Image, light: str, grain: np.random.Generator) -> Image.Image:
    """The whole picture under its light, with a camera's grain."""
    tint = {"day": (1.0, 1.0, 1.0), "evening": (1.0, 0.93, 0.90), "cloudy": (0.95, 0.97, 0.99)}[light]
    pixels = np.asarray(image, dtype=np.float32) * np.asarray(tint, dtype=np.float32) * grain.uniform(0.9, 1.06)
    pixels += grain.normal(0, 3.0, pixels.shape).astype(np.float32)
    return Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8))
