"""Importing regions of other programs, and the report on what is in a store."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import signal
import tempfile
import time
from pathlib import Path

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairseq_grounding.data import regions
from fairseq_grounding.data.importers import IMPORTERS, Importer, Job, Record, hdf5, import_regions
from fairseq_grounding.data.importers.base import grouped
from fairseq_grounding.data.importers.reading import load_npy
from fairseq_grounding.data.regions import RegionStore, RegionWriter
from fairseq_grounding.errors import GroundingError

from .region_files import command, prepare


def refused(kind, source, *flags):
    """The one line of a refused import; nothing may be left of what was to be written."""
    out = Path(source).parent / "out"
    out.mkdir(exist_ok=True)
    with pytest.raises(GroundingError) as error:
        prepare(kind, source, out / "r.h5", *flags)
    assert list(out.iterdir()) == []
    assert "\n" not in str(error.value)
    return str(error.value)


def draw_image(rng, count, size=5):
    """Features, boxes in pixels and image size of one image."""
    width, height = (int(value) for value in rng.integers(20, 600, 2))
    corners = np.sort(rng.uniform(0, 1, (count, 2, 2)), axis=1) * (width, height)
    # a region larger than a pixel, so that no drawn image looks as if its boxes were normalised
    corners[0] = ((0, 0), (width, height))
    features = rng.normal(size=(count, size)).astype(np.float32)
    return features, corners.reshape(count, 4).astype(np.float32), (width, height)


def draw_images(counts, seed=0):
    rng = np.random.default_rng(seed)
    return {f"im{n:03}": draw_image(rng, count) for n, count in enumerate(counts)}


def assert_holds(store, images):
    assert sorted(store.image_ids) == sorted(images)
    for image_id, (features, boxes, size) in images.items():
        n = store.index(image_id)
        np.testing.assert_array_equal(store.features(n), features)
        np.testing.assert_allclose(store.boxes(n), boxes, rtol=1e-6, atol=1e-4)
        assert tuple(store.image_sizes[n]) == size


class Bomb:
    def __reduce__(self):
        return (pytest.fail, ("a pickle was opened",))


def save_ours(folder, images, **more):
    folder.mkdir(exist_ok=True)
    for image_id, (features, boxes, size) in images.items():
        extra = {key: values[: len(boxes)] for key, values in more.items()}
        np.savez(folder / f"{image_id}.npz", features=features, boxes=boxes, image_size=size, **extra)
    return folder


def save_milvlg(folder, images):
    folder.mkdir(exist_ok=True)
    for image_id, (features, boxes, (width, height)) in images.items():
        # rows after num_bbox are padding
        np.savez_compressed(
            folder / f"{image_id}.npz",
            x=np.pad(features, ((0, 6), (0, 0))),
            bbox=np.pad(boxes, ((0, 6), (0, 0))),
            num_bbox=len(boxes),
            image_w=width,
            image_h=height,
            info=np.array(Bomb(), dtype=object),
        )
    return folder


def save_padded(path, images, pad=0):
    most = max(len(image[1]) for image in images.values()) + pad
    with h5py.File(path, "w") as file:
        # NaN as padding: it must not be read
        for name, column in (("features", 0), ("boxes", 1)):
            rows = [image[column] for image in images.values()]
            padded = [
                np.pad(row, ((0, most - len(row)), (0, 0)), constant_values=np.nan) if len(row) < most else row
                for row in rows
            ]
            file[name] = np.stack(padded)
        file["image_ids"] = list(images)
        file["image_sizes"] = [image[2] for image in images.values()]
        file["counts"] = [len(image[1]) for image in images.values()]
    return path


def save_flat(path, images, extent="offsets"):
    counts = [len(image[1]) for image in images.values()]
    with h5py.File(path, "w") as file:
        file["features"] = np.concatenate([image[0] for image in images.values()])
        file["boxes"] = np.concatenate([image[1] for image in images.values()])
        file["image_ids"] = list(images)
        file["image_sizes"] = [image[2] for image in images.values()]
        file[extent] = np.concatenate([[0], np.cumsum(counts)]) if extent == "offsets" else counts
    return path


SAVERS = {
    "npz": ("npz-dir", save_ours),
    "milvlg": ("npz-dir", save_milvlg),
    "padded": ("hdf5", save_padded),
    "padded more": ("hdf5", lambda path, images: save_padded(path, images, pad=4)),
    "flat": ("hdf5", save_flat),
    "flat counts": ("hdf5", lambda path, images: save_flat(path, images, "counts")),
}


@pytest.mark.parametrize("name", SAVERS)
@settings(max_examples=15, deadline=None)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=12), st.sampled_from([1, 200, 1 << 25]), st.integers(0, 9))
def test_every_format_round_trips(name, counts, block, seed):
    kind, save = SAVERS[name]
    images = draw_images(counts, seed)
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(hdf5, "_BLOCK_BYTES", block)
        source = save(Path(folder) / "source", images)
        store = prepare(kind, source, Path(folder) / "r.h5")
        assert_holds(store, images)
        assert store.image_ids == sorted(images)
        assert store.source == "source"


def test_what_was_written_is_said(tmp_path, capsys):
    source = save_ours(tmp_path / "npz", draw_images([3, 4]))
    prepare("npz-dir", source, tmp_path / "r.h5", "--source", "a detector")
    out = capsys.readouterr()
    assert "r.h5: 2 images, 7 regions, feature size 5 (float32)" in out.out
    assert RegionStore(tmp_path / "r.h5").source == "a detector"


def test_labels_and_scores_come_along(tmp_path):
    images = draw_images([3, 4])
    labels, scores = np.arange(9), np.linspace(0, 1, 9)
    store = prepare("npz-dir", save_ours(tmp_path / "npz", images, labels=labels, scores=scores), tmp_path / "r.h5")
    assert store.labels(1).tolist() == [0, 1, 2, 3]
    np.testing.assert_allclose(store.scores(0), scores[:3])
    # a store is itself an input of the hdf5 format, and comes out as it was
    again = prepare("hdf5", tmp_path / "r.h5", tmp_path / "again.h5")
    assert again.content_hash() == store.content_hash()
    assert again.source == store.source == "npz"


def test_padded_labels_are_cut(tmp_path):
    path = save_padded(tmp_path / "in.h5", draw_images([3, 4]))
    with h5py.File(path, "r+") as file:
        file["classes"] = np.arange(8).reshape(2, 4)
    store = prepare("hdf5", path, tmp_path / "r.h5", "--labels-key", "classes")
    assert [store.labels(n).tolist() for n in (0, 1)] == [[0, 1, 2], [4, 5, 6, 7]]


def test_files_are_read_in_the_order_of_their_names(tmp_path):
    images = draw_images([1] * 20)
    shuffled = dict(sorted(images.items(), key=lambda item: item[0][::-1]))
    save_ours(tmp_path / "npz", shuffled)
    (tmp_path / "npz" / "._im000.npz").write_bytes(b"what some systems leave beside a file")
    (tmp_path / "npz" / "notes.txt").write_text("no regions")
    assert prepare("npz-dir", tmp_path / "npz", tmp_path / "r.h5").image_ids == sorted(images)


def test_datasets_of_other_names(tmp_path):
    images = draw_images([3, 1, 2])
    path = tmp_path / "in.h5"
    with h5py.File(path, "w") as file:
        file["deep/feat"] = np.concatenate([image[0] for image in images.values()])
        file["deep/bb"] = np.concatenate([image[1] for image in images.values()])
        file["key"] = np.array([7, 30, 5])
        file["w"], file["h"] = np.array([image[2] for image in images.values()]).T
        file["start"] = [0, 3, 4, 6]
    flags = ["--features-key", "deep/feat", "--boxes-key", "deep/bb", "--ids-key", "key", "--sizes-key", "w,h"]
    store = prepare("hdf5", path, tmp_path / "r.h5", *flags, "--offsets-key", "start")
    assert_holds(store, dict(zip(["7", "30", "5"], images.values())))
    message = refused("hdf5", path, *flags)
    assert "--offsets-key" in message
    assert "start (4,) int64" in message


def in_format(images, box_format):
    changed = {}
    for image_id, (features, boxes, size) in images.items():
        if box_format == "normalised-xyxy":
            boxes = boxes / np.array([*size, *size], np.float32)
        elif box_format == "xywh":
            boxes = np.concatenate([boxes[:, :2], boxes[:, 2:] - boxes[:, :2]], axis=1)
        changed[image_id] = features, boxes, size
    return changed


@pytest.mark.parametrize("box_format", ["xyxy", "xywh", "normalised-xyxy"])
@pytest.mark.parametrize("name", ["npz", "flat"])
def test_boxes_become_pixels(tmp_path, name, box_format):
    kind, save = SAVERS[name]
    images = draw_images([3, 6, 2])
    source = save(tmp_path / "in", in_format(images, box_format))
    assert_holds(prepare(kind, source, tmp_path / "r.h5", "--box-format", box_format), images)


def test_wrong_box_format_is_refused(tmp_path):
    images = draw_images([3, 6])
    pixels = save_flat(tmp_path / "pixels.h5", images)
    normalised = save_flat(tmp_path / "normalised.h5", in_format(images, "normalised-xyxy"))
    message = refused("hdf5", normalised)
    assert "'im000'" in message
    assert "--box-format normalised-xyxy" in message
    assert "'im000'" in refused("hdf5", normalised, "--box-format", "xywh")
    assert "outside" in refused("hdf5", pixels, "--box-format", "normalised-xyxy")
    widths = save_flat(tmp_path / "widths.h5", {"far": (np.ones((1, 5)), np.array([[50.0, 50, 9, 9]]), (99, 99))})
    assert "'far'" in refused("hdf5", widths)
    # an image may really be this small
    tiny = save_flat(tmp_path / "tiny.h5", {"tiny": (np.ones((1, 5)), np.array([[0.0, 0, 1, 1]]), (1, 1))})
    assert prepare("hdf5", tiny, tmp_path / "r.h5").boxes(0).tolist() == [[0, 0, 1, 1]]


@pytest.mark.parametrize("name", SAVERS)
@pytest.mark.parametrize("fault", ["NaN", "outside", "beyond float16"])
def test_faulty_image_is_named(tmp_path, name, fault):
    kind, save = SAVERS[name]
    images = draw_images([3, 6, 2])
    features, boxes, (width, _) = images["im001"]
    if fault == "NaN":
        features[4, 2] = np.nan
    elif fault == "outside":
        boxes[5, 2] = width + 1.5
    else:
        features[0, 0] = 1e6
    source = save(tmp_path / "in", images)
    message = refused(kind, source, *(["--dtype", "float16"] if fault == "beyond float16" else []))
    assert "'im001'" in message
    assert {"NaN": "NaN", "outside": "box 5", "beyond float16": "--dtype float32"}[fault] in message


def save_npz(path, **arrays):
    good = {"features": np.ones((2, 5)), "boxes": np.array([[0.0, 0, 9, 9]] * 2), "image_size": [10, 10]}
    arrays = {key: value for key, value in {**good, **arrays}.items() if value is not None}
    np.savez(path, **arrays)


NPZ_FAULTS = {
    "no boxes": ({"boxes": None}, "has no 'boxes', only features, image_size"),
    "no size": ({"image_size": None}, "has no 'image_size'"),
    "no features": ({"features": None, "feat": np.ones(2)}, "neither 'features' nor 'x'"),
    "flat": ({"features": np.ones(5)}, "'features' is (5,)"),
    "half a size": ({"image_size": [10.5, 10]}, "'image_size'"),
    "endless size": ({"image_size": [np.inf, 10]}, "'image_size'"),
    "three sizes": ({"image_size": [1, 2, 3]}, "'image_size'"),
    "pickled": ({"features": np.array([[Bomb()]], dtype=object)}, "cannot be read"),
    "rows": ({"boxes": np.ones((3, 4)) * 5}, "boxes are (3, 4)"),
    "no regions": ({"features": np.ones((0, 5)), "boxes": np.ones((0, 4))}, "no regions"),
    "neither rows nor columns": (
        {"features": None, "x": np.ones((5, 3)), "bbox": np.ones((2, 4)), "image_w": 10, "image_h": 10},
        "'x' is (5, 3)",
    ),
    "rows or columns": (
        {"features": None, "x": np.ones((2, 2)), "bbox": np.ones((2, 4)), "image_w": 10, "image_h": 10},
        "--x-layout rows or columns",
    ),
    "climbing name": ({"../up": np.ones(2)}, "'../up', which leads out of a folder"),
    "num_bbox": (
        {"features": None, "x": np.ones((2, 5)), "bbox": np.ones((2, 4)), "num_bbox": 3, "image_w": 1, "image_h": 1},
        "num_bbox is 3",
    ),
    "no width": ({"features": None, "x": np.ones((2, 5)), "bbox": np.ones((2, 4))}, "no 'image_w'"),
}


@pytest.mark.parametrize("name", NPZ_FAULTS)
def test_faulty_npz_is_named(tmp_path, name):
    arrays, expected = NPZ_FAULTS[name]
    folder = save_ours(tmp_path / "npz", draw_images([2]))
    assert prepare("npz-dir", folder, tmp_path / "r.h5").rows == 2
    save_npz(folder / "wrong.npz", **arrays)
    message = refused("npz-dir", folder)
    assert "wrong" in message
    assert expected in message


@pytest.mark.parametrize("mapped", [False, True])
@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("{", "("),
        ("{", "{'"),
        ("(3, 4)", "(3, 4"),
        ("(3, 4)", "(99999999999999999999, 4)"),
        ("'<f4'", "'<q9'"),
        ("'<f4'", "[[]]"),
        ("'<f4'", "()"),
        ("'shape'", "[]"),
        ("False", "0x"),
    ],
)
def test_npy_with_a_damaged_header_is_named(tmp_path, old, new, mapped):
    path = tmp_path / "x.npy"
    header = "{'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }".replace(old, new) + "\n"
    data = np.zeros((3, 4), np.float32).tobytes()
    path.write_bytes(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode() + data)
    with pytest.raises(GroundingError, match=r"x\.npy: cannot be read \(") as error:
        load_npy(path, mapped)
    assert "\n" not in str(error.value)


def test_npz_that_cannot_be_opened_is_named(tmp_path):
    folder = save_ours(tmp_path / "npz", draw_images([2]))
    whole = (folder / "im000.npz").read_bytes()
    for content in (b"", b"text", whole[: len(whole) // 2], whole[:200] + b"\0" * 40 + whole[240:]):
        (folder / "wrong.npz").write_bytes(content)
        assert "wrong.npz: cannot be read" in refused("npz-dir", folder)
    with open(folder / "wrong.npz", "wb") as file:
        np.save(file, np.ones(3))
    assert "wrong.npz: is a single array" in refused("npz-dir", folder)


def test_wrong_input_is_named(tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("text")
    assert "empty: holds no .npz file" in refused("npz-dir", tmp_path / "empty")
    assert "file: is not a folder" in refused("npz-dir", tmp_path / "file")
    assert "none.h5: no such file" in refused("hdf5", tmp_path / "none.h5")
    assert "file: cannot be read as HDF5" in refused("hdf5", tmp_path / "file")
    assert "--features-key: is for --format hdf5" in refused("npz-dir", tmp_path / "empty", "--features-key", "x")


def put(name, values):
    def change(file):
        if name in file:
            del file[name]
        if values is not None:
            file[name] = values

    return change


# of a flat file with three images and the rows 3 + 1 + 2
FLAT_FAULTS = {
    "no features": (put("features", None), "no dataset 'features' (--features-key); it has boxes (6, 4) float32"),
    "no ids": (put("image_ids", None), "--ids-key"),
    "no sizes": (put("image_sizes", None), "--sizes-key"),
    "no extent": (put("offsets", None), "--offsets-key or --counts-key"),
    "features 1-d": (put("features", np.ones(6)), "--features-key"),
    "boxes": (put("boxes", np.ones((6, 5))), "--boxes-key"),
    "boxes rows": (put("boxes", np.ones((5, 4))), "--boxes-key"),
    "ids": (put("image_ids", np.ones(3)), "--ids-key"),
    "not UTF-8": (put("image_ids", np.array([b"a", b"b", b"\xff"])), "not UTF-8"),
    "same id": (put("image_ids", ["a", "b", "a"]), "'a': is there more than once"),
    "sizes": (put("image_sizes", np.ones((3, 3))), "--sizes-key"),
    "half a size": (put("image_sizes", np.full((3, 2), 700.5)), "its size is"),
    "short offsets": (put("offsets", [0, 3, 6]), "--offsets-key"),
    "offsets too far": (put("offsets", [0, 3, 4, 7]), "does not grow from 0 on"),
    "offsets back": (put("offsets", [0, 3, 2, 6]), "does not grow from 0 on"),
    "offsets below": (put("offsets", [-1, 3, 4, 6]), "does not grow from 0 on"),
    "empty image": (put("offsets", [0, 3, 3, 6]), "'im001': has no regions"),
    "labels": (put("labels", np.ones(5, int)), "--labels-key"),
    "scores": (put("scores", np.ones((6, 2))), "--scores-key"),
}
PADDED_FAULTS = {
    "counts too large": (put("counts", [3, 1, 4]), "does not go with the features"),
    "counts below": (put("counts", [3, -1, 2]), "does not go with the features"),
    "counts number": (put("counts", [3, 1]), "--counts-key"),
    "empty image": (put("counts", [3, 0, 2]), "'im001': has no regions"),
    "images": (put("image_ids", ["a", "b"]), "--features-key"),
    "flat boxes": (put("boxes", np.ones((9, 4))), "--boxes-key"),
}


@pytest.mark.parametrize(
    ("save", "name"), [(save_flat, name) for name in FLAT_FAULTS] + [(save_padded, name) for name in PADDED_FAULTS]
)
def test_faulty_hdf5_is_refused(tmp_path, save, name):
    change, expected = (FLAT_FAULTS if save is save_flat else PADDED_FAULTS)[name]
    path = save(tmp_path / "in.h5", draw_images([3, 1, 2]))
    with h5py.File(path, "r+") as file:
        change(file)
        if name in ("images", "sizes"):
            put("image_sizes", file["image_sizes"][: len(file["image_ids"])])(file)
    assert expected in refused("hdf5", path)


def test_offsets_do_not_go_with_padded_features_or_counts(tmp_path):
    images = draw_images([3, 1, 2])
    for path in (save_padded(tmp_path / "padded.h5", images), save_flat(tmp_path / "flat.h5", images, "counts")):
        with h5py.File(path, "r+") as file:
            file["where"] = [0, 3, 4, 6]
        assert "--offsets-key" in refused("hdf5", path, "--offsets-key", "where", "--counts-key", "counts")
    assert "--offsets-key" in refused("hdf5", tmp_path / "padded.h5", "--offsets-key", "where")
    with h5py.File(tmp_path / "flat.h5", "r+") as file:
        put("counts", [3, 1, 1])(file)
    assert "does not go with the features" in refused("hdf5", tmp_path / "flat.h5")


def test_cut_or_damaged_hdf5_is_named(tmp_path):
    path = save_flat(tmp_path / "in.h5", draw_images([8] * 4))
    whole = path.read_bytes()
    (tmp_path / "cut.h5").write_bytes(whole[: len(whole) // 2])
    assert "cut.h5: cannot be read as HDF5" in refused("hdf5", tmp_path / "cut.h5")
    with h5py.File(path, "r+") as file:
        features = file["features"][()]
        del file["features"]
        file.create_dataset("features", data=features, chunks=(8, 5), fletcher32=True)
        chunk = file["features"].id.get_chunk_info(2)
    with open(path, "r+b") as raw:
        raw.seek(chunk.byte_offset)
        raw.write(b"\xff\xff\xff")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hdf5, "_BLOCK_BYTES", 1)
        message = refused("hdf5", path)
    assert "in.h5" in message
    assert "'im002'" in message


class Endless(Importer):
    """Yields images until it is stopped, and reports when it has begun."""

    def __init__(self, path, begun):
        super().__init__(path)
        self.begun = begun

    def jobs(self):
        return (Job(str(n), n, n) for n in range(10**9))

    def read(self, what):
        if what == 200:
            self.begun.set()
        if what > 200:
            time.sleep(0.01)
        features, boxes = np.ones((36, 64), np.float32), np.array([[0, 0, 9, 9]] * 36, np.float32)
        return Record(str(what), features, boxes, (10, 10))


def import_endlessly(folder, begun):
    import_regions(Endless(folder, begun), folder / "r.h5")


def import_and_stop_while_finishing(folder, begun):
    def slow(self, target, name):
        target[name] = np.ones(9)
        begun.set()
        time.sleep(60)

    regions.Spill.copy_to = slow
    save_ours(folder.parent / "npz", draw_images([2]))
    prepare("npz-dir", folder.parent / "npz", folder / "r.h5")


@pytest.mark.parametrize(
    ("run", "number"),
    [
        (import_endlessly, signal.SIGKILL),
        (import_endlessly, signal.SIGTERM),
        (import_and_stop_while_finishing, signal.SIGTERM),
    ],
)
def test_killed_import_leaves_nothing_that_looks_finished(tmp_path, run, number):
    context = multiprocessing.get_context("fork")
    begun = context.Event()
    (tmp_path / "out").mkdir()
    process = context.Process(target=run, args=(tmp_path / "out", begun))
    process.start()
    assert begun.wait(20)
    os.kill(process.pid, number)
    process.join(20)
    assert process.exitcode not in (0, None)
    assert [file.name for file in (tmp_path / "out").iterdir()] == ["r.h5.partial"]


def test_new_format_is_a_class_and_a_line(tmp_path, monkeypatch, capsys):
    class Lines(Importer):
        """One image a line: id and width."""

        summary = "one image a line"

        def jobs(self):
            return grouped((line, line) for line in self.path.read_text().splitlines())

        def read(self, what):
            image_id, width = what.split()
            return Record(image_id, np.ones((1, 2)), np.array([[0.0, 0, 5, 5]]), (int(width), 9))

    monkeypatch.setitem(IMPORTERS, "lines", Lines)
    (tmp_path / "in.txt").write_text("b 10\na 20\n")
    store = prepare("lines", tmp_path / "in.txt", tmp_path / "r.h5")
    assert store.image_ids == ["b", "a"]
    assert store.image_sizes.tolist() == [[10, 9], [20, 9]]


def test_report_agrees_with_numpy(tmp_path, monkeypatch, capsys):
    rng = np.random.default_rng(3)
    images = {f"im{n}": draw_image(rng, count, size=7) for n, count in enumerate([2, 9, 4])}
    with RegionWriter(tmp_path / "r.h5", source="a detector") as writer:
        for image_id, (features, boxes, size) in images.items():
            # a mean much larger than the spread shows whether the sums lose digits
            writer.add(image_id, features + 1000, boxes, size)
    # blocks of a few rows, that end within images
    monkeypatch.setattr(regions, "_BLOCK_BYTES", 4 * 7 * 4)
    command("inspect", tmp_path / "r.h5", "--json", tmp_path / "report.json")
    report = json.loads((tmp_path / "report.json").read_text())
    values = np.concatenate([image[0] + 1000 for image in images.values()]).astype(np.float16).astype(np.float64)
    assert report["features"] == {
        "min": values.min(),
        "max": values.max(),
        "mean": pytest.approx(values.mean(), rel=1e-12),
        "std": pytest.approx(values.std(), rel=1e-9),
        "nan": 0,
        "infinite": 0,
    }
    assert (report["images"], report["regions"], report["feature_size"], report["dtype"]) == (3, 15, 7, "float16")
    assert report["regions_per_image"] == {"min": 2, "mean": 5.0, "max": 9}
    assert (report["labels"], report["scores"], report["source"]) == (False, False, "a detector")
    assert report["bytes"] == (tmp_path / "r.h5").stat().st_size
    assert report["content_hash"] == RegionStore(tmp_path / "r.h5").content_hash()
    assert report["broken"] == {}
    printed = capsys.readouterr().out
    assert "min 2 mean 5 max 9" in printed
    assert report["content_hash"] in printed
    assert "BROKEN" not in printed


def test_report_names_what_is_broken(tmp_path, monkeypatch, capsys):
    with RegionWriter(tmp_path / "r.h5") as writer:
        for image_id, (features, boxes, _) in draw_images([3] * 10).items():
            writer.add(image_id, features, boxes, (600, 600), np.arange(3), np.ones(3))
    with h5py.File(tmp_path / "r.h5", "r+") as file:
        file["features"][4, 1:3] = np.nan
        file["features"][5, 0] = np.inf
        file["features"][29, 4] = -np.inf
        file["boxes"][6] = (5, 5, 4, 9)
        file["boxes"][8, 1] = np.nan
        for n in range(3, 10):
            file["boxes"][3 * n] = (0, 0, 5000, 5)
        file["scores"][12] = np.nan
        file["offsets"][1] = 0
        finite = file["features"][()][np.isfinite(file["features"][()])].astype(np.float64)
    monkeypatch.setattr(regions, "_BLOCK_BYTES", 4 * 5 * 2)
    with pytest.raises(GroundingError, match=r"r\.h5: .*features that are NaN") as error:
        command("inspect", tmp_path / "r.h5", "--json", tmp_path / "report.json")
    assert "\n" not in str(error.value)
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["broken"] == {
        "images without regions": {"rows": 1, "images": 1, "ids": ["im000"]},
        "features that are NaN or infinite": {"rows": 3, "images": 2, "ids": ["im001", "im009"]},
        "boxes that are no boxes": {"rows": 2, "images": 1, "ids": ["im002"]},
        "boxes outside the image": {"rows": 7, "images": 7, "ids": [f"im00{n}" for n in range(3, 8)]},
        "scores that are NaN or infinite": {"rows": 1, "images": 1, "ids": ["im004"]},
    }
    assert (report["features"]["nan"], report["features"]["infinite"]) == (2, 2)
    assert report["features"]["mean"] == pytest.approx(finite.mean(), rel=1e-12)
    assert report["features"]["max"] == finite.max()
    printed = capsys.readouterr().out
    assert printed.count("BROKEN") == 5
    assert "'im009'" in printed


def test_report_on_a_prepared_folder(tmp_path, toy_folder, capsys):
    shutil.copytree(toy_folder.parent, tmp_path / "toy")
    folder = tmp_path / "toy" / toy_folder.name
    command("inspect", folder, "--json", tmp_path / "report.json")
    printed = capsys.readouterr().out
    meta = json.loads((folder / "meta.json").read_text())
    lines = [line.split() for line in printed.splitlines()]
    assert ["captions", str(meta["splits"]["train"]["captions"])] in lines
    assert ["train"] in lines
    assert printed.endswith("  nothing is broken\n")
    assert "None" not in printed
    assert json.loads((tmp_path / "report.json").read_text()) == meta


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("meta.json", lambda old: b"{", r"meta\.json"),
        ("meta.json", lambda old: b"[1]", r"meta\.json"),
        ("meta.json", lambda old: old.replace(b'"splits"', b'"split"'), r"meta\.json: names no splits"),
        ("meta.json", lambda old: old.replace(b'"regions"', b'"region"'), r"meta\.json: names no region store"),
        ("meta.json", lambda old: old.replace(b'"images": ', b'"images": 1'), r"meta\.json: says "),
        ("meta.json", None, r"no meta\.json in it"),
        ("dict.txt", lambda old: old + b"toucan 1\n", r"dict\.txt: holds \d+ symbols, meta\.json says \d+; run"),
        ("dict.txt", lambda old: b"", r"dict\.txt: holds 4 symbols"),
        ("valid.tokens.bin", lambda old: old[:-1], r"valid\.tokens"),
        ("test.tokens.bin", lambda old: b"\x7f" * len(old), r"test\.tokens\.bin: caption 0 holds a number"),
        ("test.captions.tsv", lambda old: old[:-5], r"test\.captions\.tsv: is cut short"),
        ("nouns.tsv", lambda old: old[:-1], r"nouns\.tsv: is cut short"),
        ("cider_df.npz", lambda old: old[:-40], r"cider_df\.npz: cannot be read"),
        ("cider_df.npz", lambda old: b"", r"cider_df\.npz: cannot be read"),
        ("objects.json", lambda old: old[:-9], r"objects\.json: is not valid JSON"),
    ],
)
def test_what_is_broken_in_a_prepared_folder_is_said(tmp_path, toy_folder, capsys, name, change, message):
    shutil.copytree(toy_folder.parent, tmp_path / "toy")
    path = tmp_path / "toy" / toy_folder.name / name
    old = path.read_bytes()
    path.unlink()
    if change is not None:
        path.write_bytes(change(old))
    with pytest.raises(GroundingError, match=message) as error:
        command("inspect", path.parent)
    assert "\n" not in str(error.value)
    assert "nothing is broken" not in capsys.readouterr().out


def test_report_on_no_store(tmp_path):
    with pytest.raises(GroundingError, match=r"none\.h5"):
        command("inspect", tmp_path / "none.h5")


def test_real_store_is_sound_and_can_be_rewritten(shared, tmp_path, capsys):
    source = shared / "data" / "flickr8k" / "regions.h5"
    command("prepare_regions", "--format", "hdf5", "--input", source, "--out", tmp_path / "r.h5")
    command("inspect", tmp_path / "r.h5")
    assert "7811 images, 279171 regions, feature size 208 (float16)" in capsys.readouterr().out
    assert RegionStore(tmp_path / "r.h5").content_hash() == RegionStore(source).content_hash()
