"""Captions of regions: the command against fairseq-generate on a folder of snippets, and what it keeps."""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from fairseq.data import Dictionary
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from fairseq_grounding.cli import main
from fairseq_grounding.data.document_frequency import document_frequency
from fairseq_grounding.data.prepare import build_dictionary
from fairseq_grounding.data.prepared import SplitContent, write_prepared_folder
from fairseq_grounding.data.regions import RegionStore, RegionWriter
from fairseq_grounding.describing import RegionDescriber
from fairseq_grounding.files import writing_folder
from fairseq_grounding.scoring.nms import suppress

from .commands import generate, lines_of, train
from .conftest import _TOY_COLOURS, TOY_NOUNS
from .test_multimodal_rnn import build

EMPTY = "nothing here"


def whole(features: np.ndarray) -> np.ndarray:
    """The toy store has no region that covers its image."""
    return features.mean(0, keepdims=True)


def said_of(feature: np.ndarray) -> str:
    """What a toy region shows: its colour and its thing, read off its features."""
    thing, colour = feature[: len(TOY_NOUNS)], feature[len(TOY_NOUNS) : len(TOY_NOUNS) + len(_TOY_COLOURS)]
    if thing.max() < 0.5:
        return EMPTY
    return f"{_TOY_COLOURS[colour.argmax()]} {TOY_NOUNS[thing.argmax()]}"


def write_snippets(store: RegionStore, folder: Path, split_of: dict[str, str]) -> None:
    """Every region of the toy store as an image of two rows, itself and the whole image, with its caption."""
    contents = {name: SplitContent() for name in ("train", "valid", "test")}
    words: Counter = Counter()
    regions = folder.parent / "snippets.h5"
    with RegionWriter(regions, dtype="float32") as writer:
        for n, image_id in enumerate(store.image_ids):
            features, boxes, size = store.features(n), store.boxes(n), store.image_sizes[n]
            for region, feature in enumerate(features):
                rows = np.concatenate([feature[None], whole(features)])
                own = np.array([boxes[region], [0, 0, *size]])
                writer.add(f"{image_id}#{region}", rows, own, tuple(size.tolist()))
                content = contents[split_of[image_id]]
                content.image_ids.append(f"{image_id}#{region}")
                content.caption_index.append(0)
                content.raws.append(said_of(feature))
                content.texts.append(said_of(feature))
                if split_of[image_id] == "train":
                    words.update(said_of(feature).split())
    dictionary = build_dictionary(words, 1)
    for content in contents.values():
        for text in content.texts:
            ids = [dictionary.index(word) for word in text.split()]
            content.tokens.append(np.array([*ids, dictionary.eos()]))
            content.nouns.append(np.zeros(len(ids) + 1, np.uint8))
    with writing_folder(folder) as temporary:
        write_prepared_folder(
            temporary,
            destination=folder,
            regions_path=regions,
            regions_hash=RegionStore(regions).content_hash(),
            feature_size=store.feature_size,
            dictionary=dictionary,
            splits=contents,
            noun_table={},
            document_frequency=document_frequency(contents["train"].tokens, contents["train"].image_ids),
            objects=None,
            meta={"dictionary_size": len(dictionary)},
        )


@dataclass(frozen=True)
class Trained:
    store: RegionStore
    snippets: Path
    checkpoint: Path


@pytest.fixture(scope="module")
def trained(toy_data, tmp_path_factory) -> Trained:
    root = tmp_path_factory.mktemp("describe")
    store = RegionStore(toy_data.regions)
    splits = {Path(e["filename"]).stem: e["split"] for e in json.loads(toy_data.captions.read_text())["images"]}
    splits = {image_id: "valid" if split == "val" else split for image_id, split in splits.items()}
    write_snippets(store, root / "snippets", splits)
    flags = ("--criterion", "cross_entropy", "--batch-size", "40", "--lr", "0.02", "--max-epoch", "25")
    flags += ("--image-vector", "region", "--image-context", "concat", "--dropout", "0", "--clip-norm", "5")
    flags += ("--disable-validation", "--save-interval", "25")
    train(root / "snippets", root / "model", "multimodal_rnn", *flags)
    return Trained(store, root / "snippets", root / "model" / "checkpoint_last.pt")


def describe(tmp_path: Path, *arguments: object) -> list[dict]:
    out = tmp_path / "described.jsonl"
    assert main(["describe-regions", *map(str, arguments), "--out", str(out), "--cpu"]) == 0
    return [json.loads(line) for line in out.read_text().splitlines()]


def test_every_region_says_what_fairseq_generate_says_of_its_snippet(trained, toy_folder, tmp_path):
    rows = describe(tmp_path, toy_folder, "--path", trained.checkpoint, "--nms", "1", "--batch-size", "7")
    printed = generate(trained.snippets, trained.checkpoint, "--items", "image", "--beam", "5", "--max-len-b", "20")
    hypotheses = lines_of(printed, "H")
    numbers = [line.split("\t")[1] for line in (trained.snippets / "test.captions.tsv").read_text().splitlines()]
    expected = {image_id: hypotheses[n].split("\t") for n, image_id in enumerate(numbers)}
    assert [row["image_id"] for row in rows] == list(dict.fromkeys(n.split("#")[0] for n in numbers))
    found = {}
    right = Counter()
    for row in rows:
        image = trained.store.index(row["image_id"])
        scores = [region["score"] for region in row["regions"]]
        assert scores == sorted(scores, reverse=True)
        for region in row["regions"]:
            assert region["box"] == pytest.approx(trained.store.boxes(image)[region["region"]].tolist())
            found[f"{row['image_id']}#{region['region']}"] = region
            right[region["text"] == said_of(trained.store.features(image)[region["region"]])] += 1
    assert found.keys() == expected.keys()
    for image_id, (score, text) in expected.items():
        assert found[image_id]["text"] == text
        # fairseq prints bits
        assert found[image_id]["score"] == pytest.approx(float(score) * np.log(2), abs=1e-3)
    assert right[True] > 0.8 * right.total()


def test_duplicates_go_and_the_best_stay(trained, toy_data, tmp_path):
    images = ",".join(trained.store.image_ids[:6])
    everything = describe(tmp_path, toy_data.regions, "--path", trained.checkpoint, "--images", images, "--nms", "1")
    for flag, texts in (("same-caption", True), ("any-caption", False)):
        some = describe(
            tmp_path,
            *(toy_data.regions, "--path", trained.checkpoint, "--images", images),
            *("--nms", "0.1", "--nms-duplicates", flag, "--top", "3"),
        )
        dropped = 0
        for row, whole_row in zip(some, everything):
            regions = whole_row["regions"]
            kept: list[dict] = []
            for region in regions:
                close = (k for k in kept if overlap(k["box"], region["box"]) > 0.1)
                if not any(not texts or k["text"] == region["text"] for k in close):
                    kept.append(region)
            dropped += len(regions) - len(kept)
            assert row["regions"] == kept[:3]
        assert dropped


def overlap(a: list[float], b: list[float]) -> float:
    width = min(a[2], b[2]) - max(a[0], b[0])
    height = min(a[3], b[3]) - max(a[1], b[1])
    if width <= 0 or height <= 0:
        return 0.0
    areas = sum((box[2] - box[0]) * (box[3] - box[1]) for box in (a, b))
    return width * height / (areas - width * height)


CORNERS = st.tuples(*[st.integers(0, 8)] * 4).map(
    lambda c: [min(c[0], c[2]), min(c[1], c[3]), max(c[0], c[2]), max(c[1], c[3])]
)


@settings(deadline=None)
@given(
    regions=st.lists(st.tuples(CORNERS, st.integers(0, 3), st.sampled_from("ab")), min_size=1, max_size=9),
    threshold=st.sampled_from([0.0, 0.3, 0.5, 1.0]),
    texts=st.booleans(),
)
def test_suppression_is_the_plain_loops(regions, threshold, texts):
    boxes, ranks, said = zip(*regions)
    kept: list[int] = []
    for n in sorted(range(len(regions)), key=lambda n: (-ranks[n], n)):
        if all(overlap(boxes[n], boxes[k]) <= threshold or (texts and said[n] != said[k]) for k in kept):
            kept.append(n)
    assert suppress(boxes, ranks, threshold, said if texts else None) == kept


@pytest.fixture(scope="module")
def scored_store(trained, tmp_path_factory) -> Path:
    """The toy store with confidences, a region that covers the image, and one box twice."""
    path = tmp_path_factory.mktemp("scored") / "regions.h5"
    random = np.random.default_rng(0)
    with RegionWriter(path, dtype="float32") as writer:
        for n in range(3):
            features, boxes, size = trained.store.features(n), trained.store.boxes(n), trained.store.image_sizes[n]
            features = np.concatenate([features, features[:1], whole(features)])
            boxes = np.concatenate([boxes, boxes[:1], [[0, 0, *size]]])
            scores = random.permutation(len(features)).astype(np.float32)
            writer.add(trained.store.image_ids[n], features, boxes, tuple(size.tolist()), scores=scores)
    return path


def test_the_detectors_best_are_described_where_it_ranks(trained, scored_store, tmp_path):
    store = RegionStore(scored_store)
    arguments = (scored_store, "--path", trained.checkpoint)
    everything = describe(tmp_path, *arguments, "--nms", "1", "--rank", "caption")
    best = describe(tmp_path, *arguments, "--nms", "1", "--top", "4")
    for n, (row, whole_row) in enumerate(zip(best, everything)):
        confidences = store.scores(n)
        assert [region["region"] for region in row["regions"]] == np.argsort(-confidences)[:4].tolist()
        by_region = {region["region"]: region for region in whole_row["regions"]}
        assert len(by_region) == store.counts[n]
        for region in row["regions"]:
            assert region["text"] == by_region[region["region"]]["text"]
            assert region["score"] == pytest.approx(by_region[region["region"]]["score"], abs=1e-5)
        # the box that is there twice
        first, again = by_region[0], by_region[int(store.counts[n]) - 2]
        assert first["text"] == again["text"]
    once = describe(tmp_path, *arguments)
    for n, row in enumerate(once):
        numbers = {region["region"] for region in row["regions"]}
        assert len(numbers & {0, int(store.counts[n]) - 2}) == 1


def test_any_captioner_describes_a_region_as_an_image(trained, toy_folder, tmp_path):
    flags = ("--criterion", "cross_entropy", "--batch-size", "40", "--max-update", "1", "--region-geometry", "box5")
    train(toy_folder, tmp_path / "up_down", "up_down", *flags)
    checkpoint = tmp_path / "up_down" / "checkpoint_last.pt"
    image_id = trained.store.image_ids[0]
    (row,) = describe(tmp_path, toy_folder, "--path", checkpoint, "--images", image_id, "--nms", "1", "--beam", "2")
    # the same through the data set: images of one region that fills them
    features, width, height = trained.store.features(0), 50, 40
    single = tmp_path / "single.h5"
    with RegionWriter(single, dtype="float32") as writer:
        for n in range(4):
            writer.add(f"toy{20 + n}", features[n, None], np.array([[0, 0, width, height]]), (width, height))
    printed = generate(
        *(toy_folder, checkpoint, "--regions", str(single), "--items", "image", "--beam", "2", "--max-len-b", "20")
    )
    expected = {n: line.split("\t") for n, line in lines_of(printed, "H").items()}
    assert len(expected) == 4
    by_region = {region["region"]: region for region in row["regions"]}
    for n, (score, text) in expected.items():
        assert by_region[n]["text"] == text
        assert by_region[n]["score"] == pytest.approx(float(score) * np.log(2), abs=1e-3)


def test_pieces_are_read_as_words(trained):
    pieces = Dictionary()
    for piece in ("▁do", "g", "▁runs"):
        pieces.add_symbol(piece)
    model = build(pieces, trained.store.feature_size).float()
    describer = RegionDescriber(model)
    spelled = torch.tensor([*map(pieces.index, ("▁do", "g", "▁runs")), pieces.eos()])
    describer.generator.generate = lambda models, sample: [
        [{"tokens": spelled, "score": torch.tensor(-1.0)}] for _ in sample["net_input"]["src_tokens"]
    ]
    (row,) = describer.describe(trained.store, [0], nms=1)
    assert {region["text"] for region in row["regions"]} == {"dog runs"}


def test_the_best_regions_are_drawn(trained, toy_folder, tmp_path):
    photographs, drawn = tmp_path / "photographs", tmp_path / "drawn"
    photographs.mkdir()
    chosen = trained.store.image_ids[20:22]
    for image_id in chosen:
        width, height = trained.store.image_sizes[trained.store.index(image_id)].tolist()
        Image.new("RGB", (width, height), (128, 128, 128)).save(photographs / f"{image_id}.jpg")
    rows = describe(
        *(tmp_path, toy_folder, "--path", trained.checkpoint, "--images", ",".join(chosen)),
        *("--draw", drawn, "--photographs", photographs, "--max-drawn", "2"),
    )
    assert sorted(path.stem for path in drawn.iterdir()) == chosen
    for row in rows:
        picture = np.asarray(Image.open(drawn / f"{row['image_id']}.png"))
        height, width = (trained.store.image_sizes[trained.store.index(row["image_id"])].tolist())[::-1]
        scale = 640 / width
        photograph = picture[: round(height * scale)]
        for region, colour in zip(row["regions"][:3], ((230, 159, 0), (0, 114, 178), (0, 158, 115))):
            # in the middle of the left side of its box, where no label lies
            x, y = region["box"][0] * scale, (region["box"][1] + region["box"][3]) / 2 * scale
            seen = (photograph[int(y), max(0, int(x) - 3) : int(x) + 6] == colour).all(-1).any()
            there = (picture == colour).all(-1).any()
            assert bool(there) == (colour != (0, 158, 115))
            assert seen or not there


BAD = [
    (("--nms", "1.5"), "--nms 1.5: must be from 0 to 1"),
    (("--nms", "nan"), "--nms nan: must be from 0 to 1"),
    (("--top", "0"), "--top 0: must be at least 1"),
    (("--beam", "0"), "--beam 0: must be at least 1"),
    (("--draw", "x"), "--draw DIR and --photographs DIR belong together"),
    (("--images", ","), "--images ,: names no image"),
    (("--images", "nowhere"), "has no regions of image 'nowhere'"),
    (("--images", "toy00", "--split", "test"), "--images and --split: both say which images"),
    (("--split", "dev"), "has no split 'dev'"),
    (("--rank", "detector"), "--rank detector: .* has no confidences"),
    (("--draw", "x", "--photographs", "nowhere"), "--photographs nowhere: is not a folder"),
]


@pytest.mark.parametrize(("flags", "message"), BAD)
def test_bad_flags_are_one_line(trained, toy_folder, tmp_path, capsys, monkeypatch, flags, message):
    monkeypatch.chdir(tmp_path)
    out = tmp_path / "out.jsonl"
    command = ["describe-regions", str(toy_folder), "--path", str(trained.checkpoint), "--out", str(out), *flags]
    refused(command, message, capsys)
    assert not list(tmp_path.iterdir())


def refused(command: list[str], message: str, capsys) -> None:
    assert main(command) == 1
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 1
    assert re.search(message, said[0])


def test_wrong_files_are_named(trained, toy_folder, toy_data, tmp_path, capsys):
    out = ["--out", str(tmp_path / "out.jsonl"), "--cpu"]
    refused(["describe-regions", str(toy_folder), "--path", "gone.pt", *out], "--path gone.pt: no such file", capsys)
    train(toy_folder, tmp_path / "scan", "scan", "--batch-size", "40", "--max-update", "1")
    scan = str(tmp_path / "scan" / "checkpoint_last.pt")
    refused(["describe-regions", str(toy_folder), "--path", scan, *out], "holds the matching model scan, which", capsys)
    narrow = tmp_path / "narrow.h5"
    with RegionWriter(narrow) as writer:
        writer.add("a", np.zeros((1, 3), np.float32), np.array([[0, 0, 5, 5]]), (5, 5))
    path = ["--path", str(trained.checkpoint)]
    refused(["describe-regions", str(narrow), *path, *out], "narrow.h5: has features of width 3, the model", capsys)
    boxless = tmp_path / "boxless.h5"
    with RegionWriter(boxless, attributes={"boxes": "whole image"}) as writer:
        writer.add("a", np.zeros((1, 12), np.float32), np.array([[0, 0, 5, 5]]), (5, 5))
    refused(["describe-regions", str(boxless), *path, *out], "boxless.h5: has no boxes", capsys)
    refused(
        ["describe-regions", str(toy_data.regions), *path, "--split", "test", *out],
        "--split: is for a prepared folder",
        capsys,
    )
    assert not (tmp_path / "out.jsonl").exists()


def test_a_photograph_that_is_missing_is_said_before_the_work(trained, toy_folder, tmp_path, capsys):
    (tmp_path / "photographs").mkdir()
    command = [
        "describe-regions",
        str(toy_folder),
        "--path",
        str(trained.checkpoint),
        "--out",
        str(tmp_path / "o.jsonl"),
    ]
    command += ["--draw", str(tmp_path / "drawn"), "--photographs", str(tmp_path / "photographs")]
    refused(command, "has no photograph of image toy20", capsys)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["photographs"]
