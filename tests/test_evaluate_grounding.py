"""``evaluate grounding``: its tables, the measures of phrases, and what the JSON report says it was made from."""

from __future__ import annotations

import hashlib
import json
import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fairseq_grounding.cli import main
from fairseq_grounding.data.prepared import PreparedFolder
from fairseq_grounding.data.regions import RegionStore, RegionWriter
from fairseq_grounding.dump import DumpWriter
from fairseq_grounding.errors import GroundingError
from fairseq_grounding.scoring.grounding import GroundingScorer, floors

from .test_grounding_scores import make_row
from .test_grounding_strict import make_objects, region


def write_dump(path: Path, rows: list[dict[str, Any]]) -> Path:
    with DumpWriter(path) as writer:
        for row in rows:
            writer.write(row)
    return path


@pytest.fixture(scope="module")
def right_rows(toy_folder: Path) -> list[dict[str, Any]]:
    """Rows of the toy test images that look at the right region, read and written."""
    folder = PreparedFolder(toy_folder)
    objects, store, split = folder.objects(), RegionStore(folder.regions_path), folder.split("test")
    assert objects is not None
    rows = []
    for image, number, text in zip(split.image_ids, split.caption_index, split.texts):
        boxes = store.boxes(store.index(image))
        row = make_row(image, text.split(), {}, int(number))
        for entry in objects["images"][image][number]:
            place = int(np.abs(boxes - [region(box) for box in entry["boxes"]]).max(1).argmin())
            for word in range(*entry["span"]):
                weights = np.eye(len(boxes))[place]
                row["steps"][word].update(region=place, box=boxes[place].tolist(), attention=weights.tolist())
        rows.append(row)
    return rows + [{**row, "caption_index": None, "reference": False} for row in rows]


def test_phrase_table_and_report(
    toy_folder: Path, right_rows: list[dict[str, Any]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dump, report = write_dump(tmp_path / "dump.jsonl", right_rows), tmp_path / "report.json"
    regions = PreparedFolder(toy_folder).regions_path
    common = ["evaluate", "grounding", str(dump), "--data", str(toy_folder), "--protocol", "phrase"]
    assert main([*common, "--json", str(report), "--regions", str(regions), "--seed", "5"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    content = json.loads(report.read_text())
    phrases = content["dumps"][0]["phrases"]
    assert phrases > 20
    assert lines[1][:7] == [str(dump), "100.0", "100.0-100.0", "100.0", "100.0", "100.0", str(phrases)]
    assert [line[0] for line in lines[2:]] == ["(best", "(largest", "(whole", "(a"]  # no scores, no top detection
    assert lines[2][-6:] == ["100.0", "100.0-100.0", "100.0", "100.0", "100.0", str(phrases)]
    assert content["dumps"][0]["per_type"]["other"]["measures"]["phrase_mean"]["interval"] == [1, 1]
    assert content["floors"]["phrases"] == phrases

    assert content["seed"] == content["arguments"]["seed"] == 5
    assert content["arguments"]["dumps"] == [str(dump)]
    assert content["versions"]["torch"] == str(torch.__version__)
    assert content["versions"]["fairseq"].startswith("0.12")
    assert set(content["versions"]) >= {"fairseq_grounding", "numpy", "python"}
    assert content["files"] == {
        str(dump): hashlib.sha256(dump.read_bytes()).hexdigest(),
        str(toy_folder): PreparedFolder(toy_folder).content_hash(),
        str(toy_folder / "objects.json"): hashlib.sha256((toy_folder / "objects.json").read_bytes()).hexdigest(),
        str(regions): RegionStore(regions).content_hash(),
    }

    assert main([*common, "--per-class"]) == 0
    output = capsys.readouterr().out
    assert "mean attention over the phrase: is not measured without the region store" in output
    assert output.splitlines()[-1].split()[:3] == ["other", "100.0", "100.0-100.0"]


def test_f1_tables(
    toy_folder: Path, right_rows: list[dict[str, Any]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = json.loads(json.dumps(right_rows))
    for row in wrong:
        for step in row["steps"]:
            if step["box"] is not None:
                step["box"] = [0, 0, 1, 1]
    right, lost = (
        str(write_dump(tmp_path / f"{name}.jsonl", rows)) for name, rows in (("right", right_rows), ("lost", wrong))
    )
    report = tmp_path / "report.json"
    common = ["evaluate", "grounding", right, lost, "--data", str(toy_folder), "--json", str(report)]

    assert main(common) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[:2] == ["dump", "F1_all"]
    assert lines[1].split()[1] == lines[1].split()[4] == "100.0"
    content = json.loads(report.read_text())["dumps"]
    assert (content[0]["attention_accuracy"], content[0]["f1_loc"], content[1]["f1_all"]) == (1, 1, None)
    assert content[0]["confusion"] == {"all": [], "loc": [], "attention": []}
    assert {entry["attended"] for entry in content[1]["confusion"]["all"]} == {"(background)"}
    wrong = content[1]["wrong_attention"]["all"]
    assert wrong.pop("background") > 20
    assert wrong == {"same_class": 0, "another": 0, "nothing": 0}

    assert main([*common, "--protocol", "strict", "--per-class", "--top", "2"]) == 0
    output = capsys.readouterr().out
    lines = output.splitlines()
    assert lines[1].split()[:4] == [right, "words", "100.0", "(100.0-100.0)"]
    assert lines[4].split()[:4] == [lost, "classes", "0.0", "(0.0-0.0)"]
    assert output.count("where wrong attention went") == 2  # generated and attention, of the second dump alone
    table = output[output.index(f"{lost}: where wrong attention went (generated): too") :].split("\n\n")[0].splitlines()
    assert len(table) == 4  # title, header, the two most frequent
    assert table[2].split()[1] == "(background)"


def test_no_report_replaces_what_is_read(
    toy_folder: Path, right_rows: list[dict[str, Any]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "toy" / toy_folder.name
    shutil.copytree(toy_folder.parent, data.parent)
    dump = write_dump(tmp_path / "dump.jsonl", right_rows)
    (tmp_path / "link.jsonl").symlink_to(dump)
    regions = PreparedFolder(data).regions_path
    files = [path for path in (dump, regions, *data.iterdir()) if path.is_file()]
    before = [path.read_bytes() for path in files]
    score = ["evaluate", "grounding", str(dump), "--data", str(data), "--protocol", "phrase", "--regions", str(regions)]
    for target in (dump, regions, data / "meta.json", data / "report.json", tmp_path / "link.jsonl"):
        assert main([*score, "--json", str(target)]) == 1
        assert f"--json {target}: " in capsys.readouterr().err
    for source, target in ((regions, regions), (data, data / "meta.json"), (data, data), (data, tmp_path / "no" / "x")):
        assert main(["inspect", str(source), "--json", str(target)]) == 1
        (line,) = capsys.readouterr().err.splitlines()
        assert f"--json {target}: " in line
    assert [path.read_bytes() for path in files] == before


def test_refusals(
    toy_folder: Path, right_rows: list[dict[str, Any]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dump = str(write_dump(tmp_path / "dump.jsonl", right_rows))
    regions = str(PreparedFolder(toy_folder).regions_path)
    elsewhere = str(write_dump(tmp_path / "elsewhere.jsonl", [make_row("x", ["dog"], {0: [0, 0, 1, 1]}, 0)]))
    without = tmp_path / "without"
    shutil.copytree(toy_folder, without)
    (without / "objects.json").unlink()
    for arguments, message in [
        ([dump, "--data", str(toy_folder), "--regions", regions], "--regions: is for --protocol phrase"),
        ([dump, "--data", str(toy_folder), "--top", "-1"], "--top -1"),
        ([dump, "--data", str(toy_folder), "--seed", "-1"], "--seed -1"),
        ([elsewhere, "--data", str(toy_folder)], "0 of its 1 images are annotated"),
        ([dump, "--data", str(without)], "has no objects.json"),
    ]:
        assert main(["evaluate", "grounding", *arguments]) == 1
        captured = capsys.readouterr()
        assert message in captured.err
        assert captured.err.count("\n") == 1


A, B, C = [0, 0, 9, 9], [20, 0, 29, 9], [0, 20, 9, 29]


@pytest.fixture
def three_regions(tmp_path: Path) -> RegionStore:
    with RegionWriter(tmp_path / "regions.h5", source="by hand") as writer:
        writer.add("1", np.zeros((3, 2), np.float32), np.array([region(box) for box in (A, B, C)]), (40, 40))
    return RegionStore(tmp_path / "regions.h5")


def attending(words: list[str], weights: dict[int, list[float]], number: int = 0) -> dict[str, Any]:
    row = make_row("1", words, {}, number)
    for place, own in weights.items():
        best = int(np.argmax(own))
        row["steps"][place].update(region=best, box=region([A, B, C][best]), attention=own)
    return row


def test_every_measure_by_hand(three_regions: RegionStore) -> None:
    objects = make_objects(
        {"1": [("big man with dog hat", {1: ("1", [A]), 4: ("2", [[15, 0, 29, 9]])}), ("man", {0: ("1", [A])})]}
    )
    first, second = objects["images"]["1"][0]
    first.update(span=[0, 2], types=["people"])
    second.update(span=[3, 5], types=["clothing", "other"])
    objects["images"]["1"][1][0].update(span=[0, 1], types=["people"])
    masks = [np.array([0, 1, 0, 1, 1]), np.array([1])]
    rows = [
        # the noun looks at B, but big's certainty makes the phrase look at A; dog is right, hat is not
        attending(
            ["big", "man", "with", "dog", "hat"],
            {0: [1, 0, 0], 1: [0.4, 0.5, 0.1], 3: [0.1, 0.6, 0.3], 4: [0, 0.4, 0.6]},
        )
    ]
    scorer = GroundingScorer(objects, "phrase", nouns=lambda image: masks, store=three_regions, bootstrap=20)
    result = scorer.score(rows)
    found = {name: (m["hits"], m["counted"], m["missing"]) for name, m in result["measures"].items()}
    assert found == {
        "last_noun": (0, 3, 1),
        "nouns": (1, 4, 1),
        "phrase_mean": (2, 3, 1),
        "pointing": (0, 3, 1),
    }
    assert result["per_type"]["people"]["measures"]["phrase_mean"]["accuracy"] == 1 / 2
    assert result["per_type"]["clothing"]["measures"]["nouns"]["accuracy"] == 1 / 2
    assert result["measures"]["phrase_mean"]["interval"] == [2 / 3, 2 / 3]  # one image
    assert result["notes"] == []

    # a caption cut short: the hat is past the end, its phrase is known by the dog alone; man points without a hit
    objects["images"]["1"][0][0]["boxes"] = [[0, 0, 29, 9]]
    cut = [attending(["big", "man", "with", "dog"], {0: [1, 0, 0], 1: [0.6, 0.3, 0.1], 3: [0, 1, 0]})]
    result = scorer.score(cut)
    assert result["phrases_past_end"] == 1
    found = {name: (m["hits"], m["past_end"]) for name, m in result["measures"].items()}
    assert found == {"last_noun": (0, 1), "nouns": (1, 1), "phrase_mean": (1, 0), "pointing": (1, 1)}


def test_the_wrong_region_store_is_refused(three_regions: RegionStore) -> None:
    objects = make_objects({"1": [("man", {0: ("1", [A])})]})
    scorer = GroundingScorer(objects, "phrase", store=three_regions)
    row = attending(["man"], {0: [1, 0, 0, 0]})
    with pytest.raises(GroundingError, match=r"image 1: attends to 4 regions.*--regions that the model read"):
        scorer.score([row])
    row = attending(["man"], {0: [1, 0, 0]})
    row["steps"][0]["box"] = [0, 0, 5, 5]
    with pytest.raises(GroundingError, match="--regions that the model read"):
        scorer.score([row])
    row["steps"][0].update(box=region(A), attention=None)
    result = scorer.score([row])
    assert "phrase_mean" not in result["measures"]
    assert "holds no attention weights" in result["notes"][1]


def test_thousands_of_captions_take_seconds(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    captions, rows = {}, []
    words = ["a", "man", "with", "a", "dog", "and", "a", "hat"]
    with RegionWriter(tmp_path / "regions.h5") as writer:
        for number in range(200):
            corner = random.integers(0, 60, (36, 2))
            boxes = np.hstack([corner, corner + random.integers(5, 40, (36, 2))])
            writer.add(str(number), np.zeros((36, 2), np.float32), boxes, (100, 100))
            boxed = {w: (str(w), boxes[random.integers(0, 36, 2)].tolist()) for w in (1, 4, 7)}
            captions[str(number)] = [(" ".join(words), boxed)] * 5
            for caption in (None, *range(5)):
                places = random.integers(0, 36, len(words))
                row = make_row(str(number), words, {w: boxes[p].tolist() for w, p in enumerate(places)}, caption)
                for step, place in zip(row["steps"], places):
                    step.update(region=int(place), attention=np.eye(36)[place].tolist())
                rows.append(row)
    objects, store = make_objects(captions), RegionStore(tmp_path / "regions.h5")
    start = time.process_time()
    for protocol in ("gvd", "strict", "phrase"):
        GroundingScorer(objects, protocol, store=store).score(rows)
    floors(objects, store, bootstrap=1000)
    # a thousand captions read and 200 written; under 2 s when this was written
    assert time.process_time() - start < 8
