"""Hallucinated objects: CHAIR against the published code's figures, its mended variant, and unreferenced words."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from fairseq_grounding.cli import main
from fairseq_grounding.data.prepared import PreparedFolder
from fairseq_grounding.dump import DumpWriter
from fairseq_grounding.errors import GroundingError
from fairseq_grounding.scoring.chair import Chair
from fairseq_grounding.scoring.coco import image_number, read_coco
from fairseq_grounding.scoring.hallucination import summarise
from fairseq_grounding.scoring.synonyms import read_synonyms
from fairseq_grounding.scoring.unreferenced import UnreferencedWords

from .conftest import FIGURES
from .test_grounding_scores import make_row
from .test_grounding_strict import A, make_objects

CASES = json.loads((FIGURES / "chair_cases.json").read_text())
CAPTIONS = {str(case["image_id"]): case["caption"] for case in CASES["captions"]}
THERE = {str(case["image_id"]): set(case["gt_objects"]) for case in CASES["captions"]}
# the oddities of the published list are kept: a second space, a capital
SYNONYMS = """\
person, man, woman, child, driver, baby, passenger
motorcycle,  motor bike, scooter
bicycle, bike
bus
train
elephant
dog
cat
bird, goose
sheep
zebra
bench
toilet
chair, seat
wine glass
cell phone, mobile phone, iPhone
hot dog
fire hydrant
stop sign
skis, ski
couch, sofa
cake,  cheesecake
dining table, table, desk
tie
tennis racket, racket
sports ball, ball
teddy bear
donut
laptop, laptop computer
knife
oven, stove top oven
"""


@pytest.fixture
def synonyms_file(tmp_path: Path) -> Path:
    path = tmp_path / "synonyms.txt"
    path.write_text(SYNONYMS)
    return path


def make_chair(path: Path, variant: str) -> Chair:
    if variant == "strict":
        pytest.importorskip("nltk", reason="the strict variant needs nltk and textblob")
        pytest.importorskip("textblob", reason="the strict variant needs nltk and textblob")
    return Chair(read_synonyms(path), variant)


def write_dump(path: Path, captions: dict[str, str]) -> str:
    with DumpWriter(path) as writer:
        for image, text in captions.items():
            writer.write(make_row(image, text.split(), {}))
    return str(path)


def test_strict_is_the_published_code(synonyms_file: Path) -> None:
    chair = make_chair(synonyms_file, "strict")
    judged = {caption.image: caption for caption in chair.judge(CAPTIONS, THERE)}
    assert len(CASES["sentences"]) == len(judged) == 16
    for case in CASES["sentences"]:
        caption = judged[str(case["image_id"])]
        assert [mention.object for mention in caption.mentions] == case["generated"]
        assert [[mention.word, mention.object] for mention in caption.hallucinated] == case["hallucinated"]
        assert [mention.place for mention in caption.hallucinated] == case["idxs"]
        assert chair.words(caption.text) == case["words"]
    result = chair.score(CAPTIONS, THERE, rounds=0, seed=1)
    assert result["chair_s"] == CASES["overall"]["CHAIRs"]
    assert result["chair_i"] == pytest.approx(CASES["overall"]["CHAIRi"], abs=1e-15)


def test_mended_reads_what_the_published_code_misses(synonyms_file: Path) -> None:
    chair = make_chair(synonyms_file, "mended")
    differ = {}
    for case in CASES["sentences"]:
        mentions = [mention.object for mention in chair.mentions(CAPTIONS[str(case["image_id"])])]
        if mentions != case["generated"]:
            differ[case["image_id"]] = mentions
    assert differ == {
        9: ["motorcycle", "cake", "dining table"],
        14: ["cell phone", "dining table", "laptop"],
        15: ["bus", "person", "bus"],
    }


@pytest.mark.parametrize(
    ("caption", "mentions"),
    [
        ("A stove top oven.", ["oven"]),
        ("mobile phones, HOT-DOGS and the man's wine glasses", ["cell phone", "hot dog", "person", "wine glass"]),
        ("baby elephants on train tracks near home plate", ["elephant"]),
        ("the seat of a toilet", ["toilet"]),
        ("a toilet seat", ["toilet"]),
        ("the seat of a bus", ["chair", "bus"]),
        ("children, geese, knives and benches", ["person", "bird", "knife", "bench"]),
        ("a bow tie on a passenger train", ["tie", "train"]),
        ("busy dressing tables", ["dining table"]),
        ("", []),
    ],
)
def test_mended_mentions(synonyms_file: Path, caption: str, mentions: list[str]) -> None:
    found = [mention.object for mention in make_chair(synonyms_file, "mended").mentions(caption)]
    assert found == mentions


def test_shares_by_hand(synonyms_file: Path) -> None:
    chair = make_chair(synonyms_file, "mended")
    captions = {"1": "a cat and a cat and a dog", "2": "the sky", "3": "a dog", "4": "a bus"}
    there = {"1": {"dog"}, "2": set(), "3": {"dog"}, "4": {"train"}}
    result = chair.score(captions, there, rounds=500, seed=1)
    assert (result["chair_s"], result["chair_i"]) == (2 / 4, 3 / 5)
    assert (result["captions_hallucinated"], result["mentions"], result["mentions_hallucinated"]) == (2, 5, 3)
    assert result["per_object"]["cat"] == {"mentions": 2, "hallucinated": 2}
    assert result["per_caption"][0]["hallucinated"] == [["cat", "cat"], ["cat", "cat"]]
    assert result["intervals"]["caption_share"] == [0, 1]
    assert result["mentions_per_caption"] == 5 / 4
    nothing = chair.score({"2": "the sky"}, there, rounds=10, seed=1)
    assert (nothing["chair_s"], nothing["chair_i"], nothing["intervals"]["mention_share"]) == (0, None, None)
    with pytest.raises(GroundingError, match="no captions"):
        summarise([], 10, 1)


def test_objects_are_of_categories_and_captions(synonyms_file: Path) -> None:
    for variant in ("strict", "mended"):
        chair = make_chair(synonyms_file, variant)
        assert chair.objects(["bus"], ["two men on a sofa"]) == {"bus", "person", "couch"}
        with pytest.raises(GroundingError, match="no line with the category 'submarine'"):
            chair.objects(["submarine"], [])
    with pytest.raises(GroundingError, match="variant 'loose' is unknown"):
        Chair([["person"]], "loose")


def coco_files(folder: Path) -> tuple[Path, Path]:
    instances, captions = folder / "instances.json", folder / "captions.json"
    instances.write_text(
        json.dumps(
            {
                "images": [{"id": 7}, {"id": 42}],
                "categories": [{"id": 1, "name": "person"}, {"id": 17, "name": "cat"}],
                "annotations": [{"image_id": 42, "category_id": 17}, {"image_id": 42, "category_id": 1}],
            }
        )
    )
    captions.write_text(
        json.dumps(
            {"annotations": [{"image_id": 42, "caption": "A cat on a couch."}, {"image_id": 7, "caption": "A bus."}]}
        )
    )
    return instances, captions


def test_coco_files(tmp_path: Path) -> None:
    instances, captions = coco_files(tmp_path)
    images = read_coco([instances], [captions])
    assert set(images) == {7, 42}
    assert images[42].categories == {"cat", "person"}
    assert (images[7].categories, images[7].captions) == (set(), ["A bus."])
    listed = tmp_path / "listed.json"
    listed.write_text(json.dumps([{"image_id": 42, "captions": ["A cat."], "boxes": [{"category": "cat"}]}]))
    assert read_coco([listed])[42].categories == {"cat"}
    with pytest.raises(GroundingError, match="--captions: what people mention"):
        read_coco([instances])
    for content, message in [({}, "--instances .*is not COCO's"), ([{"image_id": 1}], "is not COCO's"), (3, "is not")]:
        listed.write_text(json.dumps(content))
        with pytest.raises(GroundingError, match=message):
            read_coco([listed], [captions])
    assert [image_number(name) for name in ("COCO_val2014_000000000042", "42", "0042.jpg")] == [42, 42, 42]
    with pytest.raises(GroundingError, match="has no number at its end"):
        image_number("cat")


def test_chair_command(synonyms_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    instances, captions = map(str, coco_files(tmp_path))
    dump = write_dump(
        tmp_path / "dump.jsonl", {"COCO_val2014_000000000042": "a dog on a sofa", "7": "two buses", "99": "a cat"}
    )
    report = tmp_path / "report.json"
    files = ["--instances", instances, "--captions", captions, "--synonyms", str(synonyms_file)]
    common = ["evaluate", "hallucination", dump, *files, "--variant", "mended"]
    assert main([*common, "--json", str(report), "--per-class", "--top", "1", "--bootstrap", "50"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines[0][:2] == ["dump", "CHAIRs"]
    assert lines[1] == [dump, "50.0", "0.0-100.0", "33.3", "0.0-50.0", "2", "1", "3", "1", "1"]
    assert lines[-1] == ["dog", "1", "1"]
    content = json.loads(report.read_text())
    assert (content["score"], content["protocol"], content["dumps"][0]["variant"]) == (
        "hallucination",
        "chair",
        "mended",
    )
    assert set(content["files"]) == {dump, instances, captions, str(synonyms_file)}
    assert content["arguments"]["captions"] == [captions]
    assert content["seed"] == 1

    elsewhere = write_dump(tmp_path / "elsewhere.jsonl", {"5": "a cat"})
    empty = tmp_path / "empty.txt"
    empty.write_text("\n")
    for arguments, message in [
        ([dump], "--instances, --objects: give one of them"),
        ([dump, *files, "--objects", "objects.json"], "--instances, --objects: give one of them"),
        ([dump, *files[:4]], "--synonyms: give the list"),
        ([dump, *files[:5], str(empty), "--variant", "mended"], "is empty"),
        ([dump, *files, "--top", "-1"], "--top -1"),
        ([elsewhere, *files, "--variant", "mended"], "0 of its 1 images are in --instances"),
    ]:
        assert main(["evaluate", "hallucination", *arguments]) == 1
        captured = capsys.readouterr()
        assert message in captured.err
        assert captured.err.count("\n") == 1


def test_strict_without_its_libraries_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "nltk.tokenize", None)
    with pytest.raises(GroundingError, match=r"pip install nltk textblob; or score with --variant mended"):
        Chair([["person"]], "strict")


def test_unreferenced_words_by_hand() -> None:
    objects = make_objects(
        {"1": [("a man with a dog", {1: ("1", [A])}), ("a guy", {1: ("1", [A])})], "2": [("some water", {})]},
        classes="man dog hat guy kid",
    )
    captions = {"1": "men guys and dogs with hats", "2": "a man", "elsewhere": "a hat"}
    objects["lemmas"]["men"] = "man"
    result = UnreferencedWords(objects).score(captions, rounds=100, seed=1)
    # hats of image 1, which no caption has, and the man of image 2
    assert (result["unreferenced_captions"], result["unreferenced_words"]) == (2 / 2, 2 / 5)
    assert result["per_object"]["hat"] == {"mentions": 1, "hallucinated": 1}
    assert result["images_not_annotated"] == 1
    kid = {"1": "a kid"}
    assert UnreferencedWords(objects).score(kid, 0, 1)["unreferenced_words"] == 1
    folded = UnreferencedWords(objects, [["person", "man", " Kid"]]).score(kid, 0, 1)
    assert (folded["unreferenced_words"], list(folded["per_object"])) == (0, ["person"])
    with pytest.raises(GroundingError, match="0 of the 1 images are annotated"):
        UnreferencedWords(objects).score({"elsewhere": "a hat"}, 0, 1)


def test_unreferenced_command(toy_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    split = PreparedFolder(toy_folder).split("test")
    right = dict(zip(split.image_ids, split.texts))
    wrong = {image: f"{text} dog cat ball boat tree car" for image, text in right.items()}
    dumps = [write_dump(tmp_path / f"{name}.jsonl", own) for name, own in (("right", right), ("wrong", wrong))]
    objects = str(toy_folder / "objects.json")
    assert main(["evaluate", "hallucination", *dumps, "--objects", objects, "--bootstrap", "100"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines[1][:5] == [dumps[0], "0.0", "0.0-0.0", "0.0", "0.0-0.0"]
    # two objects an image: four of the six names, and of the eight words, are of none
    assert lines[2][:5] == [dumps[1], "100.0", "100.0-100.0", "50.0", "50.0-50.0"]


def test_real_captions_mention_what_is_there(shared: Path, tmp_path: Path) -> None:
    sample = shared / "data" / "coco_sample" / "annotations.json"
    images = read_coco([sample])
    categories = sorted({category for image in images.values() for category in image.categories})
    people = ["man", "woman", "boy", "girl", "child", "people"]
    lines: list[Any] = [[name, *(people if name == "person" else [])] for name in categories]
    chair = Chair(lines, "mended")
    there = {str(n): chair.objects(image.categories, image.captions) for n, image in images.items()}
    own = {str(n): image.captions[0] for n, image in images.items()}
    assert len(own) == 60
    result = chair.score(own, there, 0, 1)
    assert (result["chair_s"], result["chair_i"]) == (0, 0)
    assert result["mentions"] > 60
    # another image's caption is wrong about most of them
    others = dict(zip(own, [*list(own.values())[1:], own["30"]]))
    assert chair.score(others, there, 0, 1)["chair_i"] > 0.5
