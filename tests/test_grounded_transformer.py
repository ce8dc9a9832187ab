"""The transformer captioner: a transformer in double precision as its reference, and what a captioner promises."""

from __future__ import annotations

import json
import logging
import math
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fairseq_grounding.data.prepared import PreparedFolder
from fairseq_grounding.dump import read_dump
from fairseq_grounding.errors import GroundingError
from fairseq_grounding.models.grounded_transformer import GroundedTransformerConfig, GroundedTransformerModel

from . import commands
from .test_up_down import FEATURES, WORDS, batch_of, batches, generate, near, pick, steps_with_a_swap

# fairseq takes a softmax in single precision, whatever the model's
SINGLE = 2e-6


def build(seed: int = 0, **choices) -> GroundedTransformerModel:
    torch.manual_seed(seed)
    sizes = {"embedding_size": 8, "ffn_size": 10, "attention_heads": 4, "encoder_layers": 2, "decoder_layers": 3}
    task = SimpleNamespace(target_dictionary=WORDS, model_feature_size=lambda cfg: FEATURES)
    model = GroundedTransformerModel.build_model(GroundedTransformerConfig(**{**sizes, **choices}), task)
    with torch.no_grad():
        for parameter in model.parameters():
            # biases and norms start at 0 and 1, where a wrong one would not be seen
            parameter.add_(0.2 * torch.randn_like(parameter))
        model.decoder.embed_tokens.weight[WORDS.pad()] = 0
    return model.double().eval()


# ---- a transformer written down as the paper has it ----


def heads_of(module, query: Tensor, memory: Tensor, mask: Tensor, heads: int) -> tuple[Tensor, list[Tensor]]:
    """query (T,H), memory (R,H), mask (T,R) True = looks -> (T,H), a head's softmax (T,R) each."""
    q, k, v = (layer(x) for layer, x in ((module.q_proj, query), (module.k_proj, memory), (module.v_proj, memory)))
    size = q.shape[1] // heads
    outputs, weights = [], []
    for head in range(heads):
        part = slice(head * size, (head + 1) * size)
        logits = q[:, part] @ k[:, part].t() / math.sqrt(size)
        weights.append(logits.masked_fill(~mask, -math.inf).softmax(1))
        outputs.append(weights[-1] @ v[:, part])
    return module.out_proj(torch.cat(outputs, 1)), weights


def part_of(norm, x: Tensor, function, before: bool) -> Tensor:
    return x + function(norm(x)) if before else norm(x + function(x))


def positions(length: int, width: int, first: int) -> Tensor:
    half = width // 2
    rates = torch.exp(torch.arange(half, dtype=torch.float64) * -(math.log(10000) / (half - 1)))
    angles = torch.arange(first, first + length, dtype=torch.float64)[:, None] * rates
    return torch.cat([angles.sin(), angles.cos()], 1)


def reference(model, net_input, heads: int, before: bool) -> tuple[Tensor, list[list[Tensor]]]:
    """Logits (T,V) of one caption without padding, and of each decoder layer each head's attention (T,R)."""
    features, boxes = net_input["features"][0], net_input["boxes"][0]
    if model.encoder.geometry == "box5":
        area = (boxes[:, 2:] - boxes[:, :2]).prod(1, keepdim=True)
        features = torch.cat([features, 2 * torch.cat([boxes, area], 1) - 1], 1)
    regions = model.encoder.embedding_norm(model.encoder.region_embedding(features))
    every = torch.ones(len(regions), len(regions), dtype=torch.bool)
    for layer in model.encoder.layers:
        regions = part_of(
            layer.self_attn_layer_norm,
            regions,
            lambda x, layer=layer: heads_of(layer.self_attn, x, x, every, heads)[0],
            before,
        )
        regions = part_of(
            layer.final_layer_norm, regions, lambda x, layer=layer: layer.fc2(layer.fc1(x).relu()), before
        )
    if before:
        regions = model.encoder.final_norm(regions)
    tokens = net_input["prev_output_tokens"][0]
    width = regions.shape[1]
    x = model.decoder.embed_tokens.weight[tokens] * math.sqrt(width)
    x = x + positions(len(tokens), width, WORDS.pad() + 1)
    past = torch.ones(len(tokens), len(tokens)).tril().bool()
    looks = torch.ones(len(tokens), len(regions), dtype=torch.bool)
    attention = []
    for layer in model.decoder.layers:
        found: list[Tensor] = []

        def to_regions(y, layer=layer, found=found):
            output, weights = heads_of(layer.encoder_attn, y, regions, looks, heads)
            found.extend(weights)
            return output

        x = part_of(
            layer.self_attn_layer_norm,
            x,
            lambda y, layer=layer: heads_of(layer.self_attn, y, y, past, heads)[0],
            before,
        )
        x = part_of(layer.encoder_attn_layer_norm, x, to_regions, before)
        x = part_of(layer.final_layer_norm, x, lambda y, layer=layer: layer.fc2(layer.fc1(y).relu()), before)
        attention.append(found)
    if before:
        x = model.decoder.layer_norm(x)
    return x @ model.decoder.output_projection.weight.t(), attention


@settings(max_examples=40, deadline=None)
@given(
    batch=batches(),
    seed=st.integers(0, 1000),
    before=st.booleans(),
    layers=st.tuples(st.integers(0, 2), st.integers(1, 3)),
    heads=st.sampled_from([1, 2, 4]),
    data=st.data(),
)
def test_it_is_a_transformer_and_its_attention_that_of_the_chosen_heads(batch, seed, before, layers, heads, data):
    layer = data.draw(st.integers(-layers[1], layers[1] - 1))
    chosen = data.draw(st.none() | st.integers(1, heads))
    geometry = data.draw(st.sampled_from(["none", "box5"]))
    garbage = data.draw(st.sampled_from([0.0, 1e6, -3.0]))
    model = build(
        attention_heads=heads,
        encoder_layers=layers[0],
        decoder_layers=layers[1],
        normalize_before=before,
        region_geometry=geometry,
        share_embeddings=data.draw(st.booleans()),
        alignment_layer=layer,
        alignment_heads=chosen,
    )
    net_input, _ = batch_of(*batch, seed=seed, garbage=garbage)
    net_input["features"].requires_grad_()
    logits, extra = model(**net_input)
    (attention,) = extra["attn"]
    for row in range(len(logits)):
        expected, found = reference(model, pick(net_input, row), heads, before)
        length, regions = len(expected), found[0][0].shape[1]
        near(logits[row, :length], expected.detach(), 1e-4)
        mean = torch.stack(found[layer][:chosen]).mean(0)
        near(attention[row, :length, :regions], mean.detach(), 1e-5)
        near(attention[row, :length].sum(1), torch.ones(length, dtype=torch.float64), SINGLE)
        assert not attention[row, :, regions:].any()
        assert not attention[row, length:].any()
    real = net_input["prev_output_tokens"].ne(WORDS.pad())
    (gradient,) = torch.autograd.grad(logits[real].square().sum(), net_input["features"])
    counts = torch.zeros(len(gradient), dtype=torch.long)
    counts[net_input["image_index"]] = net_input["src_lengths"]
    for image, count in enumerate(counts.tolist()):
        assert not gradient[image, count:].any()


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_training_hands_out_the_same_kind_of_attention(dropout):
    model = build(dropout=dropout, attention_dropout=dropout)
    net_input, _ = batch_of([[4, 5, 6], [7]], [3, 2])
    _, still = model(**net_input)
    model.train()
    logits, extra = model(**net_input)
    (attention,) = extra["attn"]
    assert attention.requires_grad
    real = net_input["prev_output_tokens"].ne(WORDS.pad())
    near(attention.sum(2), real.double(), SINGLE)
    assert not attention[1, :, 2:].any()
    again, _ = model(**net_input)
    if dropout:
        assert not torch.equal(logits[real], again[real])
    else:
        near(attention, still["attn"][0].detach(), SINGLE)


def test_the_attention_loss_reaches_queries_keys_and_regions():
    model = build(alignment_layer=1)
    net_input, _ = batch_of([[4, 5, 6], [7]], [3, 2])
    _, extra = model(**net_input)
    extra["attn"][0].square().sum().backward()
    first, chosen, last = model.decoder.layers
    assert chosen.encoder_attn.q_proj.weight.grad.any()
    assert chosen.encoder_attn.k_proj.weight.grad.any()
    assert first.encoder_attn.v_proj.weight.grad.any()
    assert model.encoder.region_embedding.weight.grad.any()
    assert last.encoder_attn.q_proj.weight.grad is None


def test_regions_in_another_order_get_the_same_attention():
    model = build(region_geometry="box5")
    net_input, _ = batch_of([[4, 5, 6]], [5])
    logits, extra = model(**net_input)
    order = torch.tensor([3, 0, 4, 1, 2])
    turned = {name: net_input[name][:, order] for name in ("features", "boxes")}
    moved_logits, moved = model(**{**net_input, **turned})
    near(moved_logits, logits.detach(), 1e-5)
    near(moved["attn"][0], extra["attn"][0][..., order].detach(), SINGLE)


@settings(max_examples=20, deadline=None)
@given(batch=batches(), seed=st.integers(0, 1000), before=st.booleans())
def test_step_by_step_is_teacher_forcing_also_after_hypotheses_swapped_places(batch, seed, before):
    model = build(normalize_before=before, alignment_layer=1, alignment_heads=2)
    net_input, _ = batch_of(*batch, seed=seed)
    logits, extra = model(**net_input)
    for rows, time, real, step_logits, step in steps_with_a_swap(model, net_input, seed):
        near(step_logits[real, 0], logits[rows[real], time].detach(), 1e-4)
        near(step["attn"][0][real, 0], extra["attn"][0][rows[real], time].detach(), 1e-5)


def test_beam_search_is_the_same_alone_and_together_and_leaves_the_model_as_it_was():
    model = build(seed=5)
    with torch.no_grad():
        model.decoder.output_projection.weight.mul_(3)
    net_input, _ = batch_of([[4]] * 6, [2, 5, 3, 1, 4, 2], seed=2)
    before = model(**net_input)[1]["attn"][0].detach()
    previous = net_input.pop("prev_output_tokens")
    choices = {"beam_size": 3, "max_len_a": 0, "max_len_b": 8}
    together = generate(model, WORDS, net_input, **choices)
    for row, found in enumerate(together):
        own = pick({**net_input, "prev_output_tokens": previous}, row)
        del own["prev_output_tokens"]
        (alone,) = generate(model, WORDS, own, **choices)
        for mine, theirs in zip(found, alone):
            assert torch.equal(mine["tokens"], theirs["tokens"])
            near(mine["positional_scores"], theirs["positional_scores"], 1e-4)
            near(mine["attention"][: own["src_tokens"].shape[1]], theirs["attention"], 1e-5)
            # read again, the hypothesis is what it was written as
            tokens = mine["tokens"][None]
            read = model(**own, prev_output_tokens=torch.cat([torch.tensor([[WORDS.eos()]]), tokens[:, :-1]], 1))
            lprobs = read[0].log_softmax(2).gather(2, tokens[..., None])[0, :, 0]
            near(lprobs.float(), mine["positional_scores"], 1e-4)
            near(read[1]["attn"][0][0].t().float(), mine["attention"][: own["src_tokens"].shape[1]].float(), 1e-5)
    # fairseq's generator makes attention take each three rows for beams of one image
    after = model(**net_input, prev_output_tokens=previous)[1]["attn"][0]
    near(after, before, 0)


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ({"alignment_layer": 3}, "--alignment-layer 3: the decoder has 3; give -3 to 2"),
        ({"alignment_layer": -4}, "--alignment-layer -4"),
        ({"alignment_heads": 5}, "--alignment-heads 5: give 1 to 4"),
        ({"alignment_heads": 0}, "--alignment-heads 0"),
        ({"attention_heads": 3}, "--attention-heads 3: must divide --embedding-size 8"),
        ({"decoder_layers": 0}, "--decoder-layers 0: give at least 1"),
        ({"encoder_layers": -1}, "--encoder-layers -1: give at least 0"),
    ],
)
def test_sizes_that_do_not_go_together_are_refused(choices, message):
    with pytest.raises(GroundingError, match=message):
        build(**choices)


# ---- fairseq's commands ----

CAPTIONER = ("--items", "group", "--batch-size", "4", "--no-epoch-checkpoints")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def captioner(toy_folder: Path, runs: Path) -> Path:
    flags = ("--criterion", "cross_entropy", "--max-epoch", "20", "--region-geometry", "box5", "--alignment-heads", "2")
    commands.train(toy_folder, runs / "xe", "grounded_transformer", *CAPTIONER, *flags)
    return runs / "xe" / "checkpoint_last.pt"


def test_resuming_equals_going_on(toy_folder: Path, tmp_path: Path) -> None:
    flags = (*CAPTIONER, "--criterion", "cross_entropy")
    whole = commands.train(toy_folder, tmp_path / "whole", "grounded_transformer", *flags, "--max-epoch", "2")
    commands.train(toy_folder, tmp_path / "parts", "grounded_transformer", *flags, "--max-epoch", "1")
    parts = commands.train(toy_folder, tmp_path / "parts", "grounded_transformer", *flags, "--max-epoch", "2")
    for name, weights in whole["model"].items():
        assert torch.equal(weights, parts["model"][name]), name


def test_a_checkpoint_is_read_with_its_settings_and_by_torchs_safe_loader(captioner: Path) -> None:
    state = torch.load(captioner, weights_only=True)
    assert state["cfg"]["model"]["alignment_heads"] == 2
    assert state["cfg"]["model"]["feature_size"] == 12
    assert state["model"]["encoder.region_embedding.weight"].shape == (24, 12 + 5)


@pytest.mark.parametrize("reading", [True, False])
def test_generation_aligns_and_dumps(toy_folder: Path, captioner: Path, tmp_path: Path, reading: bool) -> None:
    flags = ("--score-reference",) if reading else ("--items", "image", "--beam", "3", "--max-len-b", "20")
    dump = tmp_path / "dump.jsonl"
    hard = commands.generate(toy_folder, captioner, *flags, "--print-alignment", "hard", "--grounding-dump", str(dump))
    soft = commands.generate(toy_folder, captioner, *flags, "--print-alignment", "soft")
    pairs, columns = commands.lines_of(hard, "A"), commands.lines_of(soft, "A")
    rows = list(read_dump(dump))
    assert len(rows) == (20 if reading else 4)
    texts = PreparedFolder(toy_folder).split("test").texts
    for row in rows:
        assert row["model"] == "grounded_transformer"
        if reading:
            assert row["text"] == texts[row["id"]]
        found = dict(reversed(pair.split("-")) for pair in pairs[row["id"]].split())
        assert found == {str(word): str(step["region"]) for word, step in enumerate(row["steps"])}
        for step, column in zip(row["steps"], columns[row["id"]].split(" ")):
            weights = [float(weight) for weight in column.split(",")]
            assert step["attention"] == pytest.approx(weights, abs=1e-5)
            assert sum(step["attention"]) == pytest.approx(1, abs=1e-4)


def test_validation_logs_what_it_logs_of_any_captioner(toy_folder: Path, captioner: Path) -> None:
    overrides = "{'eval_caption_metrics': True, 'eval_grounding': True}"
    logged = commands.validate(toy_folder, captioner, "--model-overrides", overrides)
    assert logged["valid_cider"] > 0.3
    assert logged["valid_bleu4"] > 0
    assert {"valid_attention_accuracy", "valid_f1_all", "valid_f1_loc"} <= set(logged)


def test_it_is_taught_by_the_same_criterion(toy_folder: Path, runs: Path, captioner: Path) -> None:
    commands.train(toy_folder, runs / "pos_scan", "pos_scan", "--batch-size", "16", "--max-epoch", "4")
    teacher = ("--criterion", "kl_attention_distill", "--teacher-path", str(runs / "pos_scan" / "checkpoint_last.pt"))
    flags = (*CAPTIONER, *teacher, "--attention-weight", "1", "--region-geometry", "box5", "--alignment-heads", "2")
    losses = []
    for epochs, lr in ((1, "1e-12"), (15, "0.005")):
        save_dir = runs / f"distilled{epochs}"
        commands.train(
            toy_folder,
            save_dir,
            "grounded_transformer",
            *flags,
            *("--max-epoch", str(epochs), "--lr", lr, "--finetune-from-model", str(captioner)),
        )
        losses.append(commands.validate(toy_folder, save_dir / "checkpoint_last.pt")["valid_attention_loss"])
    assert losses[1] < 0.7 * losses[0]


def test_it_is_rewarded_by_the_same_criterion_while_it_is_taught(
    toy_folder: Path, runs: Path, captioner: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    teacher = runs / "reward" / "checkpoint_last.pt"
    commands.train(toy_folder, runs / "reward", "pos_scan", "--batch-size", "16", "--max-update", "2")
    state = commands.train(
        *(toy_folder, runs / "rewarded", "grounded_transformer", "--criterion", "scst_cider_scan", "--items", "group"),
        *("--batch-size", "8", "--region-geometry", "box5", "--alignment-heads", "2", "--max-epoch", "2"),
        *("--reward-path", str(teacher), "--teacher-path", str(teacher), "--finetune-from-model", str(captioner)),
        *("--log-format", "json", "--dropout", "0", "--no-epoch-checkpoints"),
    )
    (*_, last) = [record.getMessage() for record in caplog.records if record.name == "train"]
    logged = json.loads(last[last.index("{") :])
    assert float(logged["train_reward"]) == pytest.approx(
        float(logged["train_reward_cider"]) + float(logged["train_reward_matching"]), abs=1e-3
    )
    assert float(logged["train_attention_loss"]) > 0
    before = torch.load(captioner)["model"]
    moved = [name for name, weights in state["model"].items() if not torch.equal(weights, before[name])]
    assert any("decoder.layers" in name for name in moved)
    assert any("encoder" in name for name in moved)
