"""The demo's pictures, their captions and boxes, and the regions cut out of them."""

from __future__ import annotations

import itertools
import json
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

DEMO = Path(__file__).resolve().parents[1] / "examples" / "demo"
sys.path.insert(0, str(DEMO))

import drawing  # noqa: E402
import extract_regions  # noqa: E402
import pictures  # noqa: E402

PICTURES = 60
PHRASE = re.compile(r"\[/EN#(\d+)/(\w+) ([^\]]+)\]")
# words for one kind of object, singular and plural
SAME = {
    **{"lady": "woman", "child": "boy", "mug": "cup", "puppy": "dog", "ship": "boat", "lake": "water"},
    **{"men": "man", "women": "woman", "puppies": "dog", "ladies": "woman", "children": "boy"},
}
GENERAL = {"animal", "person", "people", "toy", "vehicle", "building"}


def command(script: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, str(DEMO / script), *map(str, arguments)]
    return subprocess.run(words, capture_output=True, text=True, check=False)


@pytest.fixture(scope="session")
def demo(tmp_path_factory) -> Path:
    """A small data set as the two scripts write it."""
    folder = tmp_path_factory.mktemp("demo")
    drawn = command("pictures.py", "--out", folder / "pictures", "--images", PICTURES, "--seed", 3)
    assert drawn.returncode == 0, drawn.stderr
    cut = command("extract_regions.py", "--images", folder / "pictures/images", "--annotations",
                  folder / "pictures/entities/Annotations", "--out", folder / "regions", "--seed", 3,
                  "--report", folder / "pictures/dataset.json")  # fmt: skip
    assert cut.returncode == 0, cut.stderr
    (folder / "report.txt").write_text(cut.stdout)
    return folder


@pytest.fixture(scope="session")
def images(demo) -> list[dict]:
    return json.loads((demo / "pictures/dataset.json").read_text())["images"]


def sentences(demo: Path, image: dict) -> list[str]:
    path = demo / "pictures/entities/Sentences" / image["filename"].replace(".jpg", ".txt")
    return path.read_text().splitlines()


def objects(demo: Path, image: dict) -> list[ElementTree.Element]:
    path = demo / "pictures/entities/Annotations" / image["filename"].replace(".jpg", ".xml")
    return ElementTree.parse(path).getroot().findall("object")


def kind_of(phrase: str) -> str:
    noun = phrase.split()[-1].lower()
    noun = SAME.get(noun, noun)
    return SAME.get(noun.removesuffix("s"), noun.removesuffix("s")) if noun != "grass" else noun


def test_splits_and_ids(images):
    assert Counter(image["split"] for image in images) == {"train": 48, "val": 4, "test": 8}
    ids = [image["filename"].removesuffix(".jpg") for image in images]
    assert len(set(ids)) == PICTURES
    assert all(name.isdigit() for name in ids)
    assert [image["imgid"] for image in images] == list(range(PICTURES))
    assert sorted(k for image in images for k in image["sentids"]) == list(range(5 * PICTURES))


def test_pictures_are_there(demo, images):
    assert {path.name for path in (demo / "pictures/images").iterdir()} == {image["filename"] for image in images}
    with Image.open(demo / "pictures/images" / images[0]["filename"]) as picture:
        assert picture.size == (drawing.WIDTH, drawing.HEIGHT)


def test_tokens_raw_text_and_phrases_agree(demo, images):
    for image in images:
        lines = sentences(demo, image)
        assert len(image["sentences"]) == len(lines) == 5
        for sentence, line in zip(image["sentences"], lines):
            assert PHRASE.sub(lambda match: match[3], line) == sentence["raw"]
            assert sentence["tokens"] == re.findall(r"[a-z]+", sentence["raw"].lower())
            assert len(sentence["tokens"]) >= 4


def test_grammar_is_varied_and_words_are_few(images):
    texts = [sentence["tokens"] for image in images for sentence in image["sentences"]]
    assert len({" ".join(tokens) for tokens in texts}) > 0.9 * len(texts)
    words = Counter(itertools.chain.from_iterable(texts))
    assert 100 <= len(words) <= 200
    for word in (
        "a",
        "an",
        "the",
        "red",
        "small",
        "beside",
        "above",
        "behind",
        "and",
        "two",
        "dogs",
        "standing",
        "day",
    ):
        assert words[word] >= 2, word
    assert not re.search(r"\ba [aeiou]|\ban [^aeiou]", " | ".join(" ".join(tokens) for tokens in texts))


def test_every_chain_is_annotated(demo, images):
    boxes_of_plurals, boxes_of_singulars, without = [], [], Counter()
    seen: set[str] = set()
    for image in images:
        boxes, flags = Counter(), {}
        for item in objects(demo, image):
            name = item.findtext("name")
            corners = item.find("bndbox")
            if corners is None:
                flags[name] = (item.findtext("scene"), item.findtext("nobox"))
                continue
            x0, y0, x1, y1 = (int(corners.findtext(key)) for key in ("xmin", "ymin", "xmax", "ymax"))
            assert 1 <= x0 < x1 <= drawing.WIDTH
            assert 1 <= y0 < y1 <= drawing.HEIGHT
            boxes[name] += 1
        phrases = PHRASE.findall(" ".join(sentences(demo, image)))
        chains = {chain for chain, _, _ in phrases} - {"0"}
        assert chains <= set(boxes) | set(flags)
        assert not set(boxes) & set(flags)
        assert not chains & seen, "a chain belongs to one picture"
        seen |= chains
        for chain, _, words in phrases:
            plural = re.match(r"(two|three|some|several|a pair)\b", words.lower())
            if chain in boxes:
                (boxes_of_plurals if plural else boxes_of_singulars).append(boxes[chain])
            elif chain != "0":
                without[flags[chain]] += 1
    assert min(boxes_of_plurals) >= 2
    assert set(boxes_of_singulars) == {1}
    assert set(without) == {("1", "0"), ("0", "1")}, "scenes without a box and things that are none"
    assert without["0", "1"] > 20


def test_a_phrase_names_one_kind_of_object(demo, images):
    for image in images:
        kinds: dict[str, set[str]] = {}
        for chain, _, words in PHRASE.findall(" ".join(sentences(demo, image))):
            kinds.setdefault(chain, set()).add(kind_of(words))
        boxed = {item.findtext("name") for item in objects(demo, image) if item.find("bndbox") is not None}
        assert all(len(kinds[chain] - GENERAL) <= 1 for chain in boxed)


def test_some_kinds_come_together():
    pairs = Counter()
    for _, _, scene, _, _ in itertools.islice(pictures.draw_all(40, 8), 40):
        for group in scene.groups:
            if group.kind in ("man", "table"):
                pairs[group.kind, bool(group.partners)] += 1
            if group.kind == "boat":
                assert scene.water is not None
    assert pairs["man", True] > 3 * pairs["man", False]
    assert pairs["table", True] > 3 * pairs["table", False]


def test_the_box_of_an_object_is_that_of_its_pixels():
    rng = pictures.random.Random(5)
    for kind, look in drawing.KINDS.items():
        for pose in look.poses:
            image = drawing.sprite(kind, look.colours[0], pose, look.height, rng, rng.random() < 0.5)
            solid = np.asarray(image.getchannel("A")) > 90
            assert all(edge.any() for edge in (solid[0], solid[-1], solid[:, 0], solid[:, -1])), (kind, pose)
            assert 0.55 * look.height < image.height < 1.35 * look.height, (kind, pose)


def test_objects_hide_each_other_only_a_little():
    for _, _, scene, _, _ in pictures.draw_all(15, 4):
        for one, two in itertools.combinations(scene.groups, 2):
            for a, b in itertools.product(one.things, two.things):
                shared = pictures.intersection(a.box, b.box) / min(pictures.area(a.box), pictures.area(b.box))
                assert shared <= 0.35, (a, b)


def test_the_seed_decides(tmp_path):
    for name, seed in (("one", 5), ("two", 5), ("other", 6)):
        assert command("pictures.py", "--out", tmp_path / name, "--images", 6, "--seed", seed).returncode == 0
    files = sorted(path.relative_to(tmp_path / "one") for path in (tmp_path / "one").rglob("*.*"))
    assert len(files) == 6 * 3 + 1
    for file in files:
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes(), file
    assert (tmp_path / "one/dataset.json").read_bytes() != (tmp_path / "other/dataset.json").read_bytes()


def load(demo: Path, image: dict) -> dict[str, np.ndarray]:
    with np.load(demo / "regions" / image["filename"].replace(".jpg", ".npz")) as file:
        return dict(file)


def slow_iou(a, b) -> float:
    """Intersection over union, one pixel edge at a time."""
    wide, high = min(a[2], b[2]) - max(a[0], b[0]), min(a[3], b[3]) - max(a[1], b[1])
    shared = max(0.0, wide) * max(0.0, high)
    return shared / ((a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - shared)


def true_boxes(demo: Path, image: dict) -> list[tuple[str, tuple[float, ...]]]:
    """Chain and box, in pixels from 0, the last ones excluded."""
    found = []
    for item in objects(demo, image):
        corners = item.find("bndbox")
        if corners is not None:
            x0, y0, x1, y1 = (float(corners.findtext(key)) for key in ("xmin", "ymin", "xmax", "ymax"))
            found.append((item.findtext("name"), (x0 - 1, y0 - 1, x1, y1)))
    return found


def test_regions_of_a_picture(demo, images):
    counts = set()
    for image in images:
        regions = load(demo, image)
        features, boxes = regions["features"], regions["boxes"]
        counts.add(len(boxes))
        assert features.shape == (len(boxes), extract_regions.FEATURE_SIZE)
        assert features.dtype == boxes.dtype == np.float32
        assert np.isfinite(features).all()
        assert regions["image_size"].tolist() == [drawing.WIDTH, drawing.HEIGHT]
        assert (boxes[:, :2] >= 0).all()
        assert (boxes[:, 2:] - boxes[:, :2] >= 3.99).all()
        assert (boxes[:, 2:] <= regions["image_size"]).all()
        assert [0, 0, drawing.WIDTH, drawing.HEIGHT] in boxes.tolist()
    assert min(counts) >= 8
    assert max(counts) <= 14
    assert len(counts) >= 5


def test_objects_are_found_but_not_exactly(demo, images):
    best = [
        max(slow_iou(box, region) for region in load(demo, image)["boxes"])
        for image in images
        for _, box in true_boxes(demo, image)
    ]
    best = np.asarray(best)
    assert 0.9 < (best > 0.5).mean() < 1, "a few are missed"
    assert (best > 0.6).mean() > 0.8
    assert 0.65 < np.median(best) < 0.9


def test_the_report_is_that_of_a_slow_count(demo, images):
    phrases = random = largest = possible = 0
    for image in images:
        if image["split"] != "test":
            continue
        boxes = load(demo, image)["boxes"].astype(float)
        areas = [(x1 - x0) * (y1 - y0) for x0, y0, x1, y1 in boxes]
        for chain, _, _ in PHRASE.findall(" ".join(sentences(demo, image))):
            own = [box for name, box in true_boxes(demo, image) if name == chain]
            if own:
                hits = [any(slow_iou(box, region) > 0.5 for box in own) for region in boxes]
                phrases += 1
                random += sum(hits) / len(hits)
                largest += hits[areas.index(max(areas))]
                possible += any(hits)
    lines = dict(re.split(r"\s{2,}", line) for line in (demo / "report.txt").read_text().splitlines())
    assert lines["pictures"] == "8"
    assert int(lines["phrases"]) == phrases > 50
    assert float(lines["random region"]) == pytest.approx(random / phrases, abs=6e-4)
    assert float(lines["largest region"]) == pytest.approx(largest / phrases, abs=6e-4)
    assert float(lines["best possible"]) == pytest.approx(possible / phrases, abs=6e-4)
    assert random < 0.3 * possible, "a random region must not do"


def test_kinds_can_be_told_apart_by_their_features_but_not_always(demo, images):
    features, kinds, owners = [], [], []
    for number, image in enumerate(images):
        names = {c: kind_of(words) for c, _, words in PHRASE.findall(" ".join(sentences(demo, image)))}
        regions = load(demo, image)
        for chain, box in true_boxes(demo, image):
            overlap = [slow_iou(box, region) for region in regions["boxes"]]
            if names[chain] not in GENERAL and max(overlap) > 0.5:
                features.append(regions["features"][int(np.argmax(overlap))])
                kinds.append(names[chain])
                owners.append(number)
    similarity = np.asarray(features) @ np.asarray(features).T
    similarity[np.equal.outer(owners, owners)] = -np.inf
    right = np.asarray(kinds)[similarity.argmax(axis=1)] == np.asarray(kinds)
    most_common = Counter(kinds).most_common(1)[0][1] / len(kinds)
    assert most_common < 0.2
    assert 0.5 < right.mean() < 0.97


def test_features_come_from_the_pixels_alone(demo, tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    source = demo / "pictures/entities/Annotations"
    for path in source.iterdir():
        text = re.sub(r"<name>(\d+)</name>", lambda m: f"<name>{int(m[1]) * 31 % 997}</name>", path.read_text())
        (tmp_path / "a" / path.name).write_text(text)
    assert extract_regions.extract(demo / "pictures/images", tmp_path / "a", tmp_path / "b", 3) == PICTURES
    for path in (tmp_path / "b").iterdir():
        with np.load(path) as other, np.load(demo / "regions" / path.name) as own:
            assert np.array_equal(other["features"], own["features"])
            assert np.array_equal(other["boxes"], own["boxes"])


def test_features_of_pixels():
    def describe(pixels: np.ndarray) -> np.ndarray:
        image = Image.fromarray(pixels.astype(np.uint8))
        box = np.asarray([[0, 0, image.width, image.height]])
        return extract_regions.describe(extract_regions.cut(image, box))[0]

    rng = np.random.default_rng(0)
    noise = np.repeat(np.repeat(rng.integers(0, 255, (8, 8, 3)), 16, axis=0), 16, axis=1)
    stripes = np.tile(np.repeat([20, 230], 8), 8)
    upright = np.broadcast_to(stripes[None, :, None], (128, 128, 3))
    lying = np.broadcast_to(stripes[:, None, None], (128, 128, 3))
    # three blocks of length 1
    blocks = np.split(describe(noise), [96, 124])
    assert [np.linalg.norm(block) for block in blocks] == pytest.approx([1, 1, 1], abs=1e-3)
    # neither size nor shape of the box matters
    assert describe(noise) @ describe(np.repeat(noise, 2, axis=1)) > 0.97 * 3
    # orientation does: the first bin holds steps from left to right, the fourth those from top to bottom
    assert describe(upright)[:96].reshape(16, 6).sum(axis=0).argmax() == 0
    assert describe(lying)[:96].reshape(16, 6).sum(axis=0).argmax() == 3
    # and so does colour
    red, blue = np.zeros((40, 40, 3)), np.zeros((40, 40, 3))
    red[..., 0] = blue[..., 2] = 200
    hues = [describe(pixels)[96 : 96 + extract_regions.HUES] for pixels in (red, blue)]
    assert hues[0].argmax() == 0
    assert hues[1].argmax() == 6
    assert np.isfinite(describe(np.zeros((20, 20, 3)))).all(), "a black window"


def test_what_is_wrong_is_said_in_one_line(demo, tmp_path):
    rest = ("--annotations", tmp_path, "--out", tmp_path / "x")
    for script, arguments, message in (
        ("pictures.py", ("--out", demo / "pictures"), "exists; remove it or choose another"),
        ("pictures.py", ("--out", tmp_path / "x", "--images", 2), "--images: at least 3"),
        ("extract_regions.py", ("--images", tmp_path / "no", *rest), "is not a folder"),
        ("extract_regions.py", ("--images", demo / "pictures/images", *rest), "has no annotation"),
    ):
        done = command(script, *arguments)
        assert done.returncode == 2
        assert message in done.stderr.splitlines()[-1]
        assert "Traceback" not in done.stderr
    assert not list(tmp_path.iterdir())
