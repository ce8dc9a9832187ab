"""Self-critical training: the captions that are drawn, the criterion on a batch, and fairseq-train with it."""

from __future__ import annotations

import json
import logging
import math
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from fairseq import options, tasks
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.sequence_generator import SequenceGenerator

import fairseq_grounding.criterions.scst_cider_scan as scst
from fairseq_grounding.errors import GroundingError
from fairseq_grounding.modules import sampling
from fairseq_grounding.scoring.cider import CiderD

from . import commands

SCST = ("--criterion", "scst_cider_scan", "--items", "group", "--no-epoch-checkpoints")


@pytest.fixture(scope="module")
def runs(toy_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Checkpoints: both kinds of matching model, and a captioner that has seen a few captions."""
    root = tmp_path_factory.mktemp("runs")
    for arch in ("scan", "pos_scan"):
        commands.train(toy_folder, root / arch, arch, "--batch-size", "40", "--max-epoch", "1", "--disable-validation")
    flags = ("--criterion", "cross_entropy", "--items", "group", "--batch-size", "8", "--lr", "0.02")
    commands.train(toy_folder, root / "up_down", "up_down", *flags, "--max-epoch", "8", "--disable-validation")
    return {arch: root / arch / "checkpoint_last.pt" for arch in ("scan", "pos_scan", "up_down")}


def built(folder: Path, *flags: str, arch: str = "up_down") -> SimpleNamespace:
    """Task, model and criterion as fairseq-train makes them of *flags*, and a batch of the first three images."""
    arguments = [str(folder), *commands.COMMON, "--arch", arch, *commands.SMALL[arch], *SCST, *flags]
    arguments += ["--optimizer", "adam", "--lr", "0.01", "--batch-size", "3"]
    args = options.parse_args_and_arch(options.get_training_parser(), arguments)
    cfg = convert_namespace_to_omegaconf(args)
    torch.manual_seed(1)
    task = tasks.setup_task(cfg.task)
    model, criterion = task.build_model(cfg.model), task.build_criterion(cfg.criterion)
    task.load_dataset("train")
    batch = task.datasets["train"].collater([0, 1, 2])
    return SimpleNamespace(task=task, model=model, criterion=criterion, batch=batch)


def logged(caplog: pytest.LogCaptureFixture, name: str) -> list[dict[str, float]]:
    messages = [record.getMessage() for record in caplog.records if record.name == name]
    rows = [json.loads(message[message.index("{") :]) for message in messages if "{" in message]
    return [{key[len(name) + 1 :]: float(value) for key, value in row.items() if key != "epoch"} for row in rows]


# ---- captions that a captioner writes ----


def input_of(run: SimpleNamespace, times: int) -> dict[str, torch.Tensor]:
    """The batch's first image, so many times."""
    rows = torch.zeros(times, dtype=torch.long)
    return sampling.rows_of(run.batch["net_input"], rows)


@pytest.mark.parametrize("arch", ["up_down", "grounded_transformer"])
def test_greedy_captions_are_those_of_fairseqs_generator(toy_folder: Path, arch: str) -> None:
    run = built(toy_folder, "--scan-weight", "0", arch=arch)
    net_input, dictionary = run.batch["net_input"], run.task.target_dictionary
    run.model.train()
    found = sampling.greedy_captions(run.model, net_input, 7)
    assert all(module.training for module in run.model.modules())
    generator = SequenceGenerator([run.model], dictionary, beam_size=1, max_len_a=0, max_len_b=7)
    for row, (hypothesis,) in enumerate(generator.generate([run.model], run.batch)):
        expected = hypothesis["tokens"].tolist()[:7]
        assert found[row].tolist() == expected + [dictionary.pad()] * (found.shape[1] - len(expected))


def test_modules_come_back_in_the_mode_they_were_in(toy_folder: Path) -> None:
    run = built(toy_folder, "--scan-weight", "0")
    run.model.train()
    run.model.encoder.eval()
    before = [module.training for module in run.model.modules()]
    sampling.greedy_captions(run.model, run.batch["net_input"], 3)
    assert [module.training for module in run.model.modules()] == before

    def fail() -> None:
        with sampling.evaluating(run.model):
            assert not any(module.training for module in run.model.modules())
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert [module.training for module in run.model.modules()] == before


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_words_are_drawn_with_the_probabilities_that_are_trained(toy_folder: Path, temperature: float) -> None:
    run = built(toy_folder, "--scan-weight", "0")
    run.model.eval()
    with torch.no_grad():
        # far from even, so that temperature shows
        run.model.decoder.output_projection.weight.mul_(20)
    torch.manual_seed(0)
    drawn = sampling.sample_captions(run.model, input_of(run, 6000), 2, temperature)
    pad, eos = run.task.target_dictionary.pad(), run.task.target_dictionary.eos()
    before = sampling.shifted(drawn, eos, pad)
    with torch.no_grad():
        logits, _ = run.model(**input_of(run, 6000), prev_output_tokens=before)
    chances = sampling.log_policy(logits[:1, 0], pad, temperature).exp()[0]
    assert float(chances[pad]) == 0
    assert float(chances.sum()) == pytest.approx(1)
    shares = drawn[:, 0].bincount(minlength=len(chances)) / len(drawn)
    # four standard deviations of a share
    assert ((shares - chances).abs() < 4 * (chances * (1 - chances) / 6000).sqrt() + 1e-3).all()
    likeliest = chances.argmax()
    after = drawn[drawn[:, 0] == likeliest, 1]
    row = int((drawn[:, 0] == likeliest).nonzero()[0])
    expected = sampling.log_policy(logits[row : row + 1, 1], pad, temperature).exp()[0]
    shares = after.bincount(minlength=len(chances)) / len(after)
    assert ((shares - expected).abs() < 4 * (expected * (1 - expected) / len(after)).sqrt() + 2e-3).all()


def test_drawn_captions_end_once(toy_folder: Path) -> None:
    run = built(toy_folder, "--scan-weight", "0")
    run.model.train()
    pad, eos = run.task.target_dictionary.pad(), run.task.target_dictionary.eos()
    lengths = set()
    for row in sampling.sample_captions(run.model, input_of(run, 400), 12).tolist():
        length = row.index(eos) + 1 if eos in row else 12
        lengths.add(length)
        assert pad not in row[:length]
        assert set(row[length:]) <= {pad}
        before = sampling.shifted(torch.tensor([row]), eos, pad)[0].tolist()
        assert before == [eos, *row[: length - 1], *[pad] * (len(row) - length)]
    # some empty, some cut
    assert {1, 12} < lengths


@pytest.mark.parametrize("arch", ["up_down", "grounded_transformer"])
def test_leaving_the_batch_changes_no_other_caption(
    toy_folder: Path, monkeypatch: pytest.MonkeyPatch, arch: str
) -> None:
    run = built(toy_folder, "--scan-weight", "0", arch=arch)
    end = run.task.target_dictionary.eos()
    net_input = run.batch["net_input"]
    # captions that end at different times, whatever is drawn
    calls: list[int] = []

    def choose(logits: torch.Tensor, pad: int) -> torch.Tensor:
        calls.append(len(logits))
        best = logits[:, 4:].argmax(1) + 4
        return torch.where((logits.sum(1) * 1e4).long() % 3 == 0, end, best)

    run.model.eval()
    monkeypatch.setattr(sampling, "SHRINK", 0.0)
    whole = sampling._write(run.model, net_input, 9, choose)
    assert len(set(calls)) == 1
    calls.clear()
    monkeypatch.setattr(sampling, "SHRINK", 1.0)
    assert torch.equal(sampling._write(run.model, net_input, 9, choose), whole)
    assert len(set(calls)) > 2


# ---- the criterion on a batch ----


def drawing(run: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, captions: list[list[int]]) -> torch.Tensor:
    """Let these captions be drawn."""
    target = torch.full((len(captions), max(map(len, captions))), run.task.target_dictionary.pad())
    for row, caption in enumerate(captions):
        target[row, : len(caption)] = torch.tensor(caption)
    monkeypatch.setattr(scst, "sample_captions", lambda *arguments: target)
    return target


def test_loss_of_given_captions(toy_folder: Path, runs: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    weights = ("--cider-weight", "2", "--scan-weight", "3", "--samples-per-image", "2")
    run = built(toy_folder, "--reward-path", str(runs["pos_scan"]), *weights, "--dropout", "0")
    eos, words = run.task.target_dictionary.eos(), run.task.target_dictionary
    sentences = ["a dog", "", "the blue cat is near a dog", "dog", "a a a", "there is a boat and a tree"]
    captions = [[*(words.index(word) for word in text.split()), eos] for text in sentences]
    captions[3].pop()
    target = drawing(run, monkeypatch, captions)
    run.model.train()
    loss, size, logs = run.criterion(run.model, run.batch)
    assert size == sum(map(len, captions)) == logs["ntokens"]

    # the same, caption by caption
    dataset = run.task.datasets["train"]
    references = [[dataset.split.tokens[c].tolist() for c in dataset.captions_of(image)] for image in range(3)]
    scorer = CiderD.from_references(references, run.task.folder.document_frequency())
    greedy = sampling.greedy_captions(run.model, sampling.rows_of(run.batch["net_input"], torch.tensor([0, 5, 10])), 20)
    rewards, base = [], []
    matcher = run.criterion.matcher
    nouns = {word for word, (seen, tagged) in run.task.folder.noun_table().items() if tagged > seen / 2}
    said = [*captions, *([t for t in row if t != words.pad()] for row in greedy.tolist())]
    for number, caption in enumerate(said):
        image = number // 2 if number < 6 else number - 6
        one = {
            "net_input": sampling.rows_of(run.batch["net_input"], torch.tensor([5 * image])),
            "target": torch.tensor([caption]),
            "noun_mask": torch.tensor([[words[token] in nouns for token in caption]]),
        }
        # alone in its batch, with its own image
        one["net_input"]["features"] = one["net_input"]["features"][image : image + 1]
        one["net_input"]["boxes"] = one["net_input"]["boxes"][image : image + 1]
        one["net_input"]["image_index"] = torch.tensor([0])
        score = float(matcher.model.scores(matcher.encode(one))[0, 0])
        assert caption != [eos] or score == 0
        reward = 2 * float(scorer.score([caption], [image])[0]) + 3 * score
        (rewards if number < 6 else base).append(reward)
    expected = 0.0
    with torch.no_grad():
        for number, caption in enumerate(captions):
            rows = sampling.rows_of(run.batch["net_input"], torch.tensor([5 * (number // 2)]))
            logits, _ = run.model(**rows, prev_output_tokens=torch.tensor([[eos, *caption[:-1]]]))
            logits[:, :, words.pad()] = -math.inf
            chosen = logits[0].log_softmax(1)[range(len(caption)), caption]
            expected -= float(chosen.sum()) * (rewards[number] - base[number // 2])
    assert float(loss.detach()) == pytest.approx(expected, rel=1e-4)
    assert float(logs["reward"]) == pytest.approx(sum(rewards), rel=1e-4)
    assert float(logs["baseline"]) == pytest.approx(2 * sum(base), rel=1e-4)
    assert float(logs["sample_length"]) == sum(len(text.split()) for text in sentences)
    assert target.shape == (6, 8)


@pytest.mark.parametrize("baseline", scst.BASELINES)
def test_no_advantage_moves_nothing(toy_folder: Path, monkeypatch: pytest.MonkeyPatch, baseline: str) -> None:
    run = built(toy_folder, "--scan-weight", "0", "--baseline", baseline, "--samples-per-image", "4")
    rows = torch.tensor([0, 5, 10])
    greedy = sampling.greedy_captions(run.model, sampling.rows_of(run.batch["net_input"], rows), 20)
    run.model.train()
    monkeypatch.setattr(scst, "sample_captions", lambda *arguments: greedy.repeat_interleave(4, 0))
    loss, _, _ = run.criterion(run.model, run.batch)
    loss.backward()
    for name, parameter in run.model.named_parameters():
        assert parameter.grad is not None, name
        assert not parameter.grad.any(), name


@pytest.mark.parametrize("reward", ["scan", "pos_scan"])
def test_empty_captions_have_a_reward(
    toy_folder: Path, runs: dict[str, Path], monkeypatch: pytest.MonkeyPatch, reward: str
) -> None:
    run = built(toy_folder, "--reward-path", str(runs[reward]), "--samples-per-image", "1")
    end = run.task.target_dictionary.eos()
    drawing(run, monkeypatch, [[end]] * 3)
    run.model.train()
    loss, size, logs = run.criterion(run.model, run.batch)
    loss.backward()
    assert size == 3
    assert float(logs["reward_matching"]) == 0
    assert math.isfinite(float(loss.detach()))
    assert all(torch.isfinite(parameter.grad).all() for parameter in run.model.parameters())


def test_batches_add_up(toy_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Losses and sizes of two batches are those of both in one, so that --update-freq and processes change nothing."""
    run = built(toy_folder, "--scan-weight", "0", "--dropout", "0", "--samples-per-image", "2")
    words = run.task.target_dictionary

    # what is drawn must depend on the image alone
    def draw(model, net_input, *others):
        key = (net_input["features"].sum((1, 2)) * 1e3).long().abs()[net_input["image_index"]]
        steps = torch.arange(8)
        tokens = 4 + (key[:, None] * (steps + 1) + torch.arange(len(key))[:, None] % 2) % 20
        ends = steps[None] - (2 + key % 6)[:, None]
        return tokens.masked_fill(ends == 0, words.eos()).masked_fill(ends > 0, words.pad())

    monkeypatch.setattr(scst, "sample_captions", draw)
    run.model.train()
    collater = run.task.datasets["train"].collater
    gradients, sizes = [], []
    for images in ([0, 1, 2], [3], [0, 1, 2, 3]):
        run.model.zero_grad()
        loss, size, _ = run.criterion(run.model, collater(images))
        loss.backward()
        gradients.append([parameter.grad.clone() for parameter in run.model.parameters()])
        sizes.append(int(size))
    assert sizes[0] + sizes[1] == sizes[2]
    for first, second, both in zip(*gradients):
        assert torch.allclose(first + second, both, rtol=1e-3, atol=1e-4)
    assert sum(float(gradient.abs().sum()) for gradient in gradients[2]) > 1


@pytest.mark.parametrize("attention_words", ["nouns", "all"])
def test_distillation_of_drawn_captions(
    toy_folder: Path, runs: dict[str, Path], monkeypatch: pytest.MonkeyPatch, attention_words: str
) -> None:
    """Reward by one model, attention by another; without an advantage the attention loss is all there is."""
    teacher = "pos_scan" if attention_words == "nouns" else "scan"
    run = built(
        toy_folder,
        *("--reward-path", str(runs["scan"]), "--teacher-path", str(runs[teacher]), "--teacher-readout", "similarity"),
        *("--attention-weight", "0.5", "--attention-words", attention_words, "--samples-per-image", "1"),
    )
    words = run.task.target_dictionary
    captions = [
        [words.index(w) for w in text.split()] + [words.eos()] for text in ("a dog", "", "the car is near a cat")
    ]
    target = drawing(run, monkeypatch, captions)
    monkeypatch.setattr(scst, "greedy_captions", lambda *arguments: target)
    run.model.train()
    rows = sampling.rows_of(run.batch["net_input"], torch.tensor([0, 5, 10]))
    for module in run.model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    loss, size, logs = run.criterion(run.model, run.batch)
    with torch.no_grad():
        before = sampling.shifted(target, words.eos(), words.pad())
        student = run.model(**rows, prev_output_tokens=before)[1]["attn"][0]
        nouns = torch.tensor([[words[t] in {"dog", "car", "cat"} for t in row] for row in target.tolist()])
        sample = {"net_input": rows, "target": target, "noun_mask": nouns}
        taught = run.criterion.supervision.teacher.attention(sample, "similarity")[0]
    spoken = target.ne(words.pad()) & target.ne(words.eos())
    chosen = nouns if attention_words == "nouns" else spoken
    expected = 0.0
    for row, step in chosen.nonzero().tolist():
        pairs = zip(taught[row, step].clamp(min=1e-8).tolist(), student[row, step].clamp(min=1e-8).tolist())
        expected += sum(t * (math.log(t) - math.log(s)) for t, s in pairs)
    count = 3 if attention_words == "nouns" else 8
    assert int(logs["attention_words"]) == count
    assert float(logs["attention_loss"]) == pytest.approx(expected, rel=1e-4)
    assert float(loss.detach()) == pytest.approx(0.5 * expected / count * int(size), rel=1e-4)


def test_captions_in_pieces_are_rewarded_as_the_words_they_spell(
    toy_data, toy_folder: Path, runs: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("sentencepiece", reason="needs the extra 'subwords'")
    from fairseq_grounding.data.prepare import prepare_captions

    folder = tmp_path / "pieces"
    choices = {"nouns": "table", "noun_table_path": toy_folder, "threshold": 1}
    prepare_captions(toy_data.captions, toy_data.regions, folder, sentencepiece="40", **choices)
    flags = ("--reward-path", str(runs["pos_scan"]), "--teacher-path", str(runs["pos_scan"]))
    flags = (*flags, "--samples-per-image", "1", "--baseline", "greedy")
    found = []
    for data, field in ((toy_folder, "tokens"), (folder, "pieces")):
        run = built(data, *flags)
        split = run.task.datasets["train"].split
        # captions of the first, third and second image, each drawn for the image in its place
        target = drawing(run, monkeypatch, [getattr(split, field)[caption].tolist() for caption in (2, 11, 5)])
        run.model.train()
        loss, size, logs = run.criterion(run.model, run.batch)
        loss.backward()
        assert size == int(target.ne(run.task.target_dictionary.pad()).sum())
        found.append(logs)
    words, pieces = found
    for name in ("reward", "reward_cider", "reward_matching", "sample_length", "attention_words"):
        assert float(pieces[name]) == pytest.approx(float(words[name]), rel=1e-5), name
    assert float(words["reward_cider"]) > 1
    assert int(pieces["ntokens"]) > int(words["ntokens"])


def test_reward_rises(toy_folder: Path) -> None:
    run = built(
        toy_folder,
        *("--scan-weight", "0", "--baseline", "leave-one-out", "--samples-per-image", "30"),
        *("--max-sample-length", "6", "--dropout", "0"),
    )
    optimizer = torch.optim.Adam(run.model.parameters(), 0.02)
    run.model.train()
    rewards = []
    for _ in range(40):
        loss, size, logs = run.criterion(run.model, run.batch)
        optimizer.zero_grad()
        (loss / size).backward()
        optimizer.step()
        rewards.append(float(logs["reward"]) / 90)
    assert sum(rewards[-5:]) > 2 * sum(rewards[:5])


# ---- fairseq-train ----


@pytest.fixture
def info(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO)
    return caplog


@pytest.mark.parametrize(("reward", "baseline"), [("scan", "greedy"), ("pos_scan", "leave-one-out")])
def test_training_from_cross_entropy(
    toy_folder: Path,
    runs: dict[str, Path],
    tmp_path: Path,
    info: pytest.LogCaptureFixture,
    reward: str,
    baseline: str,
) -> None:
    other = {"scan": "pos_scan", "pos_scan": "scan"}[reward]
    flags = ("--reward-path", str(runs[reward]), "--baseline", baseline, "--finetune-from-model", str(runs["up_down"]))
    flags = (*flags, "--teacher-path", str(runs[other]))
    state = commands.train(
        toy_folder,
        tmp_path,
        "up_down",
        *SCST,
        *flags,
        *("--batch-size", "8", "--max-epoch", "1", "--lr", "1e-9", "--log-format", "json", "--eval-caption-metrics"),
        *("--best-checkpoint-metric", "cider", "--maximize-best-checkpoint-metric"),
    )
    (train,), (valid,) = logged(info, "train"), logged(info, "valid")
    parts = ("reward_cider", "reward_matching")
    for found in (train, valid):
        assert found["reward"] == pytest.approx(sum(found[name] for name in parts), abs=2e-3)
    assert {"baseline", "sample_length", "entropy", "loss", "attention_loss"} <= set(train)
    assert 0 < train["entropy"] < math.log(40)
    if baseline == "leave-one-out":
        assert train["baseline"] == pytest.approx(train["reward"], abs=2e-3)
    assert valid["loss"] == pytest.approx(-valid["reward"], abs=2e-3)
    # validation's own greedy captions are these
    assert valid["cider"] == pytest.approx(valid["reward_cider"], abs=2e-3)
    assert state["extra_state"]["best"] == pytest.approx(valid["cider"], abs=2e-3)
    before = torch.load(runs["up_down"])["model"]
    assert set(before) == set(state["model"])
    for name, weights in state["model"].items():
        assert torch.allclose(weights, before[name], atol=1e-6), name


def test_resuming_equals_going_on(toy_folder: Path, runs: dict[str, Path], tmp_path: Path) -> None:
    flags = (*SCST, "--reward-path", str(runs["scan"]), "--batch-size", "2", "--update-freq", "2")
    flags = (*flags, "--disable-validation", "--samples-per-image", "2")
    whole = commands.train(toy_folder, tmp_path / "whole", "up_down", *flags, "--max-update", "5")
    commands.train(toy_folder, tmp_path / "parts", "up_down", *flags, "--max-update", "3")
    parts = commands.train(toy_folder, tmp_path / "parts", "up_down", *flags, "--max-update", "5")
    assert parts["optimizer_history"][-1]["num_updates"] == 5
    for name, weights in whole["model"].items():
        assert torch.equal(weights, parts["model"][name]), name


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ((), "--scan-weight 1.0 needs a matching model: give --reward-path CHECKPOINT"),
        (("--scan-weight", "0", "--cider-weight", "0"), "nothing is rewarded"),
        (("--scan-weight", "nan"), "--scan-weight nan: give 0 or more"),
        (("--scan-weight", "0", "--cider-weight", "-1"), "--cider-weight -1.0: give 0 or more"),
        (("--scan-weight", "0", "--cider-weight", "inf"), "--cider-weight inf: give 0 or more"),
        (("--scan-weight", "0", "--samples-per-image", "0"), "--samples-per-image 0: give at least 1"),
        (("--scan-weight", "0", "--max-sample-length", "0"), "--max-sample-length 0: give at least 1"),
        (("--scan-weight", "0", "--sampling-temperature", "0"), "--sampling-temperature 0.0: give more than 0"),
        (("--scan-weight", "0", "--baseline", "leave-one-out", "--samples-per-image", "1"), "2 or more"),
        (("--reward-path", "nowhere.pt"), "--reward-path nowhere.pt: no such file"),
        (("--scan-weight", "0", "--items", "caption"), "use --items group"),
        (("--scan-weight", "0", "--attention-weight", "-1", "--teacher-path", "x.pt"), "--attention-weight -1.0"),
        (("--scan-weight", "0", "--scheduled-sampling-increase", "0.1"), "--scheduled-sampling-increase 0.1"),
    ],
)
def test_flags_that_make_no_sense(toy_folder: Path, flags: tuple[str, ...], said: str) -> None:
    assert said in refused(toy_folder, "up_down", *flags)


def test_a_matching_model_is_not_trained_so(toy_folder: Path) -> None:
    assert "ScanModel is a matching model" in refused(toy_folder, "scan", "--scan-weight", "0")


def test_a_captioner_gives_no_matching_score(toy_folder: Path, runs: dict[str, Path]) -> None:
    said = refused(toy_folder, "up_down", "--reward-path", str(runs["up_down"]))
    assert "give a checkpoint of a matching model" in said


def test_boxes_teach_no_drawn_captions(toy_folder: Path) -> None:
    flags = ("--scan-weight", "0", "--attention-target", "annotation", "--attention-loss", "nll")
    assert "teach their attention with --teacher-path alone" in refused(toy_folder, "up_down", *flags)


def refused(folder: Path, arch: str, *flags: str) -> str:
    """The line that a user would see, at the start or at the first batch."""

    def begin() -> None:
        run = built(folder, *flags, arch=arch)
        run.criterion(run.model.train(), run.batch)

    with pytest.raises(GroundingError) as caught:
        begin()
    assert "\n" not in str(caught.value)
    return str(caught.value)
