"""Caption scores: the tools' own figures, what happens where Java is missing, and the commands."""

from __future__ import annotations

import csv
import json
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fairseq_grounding import java
from fairseq_grounding.cli import main
from fairseq_grounding.data.prepared import PreparedFolder
from fairseq_grounding.dump import DumpWriter
from fairseq_grounding.errors import GroundingError
from fairseq_grounding.java import tokenize
from fairseq_grounding.scoring.captions import CaptionScorer, TokenCiderD, first_captions, write_scores

from .test_cider import slow_cider_d

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
GERMAN = "-Duser.language=de -Duser.country=DE"


# METEOR takes about 10 s of processor time to start: one for all tests, and started before those that need none
@pytest.fixture(scope="module", autouse=True)
def scorer() -> Iterator[CaptionScorer | None]:
    if shutil.which("java") is None:
        yield None
        return
    before = child_processes()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAVA_TOOL_OPTIONS", GERMAN)
        scorer = CaptionScorer({**FIGURES["refs"], **ODD}, {**FIGURES["tok_refs"], **ODD})
        assert os.environ["JAVA_TOOL_OPTIONS"] == GERMAN
    assert len(child_processes()) == len(before) + 1
    with scorer:
        yield scorer
    assert child_processes() == before


def said(kind: str = "hyps") -> dict[str, str]:
    return {image: captions[0] for image, captions in FIGURES[kind].items()}


@needs_java
def test_accents_in_any_locale(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LC_ALL", "C")
    assert tokenize({"a": ["The café, naïve!", ""], "none": [], "b": ["Ångström", "\ud800 x"]}, 600) == {
        "a": ["the café naïve", ""],
        "none": [],
        "b": ["ångström", "x"],
    }


def test_without_java(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    scorer = CaptionScorer(FIGURES["refs"], FIGURES["tok_refs"])
    result = scorer.score(said("tok_hyps"))
    # given the tokenizer's own output as words, the rest is the same
    for name in ("bleu1", "bleu4", "rouge_l", "cider"):
        assert result[name] == pytest.approx(FIGURES["scores"][NAMES[name]]["corpus"], abs=1e-9)
    assert "meteor" not in result
    assert "spice" not in result
    assert result["tokenizer"] is None
    assert len(scorer.notes) == 2
    assert "without the PTB tokenizer" in scorer.notes[0]
    assert "METEOR and SPICE are skipped: there is no java" in scorer.notes[1]


FAKE_JAVA = """
import json, os, sys, time
plan = json.loads(os.environ["FAKE_JAVA"])
with open(plan["log"], "a") as log:
    print(json.dumps([os.getcwd(), *sys.argv[1:]]), file=log)
program = next(name for name in ("version", "PTB", "meteor", "spice") if name in " ".join(sys.argv[1:]))
how = plan.get(program, "works")
print("Picked up JAVA_TOOL_OPTIONS: " + os.environ["JAVA_TOOL_OPTIONS"], file=sys.stderr)
if how == "fails":
    print("it is\\nbroken", file=sys.stderr)
    sys.exit(3)
if how == "hangs":
    time.sleep(600)
if program == "version":
    print('openjdk version "%s"' % plan.get("number", "1.8.0_402"), file=sys.stderr)
elif program == "PTB":
    lines = sys.stdin.buffer.read().decode().lower().splitlines()
    for line in lines[how == "loses":]:
        sys.stdout.buffer.write((line.replace(".", " .") + "\\n").encode())
elif program == "meteor":
    for number, line in enumerate(sys.stdin):
        if how == "dies" and number == 2:
            print("no heap", file=sys.stderr)
            sys.exit(1)
        if how == "stalls" and number == 2:
            time.sleep(600)
        parts = line.split(" ||| ")
        answers = ["0.25"] * (len(parts) - 1) + ["0.5"] if parts[0] == "EVAL" else [str(len(parts)) + " 1"]
        print("half" if how == "babbles" and parts[0] == "EVAL" else "\\n".join(answers), flush=True)
else:
    asked = json.load(open(sys.argv[4]))
    assert os.path.isdir(sys.argv[6])
    scores = {item["image_id"]: {"All": {"pr": 1.0, "re": 0.1, "f": len(item["refs"]) / 10}} for item in asked}
    if how == "nothing":
        scores[0]["All"]["f"] = None
    if how == "less":
        del scores[0]
    with open(sys.argv[8], "w") as out:
        # as the program may: in another order
        json.dump([{"image_id": n, "scores": scores[n]} for n in reversed(sorted(scores))], out)
"""


class FakeJava:
    """A ``java`` first in PATH that does as it is told, and a package where SPICE is whole."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        import pycocoevalcap

        self._monkeypatch = monkeypatch
        self._log = folder / "log"
        self.package = folder / "package"
        for part in ("tokenizer", "meteor", "spice"):
            (self.package / part / "lib").mkdir(parents=True)
            for jar in Path(next(iter(pycocoevalcap.__path__)), part).glob("*.jar"):
                (self.package / part / jar.name).touch()
        for jar in ("stanford-corenlp-3.6.0.jar", "stanford-corenlp-3.6.0-models.jar"):
            (self.package / "spice" / "lib" / jar).touch()
        program = folder / "bin" / "java"
        program.parent.mkdir()
        program.write_text(f"#!{sys.executable} -S\n{FAKE_JAVA}")
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
        monkeypatch.setattr(java, "_package", lambda: self.package)
        self.plan()

    def plan(self, **how: str) -> None:
        self._log.write_text("")
        self._monkeypatch.setenv("FAKE_JAVA", json.dumps({"log": str(self._log), **how}))

    def calls(self) -> list[list[str]]:
        return [json.loads(line) for line in self._log.read_text().splitlines()]


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeJava:
    return FakeJava(tmp_path, monkeypatch)


def test_calls_of_the_java_programs(fake: FakeJava, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", GERMAN)
    before = child_processes()
    references = {"é": ["A dog.", "One dog."], "b": ["Cats."], "unused": ["x"]}
    with CaptionScorer(references, references) as scorer:
        results = [scorer.score(captions) for captions in ({"b": "Cats.", "é": "a dog"}, {"é": "a cat"})]
    assert child_processes() == before
    assert scorer.notes == []
    assert [(result["meteor"], result["tokenizer"]) for result in results] == [(0.5, "ptb")] * 2
    assert [result["spice"] for result in results] == pytest.approx([0.15, 0.2])
    assert {image: each["spice"] for image, each in results[0]["per_image"].items()} == {"b": 0.1, "é": 0.2}
    assert results[0]["bleu1"] == pytest.approx(1, abs=1e-6)

    calls = sorted(fake.calls())
    kinds = [Path(folder).name for folder, *_ in calls]
    assert kinds == ["package", "meteor", "spice", "spice", "tokenizer", "tokenizer", "tokenizer"]
    assert calls[0][1:] == ["-version"]
    assert calls[1][1:] == ["-jar", "-Xmx2G", "meteor-1.5.jar", "-", "-", "-stdio", "-l", "en", "-norm"]
    first, second = (call for kind, call in zip(kinds, calls) if kind == "spice")
    assert first[1:4] == ["-jar", "-Xmx8G", "spice-1.0.jar"]
    assert [first[place] for place in (5, 7, 9, 10)] == ["-cache", "-out", "-subset", "-silent"]
    # what the first parsed is there for the second, and nothing is left
    assert first[6] == second[6]
    assert not any(Path(call[place]).exists() for call in (first, second) for place in (4, 6, 8))
    assert calls[-1][1:] == [
        "-cp",
        "stanford-corenlp-3.4.1.jar",
        "edu.stanford.nlp.process.PTBTokenizer",
        "-preserveLines",
        "-lowerCase",
    ]


NO_PTB = (
    "the scores are of the words as they are, without the PTB tokenizer, and so not comparable with published ones: "
)
METEOR = "METEOR is skipped: its program failed: "
SPICE = "SPICE is skipped: its program failed: "
LATE = "it was not done after 0.5 s and was ended; --java-timeout gives it longer"
ON_17 = "; it is known to fail on Java 16 and newer, and this is Java 17: put an older java first in PATH"


@pytest.mark.parametrize(
    ("plan", "notes"),
    [
        (
            {"PTB": "fails", "meteor": "fails", "spice": "fails", "number": "17.0.15"},
            [
                f"{METEOR}it broke off (it is broken)",
                f"{SPICE}it ended with 3 (it is broken){ON_17}",
                f"{NO_PTB}it ended with 3 (it is broken)",
            ],
        ),
        (
            {"PTB": "loses", "meteor": "dies", "spice": "less"},
            [
                f"{METEOR}it broke off (no heap)",
                f"{SPICE}it wrote no scores, or not for every image",
                f"{NO_PTB}it read 15 captions and wrote 14 ()",
            ],
        ),
        (
            {"PTB": "hangs", "meteor": "stalls", "spice": "hangs", "number": "17.0.15"},
            [f"{METEOR}{LATE}", f"{SPICE}{LATE}", f"{NO_PTB}{LATE}"],
        ),
        (
            {"version": "fails"},
            [
                "METEOR and SPICE are skipped: java -version: it ended with 3 (it is broken)",
                f"{NO_PTB}java -version: it ended with 3 (it is broken)",
            ],
        ),
    ],
)
def test_java_programs_that_fail(
    fake: FakeJava, capfd: pytest.CaptureFixture[str], plan: dict[str, str], notes: list[str]
) -> None:
    fake.plan(**plan)
    before = child_processes()
    timeout = 0.5 if "hangs" in plan.values() else 600
    with CaptionScorer(FIGURES["refs"], FIGURES["tok_refs"], java_timeout=timeout) as scorer:
        results = [scorer.score(said("tok_hyps"))]
        calls = len(fake.calls())
        results.append(scorer.score(said("tok_hyps")))
        # what failed is not tried again
        assert len(fake.calls()) == calls
    assert child_processes() == before
    assert capfd.readouterr() == ("", "")
    for result in results:
        assert "meteor" not in result
        assert "spice" not in result
        assert result["cider"] == pytest.approx(FIGURES["scores"]["CIDEr"]["corpus"], abs=1e-9)
    assert sorted(scorer.notes) == notes


def test_meteor_that_babbles(fake: FakeJava) -> None:
    fake.plan(meteor="babbles")
    with CaptionScorer({"a": ["a dog"]}, {"a": ["a dog"]}) as scorer:
        result = scorer.score({"a": "a dog"})
    assert [note.partition(" (")[0] for note in scorer.notes] == [f"{METEOR}it broke off"]
    assert result["spice"] == 0.1
    assert "meteor" not in result


def test_tokenizer_that_fails_later(fake: FakeJava) -> None:
    references = {"a": ["A dog."]}
    with CaptionScorer(references, {"a": ["a dog"]}) as scorer:
        results = [scorer.score({"a": "a dog ."})]
        fake.plan(PTB="fails")
        results += [scorer.score({"a": "a dog"})]
    assert [result["tokenizer"] for result in results] == ["ptb", None]
    assert [result["bleu1"] for result in results] == pytest.approx([1, 1], abs=1e-6)
    assert [note.partition(" are")[0] for note in scorer.notes] == ["the scores from dump 2 on"]


def test_missing_jars(fake: FakeJava) -> None:
    spice = fake.package / "spice" / "lib" / "stanford-corenlp-3.6.0.jar"
    jars = [fake.package / "meteor" / "meteor-1.5.jar", fake.package / "tokenizer" / "stanford-corenlp-3.4.1.jar"]
    for path in (spice, *jars):
        path.unlink()
    scorer = CaptionScorer(FIGURES["refs"], FIGURES["tok_refs"])
    assert "bleu4" in scorer.score(said("tok_hyps"))
    assert scorer.notes[0] == f"SPICE is skipped: its parser is not installed (no {spice})"
    assert scorer.notes[1].startswith(f"METEOR is skipped: its program failed: {jars[0]} is missing")
    assert scorer.notes[2].endswith(f"{jars[1]} is missing; install pycocoevalcap again")


@pytest.mark.parametrize(
    ("number", "advice"),
    [
        ("1.8.0_402", ""),
        ("15.0.2", ""),
        ("16", "; it is known to fail on Java 16 and newer, and this is Java 16: put an older java first in PATH"),
        ("17.0.15", "; it is known to fail on Java 16 and newer, and this is Java 17: put an older java first in PATH"),
        ("ea", "; it is known to fail on Java 16 and newer: put an older java first in PATH"),
    ],
)
def test_spice_says_which_java_it_needs(fake: FakeJava, number: str, advice: str) -> None:
    fake.plan(number=number)
    assert java.spice_advice(java.java_version()) == advice


def test_spice_without_a_number(fake: FakeJava) -> None:
    fake.plan(spice="nothing")
    references = {"a": ["a dog"], "b": ["a dog"]}
    with CaptionScorer(references, references) as scorer:
        result = scorer.score({"a": "a dog", "b": "a dog"})
    assert result["spice"] is None
    assert [each["spice"] for each in result["per_image"].values()] == [None, 0.1]


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
    report, table = tmp_path / "report.json", tmp_path / "table.csv"
    arguments = ["evaluate", "captions", *map(str, dumps), "--data", str(toy_folder), "--json", str(report)]
    assert main([*arguments, "--csv", str(table)]) == 0
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

    with open(table, newline="", encoding="utf-8") as file:
        entries = list(csv.DictReader(file))
    names = ["bleu1", "bleu2", "bleu3", "bleu4", "rouge_l", "cider", "cider_d"]
    assert list(entries[0]) == ["dump", "image_id", "caption", *names]
    assert [entry["dump"] for entry in entries] == [str(dumps[0])] * len(images) + [str(dumps[1])]
    assert [entry["image_id"] for entry in entries] == [*images, images[0]]
    assert entries[-1]["caption"] == "a boat"
    for entry in entries:
        result = content["dumps"][entry["dump"] == str(dumps[1])]
        assert {name: float(entry[name]) for name in names} == result["per_image"][entry["image_id"]]

    other = write_dump(tmp_path / "other.jsonl", [make_row(images[0], "a"), make_row("elsewhere", "a")])
    assert main(["evaluate", "captions", str(other), "--data", str(toy_folder)]) == 1
    assert "1 of its 2 images are not in the split 'test'" in capsys.readouterr().err
    assert main([*arguments[:-1], str(tmp_path / "no" / "report.json")]) == 1
    assert "--json" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--csv", "no/table.csv"], "--csv no/table.csv: its folder does not exist"),
        (["--csv", "."], "--csv .: is a folder"),
        (["--csv", "dump.jsonl"], "--csv dump.jsonl: is the file dump.jsonl that is read"),
        (["--csv", "x", "--json", "x"], "--csv x: is the --json file as well"),
        (["--java-timeout", "0"], "--java-timeout: must be a number of seconds above 0"),
        (["--java-timeout", "nan"], "--java-timeout: must be a number of seconds above 0"),
    ],
)
def test_flags_that_cannot_be(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    complaint: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    dump = write_dump(tmp_path / "dump.jsonl", [make_row("1", "a dog")])
    before = dump.read_bytes()
    assert main(["evaluate", "captions", "dump.jsonl", "--data", "nowhere", *arguments]) == 1
    assert complaint in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["dump.jsonl"]
    assert dump.read_bytes() == before


def test_csv_of_one_dump_and_odd_captions(tmp_path: Path) -> None:
    path = tmp_path / "scores.csv"
    captions = {"a,b": 'a "dog", \ud800', "é": ""}
    per_image = {"a,b": {"spice": None, "bleu1": 0.1}, "é": {"spice": 0.5, "bleu1": 1e-17}}
    scores = {"bleu1": 0.5, "spice": None, "per_image": per_image}
    write_scores(path, [("dump", captions, scores)])
    lines = path.read_bytes().decode().split("\n")
    assert lines == ["image_id,caption,bleu1,spice", '"a,b","a ""dog"", ?",0.1,', "é,,1e-17,0.5", ""]
    with pytest.raises(KeyError):
        write_scores(path, [("dump", {}, scores)])
    assert path.read_bytes().decode().split("\n") == lines
    assert list(tmp_path.iterdir()) == [path]


def test_cider_d_is_the_tools_formula_on_the_folders_tokens(toy_folder: Path) -> None:
    from pycocoevalcap.cider.cider import Cider

    folder = PreparedFolder(toy_folder)
    dictionary = folder.dictionary()

    def scorer_of(name: str) -> tuple[TokenCiderD, dict[str, list[list[int]]]]:
        split = folder.split(name)
        tokens: dict[str, list[list[int]]] = {}
        for number, image in enumerate(split.image_ids):
            tokens.setdefault(image, []).append(split.tokens[number].tolist())
        return TokenCiderD(dictionary.index, dictionary.eos(), tokens, folder.document_frequency()), tokens

    # where the images that are scored are those of training, the tool counts the same frequencies
    train, references = scorer_of("train")
    texts = ["a blue dog is near a cat", "there is a zebra and some car", "", "one <unk> with a ball"]
    captions = {image: texts[n % 4] for n, image in enumerate(reversed(list(references)))}
    spoken = {image: [f"{text.replace('zebra', '<unk>')} </s>"] for image, text in captions.items()}
    written = {image: [" ".join(dictionary[t] for t in c) for c in references[image]] for image in captions}
    expected = Cider().compute_score(written, spoken)[1]
    assert train.score(captions) == pytest.approx(expected.tolist(), abs=1e-9)
    assert expected.max() > 1

    # elsewhere it counts others: the folder's stay those of training
    test, references = scorer_of("test")
    captions = {image: dictionary.string(own[1][:-1]) for image, own in references.items()}
    ngrams, count, images = folder.document_frequency()
    frequency = {tuple(t for t in gram if t >= 0): times for gram, times in zip(ngrams.tolist(), count.tolist())}
    slow = [slow_cider_d(own[1], own, frequency, images) for own in references.values()]
    assert test.score(captions) == pytest.approx(slow, abs=1e-9)


# the last, so that METEOR has had time to start
@needs_java
def test_figures_of_the_tools_and_odd_captions(scorer: CaptionScorer, capfd: pytest.CaptureFixture[str]) -> None:
    result = scorer.score(said())
    again = scorer.score(said())
    odd = scorer.score({"dogs": "two dogs run", "odd": "", "bars": "a ||| cat"})
    accented = scorer.score({"odd": "a café in ½ light it is late"})
    assert capfd.readouterr() == ("", "")

    for ours, theirs in NAMES.items():
        expected = FIGURES["scores"][theirs]
        assert result[ours] == pytest.approx(expected["corpus"], abs=1e-9)
        for image, figure in zip(said(), expected["each"]):
            assert result["per_image"][image][ours] == pytest.approx(figure, abs=1e-9)
    assert again == result
    assert result["tokenizer"] == "ptb"
    if "spice" not in result:
        assert [note.partition(":")[0] for note in scorer.notes] == ["SPICE is skipped"]

    assert odd["images"] == 3
    assert [odd["per_image"][image]["rouge_l"] for image in ("odd", "dogs")] == [0, 1]
    assert odd["per_image"]["dogs"]["meteor"] == 1
    assert 0 < odd["per_image"]["bars"]["meteor"] < 1
    assert accented["bleu4"] > 0.99
    assert accented["meteor"] == 1
