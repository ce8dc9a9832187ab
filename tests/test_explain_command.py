"""``fairseq-grounding explain``: what it writes, and what it refuses."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch

from fairseq_grounding.checkpoints import load_captioner
from fairseq_grounding.cli import main
from fairseq_grounding.dump import read_dump
from fairseq_grounding.explain import explain
from fairseq_grounding.explain.files import PER_WORD, read_explanations
from fairseq_grounding.tasks.grounded_caption import GroundedCaptionConfig, GroundedCaptionTask

from . import commands


@pytest.fixture(scope="module")
def checkpoints(toy_folder, tmp_path_factory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("captioners")
    for name, epochs in (("first", "3"), ("second", "1")):
        flags = ("--criterion", "cross_entropy", "--max-epoch", epochs, "--batch-size", "20")
        commands.train(toy_folder, folder / name, "up_down", *flags, "--no-epoch-checkpoints")
    return {name: folder / name / "checkpoint_last.pt" for name in ("first", "second")}


def command(folder, checkpoint, out, *flags) -> int:
    return main(["explain", str(folder), "--path", str(checkpoint), "--out", str(out), "--cpu", *map(str, flags)])


def test_given_captions_are_explained_as_in_python(toy_folder, checkpoints, tmp_path, capsys):
    out, hdf5 = tmp_path / "given.jsonl", tmp_path / "given.h5"
    flags = ("--given", "--hdf5", hdf5, "--batch-size", 7, "--epsilon", 0.05, "--target", "margin")
    assert command(toy_folder, checkpoints["first"], out, *flags) == 0
    rows = list(read_dump(out))
    assert len(rows) == 20
    assert all(row["reference"] and row["model"] == "up_down" for row in rows)

    model = load_captioner(checkpoints["first"], "--path")
    task = GroundedCaptionTask(GroundedCaptionConfig(data=str(toy_folder), seed=1, best_checkpoint_metric="loss"))
    task.load_dataset("test")
    stored = list(read_explanations(hdf5))
    assert len(stored) == 20
    total = np.zeros(len(PER_WORD))
    for number, (row, numbers) in enumerate(zip(rows, stored)):
        sample = task.datasets["test"].collater([number])
        found = explain(model, sample, epsilon=0.05, target="margin")
        logits, extra = model(**sample["net_input"])
        length = len(row["tokens"])
        assert numbers["tokens"] == row["tokens"]
        assert (numbers["id"], numbers["image_id"]) == (str(row["id"]), row["image_id"])
        assert row["explained"] == {**row["explained"], "method": "lrp", "target": "margin", "epsilon": 0.05}
        np.testing.assert_allclose(numbers["regions"], found.regions[0, :length], rtol=1e-3, atol=1e-5)
        np.testing.assert_allclose(numbers["words"], found.words[0, :length, :length], rtol=1e-3, atol=1e-5)
        for place, step in enumerate(row["steps"]):
            relevance = step["relevance"]
            assert relevance["regions"] == pytest.approx(numbers["regions"][place].tolist(), abs=1e-6)
            assert [relevance["start"], *relevance["words"]] == pytest.approx(
                numbers["words"][place, : place + 1].tolist(), abs=1e-6
            )
            for name in PER_WORD:
                assert relevance[name] == pytest.approx(float(numbers[name][place]), abs=1e-6)
            assert relevance["global"] == pytest.approx(float(found.global_share[0, place]), abs=1e-4)
            assert relevance["logit"] == pytest.approx(
                sum(relevance[name] for name in ("inputs", "bias", "epsilon", "rest")), abs=1e-5
            )
            assert step["attention"] == pytest.approx(extra["attn"][0][0, place].tolist(), abs=1e-5)
            logprob = logits[0, place].log_softmax(0)[sample["target"][0, place]]
            assert step["logprob"] == pytest.approx(float(logprob), abs=1e-5)
        total += [numbers[name].sum() for name in PER_WORD]
    words = sum(len(row["tokens"]) for row in rows)
    printed = capsys.readouterr().out
    assert f"{words} words of 20 captions" in printed
    assert f"mean margin {total[0] / words:.4g} = inputs" in printed
    with h5py.File(hdf5) as file:
        assert file.attrs["method"] == "lrp"
        assert "alpha" not in file.attrs


def test_written_captions_and_those_of_a_dump_are_the_same(toy_folder, checkpoints, tmp_path):
    written, dumped, again = (tmp_path / f"{name}.jsonl" for name in ("written", "dumped", "again"))
    flags = ("--items", "image", "--beam", "5", "--max-len-b", "49", "--gen-subset", "test")
    commands.generate(toy_folder, checkpoints["first"], *flags, "--grounding-dump", str(dumped))
    choices = ("--method", "gradient_input", "--batch-size", 3)
    assert command(toy_folder, checkpoints["first"], written, *choices, "--hdf5", tmp_path / "a.h5") == 0
    assert command(toy_folder, checkpoints["first"], again, *choices, "--dump", dumped) == 0
    ours, theirs = list(read_dump(written)), list(read_dump(again))
    assert len(ours) == 4
    by_image = {row["image_id"]: row for row in read_dump(dumped)}
    for first, second in zip(ours, theirs):
        assert first["text"] == by_image[first["image_id"]]["text"]
        assert not first["reference"]
        assert first == {**second, "id": first["id"]}
        for step, said in zip(first["steps"], by_image[first["image_id"]]["steps"]):
            assert step["logprob"] == pytest.approx(said["logprob"], abs=1e-4)
            assert step["region"] == said["region"]


def test_some_words_of_some_images(toy_folder, checkpoints, tmp_path):
    out = tmp_path / "some.jsonl"
    flags = ("--given", "--image-ids", "toy21", "toy22", "--limit", 7, "--position", 2, 0, "--word", "dog")
    assert command(toy_folder, checkpoints["first"], out, "--method", "ablation", *flags) == 0
    rows = list(read_dump(out))
    assert [row["image_id"] for row in rows] == ["toy21"] * 5 + ["toy22"] * 2
    assert rows[0]["explained"]["word"] == "dog"
    for row in rows:
        for place, step in enumerate(row["steps"]):
            assert (step["relevance"] is not None) == (place in (0, 2))


def test_every_method_has_its_line(toy_folder, checkpoints, tmp_path, capsys):
    from fairseq_grounding.explain import METHODS

    with pytest.raises(SystemExit):
        main(["explain", "--help"])
    printed = capsys.readouterr().out
    for method in METHODS:
        assert f"\n  {method} " in printed
    flags = ("--given", "--limit", 2, "--steps", 2)
    for method in METHODS:
        assert command(toy_folder, checkpoints["first"], tmp_path / "x.jsonl", "--method", method, *flags) == 0


@pytest.fixture
def bad_inputs(toy_folder, toy_data, checkpoints, tmp_path):
    """Prepared folder, checkpoint and dumps that others are not to be mixed with."""
    from fairseq_grounding.data.regions import RegionWriter

    dump = tmp_path / "dump.jsonl"
    assert command(toy_folder, checkpoints["first"], dump, "--method", "attention", "--limit", 2) == 0
    rows = [json.loads(line) for line in dump.read_text().splitlines()]

    def changed(name, change):
        other = json.loads(json.dumps(rows))
        change(other)
        (tmp_path / name).write_text("".join(json.dumps(row) + "\n" for row in other))

    changed("renamed.jsonl", lambda other: other[0].update(model="another"))
    changed("elsewhere.jsonl", lambda other: other[1].update(image_id="toy00"))

    def speak(other):
        other[0]["tokens"][0] = other[0]["steps"][0]["token"] = "zebra"

    changed("zebra.jsonl", speak)
    (tmp_path / "broken.pt").write_bytes(b"no checkpoint")
    nan = shutil.copy(toy_data.regions, tmp_path / "nan.h5")
    with h5py.File(nan, "r+") as file:
        file["features"][file["offsets"][21], 3] = np.nan
    with RegionWriter(tmp_path / "wide.h5", source="toy") as writer:
        for number in range(24):
            writer.add(f"toy{number:02d}", np.zeros((2, 13), np.float32), np.array([[0, 0, 9, 9]] * 2), (10, 10))
    return tmp_path


REFUSED = [
    (("--given", "--position", 40), "position 40: is past the end of caption 0 (image toy20); it has those from 0 to"),
    (("--method", "magic"), "method 'magic': it can be lrp, gradient"),
    (("--given", "--regions", "{bad}/nan.h5"), "nan.h5: the features of image 'toy21' hold NaN or infinity"),
    (("--given", "--regions", "{bad}/wide.h5"), "reads features of width 12, {bad}/wide.h5 has 13"),
    (("--dump", "{bad}/renamed.jsonl"), "was written by another, but --path holds up_down"),
    (("--dump", "{bad}/elsewhere.jsonl"), "image toy00 is not in the split test; give its --split"),
    (("--dump", "{bad}/zebra.jsonl"), "'zebra' of image toy20 is no word of the model's dictionary"),
    (("--dump", "{bad}/dump.jsonl", "--path", "{second}"), "a dump of another model; give the checkpoint that wrote"),
    (("--dump", "{bad}/missing.jsonl"), "missing.jsonl: cannot be read"),
    (("--path", "{bad}/broken.pt"), "is not a checkpoint that fairseq-train wrote"),
    (("--path", "{bad}/none.pt"), "none.pt: no such file"),
    (("--split", "dev"), "has no split 'dev'"),
    (("--image-ids", "toy99"), "--image-ids: image toy99 is not in the split test"),
    (("--word", "zebra"), "--word zebra: is not in the model's dictionary"),
    (("--epsilon", "-1"), "epsilon -1.0: give 0 or more"),
    (("--alpha", "0.5"), "alpha 0.5: give 1 or more"),
    (("--limit", "0"), "--limit 0: must be at least 1"),
    (("--hdf5", "{bad}/out.jsonl"), "is the file of --out; give another name"),
    (("--hdf5", "{bad}/no/a.h5"), "its folder does not exist; make it first"),
]


@pytest.mark.parametrize(("flags", "message"), REFUSED)
def test_what_cannot_be_explained_is_one_line(flags, message, toy_folder, checkpoints, bad_inputs, capsys):
    before = sorted(path.name for path in bad_inputs.iterdir())
    capsys.readouterr()
    places = {"bad": bad_inputs, "second": checkpoints["second"]}
    flags = [str(flag).format(**places) for flag in flags]
    assert (
        command(toy_folder, checkpoints["first"], bad_inputs / "out.jsonl", "--hdf5", bad_inputs / "o.h5", *flags) == 1
    )
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("fairseq-grounding explain: error: ")
    assert message.format(**places) in line
    assert sorted(path.name for path in bad_inputs.iterdir()) == before


def test_an_image_without_regions_is_refused(toy_folder, toy_data, checkpoints, tmp_path, capsys):
    with h5py.File(shutil.copy(toy_data.regions, tmp_path / "empty.h5"), "r+") as file:
        file["offsets"][23] = file["offsets"][22]
    capsys.readouterr()
    flags = ("--given", "--regions", tmp_path / "empty.h5")
    assert command(toy_folder, checkpoints["first"], tmp_path / "out.jsonl", *flags) == 1
    assert "image 'toy22' has no regions" in capsys.readouterr().err
    assert not (tmp_path / "out.jsonl").exists()


def test_damaged_explanations_are_refused(tmp_path):
    from fairseq_grounding.errors import GroundingError

    path = tmp_path / "x.h5"
    path.write_bytes(b"nothing")
    with pytest.raises(GroundingError, match="cannot be read as explanations"):
        list(read_explanations(path))
    with h5py.File(path, "w") as file:
        file["a"] = 1
    with pytest.raises(GroundingError, match="holds no explanations that this program reads"):
        list(read_explanations(path))


def test_no_gradient_is_left_of_a_model_that_was_read(checkpoints):
    model = load_captioner(checkpoints["first"], "--path")
    assert model.architecture == "up_down"
    assert not any(parameter.requires_grad for parameter in model.parameters())
    assert torch.is_tensor(model.dictionary)
