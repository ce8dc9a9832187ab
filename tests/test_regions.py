"""The region store: written, read back, read from other processes, and refused when something is wrong."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import shutil
import subprocess
import sys
import tempfile
import tracemalloc
from pathlib import Path

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairseq_grounding.data import regions
from fairseq_grounding.data.regions import RegionStore, RegionWriter
from fairseq_grounding.errors import GroundingError

ROOT = Path(__file__).resolve().parents[1]


def make_image(rng, count, size=4, width=64, height=48):
    """One image's (features, boxes, size, labels, scores), drawn at random."""
    corners = np.sort(rng.uniform(0, 1, (count, 2, 2)), axis=1)
    boxes = (corners * (width, height)).reshape(count, 4).astype(np.float32)
    features = rng.normal(size=(count, size)).astype(np.float32)
    return features, boxes, (width, height), rng.integers(-1, 80, count), rng.uniform(size=count)


def write_store(path, counts=(3, 1, 5), seed=0, **options):
    rng = np.random.default_rng(seed)
    images = {f"img{n}": make_image(rng, count) for n, count in enumerate(counts)}
    with RegionWriter(path, **options) as writer:
        for image_id, image in images.items():
            writer.add(image_id, *image)
    return images


def read_first_row(path):
    """The first feature of the store's last image, as a string: what other processes report."""
    store = RegionStore(path) if isinstance(path, (str, Path)) else path
    return repr(float(store.features(len(store) - 1)[0, 0]))


ids = st.text(st.characters(min_codepoint=32, exclude_categories=("Cs", "Cc")), min_size=1, max_size=12)


@settings(max_examples=40, deadline=None)
@given(
    st.dictionaries(ids, st.tuples(st.integers(1, 7), st.integers(1, 900), st.integers(1, 900)), min_size=1),
    st.integers(1, 9),
    st.sampled_from(["float16", "float32"]),
    st.booleans(),
    st.booleans(),
    st.sampled_from([2, 64, 1 << 20]),
)
def test_round_trip(images, size, dtype, with_labels, with_scores, block):
    rng = np.random.default_rng(len(images))
    wanted = {}
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        # blocks smaller than a row, of a few rows, and larger than everything
        patch.setattr(regions, "_BLOCK_BYTES", block)
        path = Path(folder) / "r.h5"
        with RegionWriter(path, source="a detector", dtype=dtype) as writer:
            for image_id, (count, width, height) in images.items():
                features, boxes, extent, labels, scores = make_image(rng, count, size, width, height)
                wanted[image_id] = features.astype(dtype), boxes, extent, labels, scores
                writer.add(
                    image_id,
                    features,
                    boxes,
                    extent,
                    labels if with_labels else None,
                    scores if with_scores else None,
                )
        assert (writer.images, writer.rows) == (len(images), sum(count for count, _, _ in images.values()))
        store = RegionStore(path)
        assert store.image_ids == list(images)
        assert len(store) == len(images)
        assert (store.feature_size, store.source, store.dtype) == (size, "a detector", np.dtype(dtype))
        assert (store.has_labels, store.has_scores) == (with_labels, with_scores)
        for image_id, (features, boxes, extent, labels, scores) in wanted.items():
            n = store.index(image_id)
            assert image_id in store
            assert store.features(n).dtype == np.float32
            np.testing.assert_array_equal(store.features(n), features.astype(np.float32))
            np.testing.assert_array_equal(store.boxes(n), boxes)
            assert store.counts[n] == len(boxes)
            assert tuple(store.image_sizes[n]) == extent
            if with_labels:
                np.testing.assert_array_equal(store.labels(n), labels)
            else:
                assert store.labels(n) is None
            if with_scores:
                np.testing.assert_array_equal(store.scores(n), scores.astype(np.float32))
            else:
                assert store.scores(n) is None
        assert os.listdir(folder) == ["r.h5"]


def test_layout_is_as_documented(tmp_path):
    images = write_store(tmp_path / "r.h5", source="somewhere")
    with h5py.File(tmp_path / "r.h5") as file:
        assert file.attrs["format"] == "fairseq_grounding.regions"
        assert (file.attrs["version"], file.attrs["feature_size"], file.attrs["source"]) == (
            1,
            4,
            "somewhere",
        )
        found = {name: (dataset.shape, dataset.dtype.name) for name, dataset in file.items()}
        assert found == {
            "features": ((9, 4), "float16"),
            "boxes": ((9, 4), "float32"),
            "offsets": ((4,), "int64"),
            "image_ids": ((3,), "object"),
            "image_sizes": ((3, 2), "int32"),
            "labels": ((9,), "int32"),
            "scores": ((9,), "float32"),
        }
        assert all(dataset.chunks is None and dataset.compression is None for dataset in file.values())
        assert file["offsets"][()].tolist() == [0, 3, 4, 9]
        assert h5py.check_string_dtype(file["image_ids"].dtype).encoding == "utf-8"
        whole = np.concatenate([image[0] for image in images.values()]).astype(np.float16)
        np.testing.assert_array_equal(file["features"][()], whole)


def test_limit_takes_the_first_regions(tmp_path):
    images = write_store(tmp_path / "r.h5", dtype="float32")
    store = RegionStore(tmp_path / "r.h5")
    np.testing.assert_array_equal(store.features(2, limit=2), images["img2"][0][:2])
    np.testing.assert_array_equal(store.boxes(2, limit=2), images["img2"][1][:2])
    np.testing.assert_array_equal(store.features(1, limit=2), images["img1"][0])
    for n in (-1, 3):
        with pytest.raises(IndexError):
            store.features(n)


def test_missing_image_is_named(tmp_path):
    write_store(tmp_path / "r.h5")
    store = RegionStore(tmp_path / "r.h5")
    assert "nobody" not in store
    with pytest.raises(GroundingError, match=r"r\.h5.*'nobody'"):
        store.index("nobody")


def test_pickled_store_reads_in_a_fresh_process(tmp_path):
    images = write_store(tmp_path / "r.h5", dtype="float32")
    store = RegionStore(tmp_path / "r.h5")
    store.features(0)
    (tmp_path / "store.pickle").write_bytes(pickle.dumps(store))
    code = (
        "import pickle, sys\n"
        "store = pickle.load(open(sys.argv[1], 'rb'))\n"
        "print(repr(float(store.features(2)[0, 0])), store.index('img1'))"
    )
    out = subprocess.run(
        [sys.executable, "-c", code, tmp_path / "store.pickle"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert out.stdout.split() == [repr(float(images["img2"][0][0, 0])), "1"]


def test_forked_workers_read_with_handles_of_their_own(tmp_path):
    images = write_store(tmp_path / "r.h5", dtype="float32")
    store = RegionStore(tmp_path / "r.h5")
    store.features(0)
    parent = store._handle

    def child(connection):
        connection.send((read_first_row(store), store._handle[0] == os.getpid()))

    context = multiprocessing.get_context("fork")
    ends = [context.Pipe() for _ in range(2)]
    workers = [context.Process(target=child, args=(end[1],)) for end in ends]
    for worker in workers:
        worker.start()
    for (end, _), worker in zip(ends, workers):
        assert end.poll(20)
        assert end.recv() == (repr(float(images["img2"][0][0, 0])), True)
        worker.join()
    assert store._handle is parent
    assert read_first_row(store) == repr(float(images["img2"][0][0, 0]))


def replace(file, name, values, **options):
    del file[name]
    file.create_dataset(name, data=values, **options)


DAMAGE = {
    "format": (lambda f: f.attrs.__setitem__("format", "other"), "is not a region store"),
    "no format": (lambda f: f.attrs.__delitem__("format"), "is not a region store"),
    "version": (lambda f: f.attrs.__setitem__("version", 2), "version 2"),
    "missing": (lambda f: f.__delitem__("boxes"), "no dataset 'boxes'"),
    "group": (lambda f: (f.__delitem__("boxes"), f.create_group("boxes")), "'boxes' is not a dataset"),
    "feature size": (lambda f: f.attrs.__setitem__("feature_size", 5), "feature_size"),
    "float64": (lambda f: replace(f, "features", f["features"][()].astype(float)), "'features'.*float64"),
    "flat features": (lambda f: replace(f, "features", f["features"][:, 0]), "'features'"),
    "few boxes": (lambda f: replace(f, "boxes", f["boxes"][:-1]), "'boxes'"),
    "few labels": (lambda f: replace(f, "labels", f["labels"][:-1]), "'labels'"),
    "few scores": (lambda f: replace(f, "scores", f["scores"][:-1]), "'scores'"),
    "few offsets": (lambda f: replace(f, "offsets", f["offsets"][:-1]), "'offsets'"),
    "float offsets": (lambda f: replace(f, "offsets", f["offsets"][()].astype(float)), "'offsets'"),
    "offsets from 1": (lambda f: f["offsets"].__setitem__(0, 1), "'offsets' does not run"),
    "offsets too far": (lambda f: f["offsets"].__setitem__(3, 10), "'offsets' does not run"),
    "offsets back": (lambda f: f["offsets"].__setitem__(1, 5), "'offsets' does not run"),
    "sizes": (lambda f: replace(f, "image_sizes", f["image_sizes"][:, :1]), "'image_sizes'"),
    "no width": (lambda f: f["image_sizes"].__setitem__((1, 0), 0), "'img1' has no width"),
    "twice": (lambda f: f["image_ids"].__setitem__(2, "img0"), "'img0' more than once"),
    "numbers as ids": (lambda f: replace(f, "image_ids", np.arange(3)), "'image_ids'"),
    "not UTF-8": (lambda f: replace(f, "image_ids", np.array([b"a", b"b", b"\xff"])), "not UTF-8"),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_wrong_store_is_refused(tmp_path, name):
    change, message = DAMAGE[name]
    write_store(tmp_path / "r.h5")
    RegionStore(tmp_path / "r.h5")
    with h5py.File(tmp_path / "r.h5", "r+") as file:
        change(file)
    with pytest.raises(GroundingError, match=message) as error:
        RegionStore(tmp_path / "r.h5")
    assert "r.h5" in str(error.value)
    assert "\n" not in str(error.value)


def test_file_that_is_no_hdf5_or_cut_short_is_refused(tmp_path):
    with pytest.raises(GroundingError, match=r"none\.h5: no such file"):
        RegionStore(tmp_path / "none.h5")
    write_store(tmp_path / "r.h5")
    whole = (tmp_path / "r.h5").read_bytes()
    for length in (0, 100, len(whole) // 2, len(whole) - 1):
        (tmp_path / "cut.h5").write_bytes(whole[:length])
        with pytest.raises(GroundingError, match=r"cut\.h5: cannot be read as HDF5") as error:
            RegionStore(tmp_path / "cut.h5")
        assert "\n" not in str(error.value)
    (tmp_path / "text.h5").write_text("not HDF5 at all\n" * 100)
    with pytest.raises(GroundingError, match=r"text\.h5"):
        RegionStore(tmp_path / "text.h5")


@pytest.mark.parametrize("name", ["features", "offsets", "image_ids"])
def test_dataset_whose_header_is_damaged_is_named(tmp_path, name):
    path = tmp_path / "r.h5"
    write_store(path)
    with h5py.File(path, "r") as file:
        start = h5py.h5o.get_info(file[name].id).addr
    content = bytearray(path.read_bytes())
    content[start : start + 16] = b"\xff" * 16
    path.write_bytes(content)
    with h5py.File(path, "r") as file, pytest.raises(KeyError):
        file[name]
    with pytest.raises(GroundingError, match=r"r\.h5: cannot be read as HDF5") as error:
        RegionStore(path)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_values_that_are_no_numbers_are_named(tmp_path, value):
    write_store(tmp_path / "r.h5")
    with h5py.File(tmp_path / "r.h5", "r+") as file:
        file["features"][3, 1] = value
        file["boxes"][5, 0] = value
    store = RegionStore(tmp_path / "r.h5")
    with pytest.raises(GroundingError, match=r"r\.h5.*features of image 'img1'"):
        store.features(1)
    with pytest.raises(GroundingError, match=r"r\.h5.*boxes of image 'img2'"):
        store.boxes(2)
    assert np.isfinite(store.features(2)).all()
    # what a limit cuts off is not read
    assert store.boxes(2, limit=1).shape == (1, 4)


def test_image_without_regions_is_named(tmp_path):
    write_store(tmp_path / "r.h5")
    with h5py.File(tmp_path / "r.h5", "r+") as file:
        file["offsets"][2] = 3
    store = RegionStore(tmp_path / "r.h5")
    assert store.counts.tolist() == [3, 0, 6]
    for read in (store.features, store.boxes, store.labels, store.scores):
        with pytest.raises(GroundingError, match=r"r\.h5.*'img1' has no regions"):
            read(1)


def test_damaged_block_is_named(tmp_path):
    write_store(tmp_path / "r.h5", counts=(8, 8, 8))
    with h5py.File(tmp_path / "r.h5", "r+") as file:
        replace(file, "features", file["features"][()], chunks=(8, 4), compression="gzip", fletcher32=True)
        chunk = file["features"].id.get_chunk_info(1)
    with open(tmp_path / "r.h5", "r+b") as raw:
        raw.seek(chunk.byte_offset + 5)
        raw.write(b"\xff\xff\xff")
    store = RegionStore(tmp_path / "r.h5")
    store.features(0)
    with pytest.raises(GroundingError, match=r"r\.h5: the features of image 'img1' cannot be read") as error:
        store.features(1)
    assert "\n" not in str(error.value)
    assert store.features(2).shape == (8, 4)


def good(count=2):
    return {
        "image_id": "a",
        "features": np.ones((count, 4), np.float32),
        "boxes": np.array([[0, 0, 10, 10]] * count, np.float32),
        "size": (20, 10),
    }


def write_all(path, *images, **options):
    with RegionWriter(path, **options) as writer:
        for image in images:
            writer.add(**image)


def box(*values):
    return np.array([[0, 0, 10, 10], values], np.float32)


WRONG = {
    "NaN": ({"features": np.array([[1.0, np.nan, 1, 1]] * 2)}, "NaN or infinity"),
    "infinity": ({"features": np.array([[1.0, np.inf, 1, 1]] * 2)}, "NaN or infinity"),
    "overflow": ({"features": np.full((2, 4), 65520.0)}, "--dtype float32"),
    "no regions": ({"features": np.ones((0, 4)), "boxes": np.ones((0, 4))}, "no regions"),
    "flat": ({"features": np.ones(4)}, "features are"),
    "text": ({"features": np.full((2, 4), "x")}, "features are"),
    "other size": ({"features": np.ones((2, 5))}, "size 5, those before it 4"),
    "boxes shape": ({"boxes": np.ones((2, 5))}, "boxes are"),
    "boxes count": ({"boxes": np.ones((3, 4))}, "boxes are"),
    "NaN box": ({"boxes": box(0, 0, np.nan, 1)}, "box 1 .*is no box"),
    "x1 before x0": ({"boxes": box(5, 0, 4, 1)}, r"box 1 \(5 0 4 1\) is no box"),
    "y1 before y0": ({"boxes": box(0, 5, 1, 4)}, "box 1 .*is no box"),
    "right": ({"boxes": box(0, 0, 21.5, 1)}, "box 1 .*outside its 20 x 10 pixels"),
    "below": ({"boxes": box(0, 0, 1, 11.5)}, "box 1 .*outside"),
    "left": ({"boxes": box(-1.5, 0, 1, 1)}, "box 1 .*outside"),
    "above": ({"boxes": box(0, -1.5, 1, 1)}, "box 1 .*outside"),
    "no height": ({"size": (20, 0)}, "its size is"),
    "half a pixel": ({"size": (20, 9.5)}, "its size is"),
    "NaN size": ({"size": (np.nan, 10)}, "its size is"),
    "one size": ({"size": (20,)}, "its size is"),
    "twice": ({"image_id": "first"}, "more than once"),
    "no id": ({"image_id": ""}, "an id must"),
    "tab in id": ({"image_id": "a\tb"}, "an id must"),
    "id not UTF-8": ({"image_id": "a\udcff"}, "not UTF-8"),
    "labels": ({"labels": np.array([1, 2])}, "labels must be given for every image or for none"),
    "labels not whole": ({"labels": np.array([1.5, 2])}, "labels are"),
    "labels too large": ({"labels": np.array([1, 2**40])}, "labels hold a number"),
    "scores count": ({"scores": np.array([1.0])}, "scores are"),
    "NaN score": ({"scores": np.array([1.0, np.nan])}, "scores hold a number"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_image_is_refused_and_nothing_left(tmp_path, name):
    change, message = WRONG[name]
    image = {**good(), **change}
    with pytest.raises(GroundingError, match=message) as error:
        write_all(tmp_path / "r.h5", {**good(), "image_id": "first"}, image)
    assert repr(image["image_id"]) in str(error.value)
    assert "\n" not in str(error.value)
    assert list(tmp_path.iterdir()) == []


def test_box_within_a_pixel_of_its_image_is_kept(tmp_path):
    with RegionWriter(tmp_path / "r.h5") as writer:
        writer.add(**{**good(), "boxes": box(-1, -0.5, 21, 10.9)})
        writer.add(**{**good(), "image_id": "point", "boxes": box(3, 3, 3, 3)})
    assert RegionStore(tmp_path / "r.h5").boxes(0)[1].tolist() == pytest.approx([-1, -0.5, 21, 10.9])


def test_large_values_need_float32(tmp_path):
    features = np.array([[1e30, 1, 1, 1]] * 2)
    with RegionWriter(tmp_path / "r.h5", dtype="float32") as writer:
        writer.add(**{**good(), "features": features})
        with pytest.raises(GroundingError, match="do not fit into float32"):
            writer.add(**{**good(), "image_id": "b", "features": features * 1e30})
    np.testing.assert_array_equal(RegionStore(tmp_path / "r.h5").features(0), features.astype(np.float32))
    with pytest.raises(GroundingError, match="--dtype float64"):
        RegionWriter(tmp_path / "r.h5", dtype="float64")


def test_refused_image_leaves_the_writer_usable(tmp_path):
    with RegionWriter(tmp_path / "r.h5") as writer:
        with pytest.raises(GroundingError):
            writer.add(**{**good(), "features": np.ones((2, 7)), "boxes": box(5, 0, 4, 1)})
        writer.add(**good())
    assert RegionStore(tmp_path / "r.h5").feature_size == 4


def test_stated_feature_size_is_kept_to(tmp_path):
    with pytest.raises(GroundingError, match="size 4"):
        write_all(tmp_path / "r.h5", good(), feature_size=6)
    write_all(tmp_path / "r.h5", good(), feature_size=4)


def test_failed_writing_keeps_the_file_that_was_there(tmp_path):
    write_store(tmp_path / "r.h5")
    before = (tmp_path / "r.h5").read_bytes()

    def interrupt():
        with RegionWriter(tmp_path / "r.h5") as writer:
            writer.add(**good())
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupt()
    with pytest.raises(GroundingError, match="there was no image"):
        write_all(tmp_path / "r.h5")
    assert (tmp_path / "r.h5").read_bytes() == before
    assert os.listdir(tmp_path) == ["r.h5"]


def test_failure_while_finishing_leaves_nothing(tmp_path, monkeypatch):
    def full(self, target, name):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(regions.Spill, "copy_to", full)
    with pytest.raises(GroundingError, match=r"r\.h5: cannot be written \(No space left"):
        write_all(tmp_path / "r.h5", good())
    assert list(tmp_path.iterdir()) == []


def test_folder_in_place_of_a_file_is_refused_at_once(tmp_path):
    with pytest.raises(GroundingError, match="is a folder; give the name of a file"):
        RegionWriter(tmp_path)


def test_missing_folder_is_named(tmp_path):
    with pytest.raises(GroundingError, match=r"none/r\.h5: cannot be written"):
        write_all(tmp_path / "none" / "r.h5", good())


def test_memory_does_not_grow_with_the_images(tmp_path, monkeypatch):
    monkeypatch.setattr(regions, "_BLOCK_BYTES", 1 << 16)
    features, boxes = np.ones((36, 256), np.float32), np.array([[0, 0, 9, 9]] * 36, np.float32)

    def peak(images):
        tracemalloc.start()
        with RegionWriter(tmp_path / "r.h5") as writer:
            for n in range(images):
                writer.add(str(n), features, boxes, (10, 10))
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return most

    peak(1)
    # 1,000 images more are 18 MB of rows; what is kept of an image is its id, its size and its count
    assert peak(1100) - peak(100) < 1e6


def test_content_hash_sees_every_change(tmp_path):
    counts = (40, 30, 50)
    write_store(tmp_path / "r.h5", counts=counts)
    original = RegionStore(tmp_path / "r.h5").content_hash()
    assert len(original) == 64
    changes = {
        "a box": lambda f: f["boxes"].__setitem__((71, 3), f["boxes"][71, 3] + 0.5),
        "a label": lambda f: f["labels"].__setitem__(71, 99),
        "a score": lambda f: f["scores"].__setitem__(71, 2),
        "an id": lambda f: f["image_ids"].__setitem__(1, "other"),
        "a size": lambda f: f["image_sizes"].__setitem__((1, 1), 49),
        "an offset": lambda f: f["offsets"].__setitem__(1, 41),
        "the first row": lambda f: f["features"].__setitem__((0, 0), 9),
        "the last row": lambda f: f["features"].__setitem__((119, 3), 9),
        "all features": lambda f: f["features"].__setitem__(..., f["features"][()] + 1),
        "no labels": lambda f: f.__delitem__("labels"),
        "float32": lambda f: replace(f, "features", f["features"][()].astype(np.float32)),
    }
    seen = {original}
    for what, change in changes.items():
        shutil.copy(tmp_path / "r.h5", tmp_path / "changed.h5")
        with h5py.File(tmp_path / "changed.h5", "r+") as file:
            change(file)
        found = RegionStore(tmp_path / "changed.h5").content_hash()
        assert found not in seen, what
        seen.add(found)


def test_content_hash_is_of_the_content_alone(tmp_path, monkeypatch):
    write_store(tmp_path / "r.h5", source="one")
    write_store(tmp_path / "again.h5", source="two")
    with h5py.File(tmp_path / "again.h5", "r+") as file:
        replace(file, "features", file["features"][()], chunks=(2, 4), compression="gzip")
        replace(file, "labels", file["labels"][()].astype(np.int16))
    original = RegionStore(tmp_path / "r.h5").content_hash()
    monkeypatch.setattr(regions, "_BLOCK_BYTES", 32)
    assert RegionStore(tmp_path / "again.h5").content_hash() == original


def test_real_store(shared):
    store = RegionStore(shared / "data" / "flickr8k" / "regions.h5")
    assert (len(store), store.rows, store.feature_size) == (7811, 279171, 208)
    with h5py.File(store.path) as file:
        offsets = file["offsets"][()]
        for n in (0, 1234, 7810):
            rows = slice(offsets[n], offsets[n + 1])
            np.testing.assert_array_equal(store.features(n), file["features"][rows].astype(np.float32))
            np.testing.assert_array_equal(store.boxes(n, limit=20), file["boxes"][rows][:20])
            np.testing.assert_array_equal(store.labels(n), file["labels"][rows])
            assert store.index(file["image_ids"][n].decode()) == n
