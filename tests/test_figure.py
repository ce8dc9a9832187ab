"""The figure for print: colours, boxes, strips of weights, PNG and PDF."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fairseq_grounding.cli import main
from fairseq_grounding.errors import GroundingError
from fairseq_grounding.viewer.figure import COLOURS, Sizes, Word, _strips, _text, words_of, write_figure

from .test_viewer import GREY, count, make_row, write_dump

ROWS = {
    "one": make_row(
        ["a", "man", "and", "a", "dog"],
        [None, [10, 10, 60, 100], None, None, [70, 40, 150, 110]],
        model="one",
        weights=[None, [0.7, 0.2, 0.1], None, None, [0.1, 0.3, 0.6]],
    ),
    "two": make_row(
        ["the", "dog", "beside", "a", "man"],
        [None, [80, 50, 150, 110], None, None, [10, 10, 60, 100]],
        model="two",
        weights=[None, [0.0, 0.4, 0.6], None, None, [0.5, 0.5, 0.0]],
    ),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "images").mkdir()
    for image_id in ("7", "8"):
        Image.new("RGB", (160, 120), GREY).save(tmp_path / "images" / f"{image_id}.png")
    for name, row in ROWS.items():
        write_dump(tmp_path / f"{name}.jsonl", [row, {**row, "id": 1, "image_id": "8"}])
    return tmp_path


def test_a_word_has_one_colour_in_all_models() -> None:
    first, second = words_of(list(ROWS.values()), None, False, 8)
    assert [(word.text, word.colour) for word in first] == [("man", COLOURS[0]), ("dog", COLOURS[1])]
    assert [(word.text, word.colour) for word in second] == [("dog", COLOURS[1]), ("man", COLOURS[0])]
    assert len(set(COLOURS)) == len(COLOURS)


def test_which_words_are_drawn() -> None:
    row = make_row(["A", "dog", "in", "snow"], [[0, 0, 9, 9]] * 4)

    def drawn(*choice) -> list[str]:
        return [word.text for word in words_of([row], *choice)[0]]

    assert drawn(None, False, 8) == ["dog", "snow"]
    assert drawn({"snow"}, False, 8) == ["snow"]
    assert drawn({"snow"}, True, 8) == ["A", "dog", "in", "snow"]
    assert drawn(None, True, 2) == ["A", "dog"]


def test_models_stand_one_under_the_other(folder: Path) -> None:
    dumps = [folder / f"{name}.jsonl" for name in ROWS]
    heights = []
    for n in (1, 2):
        out = write_figure(dumps[:n], folder / "images", ["7"], folder / "f.png", width=4, dpi=100)
        with Image.open(out) as figure:
            assert figure.width == 400
            assert figure.info["dpi"] == pytest.approx((100, 100), abs=0.1)
            heights.append(figure.height)
            picture = figure.convert("RGB")
    assert heights[0] * 2 < heights[1] < heights[0] * 2 + 20
    left = round(400 * 0.44)
    for model in range(2):
        top = model * (heights[1] - heights[0])
        photograph = picture.crop((0, top, left, top + round(left * 0.75)))
        text = picture.crop((left, top, 400, min(top + heights[0], heights[1])))
        for colour in COLOURS[:2]:
            assert count(photograph, colour) > 30
            assert count(text, colour) > 30
        assert count(photograph, COLOURS[2]) == 0
    # the left side of the box of "man", clear of its label
    scale = left / 160
    pixels = np.asarray(picture)
    assert tuple(pixels[round(70 * scale), round(10 * scale) + 1]) == COLOURS[0]
    assert tuple(pixels[round(70 * scale), round(35 * scale)]) == GREY


def test_strips_are_darker_where_weights_are_bigger() -> None:
    sizes = Sizes(600, 144)
    weights = [0.05, 0.3, 0.1, 0.5, 0.05]
    sheet = Image.new("RGB", (300, 100), (255, 255, 255))
    from PIL import ImageDraw

    _strips(ImageDraw.Draw(sheet), [Word(0, "dog", COLOURS[1], [0, 0, 1, 1], 3, weights)], 300, 4, sizes)
    row = np.asarray(sheet)[4 + sizes.points(4.5)].astype(int)
    framed = np.flatnonzero((row == COLOURS[1]).all(axis=1))
    frames = framed[framed > 60]
    # from the frame of region 3 one knows the grid: shades in the middle of each cell
    cell = (frames.max() - frames.min() + 1) + 0.0
    middles = [round((frames.min() + frames.max()) / 2 + (n - 3) * cell) for n in range(5)]
    shades = row[middles].mean(axis=1)
    assert list(np.argsort(-shades, kind="stable")) == [0, 4, 2, 1, 3]
    assert shades[3] < 30
    assert abs(shades[0] - shades[4]) < 1


def test_long_captions_wrap_and_nothing_is_wider_than_its_column() -> None:
    sizes = Sizes(600, 100)
    short = _text(make_row(["dog"] * 3, [[0, 0, 9, 9]] * 3), [], "m", 200, sizes)
    long = _text(make_row(["dog"] * 60, [[0, 0, 9, 9]] * 60), [], "m", 200, sizes)
    unbroken = _text(make_row(["d" * 400], [[0, 0, 9, 9]]), [], "m", 200, sizes)
    assert short.width == long.width == unbroken.width == 200
    assert long.height > 4 * short.height / 2
    assert (np.asarray(unbroken)[:, -1] == 255).all(), "cut with an ellipsis, not at the edge"


def test_pdf_has_the_size_asked_for(folder: Path) -> None:
    out = write_figure([folder / "one.jsonl"], folder / "images", ["7"], folder / "f.pdf", width=5, dpi=120)
    content = out.read_bytes()
    assert content.startswith(b"%PDF")
    box = re.search(rb"/MediaBox \[ ?([\d.]+) ([\d.]+) ([\d.]+) ([\d.]+)", content)
    assert box is not None
    assert float(box[3]) == pytest.approx(360, abs=0.5)


def test_the_command(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = folder / "f.png"
    dumps = [str(folder / "one.jsonl"), str(folder / "two.jsonl")]
    common = ["--images", str(folder / "images"), "--out", str(out)]
    names = ["--names", "without", "with"]
    assert main(["figure", *dumps, *common, "--image-ids", "8,7", *names, "--columns", "2", "--dpi", "72"]) == 0
    assert "2 photographs by 2 models" in capsys.readouterr().out
    with Image.open(out) as figure:
        assert figure.width == pytest.approx(504, abs=1)
    (folder / "images" / "8.png").unlink()
    out.unlink()
    assert main(["figure", *dumps, *common, "--image-ids", "8,7"]) == 1
    error = capsys.readouterr().err
    assert len(error.splitlines()) == 1
    assert "has no photograph of image 8" in error
    assert not out.exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"out": "f.jpg"}, "ends in .png or .pdf"),
        ({"names": ["a", "b"]}, "2 names for 1 dumps"),
        ({"image_ids": []}, "names no image"),
        ({"image_ids": ["9"]}, "has no caption of image 9"),
        ({"dpi": 2}, "--dpi 2"),
        ({"width": 3.0, "columns": 2}, "--width 3"),
        ({"width": float("nan")}, "--width nan"),
        ({"max_words": 0}, "--max-words"),
        ({"columns": 0}, "--columns"),
        ({"images": "absent"}, "is not a folder"),
        ({"out": "absent/f.png"}, "does not exist"),
    ],
)
def test_refusals(folder: Path, changes: dict, message: str) -> None:
    options = {"images": "images", "image_ids": ["7"], "out": "f.png", **changes}
    images, out = folder / options.pop("images"), folder / options.pop("out")
    with pytest.raises(GroundingError, match=message) as raised:
        write_figure([folder / "one.jsonl"], images, options.pop("image_ids"), out, **options)
    assert len(str(raised.value).splitlines()) == 1
    assert not out.exists()
