"""Drawn captions, and the command that draws them."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from fairseq_grounding.cli import draw
from fairseq_grounding.errors import GroundingError
from fairseq_grounding.viewer.files import draw_dumps
from fairseq_grounding.viewer.overlay import PALETTE, STOP_WORDS, draw_caption

GREY = (128, 128, 128)


def make_row(words, boxes, image_id="7", model="up_down", weights=None):
    steps = []
    for k, (word, box) in enumerate(zip(words, boxes)):
        attention = None if box is None else (weights[k] if weights else [0.25, 0.75])
        region = None if box is None else int(np.argmax(attention))
        steps.append({"token": word, "region": region, "box": box, "attention": attention, "logprob": -0.5})
    return {
        "id": 0,
        "image_id": image_id,
        "caption_index": 0,
        "model": model,
        "text": " ".join(words),
        "tokens": list(words),
        "steps": steps,
    }


def count(picture: Image.Image, colour: tuple[int, int, int]) -> int:
    return int((np.asarray(picture) == colour).all(axis=2).sum())


def colours_in(picture: Image.Image) -> list[int]:
    return [k for k, colour in enumerate(PALETTE) if count(picture, colour) > 50]


@pytest.fixture
def photograph() -> Image.Image:
    return Image.new("RGB", (160, 120), GREY)


def test_box_is_drawn_where_it_is(photograph):
    drawn = draw_caption(photograph, make_row(["dog"], [[40, 60, 80, 100]]))
    assert drawn.width == 640
    pixels = np.asarray(drawn)[: 120 * 4]
    assert pixels.shape[0] == 480
    ys, xs = np.nonzero((pixels == PALETTE[0]).all(axis=2))
    below_label = ys > 60 * 4 + 2
    assert xs[below_label].min() == 160
    assert xs[below_label].max() == 320
    assert ys.max() == 400
    assert tuple(pixels[330, 240]) == GREY, "the inside of a box stays visible"


def test_boxes_of_the_original_fit_a_copy_of_another_size(photograph):
    original = draw_caption(photograph.resize((640, 320)), make_row(["dog"], [[40, 60, 200, 300]]))
    squashed = draw_caption(photograph.resize((224, 224)), make_row(["dog"], [[40, 60, 200, 300]]), box_size=(640, 320))
    assert np.array_equal(np.asarray(original), np.asarray(squashed))
    unscaled = draw_caption(photograph.resize((224, 224)), make_row(["dog"], [[40, 60, 200, 300]]))
    assert unscaled.size != original.size


def test_large_photographs_are_reduced():
    assert draw_caption(Image.new("L", (3000, 2000)), make_row(["dog"], [[0, 0, 9, 9]])).width == 1280


def test_words_have_their_own_colours_on_the_box_and_in_the_caption(photograph):
    boxes = [[5, 30, 40, 90], [60, 40, 90, 90], [100, 40, 150, 110]]
    drawn = draw_caption(photograph, make_row(["dog", "cat", "bird"], boxes))
    on_photograph = drawn.crop((0, 0, 640, 480))
    caption = drawn.crop((0, 480, 640, drawn.height))
    assert colours_in(on_photograph) == colours_in(caption) == [0, 1, 2]
    columns = [np.nonzero((np.asarray(caption) == PALETTE[k]).all(axis=2))[1].mean() for k in range(3)]
    assert columns == sorted(columns), "in the order of the words"


def test_which_words_are_drawn(photograph):
    words = ["the", "dog", "runs", "beside", "a", "Dog", "house"]
    row = make_row(words, [[10 * k, 40, 10 * k + 30, 100] for k in range(7)])
    assert {"the", "beside", "a"} <= STOP_WORDS
    assert colours_in(draw_caption(photograph, row)) == [0, 1, 2, 3]
    assert colours_in(draw_caption(photograph, row, words={"dog", "house"})) == [0, 1, 2]
    assert colours_in(draw_caption(photograph, row, words={"dog", "house"}, max_words=1)) == [0]
    assert colours_in(draw_caption(photograph, row, words=set())) == []


def test_a_word_without_a_box_takes_no_colour(photograph):
    row = make_row(["dog", "day", "cat"], [[5, 30, 40, 90], None, [60, 40, 90, 90]])
    assert colours_in(draw_caption(photograph, row)) == [0, 1]


def test_words_that_share_a_box_all_show(photograph):
    drawn = draw_caption(photograph, make_row(["dog", "animal", "pet"], [[20, 30, 120, 110]] * 3))
    left_edge = np.asarray(drawn)[400, 60:120]
    assert {k for k in range(3) if (left_edge == PALETTE[k]).all(axis=1).any()} == {0, 1, 2}


def test_labels_do_not_cover_each_other(photograph):
    alone = count(draw_caption(photograph, make_row(["dog"], [[20, 40, 120, 110]])).crop((0, 0, 640, 480)), PALETTE[0])
    words = ["dog", "pup", "pet", "fox", "elk"]
    both = draw_caption(photograph, make_row(words, [[20, 40, 120, 110]] * 5)).crop((0, 0, 640, 480))
    assert count(both, PALETTE[0]) > 0.7 * alone


def test_long_captions_wrap(photograph):
    box = [10, 10, 50, 50]
    short = draw_caption(photograph, make_row(["dog"] * 3, [box] * 3))
    long = draw_caption(photograph, make_row(["dog"] * 40, [box] * 40))
    assert long.width == short.width
    assert long.height >= short.height + 60
    assert count(long.crop((639, 480, 640, long.height)), (255, 255, 255)) == long.height - 480


def test_the_weight_is_written(photograph):
    box = [[20, 40, 120, 110]]
    strong = draw_caption(photograph, make_row(["dog"], box, weights=[[0.1, 0.9]]))
    weak = draw_caption(photograph, make_row(["dog"], box, weights=[[0.4, 0.6]]))
    changed = np.argwhere((np.asarray(strong) != np.asarray(weak)).any(axis=2))
    assert len(changed)
    assert changed[:, 0].max() < 160, "only the label above the box differs"


number = st.floats(-1e4, 1e4, allow_nan=False)


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.tuples(st.text(max_size=30), st.lists(number, min_size=4, max_size=4)), max_size=12),
    st.tuples(st.integers(40, 80), st.integers(20, 40)),
)
def test_any_box_and_word_can_be_drawn(steps, size):
    row = make_row([word for word, _ in steps], [box for _, box in steps])
    drawn = draw_caption(Image.new("RGB", size), row, words=[word for word, _ in steps])
    assert drawn.mode == "RGB"
    assert drawn.width == 640


def write_dump(path: Path, rows) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


@pytest.fixture
def folder(tmp_path, photograph) -> Path:
    (tmp_path / "images").mkdir()
    for image_id in ("7", "8", "9"):
        photograph.save(tmp_path / "images" / f"{image_id}.jpg")
    box = [[20, 40, 120, 110]]
    write_dump(tmp_path / "a.jsonl", [make_row(["dog"], box, image_id) for image_id in "879"])
    write_dump(tmp_path / "b.jsonl", [make_row(["cat"], box, image_id, "scan") for image_id in "79"])
    write_dump(tmp_path / "c.jsonl", [make_row(["cat"], box, image_id) for image_id in "79"])
    return tmp_path


def test_the_first_images_of_a_dump_are_drawn(folder):
    written = draw_dumps([folder / "a.jsonl"], folder / "images", folder / "out", limit=2)
    assert [path.name for path in written] == ["8.png", "7.png"]
    assert sorted(path.name for path in (folder / "out").iterdir()) == ["7.png", "8.png"]


def test_the_first_caption_of_an_image_is_drawn(folder):
    first, second = make_row(["dog"], [[20, 40, 120, 110]]), make_row(["cat"], [[2, 4, 20, 30]])
    write_dump(folder / "two.jsonl", [first, second])
    (path,) = draw_dumps([folder / "two.jsonl"], folder / "images", folder / "out")
    with Image.open(folder / "images" / "7.jpg") as image, Image.open(path) as drawn:
        assert np.array_equal(np.asarray(drawn), np.asarray(draw_caption(image, first)))


def test_several_dumps_go_under_each_other(folder):
    dumps = [folder / "a.jsonl", folder / "b.jsonl"]
    written = draw_dumps(dumps, folder / "images", folder / "out")
    assert [path.name for path in written] == ["7.png", "9.png"], "only images of both"
    (alone,) = draw_dumps(dumps[:1], folder / "images", folder / "alone", limit=1)
    with Image.open(alone) as one, Image.open(written[0]) as two:
        assert two.height > 2 * one.height


def test_models_of_one_name_are_told_apart_by_their_files(folder, monkeypatch):
    headings = []

    def spy(image, row, **options):
        headings.append(options["heading"])
        return image

    monkeypatch.setattr("fairseq_grounding.viewer.files.draw_caption", spy)
    for names in (["a", "b"], ["a", "c"], ["a"]):
        dumps = [folder / f"{name}.jsonl" for name in names]
        draw_dumps(dumps, folder / "images", folder / "out", image_ids=["7"])
    assert headings == ["up_down", "scan", "a (up_down)", "c (up_down)", None]


def test_nouns_and_sizes_come_from_the_prepared_folder(folder, monkeypatch):
    class Prepared:
        regions_path = "somewhere.h5"

        def __init__(self, path):
            assert path == "prepared"

        def noun_table(self):
            return {"dog": (10, 9), "runs": (10, 3), "orange": (10, 5)}

    store = SimpleNamespace(image_sizes=np.array([[1, 1], [320, 240]], dtype=np.int32), index={"7": 1}.__getitem__)
    monkeypatch.setattr("fairseq_grounding.data.prepared.PreparedFolder", Prepared)
    monkeypatch.setattr("fairseq_grounding.data.regions.RegionStore", lambda path: store)
    row = make_row(["dog", "runs", "orange"], [[40, 80, 240, 220]] * 3)
    write_dump(folder / "nouns.jsonl", [row])
    (path,) = draw_dumps([folder / "nouns.jsonl"], folder / "images", folder / "out", prepared="prepared")
    with Image.open(folder / "images" / "7.jpg") as image, Image.open(path) as drawn:
        expected = draw_caption(image, row, words={"dog"}, box_size=(320, 240))
        assert np.array_equal(np.asarray(drawn), np.asarray(expected))


def test_what_cannot_be_drawn_is_said_in_one_line(folder, monkeypatch):
    def error(*dumps, **options) -> str:
        with pytest.raises(GroundingError) as caught:
            draw_dumps([folder / name for name in dumps], folder / "images", folder / "out", **options)
        assert "\n" not in str(caught.value)
        return str(caught.value)

    write_dump(folder / "no_box.jsonl", [make_row(["dog"], [None])])
    assert "no_box.jsonl: has no boxes" in error("no_box.jsonl")
    write_dump(folder / "other.jsonl", [make_row(["dog"], [[1, 2, 30, 40]], "12345")])
    assert "images: has no photograph of image 12345" in error("other.jsonl")
    assert "no image is in all" in error("a.jsonl", "other.jsonl")
    assert "b.jsonl: has no caption of image 8; mend --image-ids" in error("a.jsonl", "b.jsonl", image_ids=["8"])
    assert "--limit: 0" in error("a.jsonl", limit=0)
    (folder / "images" / "12345.png").write_bytes(b"\x89PNG nothing")
    assert "12345.png: cannot be read as a picture" in error("other.jsonl")
    noise = np.random.default_rng(0).integers(0, 256, (40, 40, 3), np.uint8)
    Image.fromarray(noise).save(folder / "images" / "12345.png")
    whole = (folder / "images" / "12345.png").read_bytes()
    for length in (20, 33, 35, 39, 41, 43, 60, len(whole) // 2, len(whole) - 30):
        (folder / "images" / "12345.png").write_bytes(whole[:length])
        assert "12345.png: cannot be read as a picture" in error("other.jsonl")
    for place in range(16, len(whole) - 12, 97):
        (folder / "images" / "12345.png").write_bytes(whole[:place] + b"\xff\xff\xff" + whole[place + 3 :])
        assert "12345.png: cannot be read as a picture" in error("other.jsonl")
    (folder / "images" / "12345.png").write_bytes(whole)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    assert "12345.png: cannot be read as a picture (Image size" in error("other.jsonl")
    with pytest.raises(GroundingError, match="nowhere: is not a folder"):
        draw_dumps([folder / "a.jsonl"], folder / "nowhere", folder / "out")
    assert not (folder / "out").exists()


def test_the_command_draws(folder, capsys):
    import argparse

    parser = argparse.ArgumentParser()
    draw.add_arguments(parser)
    arguments = [str(folder / "a.jsonl"), "--images", str(folder / "images"), "--out", str(folder / "o" / "p")]
    draw.run(parser.parse_args([*arguments, "--image-ids", "9", "7"]))
    assert sorted(path.name for path in (folder / "o" / "p").iterdir()) == ["7.png", "9.png"]
    assert capsys.readouterr().out.startswith("2 pictures")
