"""Caption scores: the tools' own figures, what happens where Java is missing, and the commands."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from fairseq_grounding.cli import main
from fairseq_grounding.data.prepared import PreparedFolder
from fairseq_grounding.dump import DumpWriter
from fairseq_grounding.errors import GroundingError
from fairseq_grounding.scoring.captions import CaptionScorer, _tokenize, first_captions

pytest.importorskip("pycocoevalcap", reason="needs the extra 'metrics'")
needs_java = pytest.mark.skipif(shutil.which("java") is None, reason="needs a Java runtime")

FIGURES = json.loads((Path(__file__).parent / "figures" / "j_caption_metrics.json").read_text())
NAMES = {
    "bleu1": "Bleu_1",
    "bleu2": "Bleu_2",
    "bleu3": "Bleu_3",
    "bleu4": "Bleu_4",
    "meteor": "METEOR",
    "rouge_l": "ROUGE_L",
    "cider": "CIDEr",
}


def make_row(image: str, text: str, caption: int | None = None, box: list[float] | None = None) -> dict[str, Any]:
    words = text.split()
    region = None if box is None else 0
    steps = [{"token": w, "region": region, "box": box, "attention": None, "logprob": None} for w in words]
    row = {"id": 0, "image_id": image, "caption_index": caption, "model": "by hand", "text": text}
    return {**row, "reference": caption is not None, "tokens": words, "steps": steps}


def write_dump(path: Path, rows: list[dict[str, Any]]) -> Path:
    with DumpWriter(path) as writer:
        for row in rows:
            writer.write(row)
    return path


def child_processes() -> set[str]:
    found = set()
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = entry.read_text().rpartition(")")[2].split()
            if int(fields[1]) == os.getpid():
                found.add(entry.parent.name)
        except OSError:
            continue
    return found


ODD = {"odd": ["A café, in ½ light.\u2028It is late", "x"], "bars": ["A cat ||| here."], "dogs": ["Two dogs\nrun."]}


# one test, because METEOR takes seconds to start
@needs_java
def test_figures_of_the_tools_and_odd_captions(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", "-Duser.language=de -Duser.country=DE")
    before = child_processes()
    with CaptionScorer({**FIGURES["refs"], **ODD}, {**FIGURES["tok_refs"], **ODD}) as scorer:
        said = {image: captions[0] for image, captions in FIGURES["hyps"].items()}
        result = scorer.score(said)
        again = scorer.score(said)
        odd = scorer.score({"dogs": "two dogs run", "odd": "", "bars": "a ||| cat"})
        accented = scorer.score({"odd": "a café in ½ light it is late"})
    assert child_processes() == before
    assert capfd.readouterr() == ("", "")
    assert os.environ["JAVA_TOOL_OPTIONS"] == "-Duser.language=de -Duser.country=DE"

    for ours, theirs in NAMES.items():
        expected = FIGURES["scores"][theirs]
        assert result[ours] == pytest.approx(expected["corpus"], abs=1e-9)
        for image, figure in zip(said, expected["each"]):
            assert result["per_image"][image][ours] == pytest.approx(figure, abs=1e-9)
    assert again == result
    if "spice" not in result:
        assert [note.partition(":")[0] for note in scorer.notes] == ["SPICE is skipped"]

    assert odd["images"] == 3
    assert [odd["per_image"][image]["rouge_l"] for image in ("odd", "dogs")] == [0, 1]
    assert odd["per_image"]["dogs"]["meteor"] == 1
    assert 0 < odd["per_image"]["bars"]["meteor"] < 1
    assert accented["bleu4"] > 0.99


@needs_java
def test_accents_in_any_locale(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LC_ALL", "C")
    assert _tokenize({"a": ["The café, naïve!", ""], "b": ["Ångström"]}) == {
        "a": ["the café naïve", ""],
        "b": ["ångström"],
    }


def test_without_java(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    scorer = CaptionScorer(FIGURES["refs"], FIGURES["tok_refs"])
    result = scorer.score({image: captions[0] for image, captions in FIGURES["tok_hyps"].items()})
    # given the tokenizer's own output as words, the rest is the same
    for name in ("bleu1", "bleu4", "rouge_l", "cider"):
        assert result[name] == pytest.approx(FIGURES["scores"][NAMES[name]]["corpus"], abs=1e-9)
    assert "meteor" not in result
    assert "spice" not in result
    assert len(scorer.notes) == 2
    assert "without the PTB tokenizer" in scorer.notes[0]
    assert "METEOR and SPICE are skipped: there is no java" in scorer.notes[1]


def test_java_programs_that_fail(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program = tmp_path / "java"
    program.write_text('#!/bin/sh\n[ "$1" = -version ] || { echo it is broken >&2; exit 1; }\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    before = child_processes()
    scorer = CaptionScorer(FIGURES["refs"], FIGURES["tok_refs"])
    said = {image: captions[0] for image, captions in FIGURES["tok_hyps"].items()}
    for _ in range(2):
        result = scorer.score(said)
        assert result["cider"] == pytest.approx(FIGURES["scores"]["CIDEr"]["corpus"], abs=1e-9)
        assert "meteor" not in result
    notes = sorted(note for note in scorer.notes if not note.startswith("SPICE"))
    assert len(notes) == 2
    assert notes[0].startswith("METEOR is skipped: its program failed (")
    assert "the PTB tokenizer lost captions (it is broken)" in notes[1]
    assert child_processes() == before


def test_first_captions(tmp_path: Path) -> None:
    path = write_dump(
        tmp_path / "a.jsonl",
        [make_row("1", "a dog"), make_row("1", "a cat"), make_row("2", "a hat", 0), make_row("3", "")],
    )
    assert first_captions(path) == ({"1": "a dog", "3": ""}, 1)
    with pytest.raises(GroundingError, match="only ground-truth captions"):
        first_captions(write_dump(tmp_path / "b.jsonl", [make_row("2", "a hat", 0)]))


def test_captions_command(
    toy_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))  # no Java: METEOR takes seconds to start
    split = PreparedFolder(toy_folder).split("test")
    images = list(dict.fromkeys(split.image_ids))
    right = [make_row(image, text, None) for image, text in zip(split.image_ids, split.texts)]
    dumps = [
        write_dump(tmp_path / "right.jsonl", right),
        write_dump(tmp_path / "one.jsonl", [make_row(images[0], "a boat")]),
    ]
    report = tmp_path / "report.json"
    arguments = ["evaluate", "captions", *map(str, dumps), "--data", str(toy_folder), "--json", str(report)]
    assert main(arguments) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[:2] == ["dump", "BLEU-1"]
    assert lines[1].split()[:2] == [str(dumps[0]), "100.0"]
    assert lines[1].split()[-3:] == [str(len(images)), "0", str(len(right) - len(images))]
    assert lines[2].split()[-3:] == ["1", str(len(images) - 1), "0"]
    content = json.loads(report.read_text())
    assert [entry["dump"] for entry in content["dumps"]] == [str(dump) for dump in dumps]
    assert content["dumps"][0]["bleu4"] == pytest.approx(1, abs=1e-6)
    assert set(content["dumps"][0]["per_image"]) == set(images)
    assert lines[3:] == content["notes"]

    other = write_dump(tmp_path / "other.jsonl", [make_row(images[0], "a"), make_row("elsewhere", "a")])
    assert main(["evaluate", "captions", str(other), "--data", str(toy_folder)]) == 1
    assert "1 of its 2 images are not in the split 'test'" in capsys.readouterr().err
    assert main([*arguments[:-1], str(tmp_path / "no" / "report.json")]) == 1
    assert "--json" in capsys.readouterr().err


def test_grounding_command(toy_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = PreparedFolder(toy_folder)
    objects = folder.objects()
    assert objects is not None
    split = folder.split("test")
    rows = []
    for image, number, text in zip(split.image_ids, split.caption_index, split.texts):
        row = make_row(image, text, int(number))
        for entry in objects["images"][image][number]:
            x0, y0, x1, y1 = entry["boxes"][0]
            row["steps"][entry["word"]].update(region=0, box=[x0, y0, x1 + 1, y1 + 1])
        rows.append(row)
    written = [{**row, "caption_index": None, "reference": False} for row in rows]
    dump = str(write_dump(tmp_path / "dump.jsonl", rows + written))
    report = tmp_path / "report.json"
    common = [dump, "--data", str(toy_folder), "--json", str(report)]

    regions = str(folder.regions_path)
    assert main(["evaluate", "grounding", *common, "--protocol", "phrase", "--regions", regions]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split()[:2] == [dump, "100.0"]
    assert lines[2].split()[-2:] == ["100.0", lines[1].split()[3]]
    assert [line.split()[0] for line in lines[2:]] == ["(best", "(whole", "(a"]  # no scores, no top detection
    content = json.loads(report.read_text())
    assert content["dumps"][0]["per_type"]["other"]["accuracy"] == 1
    assert content["floors"]["phrases"] == content["dumps"][0]["phrases"] > 20

    assert main(["evaluate", "grounding", *common]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[:2] == ["dump", "F1_all"]
    content = json.loads(report.read_text())["dumps"][0]
    assert content["attention_accuracy"] == 1
    assert content["f1_loc"] == 1
    assert content["per_class"]["all"]

    assert main(["evaluate", "grounding", *common, "--regions", regions]) == 1
    assert "--regions: is for --protocol phrase" in capsys.readouterr().err
    elsewhere = str(write_dump(tmp_path / "elsewhere.jsonl", [make_row("x", "a dog", 0, [0, 0, 1, 1])]))
    assert main(["evaluate", "grounding", elsewhere, "--data", str(toy_folder)]) == 1
    assert "0 of its 1 images are annotated" in capsys.readouterr().err
    without = tmp_path / "without"
    shutil.copytree(toy_folder, without)
    (without / "objects.json").unlink()
    assert main(["evaluate", "grounding", dump, "--data", str(without)]) == 1
    assert "has no objects.json" in capsys.readouterr().err
