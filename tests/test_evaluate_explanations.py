"""``evaluate explanations``: deletions against one run at a time, the command's report, and what it refuses."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fairseq_grounding.checkpoints import load_captioner
from fairseq_grounding.cli import main
from fairseq_grounding.data.prepared import PreparedFolder
from fairseq_grounding.data.regions import RegionStore
from fairseq_grounding.dump import read_dump

from . import commands

METHODS = ("ablation", "attention")


@pytest.fixture(scope="module")
def explained(toy_folder, tmp_path_factory) -> Path:
    """A folder with checkpoints ``first.pt`` and ``second.pt``, and explanations of the first's greedy captions."""
    folder = tmp_path_factory.mktemp("explained")
    flags = ["--criterion", "cross_entropy", "--batch-size", "20", "--lr", "0.01", "--disable-validation"]
    for name, epochs in (("first", "60"), ("second", "1")):
        ends = ("--max-epoch", epochs, "--save-interval", epochs, "--no-epoch-checkpoints")
        commands.train(toy_folder, folder / name, "up_down", *flags, *ends)
        shutil.move(folder / name / "checkpoint_last.pt", folder / f"{name}.pt")
    for method in METHODS:
        flags = ["--path", str(folder / "first.pt"), "--beam", "1", "--cpu", "--method", method]
        assert main(["explain", str(toy_folder), *flags, "--out", str(folder / f"{method}.jsonl")]) == 0
        given = ["--given", "--limit", "3", "--out", str(folder / f"{method}.given.jsonl")]
        assert main(["explain", str(toy_folder), *flags, *given]) == 0
    return folder


def evaluate(files: list[Path], data: Path, *flags: Any) -> int:
    return main(["evaluate", "explanations", *map(str, files), "--data", str(data), "--cpu", *map(str, flags)])


class OneByOne:
    """A captioner on one image and one caption, from which what is deleted was taken away beforehand."""

    def __init__(self, folder: Path, checkpoint: Path) -> None:
        self.model = load_captioner(checkpoint, "--path").double()
        self.store = RegionStore(PreparedFolder(folder).regions_path)

    def logits(self, image: str, deleted: set[int], previous: list[int], zero: bool = False) -> torch.Tensor:
        number = self.store.index(image)
        features = torch.tensor(self.store.features(number), dtype=torch.double)
        kept = [n for n in range(len(features)) if n not in deleted]
        if zero or not kept:
            features[sorted(deleted)] = 0
        else:
            features = features[kept]
        unknown = self.model.words.unk()
        logits, _ = self.model(
            src_tokens=torch.full((1, len(features)), unknown),
            src_lengths=torch.tensor([len(features)]),
            features=features[None],
            boxes=torch.zeros(1, len(features), 4, dtype=torch.double),
            image_index=torch.tensor([0]),
            prev_output_tokens=torch.tensor([previous]),
        )
        return logits[0, -1]

    def probability(self, image: str, deleted: set[int], words: list[str], target: str, zero: bool = False) -> float:
        dictionary = self.model.words
        logits = self.logits(image, deleted, [dictionary.eos(), *map(dictionary.index, words)], zero)
        return float(logits.softmax(0)[dictionary.index(target)])

    def caption(self, image: str, deleted: set[int]) -> list[str]:
        dictionary = self.model.words
        said = [dictionary.eos()]
        while len(said) < 50:
            logits = self.logits(image, deleted, said)
            logits[dictionary.pad()] = -torch.inf
            if len(said) == 1:
                logits[dictionary.eos()] = -torch.inf
            said.append(int(logits.argmax()))
            if said[-1] == dictionary.eos():
                break
        return [dictionary[word] for word in said[1:] if word != dictionary.eos()]


def figures(report: Path, number: int, experiment: str) -> dict[tuple[Any, ...], dict[str, Any]]:
    content = json.loads(report.read_text())["results"][number]["experiments"][experiment]["figures"]
    return {(each.get("group"), each.get("at"), each["measure"]): each for each in content}


@pytest.mark.parametrize("how", ["mask", "zero"])
def test_deletions_are_those_of_one_run_at_a_time(how, toy_folder, explained, tmp_path):
    report = tmp_path / "report.json"
    choices = ["--delete-regions", "1", "50%", "100%", "--delete-words", "1", "2", "--first-word", "3"]
    choices += ["--deletion", how, "--bootstrap", "0", "--path", str(explained / "first.pt"), "--batch-size", "3"]
    choices += ["--no-decoding"] if how == "zero" else []
    files = [explained / "ablation.jsonl"]
    names = ["--experiments", "regions", "words"]
    assert evaluate(files, toy_folder, *choices, *names, "--json", report) == 0
    reference = OneByOne(toy_folder, explained / "first.pt")
    nouns = set(PreparedFolder(toy_folder).objects()["classes"])
    expected: dict[Any, list[float]] = {}
    for row in read_dump(files[0]):
        image, tokens = row["image_id"], row["tokens"]
        whole = reference.caption(image, set())
        assert whole == tokens  # greedy, as they were written
        for place, step in enumerate(row["steps"]):
            before = reference.probability(image, set(), tokens[:place], tokens[place])
            regions = np.array(step["relevance"]["regions"])
            assert len(set(regions)) == len(regions)
            if place >= 1 and tokens[place] in nouns:
                for amount, count in (("1", 1), ("50%", -(-len(regions) // 2)), ("100%", len(regions))):
                    gone = set(np.argsort(-regions)[:count].tolist())
                    after = reference.probability(image, gone, tokens[:place], tokens[place], how == "zero")
                    expected.setdefault(("object words", amount, "fall"), []).append(before - after)
                    if how == "mask":
                        vanished = tokens[place] not in reference.caption(image, gone)
                        expected.setdefault(("object words", amount, "gone"), []).append(vanished)
            if place >= 3:
                words = np.array(step["relevance"]["words"])
                for count in (1, 2):
                    left_out = set(np.argsort(-words, kind="stable")[:count].tolist())
                    kept = [word for n, word in enumerate(tokens[:place]) if n not in left_out]
                    after = reference.probability(image, set(), kept, tokens[place])
                    expected.setdefault(("all", str(count), "fall"), []).append(before - after)
    found = {**figures(report, 0, "words"), **figures(report, 0, "regions")}
    assert len(expected) == (8 if how == "mask" else 5)
    for name, values in expected.items():
        assert found[name]["words"] == len(values)
        assert found[name]["value"] == pytest.approx(np.mean(values), abs=1e-5)
    assert found["object words", "1", "fall"]["control"] != found["object words", "1", "fall"]["value"]
    # without any region nothing is left to choose
    assert found["object words", "100%", "fall"]["difference"] == 0


def test_the_whole_command(toy_folder, explained, tmp_path, capsys):
    report, table = tmp_path / "report.json", tmp_path / "table.csv"
    files = [explained / f"{method}.jsonl" for method in METHODS]
    common = ["--path", explained / "first.pt", "--bootstrap", "20", "--delete-regions", "1", "3", "--first-word", "2"]
    assert evaluate(files, toy_folder, *common, "--json", report, "--csv", table, "--batch-size", "1") == 0
    printed = capsys.readouterr().out
    first = json.loads(report.read_text())
    assert [result["method"] for result in first["results"]] == list(METHODS)
    assert list(first["results"][0]["experiments"]) == ["regions", "words", "correctness", "hallucination"]
    assert list(first["results"][1]["experiments"]) == ["regions", "correctness", "hallucination"]
    note = f"{files[1]}: words: left out, attention gives earlier words no relevance"
    assert note in printed
    assert first["notes"] == [note]
    for title in ("regions", "\nwords", "\ncorrectness", "\nhallucination"):
        assert f"{title}\nexplanations " in printed
    # both methods have one control, which is not theirs
    ours, theirs = (figures(report, number, "regions") for number in (0, 1))
    for name, each in ours.items():
        assert each["control"] == theirs[name]["control"]
        assert each["control_interval"] == theirs[name]["control_interval"]
    assert any(each["value"] != theirs[name]["value"] for name, each in ours.items())
    lines = list(csv.DictReader(table.open()))
    total = sum(len(part["figures"]) for result in first["results"] for part in result["experiments"].values())
    assert len(lines) == total
    assert {line["experiment"] for line in lines} == {"regions", "words", "correctness", "hallucination"}
    assert set(first["files"]) >= {*map(str, files), str(explained / "first.pt"), str(toy_folder)}

    again = tmp_path / "again.json"
    assert evaluate(files, toy_folder, *common, "--json", again, "--batch-size", "5") == 0
    second = json.loads(again.read_text())
    for one, other in zip(first["results"], second["results"]):
        for name, experiment in one["experiments"].items():
            for each, same in zip(experiment["figures"], other["experiments"][name]["figures"]):
                assert each["value"] == pytest.approx(same["value"], abs=1e-5), each


def test_ground_truth_captions_and_no_model(toy_folder, explained, capsys):
    assert evaluate([explained / "ablation.given.jsonl"], toy_folder) == 0
    printed = capsys.readouterr().out
    assert "hallucination: left out, ground-truth captions make nothing up" in printed
    assert "\nmass" not in printed
    assert "pointing" in printed
    assert not printed.startswith("regions")


REFUSED = [
    (["{all}/ablation.jsonl", "--experiments", "words"], "--experiments words: run the model; give its checkpoint"),
    (["{all}/ablation.jsonl", "--path", "{all}/second.pt"], "a dump of another model; give the checkpoint that wrote"),
    (["{all}/ablation.jsonl", "--path", "{all}/first.pt", "--split", "valid"], "is not in the split valid"),
    (["{all}/ablation.jsonl", "--path", "{all}/first.pt", "--max-regions", "2"], "the model reads 2; give the"),
    (["{all}/ablation.jsonl", "--max-regions", "2"], "regions, and"),
    (["{here}/plain.jsonl"], "plain.jsonl, line 1: holds no relevance; write them with fairseq-grounding explain"),
    (["{here}/renamed.jsonl", "--path", "{all}/first.pt"], "renamed.jsonl: was written by another, but --path holds"),
    (["{all}/ablation.given.jsonl", "--experiments", "hallucination"], "holds only ground-truth captions"),
    (["{all}/ablation.jsonl", "--data", "{here}/bare/folder"], "has no objects.json, which correctness, hallucination"),
    (["{all}/ablation.jsonl", "--delete-regions", "0"], "--delete-regions 0: give a number from 1 on"),
    (["{all}/ablation.jsonl", "--beam", "0"], "--beam 0: give at least 1"),
    (
        ["{all}/ablation.jsonl", "--path", "{all}/first.pt", "--first-region-word", "60"],
        "explains no word to ask about",
    ),
    (["{here}/missing.jsonl"], "missing.jsonl: cannot be read"),
]


@pytest.fixture(scope="module")
def spoiled(toy_folder, explained, tmp_path_factory) -> Path:
    here = tmp_path_factory.mktemp("spoiled")
    rows = [json.loads(line) for line in (explained / "ablation.jsonl").read_text().splitlines()]
    for name in ("plain", "renamed"):
        changed = json.loads(json.dumps(rows))
        for row in changed:
            if name == "plain":
                del row["explained"]
            else:
                row["model"] = "another"
        (here / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in changed))
    shutil.copytree(toy_folder, here / "bare" / "folder")
    shutil.copy(PreparedFolder(toy_folder).regions_path, here / "bare")
    (here / "bare" / "folder" / "objects.json").unlink()
    return here


@pytest.mark.parametrize(("flags", "message"), REFUSED)
def test_what_cannot_be_evaluated_is_one_line(flags, message, toy_folder, explained, spoiled, capsys):
    places = {"all": explained, "here": spoiled}
    file, *rest = (flag.format(**places) for flag in flags)
    capsys.readouterr()
    report = spoiled / "report.json"
    assert evaluate([Path(file)], toy_folder, *rest, "--json", report) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("fairseq-grounding evaluate explanations: error: ")
    assert message in line
    assert not report.exists()
