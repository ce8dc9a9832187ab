"""Training by relevance: its weights against published ones and a slow reference, the criterion, and fairseq-train."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from fairseq import options, tasks
from fairseq.data import Dictionary
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from torch.nn import functional as F

from fairseq_grounding.criterions.lrp_inference import silent_words
from fairseq_grounding.errors import GroundingError
from fairseq_grounding.explain import explain
from fairseq_grounding.explain.inference import context_weights, logit_weights
from fairseq_grounding.validation import hallucination_metrics

from . import commands

FIGURES = np.load(Path(__file__).parent / "figures" / "lrp_inference_reweight.npz", allow_pickle=False)
INFERENCE = ("--criterion", "lrp_inference", "--items", "group")
CONTEXT = ("up_down", "adaptive_attention", "multihead_attention")


def built(folder: Path, *flags: str, arch: str = "up_down") -> SimpleNamespace:
    """Task, model in float64, without dropout, criterion, and a batch of the first three images."""
    arguments = [str(folder), *commands.COMMON, "--arch", arch, *commands.SMALL[arch], *INFERENCE, *flags]
    arguments += ["--optimizer", "adam", "--lr", "0.01", "--batch-size", "3"]
    cfg = convert_namespace_to_omegaconf(options.parse_args_and_arch(options.get_training_parser(), arguments))
    torch.manual_seed(1)
    task = tasks.setup_task(cfg.task)
    model, criterion = task.build_model(cfg.model).double(), task.build_criterion(cfg.criterion)
    task.load_dataset("train")
    batch = task.datasets["train"].collater([0, 1, 2])
    for name in ("features", "boxes"):
        batch["net_input"][name] = batch["net_input"][name].double()
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        if "FairseqDropout" in type(module).__name__:
            module.p = 0.0
    with torch.no_grad():
        # far from even, so that different words are likeliest
        model.decoder.output_projection.weight.mul_(30)
    return SimpleNamespace(task=task, model=model.train(), criterion=criterion.train(), batch=batch)


def weighed(run: SimpleNamespace) -> tuple[torch.Tensor, torch.Tensor]:
    captioner = run.model
    with captioner.decoder.weighing(lambda parts, carried: run.criterion._weigh(captioner, parts, carried)):
        logits, extra = captioner(**run.batch["net_input"])
    return logits, extra["plain"][0]


# ---- weights ----


def published(toy_folder: Path) -> SimpleNamespace:
    """A captioner whose output layer is that of the figures."""
    run = built(toy_folder, arch="adaptive_attention")
    layer = torch.nn.Linear(6, 11).double()
    layer.weight.data, layer.bias.data = (torch.from_numpy(FIGURES[name]).double() for name in ("fc_w", "fc_b"))
    run.model.decoder.output_projection = layer
    return run


def test_context_weights_are_the_published_ones(toy_folder: Path) -> None:
    model = published(toy_folder).model
    parts = [torch.from_numpy(FIGURES[name]).double() for name in ("h", "c_hat")]
    silent = torch.zeros(11, dtype=torch.bool)
    silent[torch.from_numpy(FIGURES["stop_ids"])] = True
    weights = context_weights(model, parts, (), silent)
    for found, name in zip(weights, ("omega_h", "omega_c")):
        np.testing.assert_allclose(found, FIGURES[name], atol=1e-6)
    logits = model.decoder.output_projection(sum(part * weight for part, weight in zip(parts, weights)))
    np.testing.assert_allclose(logits.detach(), FIGURES["weighted_logits"], atol=3e-6)


def test_losses_are_the_published_ones(toy_folder: Path) -> None:
    criterion = SimpleNamespace(padding_idx=3)
    sample = {"target": torch.from_numpy(FIGURES["seq_targets"]).view(2, 5)}
    run = built(toy_folder)
    for logits, name in (("seq_logits", "ce_standard"), ("seq_weighted_logits", "ce_lrp")):
        total = type(run.criterion)._cross_entropy(criterion, run.model, torch.from_numpy(FIGURES[logits]), sample)
        real = int((sample["target"] != 3).sum())
        assert float(total) / real == pytest.approx(float(FIGURES[name]), abs=1e-6)


def test_up_down_is_reweighted_as_the_slow_reference(toy_folder: Path) -> None:
    run = built(toy_folder)
    decoder, eps = run.model.decoder, 0.01
    torch.manual_seed(3)
    attended, hidden = (torch.randn(5, 24, dtype=torch.float64) for _ in range(2))
    carried = tuple(torch.randn(5, 24, dtype=torch.float64) for _ in range(4))
    silent = torch.zeros(len(run.task.dictionary), dtype=torch.bool)
    found = context_weights(run.model, (attended, hidden), carried, silent)
    layer, gates = decoder.output_projection, decoder.language_gates
    weight, bias, into = layer.weight.tolist(), layer.bias.tolist(), gates.weight.tolist()

    def stable(z: float) -> float:
        return z + (eps if z >= 0 else -eps)

    for row in range(5):
        read = torch.cat([attended[row], hidden[row], carried[1][row]])
        z = (gates.weight @ read + gates.bias).tolist()
        size, values_read = 24, read.tolist()
        expected = [0.0] * 48
        cell = []
        for unit in range(size):
            i, f, o = (1 / (1 + math.exp(-z[k * size + unit])) for k in (0, 1, 3))
            cell.append((i * math.tanh(z[2 * size + unit]), f * float(carried[2][row, unit]), o))
        output = [o * math.tanh(new + old) for new, old, o in cell]
        logits = [bias[v] + sum(weight[v][u] * output[u] for u in range(size)) for v in range(len(bias))]
        word = max(range(len(logits)), key=logits.__getitem__)
        for unit in range(size):
            held = weight[word][unit] * output[unit] / stable(logits[word]) * logits[word]
            new, old, _ = cell[unit]
            held *= new / stable(new + old)
            before = z[2 * size + unit]
            for place in range(48):
                share = into[2 * size + unit][place] * values_read[place]
                expected[place] += share / stable(before) * held
        for part, values in zip(found, (expected[:24], expected[24:])):
            most = max(map(abs, values))
            np.testing.assert_allclose(part[row].detach(), [1 + value / most for value in values], atol=1e-10)


@pytest.mark.parametrize("arch", CONTEXT)
def test_plain_logits_and_states_stay_as_they_are(toy_folder: Path, arch: str) -> None:
    run = built(toy_folder, arch=arch)
    weighted, plain = weighed(run)
    expected, _ = run.model(**run.batch["net_input"])
    assert torch.equal(plain, expected)
    assert not torch.allclose(weighted, plain)
    # decoded step by step, as captions are drawn
    tokens, encoder_out = run.batch["net_input"]["prev_output_tokens"], None
    encoder_out = run.model.encoder(**{k: v for k, v in run.batch["net_input"].items() if k != "prev_output_tokens"})
    state: dict = {}
    real = run.batch["target"].ne(run.task.dictionary.pad())
    decoder = run.model.decoder
    with decoder.weighing(lambda parts, carried: run.criterion._weigh(run.model, parts, carried)):
        for step in range(tokens.shape[1]):
            logits, _ = decoder(tokens[:, : step + 1], encoder_out=encoder_out, incremental_state=state)
            torch.testing.assert_close(logits[:, 0][real[:, step]], weighted[:, step][real[:, step]])


def test_stop_words_and_special_symbols_are_said_as_before(toy_folder: Path) -> None:
    run = built(toy_folder)
    run.criterion.silent[:] = True
    weighted, plain = weighed(run)
    torch.testing.assert_close(weighted, plain)


@pytest.mark.parametrize("statistic", ["mean", "positive-mean", "quantile"])
def test_logits_are_weighed_by_the_relevance_of_regions(toy_folder: Path, statistic: str) -> None:
    run = built(toy_folder)
    run.criterion.silent[:5] = True
    words, weights = logit_weights(run.model, run.batch, run.criterion.silent, statistic)
    logits, _ = run.model(**run.batch["net_input"])
    assert torch.equal(words, logits.argmax(2))
    regions = explain(run.model, run.batch, "lrp", token=words).regions
    pad = run.task.dictionary.pad()
    checked = 0
    for row in range(len(words)):
        count = int(run.batch["net_input"]["src_tokens"][row].ne(pad).sum())
        for place in range(words.shape[1]):
            if run.batch["target"][row, place] == pad or run.criterion.silent[words[row, place]]:
                assert float(weights[row, place]) == 1
                continue
            own = regions[row, place, :count].numpy()
            own = own / np.abs(own).max()
            up = own[own > 0]
            by = {"mean": own.mean(), "positive-mean": up.mean() if len(up) else 0.0, "quantile": np.quantile(own, 0.9)}
            assert float(weights[row, place]) == pytest.approx(1 + by[statistic], abs=1e-10)
            checked += 1
    assert checked


# ---- the criterion ----


def test_weight_zero_is_cross_entropy_exactly(toy_folder: Path) -> None:
    run = built(toy_folder, "--inference-weight", "0")
    loss, tokens, logged = run.criterion(run.model, run.batch)
    logits, _ = run.model(**run.batch["net_input"])
    lprobs = run.model.get_normalized_probs((logits, None), log_probs=True)
    pad = run.task.dictionary.pad()
    expected = F.nll_loss(
        lprobs.view(-1, lprobs.shape[-1]), run.batch["target"].view(-1), ignore_index=pad, reduction="sum"
    )
    assert float(loss.detach()) == float(expected.detach())
    assert tokens == run.batch["ntokens"]
    assert "inference_loss" not in logged


@pytest.mark.parametrize(("arch", "reweight"), [*((arch, "context") for arch in CONTEXT), ("up_down", "logits")])
def test_gradients_pass_around_the_weights(toy_folder: Path, arch: str, reweight: str) -> None:
    """Against finite differences of the loss with the weights held fast."""
    run = built(toy_folder, "--reweight", reweight, arch=arch)
    loss, _, logged = run.criterion(run.model, run.batch)
    assert float(logged["loss"]) == pytest.approx(float(logged["nll_loss"] + logged["inference_loss"]))
    loss.backward()
    held = []
    if reweight == "context":

        def keep(parts, carried):
            held[:] = context_weights(run.model, parts, carried, run.criterion.silent)
            return tuple(part * weight for part, weight in zip(parts, held))

        with run.model.decoder.weighing(keep), torch.no_grad():
            run.model(**run.batch["net_input"])
    else:
        words, weights = logit_weights(run.model, run.batch, run.criterion.silent)

    def value() -> float:
        with torch.no_grad():
            if reweight == "context":
                with run.model.decoder.weighing(lambda parts, _: tuple(p * w for p, w in zip(parts, held))):
                    weighted, extra = run.model(**run.batch["net_input"])
                plain = extra["plain"][0]
            else:
                plain, _ = run.model(**run.batch["net_input"])
                factor = torch.ones_like(plain).scatter(2, words[:, :, None], weights[:, :, None])
                weighted = plain * factor
            pad = run.task.dictionary.pad()
            real = run.batch["target"].ne(pad)
            target = run.batch["target"][real][:, None]
            return -sum(float(part[real].log_softmax(1).gather(1, target).sum()) for part in (plain, weighted))

    assert value() == pytest.approx(float(loss.detach()))
    for name in ("decoder.word_gates.weight", "encoder.region_embedding.0.weight", "decoder.output_projection.weight"):
        parameter = run.model.get_parameter(name)
        place = tuple(int(x) for x in np.unravel_index(int(parameter.grad.abs().argmax()), parameter.shape))
        with torch.no_grad():
            parameter[place] += 1e-6
            above = value()
            parameter[place] -= 2e-6
            below = value()
            parameter[place] += 1e-6
        assert (above - below) / 2e-6 == pytest.approx(float(parameter.grad[place]), rel=1e-4)


@pytest.mark.parametrize("reweight", ["context", "logits"])
def test_padding_and_order_of_regions_and_captions_do_not_matter(toy_folder: Path, reweight: str) -> None:
    run = built(toy_folder, "--reweight", reweight)
    plain = float(run.criterion(run.model, run.batch)[0].detach())
    net_input, pad = run.batch["net_input"], run.task.dictionary.pad()
    images, regions, width = net_input["features"].shape
    order = torch.randperm(regions)
    rows = torch.randperm(len(run.batch["target"]))
    other = {
        **net_input,
        "features": torch.cat([net_input["features"][:, order], torch.full((images, 2, width), 9.0).double()], 1),
        "boxes": torch.cat([net_input["boxes"][:, order], torch.zeros(images, 2, 4).double()], 1),
        "src_tokens": F.pad(net_input["src_tokens"][:, order], (0, 2), value=pad)[rows],
        **{name: net_input[name][rows] for name in ("src_lengths", "image_index")},
        "prev_output_tokens": F.pad(net_input["prev_output_tokens"], (0, 3), value=pad)[rows],
    }
    batch = {**run.batch, "net_input": other, "target": F.pad(run.batch["target"], (0, 3), value=pad)[rows]}
    batch["id"] = run.batch["id"][rows]
    assert float(run.criterion(run.model, batch)[0].detach()) == pytest.approx(plain, rel=1e-6)


def test_drawn_captions_are_rewarded_without_a_second_copy(toy_folder: Path) -> None:
    run = built(toy_folder, "--self-critical", "--scan-weight", "0", "--max-sample-length", "6")
    seen = []
    read = run.model.decoder._weighted
    run.model.decoder._weighted = lambda *both: seen.append(1) or read(*both)
    loss, _, logged = run.criterion(run.model, run.batch)
    loss.backward()
    assert seen
    assert {"reward", "baseline"} <= set(logged)
    assert run.model.decoder._weigher is None
    assert any(parameter.grad.abs().sum() > 0 for parameter in run.model.parameters() if parameter.grad is not None)


# ---- metrics of what is made up ----


def test_hallucination_metrics_by_hand() -> None:
    words = Dictionary()
    for name, count in (("dog", 9), ("cat", 5), ("runs", 7)):
        words.add_symbol(name, count)
    table = {"dog": (9, 9), "cat": (5, 5), "runs": (7, 0)}
    generated = {0: [4, 6, 4, 2], 1: [4, 5, 2], 2: [6, 7, 2]}
    references = {0: [[4, 6, 2]], 1: [[5, 2], [6, 2]], 2: [[4, 2]]}
    found = hallucination_metrics(generated, references, words, table)
    # dog dog | dog(wrong) cat: one of four; dog right in 1 of 2 captions, cat in 1 of 1
    assert found == {"hallucination_rate": 0.25, "object_precision": 0.75}
    assert hallucination_metrics({0: [6, 2]}, references, words, table) == dict.fromkeys(found, 0.0)


# ---- commands ----


def test_trains_resumes_and_validates(toy_folder: Path, tmp_path: Path) -> None:
    flags = (*INFERENCE, "--batch-size", "8", "--no-epoch-checkpoints", "--max-update")
    metrics = ("--eval-caption-metrics", "--eval-hallucination", "--best-checkpoint-metric", "object_precision")
    metrics += ("--maximize-best-checkpoint-metric",)
    straight = commands.train(toy_folder, tmp_path / "straight", "up_down", *flags, "4", *metrics)
    commands.train(toy_folder, tmp_path / "halves", "up_down", *flags, "2", *metrics)
    resumed = commands.train(toy_folder, tmp_path / "halves", "up_down", *flags, "4", *metrics)
    for name, tensor in straight["model"].items():
        assert torch.isfinite(tensor).all()
        assert torch.equal(tensor, resumed["model"][name]), name
    found = commands.validate(toy_folder, tmp_path / "straight" / "checkpoint_last.pt", *("--model-overrides", "{}"))
    assert {"valid_nll_loss", "valid_cider", "valid_hallucination_rate", "valid_object_precision"} <= set(found)
    assert 0 <= found["valid_object_precision"] <= 1


def test_self_critical_training(toy_folder: Path, tmp_path: Path) -> None:
    flags = (*INFERENCE, "--self-critical", "--scan-weight", "0", "--batch-size", "3", "--max-update", "1")
    state = commands.train(toy_folder, tmp_path, "adaptive_attention", *flags, "--max-sample-length", "6")
    assert all(torch.isfinite(tensor).all() for tensor in state["model"].values())


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--inference-weight", "-1"), "--inference-weight -1.0: give 0 or more"),
        (("--inference-weight", "nan"), "--inference-weight nan"),
        (("--relevance-epsilon", "-1"), "--relevance-epsilon -1.0"),
        (("--reward-path", "scan.pt"), "--reward-path: needs --self-critical"),
        (("--self-critical",), "--reward-path CHECKPOINT"),
        (("--self-critical", "--scan-weight", "0", "--inference-weight", "0.5"), "re-weighted words (1)"),
        (("--self-critical", "--scan-weight", "0", "--reweight", "logits"), "use --reweight context"),
        (("--stop-words", "nowhere.txt"), "nowhere.txt: cannot be read"),
    ],
)
def test_bad_flags(toy_folder: Path, flags: tuple[str, ...], message: str) -> None:
    with pytest.raises(GroundingError) as error:
        built(toy_folder, *flags)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("arch", "reweight", "message"),
    [
        ("multimodal_rnn", "logits", "no relevance rules for multimodal_rnn"),
        ("grounded_transformer", "context", "grounded_transformer has no context to re-weight"),
    ],
)
def test_other_architectures_are_refused_by_name(toy_folder: Path, arch: str, reweight: str, message: str) -> None:
    run = built(toy_folder, "--reweight", reweight, arch=arch)
    with pytest.raises(GroundingError, match=message):
        run.criterion(run.model, run.batch)


def test_stop_words_of_a_file(toy_folder: Path, tmp_path: Path) -> None:
    dictionary = built(toy_folder).task.dictionary
    word = dictionary.symbols[dictionary.nspecial]
    (tmp_path / "stop").write_text(f"\n{word.upper()}\n")
    silent = silent_words(dictionary, str(tmp_path / "stop"))
    assert silent.nonzero().flatten().tolist() == [*range(dictionary.nspecial), dictionary.nspecial]
    (tmp_path / "stop").write_text("\n")
    with pytest.raises(GroundingError, match="holds no words"):
        silent_words(dictionary, str(tmp_path / "stop"))
    assert silent_words(dictionary, None).sum() > dictionary.nspecial
