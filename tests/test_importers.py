"""Regions in the files that other programs wrote: each format there and back, and each thing wrong in them."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from fairseq_grounding.cli import build_parser
from fairseq_grounding.data.importers import IMPORTERS
from fairseq_grounding.data.regions import RegionStore, RegionWriter
from fairseq_grounding.errors import GroundingError

from .region_files import (
    classes,
    command,
    draw_images,
    encoded,
    prepare,
    save_att_box,
    save_att_box_h5,
    save_flickr_det,
    save_gvd,
    save_npy_dir,
    save_pos_scan,
    save_scan,
    save_sizes,
    save_tsv,
    tsv_row,
)


def refused(kind, source, *flags):
    """The one line of a refused import; nothing may be left of what was to be written."""
    with tempfile.TemporaryDirectory() as out:
        with pytest.raises(GroundingError) as error:
            prepare(kind, source, Path(out) / "r.h5", *flags)
        assert list(Path(out).iterdir()) == []
    assert "\n" not in str(error.value)
    return str(error.value)


def skipping(kind, source, *flags):
    """The ids of an import with --skip-bad, and its list of what it skipped."""
    with tempfile.TemporaryDirectory() as out:
        store = prepare(kind, source, Path(out) / "r.h5", "--skip-bad", *flags)
        heading, *lines = (Path(out) / "r.h5.skipped.tsv").read_text().splitlines()
        assert heading == "image\treason"
        return store.image_ids, dict(line.split("\t") for line in lines)


def assert_holds(store, images, boxes=True):
    assert store.image_ids == list(images)
    for n, (features, own, size) in enumerate(images.values()):
        np.testing.assert_array_equal(store.features(n), features)
        if boxes:
            np.testing.assert_allclose(store.boxes(n), own, rtol=1e-5, atol=1e-3)
            assert tuple(store.image_sizes[n]) == size


def with_sizes(save):
    def save_both(folder, images):
        return save(folder, images), "--image-sizes", save_sizes(folder.parent / "sizes.csv", images)

    return save_both


def gvd(folder, images, **options):
    path = save_gvd(folder, images, **options)
    sizes = save_sizes(folder / "sizes.csv", images)
    return path, "--features-dir", folder / "features", "--ids", folder / "dic.json", "--image-sizes", sizes


def flickr_det(folder, images):
    path = save_flickr_det(folder, images)
    return path, "--ids", folder / "dic.json", "--image-sizes", save_sizes(folder / "sizes.csv", images)


# format, how to write it (what it returns is --input and flags), whether all images must have as many regions
FORMATS = {
    "butd": ("butd-tsv", lambda path, images: (save_tsv(path, images),)),
    "butd-hw": ("butd-tsv", lambda path, images: (save_tsv(path, images, "butd-hw", end="\n"),)),
    "lxmert": ("butd-tsv", lambda path, images: (save_tsv(path, images, "lxmert"),)),
    "att-box": ("att-box-dirs", with_sizes(save_att_box)),
    "att-box h5": ("att-box-dirs", with_sizes(save_att_box_h5)),
    "npy pixels": ("npy-dir", lambda path, images: (save_npy_dir(path, images),)),
    "npy normalised": ("npy-dir", lambda path, images: (save_npy_dir(path, images, "normalised"),)),
    "npy area": ("npy-dir", lambda path, images: (save_npy_dir(path, images, "normalised with area"),)),
    "gvd": ("gvd", gvd),
    "pos-scan": ("pos-scan", with_sizes(save_pos_scan)),
    "flickr_det": ("pos-scan", flickr_det),
}


@pytest.mark.parametrize("name", FORMATS)
@settings(max_examples=4, deadline=None)
@given(st.lists(st.integers(1, 6), min_size=1, max_size=9), st.integers(0, 99))
def test_every_format_round_trips(name, counts, seed):
    kind, save = FORMATS[name]
    images = draw_images(counts, seed)
    with tempfile.TemporaryDirectory() as folder:
        source, *flags = save(Path(folder) / "in", images)
        assert_holds(prepare(kind, source, Path(folder) / "r.h5", *flags), images)


@pytest.mark.parametrize("name", ["lxmert", "att-box h5", "npy area", "gvd", "pos-scan"])
def test_store_does_not_depend_on_the_number_of_workers(tmp_path, name):
    kind, save = FORMATS[name]
    images = draw_images([1 + n % 5 for n in range(20)])
    source, *flags = save(tmp_path / "in", images)
    one = prepare(kind, source, tmp_path / "1.h5", *flags)
    two = prepare(kind, source, tmp_path / "2.h5", *flags, "--workers", 2)
    assert_holds(two, images)
    assert one.content_hash() == two.content_hash()


def test_classes_and_scores_come_along(tmp_path):
    images = draw_images([3, 4])
    tsv = prepare("butd-tsv", save_tsv(tmp_path / "in.tsv", images, "lxmert"), tmp_path / "tsv.h5")
    source, *flags = gvd(tmp_path / "gvd", images)
    for store in (tsv, prepare("gvd", source, tmp_path / "gvd.h5", *flags)):
        for n, (_, boxes, _) in enumerate(images.values()):
            labels, scores = classes(boxes)
            np.testing.assert_array_equal(store.labels(n), labels)
            np.testing.assert_array_equal(store.scores(n), scores)


def test_low_scores_are_left_out_on_request(tmp_path):
    images = draw_images([3, 4])
    source, *flags = gvd(tmp_path / "gvd", images, low=2)
    assert_holds(prepare("gvd", source, tmp_path / "r.h5", *flags, "--min-score", 0.2), images)
    every = prepare("gvd", source, tmp_path / "all.h5", *flags)
    assert every.counts.tolist() == [5, 6]
    assert "--min-score 0.2" in every.decisions["scores"]
    assert "'im000'" in refused("gvd", source, *flags, "--min-score", 1)


def test_several_inputs_make_one_store(tmp_path):
    images = draw_images([2, 3, 1, 4])
    halves = [dict(list(images.items())[part]) for part in (slice(2), slice(2, 4))]
    for path, half in zip(("a.tsv", "b.tsv"), halves):
        save_tsv(tmp_path / path, half)
    store = prepare(
        "butd-tsv", tmp_path / "a.tsv", tmp_path / "r.h5", "--input", tmp_path / "a.tsv", tmp_path / "b.tsv"
    )
    assert_holds(store, images)
    assert store.source == "a.tsv, b.tsv"
    message = refused("butd-tsv", tmp_path / "a.tsv", "--input", tmp_path / "a.tsv", tmp_path / "a.tsv")
    assert "a.tsv: row 1: image 'im000': is there more than once" in message


# ---- the order of columns


def wide(image_id="w", boxes=((0, 0, 90, 30),), size=(100, 40)):
    return {image_id: (np.ones((len(boxes), 3), np.float32), np.array(boxes, np.float32), size)}


def test_width_and_height_are_told_by_the_first_box_that_fits_one_way_only(tmp_path, capsys):
    small = wide("small", [(0, 0, 9, 9)])
    for order in ("butd", "butd-hw"):
        path = save_tsv(tmp_path / f"{order}.tsv", {**small, **wide()}, order)
        store = prepare("butd-tsv", path, tmp_path / "r.h5")
        assert store.image_sizes.tolist() == [[100, 40], [100, 40]]
        assert store.decisions["columns"].startswith(f"{order}: ")
        assert "row 2: a box reaches 90, 30" in store.decisions["columns"]
        assert f"columns: {order}: " in capsys.readouterr().out
        # where nothing shows it, it is asked for
        path = save_tsv(tmp_path / "small.tsv", small, order)
        assert "say --columns butd (width first) or butd-hw" in refused("butd-tsv", path)
        store = prepare("butd-tsv", path, tmp_path / "r.h5", "--columns", order)
        assert store.image_sizes.tolist() == [[100, 40]]
        assert "(--columns)" in store.decisions["columns"]


def test_square_images_have_one_order(tmp_path):
    path = save_tsv(tmp_path / "in.tsv", wide(boxes=[(0, 0, 30, 30)], size=(40, 40)))
    assert "square" in prepare("butd-tsv", path, tmp_path / "r.h5").decisions["columns"]


def test_columns_can_be_named(tmp_path):
    images = draw_images([2, 3])
    rows = [[encoded(f), size[1], size[0], encoded(b), "x", key, len(b)] for key, (f, b, size) in images.items()]
    (tmp_path / "in.tsv").write_text("".join("\t".join(map(str, row)) + "\n" for row in rows))
    order = "features,image_h,image_w,boxes,-,img_id,num_boxes"
    assert_holds(prepare("butd-tsv", tmp_path / "in.tsv", tmp_path / "r.h5", "--columns", order), images)
    assert "has the columns of none of butd" in refused("butd-tsv", tmp_path / "in.tsv")
    for wrong in ("butdd", order.replace("boxes,-", "-,-"), order + ",image_w"):
        assert "not once" in refused("butd-tsv", tmp_path / "in.tsv", "--columns", wrong)
    header = order.split(",")
    lines = (tmp_path / "in.tsv").read_text()
    (tmp_path / "in.tsv").write_text("\t".join(header) + "\n" + lines)
    assert_holds(prepare("butd-tsv", tmp_path / "in.tsv", tmp_path / "r.h5"), images)


def test_fields_that_csv_quotes_are_read(tmp_path):
    images = draw_images([2, 3])
    images = {f'a "{key}"': image for key, image in images.items()}
    assert_holds(prepare("butd-tsv", save_tsv(tmp_path / "in.tsv", images), tmp_path / "r.h5"), images)
    # base64 with line breaks, which csv quotes, and blank lines between the rows
    rows = []
    for key, image in images.items():
        *head, boxes, features = tsv_row("b" + key[3:8], *image)
        rows.append("\t".join([*map(str, head), *(f'"{text[:9]}\n{text[9:]}"' for text in (boxes, features))]))
    (tmp_path / "in.tsv").write_text("\n\n".join(rows) + "\n")
    store = prepare("butd-tsv", tmp_path / "in.tsv", tmp_path / "r.h5")
    assert store.image_ids == ["bim000", "bim001"]
    np.testing.assert_array_equal(store.features(1), list(images.values())[1][0])


# ---- what is wrong in a row


def changed(row, **fields):
    names = ["image_id", "image_w", "image_h", "num_boxes", "boxes", "features"]
    return [fields.get(name, value) for name, value in zip(names, row)]


def box(*values):
    return encoded(np.array([values] * 3))


ROW_FAULTS = {
    "boxes too short": ({"boxes": encoded(np.ones(11))}, "its boxes decode to 44 bytes, not 48 for 3 boxes"),
    "features too short": ({"features": encoded(np.ones(14))}, "its features decode to 56 bytes, not a multiple of 12"),
    "other feature size": ({"features": encoded(np.ones(12))}, "its features have size 4, those before it 5"),
    "not base64": ({"boxes": "?" * 64}, "its boxes are not whole base64"),
    "cut base64": ({"features": encoded(np.ones(15))[:-3]}, "its features are not whole base64"),
    "no boxes": ({"num_boxes": 0, "boxes": "", "features": ""}, "has 0 boxes"),
    "fewer than none": ({"num_boxes": -1}, "has -1 boxes"),
    "no number": ({"image_w": "wide"}, "its image_w is 'wide', not a whole number"),
    "outside": ({"boxes": box(0, 0, 9999, 9)}, "lies outside"),
    "x1 < x0": ({"boxes": box(9, 0, 5, 9)}, "is no box"),
    "NaN box": ({"boxes": box(0, 0, np.nan, 9)}, "is no box"),
    "NaN feature": ({"features": encoded([np.nan] * 15)}, "NaN"),
    "same id": ({"image_id": "im000"}, "is there more than once"),
    "id": ({"image_id": ""}, "an id must have letters"),
    "size": ({"image_w": 0, "image_h": 0}, "its size is (0, 0)"),
    "normalised": ({"boxes": box(0, 0, 1, 0.5)}, "--box-format normalised-xyxy"),
}


@pytest.mark.parametrize("name", ROW_FAULTS)
def test_faulty_row_is_named_and_can_be_skipped(tmp_path, name):
    fields, expected = ROW_FAULTS[name]
    images = draw_images([3, 3, 3])
    rows = [tsv_row(image_id, *image) for image_id, image in images.items()]
    rows[1] = changed(rows[1], **fields)
    (tmp_path / "in.tsv").write_text("".join("\t".join(map(str, row)) + "\n" for row in rows))
    message = refused("butd-tsv", tmp_path / "in.tsv")
    assert "in.tsv: row 2" in message
    assert expected in message
    if "image_id" not in fields:
        assert "'im001'" in message
    ids, skipped = skipping("butd-tsv", tmp_path / "in.tsv", "--workers", 1 + len(name) % 2)
    assert ids == ["im000", "im002"]
    assert skipped == {fields.get("image_id", "im001") or "row 2": message}


def test_faulty_first_row_is_named_and_can_be_skipped(tmp_path):
    images = draw_images([3, 3, 3])
    rows = [tsv_row(image_id, *image) for image_id, image in images.items()]
    rows[0] = changed(rows[0], boxes=encoded(np.ones(5)))
    (tmp_path / "in.tsv").write_text("".join("\t".join(map(str, row)) + "\n" for row in rows))
    assert "row 1 (image 'im000'): its boxes decode to 20 bytes" in refused("butd-tsv", tmp_path / "in.tsv")
    assert skipping("butd-tsv", tmp_path / "in.tsv")[0] == ["im001", "im002"]
    (tmp_path / "in.tsv").write_text("\t".join(map(str, rows[0])) + "\n")
    assert "row 1 (image 'im000'): its boxes decode to 20 bytes" in refused("butd-tsv", tmp_path / "in.tsv")


def test_cut_tsv_is_named(tmp_path):
    whole = save_tsv(tmp_path / "in.tsv", draw_images([3] * 3), end="\n").read_bytes()
    last = whole.rindex(b"\n", 0, -1) + 1
    for length in range(last + 1, len(whole) - 1, 7):
        (tmp_path / "in.tsv").write_bytes(whole[:length])
        assert "in.tsv: row 3" in refused("butd-tsv", tmp_path / "in.tsv")
    for content, expected in ((b"", "is empty"), (b"no\ttsv\n", "row 1 ('no', 'tsv')"), (b"\0\xff" * 99, "row 1")):
        (tmp_path / "in.tsv").write_bytes(content)
        assert expected in refused("butd-tsv", tmp_path / "in.tsv")
    assert "no such file" in refused("butd-tsv", tmp_path / "none.tsv")


def test_everything_bad_is_an_error(tmp_path):
    path = save_tsv(tmp_path / "in.tsv", wide(boxes=[(0, 0, 9, 9), (5, 0, 3, 9)]))
    with pytest.raises(GroundingError, match="there was no image"):
        prepare("butd-tsv", path, tmp_path / "r.h5", "--skip-bad", "--columns", "butd")
    assert sorted(file.name for file in tmp_path.iterdir()) == ["in.tsv", "r.h5.skipped.tsv"]


# ---- npz


def save_milvlg(path, x, boxes, **more):
    np.savez(path, x=x, bbox=boxes, num_bbox=len(boxes), image_w=100, image_h=90, **more)


def test_transposed_features_are_turned(tmp_path):
    (tmp_path / "npz").mkdir()
    features, boxes = np.arange(15.0).reshape(3, 5), np.array([[0.0, 0, 9, 9]] * 3)
    save_milvlg(tmp_path / "npz" / "a.npz", features, boxes)
    save_milvlg(tmp_path / "npz" / "b.npz", features.T, boxes)
    store = prepare("npz-dir", tmp_path / "npz", tmp_path / "r.h5")
    np.testing.assert_array_equal(store.features(0), features)
    np.testing.assert_array_equal(store.features(1), features)
    # as many numbers as boxes: either axis may be the regions
    square = np.arange(9.0).reshape(3, 3)
    for name in "ab":
        save_milvlg(tmp_path / "npz" / f"{name}.npz", square, boxes)
    assert "--x-layout rows or columns" in refused("npz-dir", tmp_path / "npz")
    for layout, wanted in (("rows", square), ("columns", square.T)):
        store = prepare("npz-dir", tmp_path / "npz", tmp_path / "r.h5", "--x-layout", layout)
        np.testing.assert_array_equal(store.features(0), wanted)
        assert store.decisions["layout of x"] == f"{layout} (--x-layout)"


class Bomb:
    def __reduce__(self):
        return (pytest.fail, ("a pickle was opened",))


def test_pickles_are_opened_on_request_only(tmp_path):
    (tmp_path / "npz").mkdir()
    boxes = np.array([[0.0, 0, 9, 9]] * 2)
    file = tmp_path / "npz" / "a.npz"
    info = {"objects_id": np.array([4, 5]), "objects_conf": np.array([0.5, 0.25], np.float32)}
    save_milvlg(file, np.ones((2, 5)), boxes, info=info)
    store = prepare("npz-dir", tmp_path / "npz", tmp_path / "r.h5")
    assert not store.has_labels
    assert store.decisions["info"] == "pickled, not read"
    store = prepare("npz-dir", tmp_path / "npz", tmp_path / "r.h5", "--trust-pickle")
    assert (store.labels(0).tolist(), store.scores(0).tolist()) == ([4, 5], [0.5, 0.25])
    for wrong in ({"objects_id": [1]}, {"objects_id": [1, 2]}, 7):
        save_milvlg(file, np.ones((2, 5)), boxes, info=np.array(wrong, object))
        assert "leave --trust-pickle out" in refused("npz-dir", tmp_path / "npz", "--trust-pickle")
    save_milvlg(file, np.ones((2, 5)), boxes, info=np.array(Bomb(), dtype=object))
    prepare("npz-dir", tmp_path / "npz", tmp_path / "r.h5")
    with pytest.raises(pytest.fail.Exception, match="a pickle was opened"):
        prepare("npz-dir", tmp_path / "npz", tmp_path / "again.h5", "--trust-pickle")


# ---- files that belong together


def test_features_and_boxes_that_do_not_meet_are_named(tmp_path):
    images = draw_images([2, 3, 1, 2])
    source, *flags = with_sizes(save_att_box)(tmp_path / "in", images)
    (source / "box" / "im001.npy").unlink()
    (source / "att" / "im002.npz").unlink()
    assert "'im001'" in refused("att-box-dirs", source, *flags)
    ids, skipped = skipping("att-box-dirs", source, *flags)
    assert ids == ["im000", "im003"]
    assert "box has no im001.npy" in skipped["im001"]
    assert "att has no im002.npz" in skipped["im002"]

    folder = save_npy_dir(tmp_path / "npy", images)
    (folder / "im000.npy").unlink()
    (folder / "im001-boxes.npy").unlink()
    np.save(folder / "odd.npy", np.ones((2, 5)))
    assert "'im000'" in refused("npy-dir", folder)
    ids, skipped = skipping("npy-dir", folder)
    assert ids == ["im002", "im003"]
    assert "metadata.csv has no row of it" in skipped["odd"]
    assert list(skipped) == ["im000", "im001", "odd"]

    source, *flags = gvd(tmp_path / "gvd", images)
    (tmp_path / "gvd" / "features" / "im002.npy").unlink()
    np.save(tmp_path / "gvd" / "features" / "odd.npy", np.ones((9, 5)))
    assert "'im002'" in refused("gvd", source, *flags)
    ids, skipped = skipping("gvd", source, *flags)
    assert ids == ["im000", "im001", "im003"]
    assert list(skipped) == ["im002", "odd"]


def test_sizes_are_asked_for(tmp_path):
    images = draw_images([2, 2])
    for kind, save in (("att-box-dirs", save_att_box), ("pos-scan", save_pos_scan)):
        assert "--image-sizes" in refused(kind, save(tmp_path / kind, images))
    source, *flags = gvd(tmp_path / "gvd", images)
    assert "--features-dir" in refused("gvd", source)
    assert "--ids" in refused("gvd", source, *flags[:2])
    assert "--image-sizes" in refused("gvd", source, *flags[:4])
    assert "--ids" in refused("pos-scan", save_flickr_det(tmp_path / "det", images), *flags[4:])


def save_photographs(path, images):
    path.mkdir()
    for n, (image_id, (_, _, size)) in enumerate(images.items()):
        Image.new("L", size).save(path / f"{image_id}{('.jpg', '.png')[n % 2]}")
    return path


def save_json(path, images):
    rows = [
        {"file_name": f"{key}.jpg", "id": n, "width": w, "height": h}
        for n, (key, (_, _, (w, h))) in enumerate(images.items())
    ]
    path.write_text(json.dumps({"images": rows}))
    return path


def save_table(path, images):
    rows = [f"{h}\t{key}.jpg\t{w}\n" for key, (_, _, (w, h)) in images.items()]
    path.write_text("image_h\timage_id\timage_w\n" + "".join(rows))
    return path


def save_store(path, images):
    with RegionWriter(path) as writer:
        for key, image in images.items():
            writer.add(key, *image)
    return path


@pytest.mark.parametrize(
    ("name", "save"),
    [
        ("photos", save_photographs),
        ("s.json", save_json),
        ("s.tsv", save_table),
        ("s.csv", save_sizes),
        ("s.h5", save_store),
    ],
)
def test_sizes_come_from_what_there_is(tmp_path, name, save):
    images = draw_images([2, 3, 1])
    source = save_att_box(tmp_path / "in", images)
    sizes = save(tmp_path / name, images)
    assert_holds(prepare("att-box-dirs", source, tmp_path / "r.h5", "--image-sizes", sizes), images)
    some = save(tmp_path / f"less-{name}", dict(list(images.items())[:2]))
    assert "'im002'" in refused("att-box-dirs", source, "--image-sizes", some)


def test_sizes_that_are_none_are_refused(tmp_path):
    source = save_att_box(tmp_path / "in", draw_images([2]))
    for name, text, expected in (
        ("karpathy.json", '{"images": [{"filename": "im000.jpg"}]}', "images[0] has no 'width'"),
        ("list.json", "[1]", "is not a JSON object with a list"),
        ("half.csv", "im000,10.5,20\n", "row 1 has the size 10.5 x 20"),
        ("short.csv", "im000,10\n", "row 1 has not image_id, width and height"),
        ("names.csv", "width,height\n1,2\n", "names no column 'image_id'"),
    ):
        (tmp_path / name).write_text(text)
        assert expected in refused("att-box-dirs", source, "--image-sizes", tmp_path / name)
    assert "no such file" in refused("att-box-dirs", source, "--image-sizes", tmp_path / "none.csv")


def test_ids_that_lead_out_of_their_folder_are_refused(tmp_path):
    images = draw_images([2, 2])
    np.save(tmp_path / "up.npy", images["im000"][0])
    for wrong in ("../up", "/etc/passwd", "a/../../up", "..\\up"):
        folder = save_npy_dir(tmp_path / str(sum(wrong.encode())), images)
        text = (folder / "metadata.csv").read_text()
        (folder / "metadata.csv").write_text(text.replace("im000", wrong))
        assert "leads out of the folder" in refused("npy-dir", folder)
    source, *flags = gvd(tmp_path / "gvd", images)
    (tmp_path / "gvd" / "dic.json").write_text(json.dumps({"images": [{"id": "../up"}, {"id": "im001"}]}))
    assert "leads out of the folder" in refused("gvd", source, *flags)


def test_normalised_boxes_with_a_wrong_area_are_refused(tmp_path):
    folder = save_npy_dir(tmp_path / "npy", draw_images([2, 2]), "normalised with area")
    boxes = np.load(folder / "im001-boxes.npy")
    boxes[0, 4] += 0.1
    np.save(folder / "im001-boxes.npy", boxes)
    message = refused("npy-dir", folder)
    assert "im001-boxes.npy" in message
    assert "is not its area" in message


def test_cut_files_are_named(tmp_path):
    images = draw_images([4, 4])
    source, *flags = with_sizes(save_att_box)(tmp_path / "in", images)
    cut = {
        "im001.npz": (source / "att" / "im001.npz", "att-box-dirs", source, flags),
        "im001.npy": (source / "box" / "im001.npy", "att-box-dirs", source, flags),
    }
    folder = save_npy_dir(tmp_path / "npy", images)
    cut["im001-boxes.npy"] = (folder / "im001-boxes.npy", "npy-dir", folder, [])
    path, *more = gvd(tmp_path / "gvd", images)
    cut["detection.h5"] = (path, "gvd", path, more)
    path, *more = with_sizes(save_pos_scan)(tmp_path / "pos", images)
    cut["train_ims_box.h5"] = (path.with_name("train_ims_box.h5"), "pos-scan", path, more)
    path = save_scan(tmp_path / "scan", images)
    cut["train_ims.npy"] = (path, "scan", path, [])
    for name, (file, kind, where, given_flags) in cut.items():
        whole = file.read_bytes()
        for part in (whole[: len(whole) // 2], b"", b"text"):
            file.write_bytes(part)
            assert f"{name}: cannot be read" in refused(kind, where, *given_flags)
        file.write_bytes(whole)


# ---- SCAN: no boxes


@pytest.mark.parametrize(
    ("rows", "ids", "captions"), [(1, 1, True), (1, 5, True), (5, 1, True), (5, 5, True), (1, 1, False)]
)
def test_scan_rows_are_images_or_captions(tmp_path, capsys, rows, ids, captions):
    images = draw_images([3] * 7)
    path = save_scan(tmp_path / "scan", images, rows, ids, captions)
    store = prepare("scan", path, tmp_path / "r.h5")
    assert_holds(store, images, boxes=False)
    assert not store.has_boxes
    assert "grounding" in store.decisions["will not work"]
    out = capsys.readouterr()
    (warning,) = [line for line in out.err.splitlines() if line.startswith("warning")]
    assert "drawing, grounding scores" in warning
    assert (store.boxes(0) == [0, 0, 1, 1]).all()
    sizes = save_sizes(tmp_path / "sizes.csv", images)
    store = prepare("scan", path, tmp_path / "r.h5", "--image-sizes", sizes, "--workers", 2)
    assert store.image_sizes.tolist() == [list(size) for _, _, size in images.values()]
    command("inspect", tmp_path / "r.h5")
    assert "none in the source" in capsys.readouterr().out


def test_scan_files_that_do_not_meet_are_refused(tmp_path):
    images = draw_images([3] * 4)
    path = save_scan(tmp_path / "scan", images, 5, 5)
    array = np.load(path)
    array[7] += 1
    np.save(path, array)
    assert "the rows 5 and 7 are of image 'im001' and differ" in refused("scan", path)
    assert skipping("scan", path)[0] == ["im000", "im002", "im003"]
    np.save(path, array[:13])
    assert "train_caps.txt: has 20 lines" in refused("scan", path)
    (tmp_path / "scan" / "train_caps.txt").unlink()
    assert "train_ids.txt: has 20 ids" in refused("scan", path)
    (tmp_path / "scan" / "train_ids.txt").write_text("a\n" * 4 + "b\n" * 6)
    np.save(path, array[:2])
    assert "line 5 is 'b'" in refused("scan", path)
    (tmp_path / "scan" / "train_ids.txt").unlink()
    assert "--ids" in refused("scan", path)
    (tmp_path / "ids.txt").write_text("a\nb\n")
    assert prepare("scan", path, tmp_path / "r.h5", "--ids", tmp_path / "ids.txt").image_ids == ["a", "b"]


def test_pos_scan_files_that_do_not_meet_are_refused(tmp_path):
    images = draw_images([3] * 3)
    path, *flags = with_sizes(save_pos_scan)(tmp_path / "in", images)
    with h5py.File(tmp_path / "in" / "train_ims_box.h5", "r+") as file:
        boxes = file["boxes"][()]
        del file["boxes"]
        file["boxes"] = boxes[:2]
    assert "'boxes' of train_ims_box.h5 (2, 3, 4)" in refused("pos-scan", path, *flags)
    (tmp_path / "in" / "train_files.json").write_text('["a.jpg"]')
    with h5py.File(tmp_path / "in" / "train_ims_box.h5", "r+") as file:
        del file["boxes"]
        file["boxes"] = boxes
    assert "has 1 ids" in refused("pos-scan", path, *flags)
    (tmp_path / "in" / "train_ims_box.h5").unlink()
    assert "train_ims_box.h5: no such file" in refused("pos-scan", path, *flags)


# ---- what is said


def test_help_has_a_line_for_each_format_and_a_group_for_its_flags(capsys):
    with pytest.raises(SystemExit):
        build_parser().parse_args(["prepare-regions", "--help"])
    text = capsys.readouterr().out
    for name, importer in IMPORTERS.items():
        (line,) = [line for line in text.splitlines() if line.startswith(f"  {name} ")]
        assert line.endswith(importer.summary)
        assert len(line) <= 100
        for option in importer.options:
            assert f"\n  {option.flag}" in text
    assert "for --format butd-tsv:" in text
    assert "for --format att-box-dirs or scan or pos-scan or gvd:" in text


def test_decisions_are_kept_and_told(tmp_path, capsys):
    path = save_tsv(tmp_path / "in.tsv", draw_images([2, 3]))
    prepare("butd-tsv", path, tmp_path / "r.h5")
    command("inspect", tmp_path / "r.h5", "--json", tmp_path / "report.json")
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["decisions"]["columns"].startswith("butd: ")
    assert report["decisions"]["box format"] == "xyxy (the format says so)"
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("  decided ")]
    assert any("columns: butd" in line for line in lines)
    # a damaged note makes no worse a store, and says nothing
    before = RegionStore(tmp_path / "r.h5").content_hash()
    with h5py.File(tmp_path / "r.h5", "r+") as file:
        file.attrs["decisions"] = "{"
    store = RegionStore(tmp_path / "r.h5")
    assert store.decisions == {}
    assert store.content_hash() == before
