"""Relevance through the captioners with a sentinel and with heads: slow loops and an independent computation."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from fairseq_grounding.cli import main
from fairseq_grounding.dump import read_dump
from fairseq_grounding.errors import GroundingError
from fairseq_grounding.explain import METHODS, explain
from fairseq_grounding.models.adaptive_attention import AdaptiveAttentionConfig, AdaptiveAttentionModel
from fairseq_grounding.modules.additive_attention import AdaptiveAttention

from . import commands
from .test_adaptive_multihead import ARCHS, build, slow
from .test_explain import sample_of, without_biases
from .test_up_down import CHOICES, WORDS, batches, dictionary, near, pick

FIGURES = Path(__file__).parent / "figures"


@pytest.mark.parametrize("arch", ARCHS)
@settings(max_examples=8, deadline=None)
@given(
    batch=batches(),
    seed=st.integers(0, 1000),
    epsilon=st.sampled_from([0.01, 0.3]),
    policy=st.sampled_from(["absorb", "redistribute"]),
    **CHOICES,
)
def test_relevance_is_that_of_slow_loops(arch, batch, seed, epsilon, policy, **choices):
    model = build(arch, seed % 7, **choices)
    sample = sample_of(*batch, seed=seed)
    found = explain(model, sample, "lrp", epsilon=epsilon, bias=policy)
    for row in range(len(batch[0])):
        plain = slow(model, pick(sample["net_input"], row))
        regions = len(plain.features)
        for place, word in enumerate([*plain.tokens[1:], WORDS.eos()]):
            logit = plain.logits[place][word]
            expected = plain.relevance(place, {word: logit}, epsilon, policy)
            near(found.regions[row, place, :regions], torch.from_numpy(expected["regions"]))
            near(found.words[row, place, : place + 1], torch.from_numpy(expected["words"]))
            ours = {name: part[row, place].item() for name, part in found.ledger.items()}
            ours["global"], ours["sentinel"] = found.global_share[row, place], found.sentinel_share[row, place]
            for name in ("global", "sentinel", "bias", "epsilon"):
                assert float(ours[name]) == pytest.approx(float(expected[name]), abs=1e-10)
            assert found.logit[row, place].item() == pytest.approx(logit, abs=1e-10)
            assert abs(ours["rest"]) < 1e-10
            assert not found.regions[row, place, regions:].any()
            assert not found.words[row, place, place + 1 :].any()
            if "heads" in expected:
                near(found.heads[row, place, :, :regions], torch.from_numpy(expected["heads"]))
                assert not found.heads[row, place, :, regions:].any()


@pytest.mark.parametrize("arch", ARCHS)
def test_without_biases_all_of_a_logit_reaches_the_inputs(arch):
    sample = sample_of([[4, 5, 6, 7], [8]], [3, 2])
    found = explain(without_biases(build(arch)), sample, "lrp", epsilon=1e-12)
    near(found.ledger["inputs"], found.logit, 1e-6)
    assert found.logit.abs().max() > 0.01
    absorbed = explain(build(arch), sample, "lrp", epsilon=1e-12)
    assert (absorbed.ledger["inputs"] - absorbed.logit).abs().max() > 0.01
    shared = explain(build(arch), sample, "lrp", epsilon=0.1, bias="redistribute")
    near(shared.ledger["inputs"], shared.logit, 1e-10)


def test_heads_and_the_global_vector_make_up_all_relevance_of_regions():
    model = without_biases(build("multihead_attention"))
    found = explain(model, sample_of([[4, 5, 6], [7]], [3, 2]), "lrp", epsilon=1e-12)
    near(found.heads.sum((2, 3)) + found.global_share, found.regions.sum(2), 1e-8)
    with torch.no_grad():
        model.decoder.global_gates.weight.zero_()
    found = explain(model, sample_of([[4, 5, 6], [7]], [3, 2]), "lrp")
    near(found.heads.sum(2), found.regions, 1e-12)
    assert (found.heads[:, :, 0] - found.heads[:, :, 1]).abs().max() > 1e-4


def test_attention_is_told_head_by_head():
    model = build("multihead_attention")
    sample = sample_of([[4, 5, 6], [7]], [3, 2])
    found = explain(model, sample, "attention")
    (heads,) = model(**sample["net_input"])[1]["heads"]
    near(found.heads[0], heads[0].detach(), 1e-12)
    near(found.heads.mean(2), found.regions, 1e-12)
    assert not found.heads[1, 2:].any()


def test_the_sentinels_share_goes_with_its_weight():
    model = build("adaptive_attention")
    sample = sample_of([[4, 5, 6], [7]], [3, 2])
    (beta,) = model(**sample["net_input"])[1]["sentinel"]
    assert explain(model, sample, "lrp").sentinel_share.abs().max() > 1e-4
    near(explain(model, sample, "attention").sentinel_share, beta.detach(), 1e-12)
    with torch.no_grad():
        # words of a sentinel that is never looked at
        model.decoder.attention.score.weight.abs_().mul_(1000)
        model.decoder.attention.sentinel_projection.bias.fill_(-100)
        model.encoder.key_projection.bias.fill_(100)
    assert explain(model, sample, "lrp").sentinel_share.abs().max() < 1e-12


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("method", METHODS)
def test_every_method_serves_them(arch, method):
    model = build(arch)
    sample = sample_of([[4, 5, 6], [7]], [4, 2])
    found = explain(model, sample, method, steps=2)
    near(sum(found.ledger.values()), found.logit, 1e-10)
    assert found.regions.any()
    for row, (end, regions) in enumerate(((4, 4), (2, 2))):
        assert not found.regions[row, end:].any()
        assert not found.regions[row, :, regions:].any()
        own = pick(sample["net_input"], row)
        alone = explain(model, {"net_input": own, "target": sample["target"][row : row + 1, :end]}, method, steps=2)
        near(found.regions[row, :end, :regions], alone.regions[0], 1e-10)
        near(found.words[row, :end, :end], alone.words[0], 1e-10)


@pytest.mark.parametrize("arch", ARCHS)
def test_a_layer_without_a_rule_is_refused_by_name(arch):
    model = build(arch)
    model.decoder.output_norm = nn.LayerNorm(6).double()
    with pytest.raises(GroundingError, match=r"no rule for its layer decoder.output_norm \(LayerNorm\)"):
        explain(model, sample_of([[4]], [2]))


@pytest.mark.parametrize("arch", ARCHS)
def test_the_command_explains_them(toy_folder, tmp_path, arch):
    flags = ("--criterion", "cross_entropy", "--max-update", "2", "--batch-size", "20", "--no-epoch-checkpoints")
    commands.train(toy_folder, tmp_path, arch, *flags)
    out = tmp_path / "explained.jsonl"
    given = ("--path", str(tmp_path / "checkpoint_last.pt"), "--out", str(out), "--given", "--cpu")
    assert main(["explain", str(toy_folder), *given]) == 0
    rows = list(read_dump(out))
    assert len(rows) == 20
    shares = [step["relevance"]["sentinel"] for row in rows for step in row["steps"]]
    assert any(shares) == (arch == "adaptive_attention")
    assert all(abs(step["relevance"]["rest"]) < 1e-4 for row in rows for step in row["steps"])


# ---- the published captioner with a sentinel ----


class PublishedAttention(AdaptiveAttention):
    """As the published code has it: the query is added to rows, as many as units, in place of columns."""

    def logits(self, query, keys, mask):
        return self.score(torch.tanh(keys + query[:, :, None])).squeeze(-1)


def published(data):
    """Our captioner with the figures' weights; its global vector is one number narrower than ours, filled with 0."""
    words = dictionary(10)
    task = SimpleNamespace(target_dictionary=words, model_feature_size=lambda cfg: 4)
    cfg = AdaptiveAttentionConfig(embedding_size=5, hidden_size=6, attention_size=9)
    model = AdaptiveAttentionModel.build_model(cfg, task).double().eval()
    decoder = model.decoder
    decoder.attention = PublishedAttention(6, 9).double().eval()
    ours = torch.tensor([words.eos(), *range(4, 14)])
    p = {name[2:]: tensor for name, tensor in data.items() if name.startswith("p_")}
    # the sentinel's gate reads what the adaptive LSTM reads
    read = torch.cat([p["a_wi"], p["xg_w"]])
    language, whole, word = read.split([6, 5, 5], 1)
    with torch.no_grad():
        for parameter in (decoder.global_gates.weight, *model.encoder.global_embedding.parameters()):
            parameter.zero_()
        model.encoder.global_embedding[0].weight[:5] = p["g_w"]
        model.encoder.global_embedding[0].bias[:5] = p["g_b"]
        decoder.global_gates.weight[:, :5] = whole
        decoder.word_gates.weight.copy_(word)
        decoder.state_gates.weight.copy_(torch.cat([language, torch.cat([p["a_wh"], p["hg_w"]])], 1))
        decoder.global_gates.bias.copy_(torch.cat([p["a_bi"] + p["a_bh"], p["xg_b"] + p["hg_b"]]))
        decoder.language_gates.weight.copy_(torch.cat([p["l_wi"], p["l_wh"]], 1))
        decoder.language_gates.bias.copy_(p["l_bi"] + p["l_bh"])
        decoder.embedding.weight[ours] = p["emb"]
        decoder.output_projection.weight[ours] = p["fc_w"]
        decoder.output_projection.bias[ours] = p["fc_b"]
        for bias in (decoder.attention.query_projection.bias, decoder.attention.score.bias):
            bias.zero_()
        decoder.attention.query_projection.weight.copy_(p["at_g"])
        decoder.attention.score.weight.copy_(p["at_h"])
        for layer, weight, bias in (
            (model.encoder.region_embedding[0], "proj_w", "proj_b"),
            (model.encoder.key_projection, "at_v", "at_vb"),
            (decoder.attention.sentinel_projection, "at_s", "at_sb"),
        ):
            layer.weight.copy_(p[weight])
            layer.bias.copy_(p[bias])
    return model, ours


@pytest.mark.parametrize("epsilon", ["1e-2", "1e-9"])
@pytest.mark.parametrize("case", ["generic_bias", "generic_nobias"])
def test_it_is_the_published_captioner_as_computed_independently(case, epsilon):
    with np.load(FIGURES / f"lrp_gridtd_{case}.npz") as stored:
        data = {name: torch.from_numpy(np.asarray(stored[name])) for name in stored.files}
    model, ours = published(data)
    caption = ours[data["caption"]]
    steps = len(caption) - 1
    net_input = {
        "src_tokens": torch.full((1, 9), WORDS.unk()),
        "src_lengths": torch.tensor([9]),
        "features": data["feats"][None],
        "boxes": torch.zeros(1, 9, 4, dtype=torch.float64),
        "image_index": torch.tensor([0]),
        "prev_output_tokens": caption[None, :-1],
    }
    logits, extra = model(**net_input)
    near(logits[0][:, ours], data["y"], 1e-12)
    near(extra["attn"][0][0], data["alpha"], 1e-12)
    near(extra["sentinel"][0][0], data["beta"], 1e-12)
    found = explain(model, {"net_input": net_input, "target": caption[None, 1:]}, "lrp", epsilon=float(epsilon))
    for step in range(steps):
        near(found.regions[0, step], data[f"fixed_eps{epsilon}_r_feat_t{step}"].sum(1), 1e-10)
        near(found.words[0, step, : step + 1], data[f"fixed_eps{epsilon}_r_wordemb_t{step}"].sum(1), 1e-10)
        share = found.ledger["inputs"][0, step] / found.logit[0, step]
        near(share, data[f"fixed_eps{epsilon}_total_over_logit_t{step}"], 1e-8)
