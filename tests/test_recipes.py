"""The published recipes: learning-rate schedule, clipping by value, scheduled sampling, architectures."""

from __future__ import annotations

import copy
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from fairseq.optim import FairseqOptimizer, build_optimizer
from fairseq.optim.fp16_optimizer import FP16Optimizer, MemoryEfficientFP16Optimizer
from fairseq.optim.lr_scheduler import build_lr_scheduler
from fairseq.tasks import FairseqTask
from omegaconf import OmegaConf

from fairseq_grounding.checkpoints import load_matching_model
from fairseq_grounding.errors import GroundingError
from fairseq_grounding.models.up_down import UpDownConfig, UpDownModel
from fairseq_grounding.modules.scheduled_sampling import ScheduledSampling, ScheduledSamplingConfig
from fairseq_grounding.tasks.grounded_caption import GroundedCaptionTask

from . import commands
from .test_up_down import FEATURES, WORDS, batch_of

CAPTIONER = ("--criterion", "cross_entropy", "--items", "group", "--batch-size", "8", "--no-epoch-checkpoints")


def sgd(parameters) -> FairseqOptimizer:
    cfg = OmegaConf.create({"optimizer": {"_name": "sgd", "lr": [1.0], "momentum": 0.0, "weight_decay": 0.0}})
    return build_optimizer(cfg.optimizer, parameters)


# ---- epoch_step ----


def schedule_of(lr: list[float], **choices):
    cfg = OmegaConf.create({"lr_scheduler": {"_name": "epoch_step", "lr": lr, **choices}})
    return build_lr_scheduler(cfg.lr_scheduler, sgd([torch.nn.Parameter(torch.zeros(1))]))


def test_the_learning_rate_steps_every_few_epochs() -> None:
    schedule = schedule_of([5e-4])
    rates = [schedule.step_begin_epoch(epoch) for epoch in range(1, 10)]
    assert rates == pytest.approx([5e-4] * 3 + [4e-4] * 3 + [3.2e-4] * 3, rel=1e-12)
    assert schedule.step_update(1000) == rates[-1] == schedule.optimizer.get_lr()
    scan = schedule_of([2e-4], step_epochs=15, step_factor=0.1)
    assert [scan.step_begin_epoch(epoch) for epoch in (15, 16)] == pytest.approx([2e-4, 2e-5], rel=1e-12)


def test_the_schedule_is_saved_and_loaded() -> None:
    schedule = schedule_of([1.0], step_epochs=1, step_factor=0.5)
    schedule.step_begin_epoch(3)
    schedule.step(3, 1.5)
    other = schedule_of([1.0], step_epochs=1, step_factor=0.5)
    other.load_state_dict(schedule.state_dict())
    assert (other.best, other.step_update(7)) == (1.5, 0.25)
    # of fairseq's fixed schedule, which saves no best
    other.load_state_dict({"lr": 0.125})
    assert other.step_update(7) == 0.125


@pytest.mark.parametrize(
    ("lr", "choices", "message"),
    [
        ([1.0], {"step_epochs": 0}, "--step-epochs 0: give at least 1"),
        ([1.0], {"step_factor": 0.0}, r"--step-factor 0.0: give more than 0"),
        ([1.0], {"step_factor": float("nan")}, r"--step-factor nan: give more than 0"),
        ([1.0, 0.5], {}, r"--lr 1.0,0.5: .* give one learning rate"),
    ],
)
def test_schedules_that_make_no_sense_are_refused(lr, choices, message) -> None:
    with pytest.raises(GroundingError, match=message):
        schedule_of(lr, **choices)


def lr_of(state) -> float:
    return state["last_optimizer_state"]["param_groups"][0]["lr"]


def test_a_resumed_recipe_goes_on_exactly(toy_folder: Path, tmp_path: Path) -> None:
    flags = (*CAPTIONER, "--lr-scheduler", "epoch_step", "--step-epochs", "2", "--step-factor", "0.5", "--lr", "0.01")
    flags += ("--clip-value", "0.01", "--update-freq", "2", "--batch-size", "4")
    flags += ("--scheduled-sampling-increase", "0.3", "--scheduled-sampling-every", "1")
    flags += ("--scheduled-sampling-max", "0.5")
    whole = commands.train(toy_folder, tmp_path / "whole", "up_down", *flags, "--max-update", "7")
    # the first part ends in the middle of an epoch of two updates
    commands.train(toy_folder, tmp_path / "parts", "up_down", *flags, "--max-update", "5")
    parts = commands.train(toy_folder, tmp_path / "parts", "up_down", *flags, "--max-update", "7")
    assert lr_of(whole) == lr_of(parts) == pytest.approx(0.005)
    for name, weights in whole["model"].items():
        assert torch.equal(weights, parts["model"][name]), name


# ---- --clip-value ----


def task_of(clip_value: float) -> GroundedCaptionTask:
    task = GroundedCaptionTask.__new__(GroundedCaptionTask)
    task.cfg = SimpleNamespace(clip_value=clip_value)
    return task


def test_gradients_are_clamped_before_the_step() -> None:
    gradient = torch.tensor([3.0, -3.0, 0.01, -0.02, 0.0])
    weights = torch.linspace(-1, 1, 5)
    parameter = torch.nn.Parameter(weights.clone())
    without = torch.nn.Parameter(torch.ones(2))
    optimizer = sgd([parameter, without])
    parameter.grad = gradient.clone()
    task_of(0.1).optimizer_step(optimizer, None, 0)
    clamped = torch.tensor([0.1, -0.1, 0.01, -0.02, 0.0])
    torch.testing.assert_close(parameter.grad, clamped)
    torch.testing.assert_close(parameter.detach(), weights - clamped)
    assert torch.equal(without, torch.ones(2))
    parameter.grad = gradient.clone()
    task_of(0.0).optimizer_step(optimizer, None, 1)
    assert torch.equal(parameter.grad, gradient)


def half_precision(parameter: torch.nn.Parameter, kind: str):
    common = {"bf16": False, "model_parallel_size": 1, "fp16_scale_window": 100, "fp16_no_flatten_grads": True}
    common |= {"fp16_init_scale": 128, "fp16_scale_tolerance": 0.0, "threshold_loss_scale": None}
    cfg = OmegaConf.create({"common": {**common, "min_loss_scale": 1e-4}, "optimizer": None})
    if kind == "memory-efficient":
        inner = sgd([parameter])
        optimizer = MemoryEfficientFP16Optimizer(cfg, [parameter], inner, allow_unsupported=True)
    else:
        masters = FP16Optimizer.build_fp32_params(cfg, [parameter], flatten=False)
        inner = sgd(masters)
        optimizer = FP16Optimizer(cfg, [parameter], inner, masters)
    return optimizer


@pytest.mark.parametrize("kind", ["fp16", "memory-efficient"])
@pytest.mark.parametrize("clip_norm", [0.0, 0.5])
def test_half_precision_is_unscaled_before_it_is_clamped(kind: str, clip_norm: float) -> None:
    weights = torch.tensor([0.5, -0.25, 1.0, 2.0])
    gradient = torch.tensor([0.75, -0.5, 0.0625, 0.125])
    parameter = torch.nn.Parameter(weights.half())
    optimizer = half_precision(parameter, kind)
    optimizer.zero_grad()
    sample_size = 4
    # what fairseq's trainer does: a loss that is a sum, scaled; then a division and the norm
    optimizer.backward((parameter * (gradient * sample_size).half()).sum())
    optimizer.multiply_grads(1 / sample_size)
    norm = float(optimizer.clip_grad_norm(clip_norm))
    assert norm == pytest.approx(float(gradient.norm()), rel=1e-3)
    task_of(0.1).optimizer_step(optimizer, None, 0)
    if clip_norm:
        gradient = gradient * clip_norm / gradient.norm()
    torch.testing.assert_close(parameter.detach().float(), weights - gradient.clamp(-0.1, 0.1), rtol=0, atol=2e-3)


def test_a_run_clamps_the_gradient_of_all_its_micro_batches(
    toy_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flags = (*CAPTIONER, "--max-update", "1", "--dropout", "0", "--batch-size", "4")
    taken: list[torch.Tensor] = []

    def step(self, optimizer, model, update_num) -> None:
        taken[:] = [parameter.grad.clone() for parameter in optimizer.params]
        optimizer.step()

    monkeypatch.setattr(FairseqTask, "optimizer_step", step)

    def gradients(name: str, *more: str) -> torch.Tensor:
        commands.train(toy_folder, tmp_path / name, "up_down", *flags, *more)
        return torch.cat([gradient.flatten() for gradient in taken])

    for freq in ("1", "2"):
        free = gradients(f"free{freq}", "--update-freq", freq)
        assert (free.abs() > 0.001).any()
        clamped = gradients(f"clamped{freq}", "--update-freq", freq, "--clip-value", "0.001")
        torch.testing.assert_close(clamped, free.clamp(-0.001, 0.001), rtol=0, atol=1e-8)
    # the norm first, as fairseq's trainer has it
    both = gradients("both", "--update-freq", "2", "--clip-value", "0.001", "--clip-norm", "0.05")
    torch.testing.assert_close(both, (free * (0.05 / free.norm())).clamp(-0.001, 0.001), rtol=0, atol=1e-7)
    assert 0 < int((both.abs() >= 0.001).sum()) < int((clamped.abs() >= 0.001).sum())


@pytest.mark.parametrize("value", ["-0.1", "nan", "inf"])
def test_clip_values_that_make_no_sense_are_refused(toy_folder: Path, tmp_path: Path, value: str) -> None:
    with pytest.raises(GroundingError, match=f"--clip-value {value}: give more than 0"):
        commands.train(toy_folder, tmp_path, "up_down", *CAPTIONER, f"--clip-value={value}")


# ---- scheduled sampling ----


def test_the_published_schedule_of_own_words() -> None:
    task = SimpleNamespace(epoch=1)
    cfg = ScheduledSamplingConfig(scheduled_sampling_increase=0.05)
    sampling = ScheduledSampling(cfg, task)
    found = []
    for task.epoch in range(1, 41):
        found.append(sampling.probability())
    # the reference counts epochs from 0: min(0.05 * (epoch // 5), 0.25)
    assert found == pytest.approx([0.0] * 5 + [0.05] * 5 + [0.1] * 5 + [0.15] * 5 + [0.2] * 5 + [0.25] * 15)
    assert ScheduledSampling(ScheduledSamplingConfig(), SimpleNamespace()).probability() == 0
    assert copy.deepcopy(sampling) is sampling


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ({"scheduled_sampling_increase": 1.5}, "--scheduled-sampling-increase 1.5: is a probability; give 0 to 1"),
        ({"scheduled_sampling_max": -0.1}, "--scheduled-sampling-max -0.1: is a probability; give 0 to 1"),
        ({"scheduled_sampling_max": float("nan")}, "--scheduled-sampling-max nan: is a probability"),
        ({"scheduled_sampling_every": 0}, "--scheduled-sampling-every 0: give at least 1"),
    ],
)
def test_sampling_that_makes_no_sense_is_refused(choices, message) -> None:
    with pytest.raises(GroundingError, match=message):
        ScheduledSampling(ScheduledSamplingConfig(**choices), SimpleNamespace())


def sampling_model(probability: float, seed: int = 0, **choices) -> UpDownModel:
    """Without dropout, so that only own words differ from teacher forcing; decided about what it says."""
    torch.manual_seed(seed)
    task = SimpleNamespace(target_dictionary=WORDS, model_feature_size=lambda cfg: FEATURES, epoch=2)
    sizes = {"embedding_size": 6, "hidden_size": 7, "attention_size": 4, "dropout": 0.0, **choices}
    if probability:
        sizes |= {"scheduled_sampling_increase": probability, "scheduled_sampling_every": 1}
        sizes |= {"scheduled_sampling_max": 1.0}
    model = UpDownModel.build_model(UpDownConfig(**sizes), task).double().train()
    with torch.no_grad():
        model.decoder.output_projection.weight.mul_(400)
    return model


CAPTIONS = [[4, 5, 6, 7, 8], [9], [10, 11, 12], [4, 4, 4, 4, 4, 4], [5, 6]]
REGIONS = [3, 5, 1, 2, 4]


def test_every_word_an_own_word_is_decoding() -> None:
    model = sampling_model(1.0)
    with torch.no_grad():
        model.decoder.output_projection.weight.mul_(50)
    net_input, target = batch_of(CAPTIONS, REGIONS)
    logits, extra = model(**net_input)
    lengths = target.ne(WORDS.pad()).sum(1).tolist()
    encoded = model.encoder(**{k: v for k, v in net_input.items() if k != "prev_output_tokens"})
    own = torch.full((len(CAPTIONS), 1), WORDS.eos())
    state: dict = {}
    for time in range(max(lengths)):
        expected, step = model.decoder(own, encoded, incremental_state=state)
        for row, length in enumerate(lengths):
            if time < length:
                torch.testing.assert_close(logits[row, time], expected[row, 0], rtol=0, atol=1e-10)
                torch.testing.assert_close(extra["attn"][0][row, time], step["attn"][0][row, 0], rtol=0, atol=1e-10)
        # its distribution has one word alone, so that drawing from it is choosing the best; padding is no word
        expected[:, 0, WORDS.pad()] = -torch.inf
        probabilities = expected[:, 0].softmax(1)
        assert float(probabilities.amax(1).min()) > 0.999
        own = torch.cat([own, probabilities.argmax(1, keepdim=True)], 1)
    model.eval()
    given, _ = model(**net_input)
    assert not torch.allclose(given, logits)


def test_evaluation_and_the_first_epochs_read_the_caption_itself() -> None:
    net_input, _ = batch_of(CAPTIONS, REGIONS)
    expected = sampling_model(0.0)(**net_input)[0]
    model = sampling_model(1.0)
    assert torch.equal(model.eval()(**net_input)[0], expected)
    model.train()
    model.decoder.sampling._task.epoch = 1
    before = torch.random.get_rng_state()
    assert torch.equal(model(**net_input)[0], expected)
    # nothing was drawn, so that dropout is what it was without the flag
    assert torch.equal(torch.random.get_rng_state(), before)


def test_own_words_are_as_frequent_as_the_model_says_and_the_flag() -> None:
    model = sampling_model(0.25)
    read = []
    prepare = model.decoder.prepare

    def watched(tokens, rows, encoder_out):
        read.append(tokens)
        return prepare(tokens, rows, encoder_out)

    model.decoder.prepare = watched
    with torch.no_grad():
        model.decoder.output_projection.weight.zero_()
        bias = model.decoder.output_projection.bias.zero_()
        # the padding symbol is no word, however probable
        bias[WORDS.pad()] = 9.0
        bias[7] = 5.0
        bias[8] = 5.0 - np.log(3)
        bias[4:7] = bias[9:] = -40.0
        bias[: WORDS.pad()] = bias[WORDS.pad() + 1 : 4] = -40.0
    captions = 8000
    net_input, _ = batch_of([[5, 5]] * captions, [1] * captions)
    model(**net_input)
    whole, *own = read
    assert len(whole) == 3 * captions
    own_words = torch.cat(own)
    # two of three steps can have an own word: the first reads the start
    assert len(own) == 2
    assert len(own_words) / (2 * captions) == pytest.approx(0.25, abs=0.02)
    assert set(own_words.tolist()) == {7, 8}
    assert float((own_words == 7).double().mean()) == pytest.approx(0.75, abs=0.04)


def test_own_words_have_no_gradient_through_their_choice() -> None:
    model = sampling_model(0.5)
    net_input, target = batch_of(CAPTIONS, REGIONS)
    real = target.ne(WORDS.pad())

    def loss() -> torch.Tensor:
        torch.manual_seed(3)
        return torch.nn.functional.cross_entropy(model(**net_input)[0][real], target[real])

    loss().backward()
    # with the same words drawn, the gradient is that of a network that reads them
    weight = model.decoder.word_gates.weight
    direction = torch.randn_like(weight)
    expected = (weight.grad * direction).sum()
    found = []
    for sign in (1, -1):
        with torch.no_grad():
            weight.add_(sign * 1e-7 * direction)
        found.append(loss().detach())
        with torch.no_grad():
            weight.sub_(sign * 1e-7 * direction)
    assert float((found[0] - found[1]) / 2e-7) == pytest.approx(float(expected), rel=1e-4)


# ---- architectures ----


def test_the_coco_architecture_is_wider(toy_folder: Path, tmp_path: Path) -> None:
    flags = (*CAPTIONER, "--max-update", "1", "--lr", "1e-9", "--no-save-optimizer-state")

    def shapes(name: str, *more: str) -> dict[str, tuple[int, ...]]:
        state = commands.train(toy_folder, tmp_path / name, "up_down_coco", *flags, *more)["model"]
        return {key: tuple(value.shape) for key, value in state.items()}

    coco = shapes("coco")
    assert coco["encoder.region_embedding.0.weight"] == (1024, 12)
    assert coco["encoder.global_embedding.0.weight"] == (1024, 12)
    assert coco["encoder.key_projection.weight"] == (512, 1024)
    assert coco["decoder.embedding.weight"][1] == 512
    assert coco["decoder.word_gates.weight"] == (4096, 512)
    assert coco["decoder.language_gates.weight"] == (4096, 3072)
    # a flag that is given wins, also where it is the other architecture's default
    small = shapes("small", "--hidden-size", "512", "--region-size", "24", "--global-feature", "embedded-mean")
    assert small["decoder.attention_gates.weight"] == (2048, 1024)
    assert small["decoder.global_gates.weight"] == (2048, 24)
    assert "encoder.global_embedding.0.weight" not in small
    assert commands.generate(toy_folder, tmp_path / "small" / "checkpoint_last.pt", "--items", "image", "--beam", "1")


def test_checkpoints_that_are_older_than_a_flag_still_load(toy_folder: Path, tmp_path: Path) -> None:
    commands.train(toy_folder, tmp_path, "pos_scan", "--batch-size", "16", "--max-update", "1")
    last = tmp_path / "checkpoint_last.pt"
    state = torch.load(last)
    del state["cfg"]["model"]["weight_norm"]
    torch.save(state, last)
    assert load_matching_model(last, "--teacher-path").nouns_only
    assert commands.lines_of(commands.generate(toy_folder, last, "--score-reference"), "H")
