"""Writers of the region formats of other programs, for tests, and the commands that read them.

Images are {id: (features, boxes, (width, height))}.
"""

from __future__ import annotations

import argparse
import base64
import csv
import importlib
import json

import h5py
import numpy as np

from fairseq_grounding.data.regions import RegionStore


def command(name, *arguments):
    """Run one sub-command as the program would, without its exit code."""
    module = importlib.import_module(f"fairseq_grounding.cli.{name}")
    parser = argparse.ArgumentParser()
    module.add_arguments(parser)
    module.run(parser.parse_args([str(argument) for argument in arguments]))


def prepare(kind, source, out, *flags):
    command("prepare_regions", "--format", kind, "--input", source, "--out", out, "--dtype", "float32", *flags)
    return RegionStore(out)


def encoded(array, dtype=np.float32):
    return base64.b64encode(np.asarray(array).astype(dtype).tobytes()).decode()


def draw_images(counts, seed=0, size=5):
    """Images of two shapes, wide and high, whose first box is the whole image."""
    rng = np.random.default_rng(seed)
    images = {}
    for n, count in enumerate(counts):
        width, height = (int(value) for value in rng.integers((300, 50), (600, 200))[:: rng.choice((1, -1))])
        corners = np.sort(rng.uniform(0, 1, (count, 2, 2)), axis=1) * (width, height)
        corners[0] = (0, 0), (width, height)
        features = rng.normal(size=(count, size)).astype(np.float32)
        images[f"im{n:03}"] = features, corners.reshape(count, 4).astype(np.float32), (width, height)
    return images


def classes(boxes):
    """Labels and scores that a test can compute again."""
    return np.arange(len(boxes)) + 7, np.linspace(0.5, 1, len(boxes), dtype=np.float32)


def tsv_row(image_id, features, boxes, size, order="butd"):
    width, height = size
    ends = [len(boxes), encoded(boxes), encoded(features)]
    if order == "butd":
        return [image_id, width, height, *ends]
    if order == "butd-hw":
        return [image_id, height, width, *ends, encoded(boxes[:, :1]), encoded(np.zeros(3))]
    labels, scores = classes(boxes)
    return [image_id, height, width, encoded(labels, np.int64), encoded(scores), *[encoded(scores)] * 2, *ends]


def save_tsv(path, images, order="butd", header=None, end="\r\n"):
    with open(path, "w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, delimiter="\t", lineterminator=end)
        if header:
            writer.writerow(header)
        writer.writerows(tsv_row(image_id, *image, order) for image_id, image in images.items())
    return path


def save_sizes(path, images):
    lines = [f"{image_id},{width},{height}\n" for image_id, (_, _, (width, height)) in images.items()]
    path.write_text("image_id,width,height\n" + "".join(lines))
    return path


def save_att_box(folder, images):
    for part in ("fc", "att", "box"):
        (folder / part).mkdir(parents=True)
    for image_id, (features, boxes, _) in images.items():
        np.save(folder / "fc" / f"{image_id}.npy", features.mean(0))
        np.savez_compressed(folder / "att" / f"{image_id}.npz", feat=features)
        np.save(folder / "box" / f"{image_id}.npy", boxes)
    return folder


def save_att_box_h5(prefix, images):
    for part, column in (("att", 0), ("box", 1)):
        with h5py.File(prefix.with_name(f"{prefix.name}_{part}.h5"), "w") as file:
            for image_id, image in images.items():
                file[image_id] = image[column]
    return prefix


def save_npy_dir(folder, images, form="pixels"):
    folder.mkdir()
    with open(folder / "metadata.csv", "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["image_id", "image_w", "image_h", "num_boxes"])
        for image_id, (features, boxes, size) in images.items():
            writer.writerow([image_id, *size, len(boxes)])
            if form != "pixels":
                boxes = boxes / np.array([*size, *size], np.float32)
            if form == "normalised with area":
                areas = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
                boxes = np.c_[boxes, areas]
            np.save(folder / f"{image_id}.npy", features)
            np.save(folder / f"{image_id}-boxes.npy", boxes)
    return folder


def padded(arrays, rows):
    return np.stack([np.pad(array, ((0, rows - len(array)), (0, 0))) for array in arrays])


def save_gvd(folder, images, low=0):
    """The three parts of GVD's data; *low* detections more an image have a score of 0.2 and less."""
    (folder / "features").mkdir(parents=True)
    most = max(len(image[1]) for image in images.values()) + low + 2
    detections, counts = [], []
    for image_id, (features, boxes, _) in images.items():
        labels, scores = classes(boxes)
        rows = np.c_[boxes, labels, scores]
        low_row = np.c_[boxes[:1].astype(float), 3, 0.2]
        rows = np.concatenate([low_row] * low + [rows])
        features = np.concatenate([features[:1]] * low + [features])
        # what comes after nms_num rows does not count
        detections.append(np.pad(rows, ((0, most - len(rows)), (0, 0)), constant_values=99))
        counts.append(len(rows))
        np.save(folder / "features" / f"{image_id}.npy", padded([features], most)[0])
    with h5py.File(folder / "detection.h5", "w") as file:
        file["dets_labels"], file["nms_num"] = np.stack(detections), np.array(counts, float)
    (folder / "dic.json").write_text(
        json.dumps({"images": [{"id": image_id, "split": "train"} for image_id in images]})
    )
    return folder / "detection.h5"


def save_scan(folder, images, rows_an_image=1, ids_an_image=1, captions=True):
    """SCAN's files; every image must have the same number of regions."""
    folder.mkdir(exist_ok=True)
    features = np.stack([image[0] for image in images.values()])
    np.save(folder / "train_ims.npy", features.repeat(rows_an_image, 0))
    (folder / "train_ids.txt").write_text("".join(f"{image_id}\n" * ids_an_image for image_id in images))
    if captions:
        (folder / "train_caps.txt").write_text("a dog .\n" * 5 * len(images))
    return folder / "train_ims.npy"


def save_pos_scan(folder, images, rows=None):
    folder.mkdir(exist_ok=True)
    most = rows or max(len(image[1]) for image in images.values())
    for name, key, column in (("ims", "feats", 0), ("ims_box", "boxes", 1)):
        with h5py.File(folder / f"train_{name}.h5", "w") as file:
            file[key] = padded([image[column] for image in images.values()], most)
    (folder / "train_files.json").write_text(json.dumps([f"{image_id}.jpg" for image_id in images]))
    return folder / "train_ims.h5"


def save_flickr_det(folder, images):
    folder.mkdir(exist_ok=True)
    most = max(len(image[1]) for image in images.values())
    with h5py.File(folder / "flickr_det_feat.hdf5", "w") as file:
        for key, column in (("image_features", 0), ("image_bb", 1)):
            file[key] = padded([image[column] for image in images.values()], most)
    (folder / "dic.json").write_text(json.dumps({"images": [{"id": image_id} for image_id in images]}))
    return folder / "flickr_det_feat.hdf5"
