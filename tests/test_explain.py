"""Explanations of whole captioners: against slow loops, against gradients written plainly, and what all promise."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from fairseq_grounding.errors import GroundingError
from fairseq_grounding.explain import METHODS, explain
from fairseq_grounding.explain.gradients import METHODS as GRADIENTS
from fairseq_grounding.models.grounded_transformer import GroundedTransformerConfig, GroundedTransformerModel
from fairseq_grounding.models.multimodal_rnn import MultimodalRnnConfig, MultimodalRnnModel

from .slow_lrp import SlowUpDown
from .test_up_down import CHOICES, FEATURES, WORDS, batch_of, batches, near, pick, small_model

TASK = SimpleNamespace(target_dictionary=WORDS, model_feature_size=lambda cfg: FEATURES)
ALL = ("regions", "words", "global_share", "sentinel_share", "logit")


def sample_of(*batch, **choices):
    net_input, target = batch_of(*batch, **choices)
    return {"net_input": net_input, "target": target}


def transformer(seed=0):
    torch.manual_seed(seed)
    cfg = GroundedTransformerConfig(
        embedding_size=8, ffn_size=10, attention_heads=2, encoder_layers=1, decoder_layers=1
    )
    return GroundedTransformerModel.build_model(cfg, TASK).double().eval()


MODELS = {"up_down": small_model, "grounded_transformer": transformer}
SERVED = [(name, method) for name in MODELS for method in METHODS]


# ---- relevance ----


@settings(max_examples=12, deadline=None)
@given(
    batch=batches(),
    seed=st.integers(0, 1000),
    epsilon=st.sampled_from([0.01, 0.3]),
    policy=st.sampled_from(["absorb", "redistribute"]),
    target=st.sampled_from(["logit", "margin", "probability"]),
    **CHOICES,
)
def test_relevance_is_that_of_slow_loops(batch, seed, epsilon, policy, target, **choices):
    model = small_model(seed % 7, **choices)
    sample = sample_of(*batch, seed=seed)
    found = explain(model, sample, "lrp", epsilon=epsilon, bias=policy, target=target)
    for row in range(len(batch[0])):
        own = pick(sample["net_input"], row)
        tokens = own["prev_output_tokens"][0].tolist()
        slow = SlowUpDown(model, own["features"][0].numpy(), own["boxes"][0].numpy(), tokens)
        regions = len(slow.features)
        for place, word in enumerate([*tokens[1:], WORDS.eos()]):
            logits = slow.logits[place]
            start = {word: logits[word]}
            if target == "margin":
                rival = max((w for w in range(len(logits)) if w != word), key=lambda w: logits[w])
                start[rival] = -logits[rival]
            elif target == "probability":
                start = {word: np.exp(logits[word]) / np.exp(logits).sum()}
            expected = slow.relevance(place, start, epsilon, policy)
            ledger = {name: float(part[row, place]) for name, part in found.ledger.items()}
            near(found.regions[row, place, :regions], torch.from_numpy(expected["regions"]))
            near(found.words[row, place, : place + 1], torch.from_numpy(expected["words"]))
            assert float(found.global_share[row, place]) == pytest.approx(expected["global"], abs=1e-10)
            assert float(found.logit[row, place]) == pytest.approx(sum(start.values()), abs=1e-10)
            assert ledger["bias"] == pytest.approx(expected["bias"], abs=1e-10)
            assert ledger["epsilon"] == pytest.approx(expected["epsilon"], abs=1e-10)
            assert sum(ledger.values()) == pytest.approx(sum(start.values()), abs=1e-12)
            assert abs(ledger["rest"]) < 1e-10
            assert not found.regions[row, place, regions:].any()
            assert not found.words[row, place, place + 1 :].any()
            layers = [float(kept[0][row, place]) for kept in found.layers.values()]
            assert sum(layers) == pytest.approx(ledger["bias"], abs=1e-10)


def without_biases(model):
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.zero_()
    return model


@pytest.mark.parametrize("feature", ["raw-mean", "embedded-mean"])
def test_without_biases_all_of_a_logit_reaches_the_inputs(feature):
    model = without_biases(small_model(global_feature=feature))
    found = explain(model, sample_of([[4, 5, 6, 7], [8]], [3, 2]), "lrp", epsilon=1e-12)
    near(found.ledger["inputs"], found.logit.detach(), 1e-6)
    assert found.logit.abs().max() > 0.01


def test_with_biases_they_do_not():
    found = explain(small_model(), sample_of([[4, 5, 6, 7], [8]], [3, 2]), "lrp", epsilon=1e-12)
    assert (found.ledger["inputs"] - found.logit).abs().max() > 0.01


@pytest.mark.parametrize("epsilon", [0.0, 0.01, 1.0])
def test_redistribution_is_exact(epsilon):
    sample = sample_of([[4, 5, 6, 7], [8]], [3, 2])
    found = explain(small_model(), sample, "lrp", epsilon=epsilon, bias="redistribute")
    near(found.ledger["inputs"], found.logit.detach(), 1e-10)
    assert not found.ledger["bias"].any()
    assert not found.ledger["epsilon"].any()


def test_dead_neurons_and_no_epsilon_are_defined():
    model = without_biases(small_model())
    with torch.no_grad():
        model.encoder.region_embedding[0].weight[:3] = -1e3 * model.encoder.region_embedding[0].weight[:3].abs()
        model.decoder.output_projection.weight[5] = 0
        model.decoder.embedding.weight.clamp_(max=0)
    sample = sample_of([[4, 5, 6]], [3])
    sample["net_input"]["features"].abs_()
    for policy in ("absorb", "redistribute"):
        found = explain(model, sample, "lrp", epsilon=0, bias=policy)
        assert all(part.isfinite().all() for part in (found.regions, found.words, *found.ledger.values()))
        near(sum(found.ledger.values()), found.logit.detach(), 1e-12)
        # the word whose logit is 0 has nothing to hand out
        assert float(found.logit[0, 1]) == 0
        assert not found.regions[0, 1].any()


def test_alpha_beta_serves_layers_of_positive_inputs():
    model = without_biases(small_model())
    sample = sample_of([[4, 5, 6]], [3])
    sample["net_input"]["features"].abs_()
    plain, positive, mixed = (explain(model, sample, "lrp", epsilon=0, alpha=alpha) for alpha in (None, 1.0, 2.0))
    # of regions alone: what reaches them is what reached their embedding
    near(positive.words, plain.words)
    near(positive.regions.sum(2), plain.regions.sum(2), 1e-9)
    near(mixed.regions.sum(2), plain.regions.sum(2), 1e-9)
    assert (positive.global_share - plain.global_share).abs().max() < 1e-9


def test_another_word_can_be_asked_about():
    model = small_model()
    sample = sample_of([[4, 5, 6]], [3])
    other = dict(sample, target=torch.full_like(sample["target"], 9))
    for method in ("lrp", "gradient_input", "ablation"):
        expected = explain(model, other, method)
        near(explain(model, sample, method, token=9).regions, expected.regions.detach())
        near(explain(model, sample, method, token=other["target"]).logit, expected.logit.detach())


def test_words_alone_are_explained_as_among_all():
    model = small_model()
    sample = sample_of([[4, 5, 6], [7, 8]], [3, 2])
    for method in METHODS:
        whole, some = (explain(model, sample, method, positions=places) for places in (None, [2, 0]))
        for name in ALL:
            ours, theirs = getattr(some, name), getattr(whole, name)
            near(ours[:, [0, 2]], theirs[:, [0, 2]].detach())
            assert not ours[:, [1, 3]].any()


# ---- gradients ----


def plainly(model, sample, row, place, *, scale=1.0, value=lambda logits, word: logits[word]):
    """Gradients of one word's number for features (R,D) and embeddings (T,E), with the embedding's own table."""
    net_input = pick(sample["net_input"], row)
    features = (net_input["features"] * scale).requires_grad_()
    tokens = net_input["prev_output_tokens"][:, : place + 1]
    embedding = getattr(model.decoder, "embedding", None) or model.decoder.embed_tokens
    # a table with a row for each step, so that a word that comes twice has two gradients
    table = nn.Parameter(embedding.weight[tokens[0]] * scale)
    found = {}

    def words(module, arguments, output):
        found["embeddings"] = table[torch.arange(output.numel() // table.shape[1])].view_as(output)
        return found["embeddings"]

    def keep(module, arguments, output):
        found["embedded"] = output

    hooks = [
        embedding.register_forward_hook(words),
        model.encoder.region_embedding.register_forward_hook(keep),
    ]
    logits = model(**{**net_input, "features": features, "prev_output_tokens": tokens})[0][0, place]
    for hook in hooks:
        hook.remove()
    number = value(logits, int(sample["target"][row, place]))
    gradients = torch.autograd.grad(number, [features, table, found["embedded"]])
    return features.detach()[0], table.detach(), gradients[0][0], gradients[1], found["embedded"][0], gradients[2][0]


@pytest.mark.parametrize("name", MODELS)
def test_gradients_are_autograds(name):
    model = MODELS[name]()
    sample = sample_of([[4, 5, 4, 6], [7, 8]], [3, 5])
    found = {method: explain(model, sample, method) for method in ("gradient", "gradient_input", "grad_cam")}
    for row, place in ((0, 0), (0, 3), (1, 2)):
        features, words, by_feature, by_word, seen, by_seen = plainly(model, sample, row, place)
        count = len(features)

        def check(method, regions, of_words, row=row, place=place, count=count):
            near(found[method].regions[row, place, :count], regions.detach())
            near(found[method].words[row, place, : place + 1], of_words.detach())

        check("gradient", by_feature.sum(1), by_word.sum(1))
        check("gradient_input", (by_feature * features).sum(1), (by_word * words).sum(1))
        check("grad_cam", (seen @ by_seen.mean(0)).clamp(min=0), (by_word * words).sum(1))


def test_gradients_of_a_margin_and_of_a_probability_are_autograds():
    model = small_model()
    sample = sample_of([[4, 5, 6]], [3])
    values = {
        "margin": lambda logits, word: logits[word] - logits[torch.arange(len(logits)) != word].max(),
        "probability": lambda logits, word: logits.softmax(0)[word],
    }
    for target, value in values.items():
        found = explain(model, sample, "gradient", target=target)
        _, _, by_feature, by_word, _, _ = plainly(model, sample, 0, 2, value=value)
        near(found.regions[0, 2], by_feature.sum(1))
        near(found.words[0, 2, :3], by_word.sum(1))


class PlainGuided(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * (x > 0)

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return gradient * (x > 0) * (gradient > 0)


def test_guided_lets_positive_gradients_alone_through_each_relu(monkeypatch):
    model = small_model()
    sample = sample_of([[4, 5, 6], [7, 8]], [3, 2])
    guided, cam, both = (explain(model, sample, method) for method in ("guided", "grad_cam", "guided_grad_cam"))
    near(both.regions, guided.regions * cam.regions)
    near(both.words, guided.words)
    for layer in (model.encoder.region_embedding, model.encoder.global_embedding):
        layer[1].forward = PlainGuided.apply
    monkeypatch.setattr(torch.Tensor, "relu", lambda x: PlainGuided.apply(x))
    for row, place in ((0, 2), (1, 0)):
        _, _, by_feature, by_word, _, _ = plainly(model, sample, row, place)
        near(guided.regions[row, place, : len(by_feature)], by_feature.sum(1))
        near(guided.words[row, place, : place + 1], by_word.sum(1))


def test_integrated_gradients_are_the_integral_and_complete():
    model = without_biases(small_model())
    sample = sample_of([[4, 5, 6]], [3])
    found = explain(model, sample, "integrated_gradients", steps=24)
    points = 150
    regions, words = torch.zeros(3, dtype=torch.float64), torch.zeros(3, dtype=torch.float64)
    whole = plainly(model, sample, 0, 2)
    for number in range(points):
        part = plainly(model, sample, 0, 2, scale=(number + 0.5) / points)
        regions += (part[2] * whole[0]).sum(1) / points
        words += (part[3] * whole[1]).sum(1) / points
    # without biases no ReLU has a kink on the path
    near(found.regions[0, 2], regions, 1e-6)
    near(found.words[0, 2, :3], words, 1e-6)
    assert regions.abs().max() > 1e-3
    assert found.ledger["rest"].abs().max() < 1e-8
    assert found.logit.abs().max() > 0.01


def test_the_global_share_is_what_regions_owe_to_the_global_vector():
    model = small_model()
    sample = sample_of([[4, 5, 6]], [3])
    for method in ("lrp", "gradient", "gradient_input", "guided", "integrated_gradients"):
        assert explain(model, sample, method, steps=3).global_share.abs().max() > 1e-6
    with torch.no_grad():
        model.decoder.global_gates.weight.zero_()
    for method in ("lrp", "gradient", "gradient_input", "guided", "integrated_gradients"):
        assert not explain(model, sample, method, steps=3).global_share.any()
    # nothing else leads from regions to the word once they are not attended to
    model = without_biases(small_model())
    with torch.no_grad():
        model.decoder.language_gates.weight[:, :6] = 0
        model.decoder.attention.score.weight.zero_()
    for method in ("lrp", "gradient", "gradient_input", "integrated_gradients"):
        found = explain(model, sample, method, epsilon=1e-12, steps=5)
        near(found.regions.sum(2), found.global_share, 1e-10)


# ---- ablation, attention ----


def test_ablation_is_the_fall_without_a_region_or_a_word():
    model = small_model()
    sample = sample_of([[4, 5, 6], [7]], [3, 1])
    found = explain(model, sample, "ablation", target="probability")
    for row, places in ((0, 4), (1, 2)):
        net_input = pick(sample["net_input"], row)
        words = sample["target"][row, :places]
        whole = model(**net_input)[0][0, :places].softmax(1)[range(places), words]
        for region in range(net_input["features"].shape[1]):
            keep = [r for r in range(net_input["features"].shape[1]) if r != region]
            less = {**net_input, "features": torch.zeros_like(net_input["features"])}
            if keep:
                less = {
                    name: t[:, keep] if name in ("src_tokens", "features", "boxes") else t
                    for name, t in net_input.items()
                }
            without = model(**less)[0][0, :places].softmax(1)[range(places), words]
            near(found.regions[row, :places, region], (whole - without).detach())
    net_input = pick(sample["net_input"], 0)
    hook = model.decoder.embedding.register_forward_hook(
        lambda module, arguments, output: output.masked_fill(arguments[0].eq(5)[:, None], 0.0)
    )
    without = model(**net_input)[0][0].softmax(1)[range(4), sample["target"][0]]
    hook.remove()
    whole = model(**net_input)[0][0].softmax(1)[range(4), sample["target"][0]]
    near(found.words[0, :, 2], (whole - without).detach())


def test_attention_is_the_captioners():
    model = small_model()
    sample = sample_of([[4, 5, 6], [7]], [3, 2])
    found = explain(model, sample, "attention")
    near(found.regions, model(**sample["net_input"])[1]["attn"][0].detach())
    assert not found.words.any()


# ---- what all methods promise ----


@pytest.mark.parametrize(("name", "method"), SERVED)
def test_padding_is_zero_and_garbage_in_it_is_not_read(name, method):
    model = MODELS[name]()
    batch = [[4, 5, 6], [7], []], [3, 1, 5]
    clean, other = (explain(model, sample_of(*batch, garbage=g), method, steps=3) for g in (0.0, float("nan")))
    for field in ALL:
        near(getattr(other, field), getattr(clean, field).detach())
    for row, (caption, regions) in enumerate(zip(*batch)):
        end = len(caption) + 1
        for part in (clean.regions, clean.words, clean.logit, clean.global_share, *clean.ledger.values()):
            assert not part[row, end:].any()
        assert not clean.regions[row, :, regions:].any()
        assert not clean.words[row].triu(1).any()
        assert clean.regions[row, :end, :regions].any() or method == "grad_cam" or regions == 1


@pytest.mark.parametrize(("name", "method"), SERVED)
def test_regions_in_another_order_get_their_own_relevance(name, method):
    model = MODELS[name](1)
    sample = sample_of([[4, 5, 6], [7, 8]], [5, 5])
    order = torch.tensor([3, 0, 4, 1, 2])
    moved = {key: t[:, order] if key in ("features", "boxes") else t for key, t in sample["net_input"].items()}
    first = explain(model, sample, method, steps=3)
    second = explain(model, {**sample, "net_input": moved}, method, steps=3)
    # fairseq's attention has its softmax in single precision
    tolerance = 1e-10 if name == "up_down" else 1e-6
    near(second.regions, first.regions[..., order].detach(), tolerance)
    near(second.words, first.words.detach(), tolerance)


@pytest.mark.parametrize(("name", "method"), SERVED)
def test_a_batch_is_its_captions_one_by_one(name, method, monkeypatch):
    model = MODELS[name](2)
    # several captions of an image, in chunks of a few rows
    sample = sample_of([[4, 5, 6, 7], [8], [], [9, 10]], [2, 5, 3], [0, 1, 2, 1])
    if name != "up_down" or method != "lrp":
        monkeypatch.setattr("fairseq_grounding.explain.rows.CHUNK", 150)
    whole = explain(model, sample, method, steps=3)
    for row in range(4):
        own = pick(sample["net_input"], row)
        length, regions = own["prev_output_tokens"].shape[1], own["src_tokens"].shape[1]
        alone = explain(model, {"net_input": own, "target": sample["target"][row : row + 1, :length]}, method, steps=3)
        near(whole.regions[row, :length, :regions], alone.regions[0].detach())
        near(whole.words[row, :length, :length], alone.words[0].detach())
        near(whole.global_share[row, :length], alone.global_share[0].detach())
        for part, own_part in zip(whole.ledger.values(), alone.ledger.values()):
            near(part[row, :length], own_part[0].detach())


@settings(max_examples=10, deadline=None)
@given(batch=batches(), seed=st.integers(0, 1000), method=st.sampled_from(METHODS), **CHOICES)
def test_any_batch_keeps_the_promises(batch, seed, method, **choices):
    model = small_model(seed % 5, **choices)
    sample = sample_of(*batch, seed=seed)
    found = explain(model, sample, method, steps=2)
    real = sample["target"].ne(WORDS.pad())
    regions = sample["net_input"]["src_tokens"].ne(WORDS.pad())
    assert not found.regions[~real].any()
    assert not found.regions.masked_select(~regions[:, None, :]).any()
    assert not found.words.masked_select(~(real[:, :, None] & real[:, None, :])).any()
    logits = model(**sample["net_input"])[0].gather(2, sample["target"].clamp(max=12)[:, :, None])[:, :, 0]
    near(found.logit[real], logits[real].detach())
    near(sum(found.ledger.values()), found.logit.detach())


def test_the_model_is_left_as_it_was():
    model = small_model(dropout=0.5).train()
    sample = sample_of([[4, 5]], [3])
    first, second = (explain(model, sample, "lrp").regions for _ in range(2))
    assert torch.equal(first, second)
    for method in METHODS:
        explain(model, sample, method, steps=2)
    assert model.training
    assert model.encoder.region_embedding.training
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not model.decoder.embedding._forward_hooks
    assert not model.encoder._forward_hooks


def test_single_precision_is_close():
    sample = sample_of([[4, 5, 6], [7, 8]], [3, 5])
    for method in METHODS:
        double, single = (explain(model, sample, method) for model in (small_model(), small_model().float()))
        assert single.regions.dtype == torch.float32
        near(single.regions.double(), double.regions.detach(), 1e-4)


# ---- refusals ----


def test_other_captioners_are_explained_as_far_as_they_can_be():
    torch.manual_seed(0)
    rnn = MultimodalRnnModel.build_model(MultimodalRnnConfig(embedding_size=4, hidden_size=5), TASK).double().eval()
    rnn.architecture = "multimodal_rnn"
    sample = sample_of([[4, 5, 6]], [3])
    for method in ("gradient", "gradient_input", "guided", "integrated_gradients", "ablation"):
        assert explain(rnn, sample, method).words.any()
    for method, message in (
        ("lrp", "lrp: there are no rules for the layers of multimodal_rnn"),
        ("grad_cam", "grad_cam: the encoder of multimodal_rnn has no module 'region_embedding'"),
        ("attention", "attention: multimodal_rnn returns none"),
    ):
        with pytest.raises(GroundingError, match=message):
            explain(rnn, sample, method)
    cfg = MultimodalRnnConfig(embedding_size=4, hidden_size=5, linear_inputs=True, cell="lstm")
    linear = MultimodalRnnModel.build_model(cfg, TASK).double()
    with pytest.raises(GroundingError, match="no ReLU to guide"):
        explain(linear, sample, "guided")


def test_a_layer_without_a_rule_is_refused_by_name():
    model = small_model()
    model.encoder.region_embedding.add_module("3", nn.LayerNorm(6).double())
    with pytest.raises(GroundingError, match=r"no rule for its layer encoder.region_embedding.3 \(LayerNorm\)"):
        explain(model, sample_of([[4]], [2]))


def test_a_forward_pass_that_the_rules_do_not_describe_is_refused():
    model = small_model()
    step = model.decoder.step

    def other(inputs, state, encoder_out):
        output, attention, state = step(inputs, state, encoder_out)
        return output * 1.01, attention, state

    model.decoder.step = other
    with pytest.raises(GroundingError, match="describe another forward pass than this model's"):
        explain(model, sample_of([[4]], [2]))


def changed(**changes):
    sample = sample_of([[4, 5], [6]], [3, 2])
    sample["id"] = torch.tensor([70, 71])
    for name, change in changes.items():
        change(sample["net_input"][name])
    return sample


@pytest.mark.parametrize(
    ("sample", "choices", "message"),
    [
        (changed(), {"method": "magic"}, "method 'magic': it can be lrp, gradient"),
        (changed(), {"target": "loss"}, "target 'loss': it can be logit, margin, probability"),
        (changed(), {"steps": 0}, "steps 0: give at least 1"),
        (changed(), {"epsilon": -1}, "epsilon -1: give 0 or more"),
        (changed(), {"positions": [2]}, "position 2: is past the end of caption 71; it has those from 0 to 1"),
        (changed(), {"positions": [-1]}, "give numbers from 0 on"),
        (changed(), {"positions": []}, "give numbers from 0 on"),
        (changed(), {"token": 13}, "token 13: is no word; the dictionary holds the numbers 0 to 12"),
        (changed(src_tokens=lambda t: t[1].fill_(WORDS.pad())), {}, "caption 71: all regions of its image are masked"),
        (changed(features=lambda t: t[0, 1, 2].fill_(float("nan"))), {}, "caption 70: its image's features hold NaN"),
        (changed(features=lambda t: t[1, 0, 0].fill_(float("inf"))), {}, "caption 71: its image's features hold NaN"),
        ({"net_input": {}, "target": None}, {}, "holds no captions to explain"),
    ],
)
def test_what_cannot_be_explained_is_refused(sample, choices, message):
    with pytest.raises(GroundingError, match=message):
        explain(small_model(), sample, **choices)


def test_every_method_of_gradients_is_offered():
    assert set(GRADIENTS) < set(METHODS)
