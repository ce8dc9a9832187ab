"""The captioners with a sentinel and with heads: slow loops as their reference, and what every captioner promises."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fairseq_grounding.dump import read_dump
from fairseq_grounding.errors import GroundingError
from fairseq_grounding.models.adaptive_attention import AdaptiveAttentionConfig, AdaptiveAttentionModel
from fairseq_grounding.models.multihead_attention import MultiheadAttentionConfig, MultiheadAttentionModel

from . import commands
from .slow_attention import SlowAdaptive, SlowMultihead
from .test_up_down import CHOICES, FEATURES, WORDS, batch_of, batches, generate, near, pick, steps_with_a_swap

KINDS = {
    "adaptive_attention": (AdaptiveAttentionModel, AdaptiveAttentionConfig, SlowAdaptive, {"attention_size": 4}),
    "multihead_attention": (MultiheadAttentionModel, MultiheadAttentionConfig, SlowMultihead, {"attention_heads": 3}),
}
ARCHS = sorted(KINDS)


def build(arch: str, seed: int = 0, **choices):
    torch.manual_seed(seed)
    kind, config, _, own = KINDS[arch]
    task = SimpleNamespace(target_dictionary=WORDS, model_feature_size=lambda cfg: FEATURES)
    cfg = config(**{"embedding_size": 5, "hidden_size": 6, **own, **choices})
    model = kind.build_model(cfg, task).double().eval()
    if arch == "multihead_attention":
        with torch.no_grad():
            # heads that differ: small keys would let all look everywhere
            model.encoder.key_projection.weight.mul_(4)
    return model


def slow(model, net_input):
    arch = next(name for name, (kind, *_) in KINDS.items() if type(model) is kind)
    features, boxes = (net_input[name][0].detach().numpy() for name in ("features", "boxes"))
    return KINDS[arch][2](model, features, boxes, net_input["prev_output_tokens"][0].tolist())


@pytest.mark.parametrize("arch", ARCHS)
@settings(max_examples=15, deadline=None)
@given(batch=batches(), seed=st.integers(0, 1000), garbage=st.sampled_from([0.0, 1e6, -3.0]), **CHOICES)
def test_any_batch_is_slow_loops_over_its_captions(arch, batch, seed, garbage, **choices):
    model = build(arch, seed % 5, **choices)
    net_input, _ = batch_of(*batch, seed=seed, garbage=garbage)
    net_input["features"].requires_grad_()
    logits, extra = model(**net_input)
    (attention,) = extra["attn"]
    assert set(extra) == {"attn", "sentinel" if arch == "adaptive_attention" else "heads"}
    for row in range(len(logits)):
        own = pick(net_input, row)
        plain = slow(model, own)
        length, regions = len(plain.logits), len(plain.features)
        for place, step in enumerate(plain.steps):
            near(logits[row, place], torch.from_numpy(plain.logits[place]), 1e-11)
            near(attention[row, place, :regions], torch.from_numpy(step["attention"].mean(0)), 1e-11)
            if arch == "adaptive_attention":
                assert extra["sentinel"][0][row, place].item() == pytest.approx(step["beta"], abs=1e-11)
            else:
                near(extra["heads"][0][row, place, :, :regions], torch.from_numpy(step["attention"]), 1e-11)
        near(attention[row, :length].sum(1), torch.ones(length, dtype=torch.float64), 1e-11)
        for parts in extra.values():
            assert not parts[0][row, length:].any()
        for parts in (extra["attn"], extra.get("heads", [])):
            assert not any(part[row, ..., regions:].any() for part in parts)
    (gradient,) = torch.autograd.grad(logits.square().sum(), net_input["features"])
    counts = torch.zeros(len(gradient), dtype=torch.long)
    counts[net_input["image_index"]] = net_input["src_lengths"]
    for image, count in enumerate(counts.tolist()):
        # a real region may get none either: where its few rectified units are all off
        assert not gradient[image, count:].any()


@pytest.mark.parametrize("arch", ARCHS)
def test_heads_and_sentinel_do_something(arch):
    net_input, _ = batch_of([[4, 5, 6, 7]], [5])
    model = build(arch)
    extra = model(**net_input)[1]
    if arch == "multihead_attention":
        (heads,) = extra["heads"]
        assert heads.shape == (1, 5, 3, 5)
        assert (heads[:, :, 0] - heads[:, :, 1]).abs().max() > 0.01
        return
    (beta,) = extra["sentinel"]
    # against five regions
    assert ((beta > 0.02) & (beta < 0.5)).all()
    with torch.no_grad():
        # a sentinel that always fits best leaves regions their proportions
        model.decoder.attention.score.weight.mul_(50)
        model.decoder.attention.sentinel_projection.bias.copy_(100 * model.decoder.attention.score.weight[0].sign())
    extra = model(**net_input)[1]
    assert (extra["sentinel"][0] > 0.999).all()
    near(extra["attn"][0].sum(2), torch.ones(1, 5, dtype=torch.float64), 1e-12)


@pytest.mark.parametrize("arch", ARCHS)
def test_regions_in_another_order_get_the_same_attention(arch):
    model = build(arch, region_geometry="box5")
    net_input, _ = batch_of([[4, 5, 6]], [5])
    logits, extra = model(**net_input)
    order = torch.tensor([3, 0, 4, 1, 2])
    moved_logits, moved = model(**{**net_input, **{name: net_input[name][:, order] for name in ("features", "boxes")}})
    near(moved_logits, logits.detach(), 1e-12)
    near(moved["attn"][0], extra["attn"][0][..., order].detach(), 1e-12)
    if "heads" in extra:
        near(moved["heads"][0], extra["heads"][0][..., order].detach(), 1e-12)


@pytest.mark.parametrize("arch", ARCHS)
@settings(max_examples=10, deadline=None)
@given(batch=batches(), seed=st.integers(0, 1000))
def test_step_by_step_is_teacher_forcing_also_after_hypotheses_swapped_places(arch, batch, seed):
    model = build(arch)
    net_input, _ = batch_of(*batch, seed=seed)
    logits, extra = model(**net_input)
    for rows, time, real, step_logits, step in steps_with_a_swap(model, net_input, seed):
        near(step_logits[real, 0], logits[rows[real], time].detach(), 1e-12)
        assert set(step) == set(extra)
        for name, (whole,) in extra.items():
            near(step[name][0][real, 0], whole[rows[real], time].detach(), 1e-12)


@pytest.mark.parametrize("arch", ARCHS)
def test_beams_stay_with_their_own_image(arch):
    model = build(arch, seed=5)
    with torch.no_grad():
        model.decoder.output_projection.weight.mul_(5)
    net_input, _ = batch_of([[4]] * 4, [2, 5, 3, 1], seed=2)
    previous = net_input.pop("prev_output_tokens")
    choices = {"beam_size": 3, "max_len_a": 0, "max_len_b": 6}
    for row, found in enumerate(generate(model, WORDS, net_input, **choices)):
        own = pick({**net_input, "prev_output_tokens": previous}, row)
        del own["prev_output_tokens"]
        (alone,) = generate(model, WORDS, own, **choices)
        for mine, theirs in zip(found, alone):
            assert torch.equal(mine["tokens"], theirs["tokens"])
            near(mine["positional_scores"], theirs["positional_scores"], 1e-5)
            near(mine["attention"][: own["src_tokens"].shape[1]], theirs["attention"], 1e-6)


@pytest.mark.parametrize("arch", ARCHS)
def test_dropout_is_for_training_alone_and_not_in_the_attention_that_is_shown(arch):
    model = build(
        arch, dropout=0.5, embedding_dropout=0.5, **({} if arch == "adaptive_attention" else {"attention_dropout": 0.5})
    )
    net_input, _ = batch_of([[4, 5, 6], [7]], [3, 2])
    real = net_input["prev_output_tokens"].ne(WORDS.pad())
    first, second = (model(**net_input)[0] for _ in range(2))
    assert torch.equal(first, second)
    model.train()
    (first, extra), (second, _) = (model(**net_input) for _ in range(2))
    assert not torch.equal(first, second)
    near(extra["attn"][0].sum(2), real.double(), 1e-12)
    assert extra["attn"][0].requires_grad


def test_attention_dropout_reaches_the_output():
    model = build("multihead_attention", dropout=0.0, attention_dropout=0.5).train()
    net_input, _ = batch_of([[4, 5, 6]], [3])
    (first, extra), (second, again) = (model(**net_input) for _ in range(2))
    assert not torch.equal(first, second)
    assert torch.equal(extra["attn"][0], again["attn"][0])


@pytest.mark.parametrize(
    ("arch", "choices", "message"),
    [
        ("multihead_attention", {"attention_heads": 4}, "--attention-heads 4: must divide --hidden-size 6"),
        ("adaptive_attention", {"scheduled_sampling_max": 2.0}, "--scheduled-sampling-max 2.0"),
    ],
)
def test_sizes_that_cannot_be_are_refused(arch, choices, message):
    with pytest.raises(GroundingError, match=message):
        build(arch, **choices)


# ---- fairseq's commands ----

CAPTIONER = ("--items", "group", "--batch-size", "4", "--no-epoch-checkpoints")


@pytest.fixture(scope="module", params=ARCHS)
def arch(request) -> str:
    return request.param


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def captioner(toy_folder: Path, runs: Path, arch: str) -> Path:
    flags = ("--criterion", "cross_entropy", "--max-epoch", "20", "--region-geometry", "box5", "--dropout", "0.1")
    commands.train(toy_folder, runs / arch, arch, *CAPTIONER, *flags)
    return runs / arch / "checkpoint_last.pt"


def test_resuming_equals_going_on(toy_folder: Path, tmp_path: Path, arch: str) -> None:
    flags = (*CAPTIONER, "--criterion", "cross_entropy", "--scheduled-sampling-increase", "0.25")
    flags += ("--scheduled-sampling-every", "1")
    whole = commands.train(toy_folder, tmp_path / "whole", arch, *flags, "--max-epoch", "2")
    commands.train(toy_folder, tmp_path / "parts", arch, *flags, "--max-epoch", "1")
    parts = commands.train(toy_folder, tmp_path / "parts", arch, *flags, "--max-epoch", "2")
    for name, weights in whole["model"].items():
        assert torch.equal(weights, parts["model"][name]), name


@pytest.mark.parametrize("reading", [True, False])
def test_generation_aligns_and_dumps(
    toy_folder: Path, captioner: Path, arch: str, tmp_path: Path, reading: bool
) -> None:
    flags = ("--score-reference",) if reading else ("--items", "image", "--beam", "3", "--max-len-b", "20")
    dump = tmp_path / "dump.jsonl"
    hard = commands.generate(toy_folder, captioner, *flags, "--print-alignment", "hard", "--grounding-dump", str(dump))
    pairs = commands.lines_of(hard, "A")
    rows = list(read_dump(dump))
    assert len(rows) == (20 if reading else 4)
    for row in rows:
        assert row["model"] == arch
        found = dict(reversed(pair.split("-")) for pair in pairs[row["id"]].split())
        assert found == {str(word): str(step["region"]) for word, step in enumerate(row["steps"])}
        for step in row["steps"]:
            assert sum(step["attention"]) == pytest.approx(1, abs=1e-4)


def test_validation_logs_what_it_logs_of_any_captioner(toy_folder: Path, captioner: Path) -> None:
    overrides = "{'eval_caption_metrics': True, 'eval_grounding': True}"
    logged = commands.validate(toy_folder, captioner, "--model-overrides", overrides)
    assert logged["valid_cider"] > 0.3
    assert {"valid_attention_accuracy", "valid_f1_all", "valid_f1_loc"} <= set(logged)


def test_it_is_taught_and_rewarded_by_the_same_criterions(
    toy_folder: Path, runs: Path, captioner: Path, arch: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    teacher = runs / "pos_scan" / "checkpoint_last.pt"
    if not teacher.exists():
        commands.train(toy_folder, runs / "pos_scan", "pos_scan", "--batch-size", "16", "--max-epoch", "4")
    flags = ("--region-geometry", "box5", "--finetune-from-model", str(captioner), "--log-format", "json")
    flags += ("--no-epoch-checkpoints",)
    distill = ("--criterion", "kl_attention_distill", "--teacher-path", str(teacher), "--attention-weight", "1")
    taught = runs / f"{arch}.taught"
    commands.train(
        *(toy_folder, taught, arch, *distill, *flags, "--items", "group", "--batch-size", "4", "--max-epoch", "12")
    )
    losses = [
        float(json.loads(text[text.index("{") :])["valid_attention_loss"])
        for text in (record.getMessage() for record in caplog.records if record.name == "valid")
        if "valid_attention_loss" in text
    ]
    assert len(losses) == 12
    assert losses[-1] < 0.85 * losses[0]
    caplog.clear()
    state = commands.train(
        *(toy_folder, runs / f"{arch}.rewarded", arch, "--criterion", "scst_cider_scan", "--items", "group"),
        *("--batch-size", "8", "--max-epoch", "1", "--dropout", "0", "--disable-validation", *flags),
        *("--reward-path", str(teacher), "--teacher-path", str(teacher)),
    )
    (*_, last) = [record.getMessage() for record in caplog.records if record.name == "train"]
    logged = json.loads(last[last.index("{") :])
    assert float(logged["train_reward_matching"]) != 0
    assert float(logged["train_attention_loss"]) > 0
    before = torch.load(captioner, weights_only=True)["model"]
    assert all(
        name == "dictionary" or not torch.equal(before[name], weights) for name, weights in state["model"].items()
    )
