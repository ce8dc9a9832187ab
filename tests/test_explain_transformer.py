"""Relevance through the transformer captioner, against gradients of a forward pass rewired by hand."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from fairseq_grounding.errors import GroundingError
from fairseq_grounding.explain import explain
from fairseq_grounding.models.grounded_transformer import GroundedTransformerConfig, GroundedTransformerModel
from fairseq_grounding.modules.regions import with_geometry

from .test_explain import TASK, sample_of
from .test_up_down import WORDS, near, pick

SHAPES = [
    {},
    {"encoder_layers": 0, "region_geometry": "box5"},
    {"normalize_before": True, "share_embeddings": True, "decoder_layers": 2, "alignment_heads": 1},
]


def build(seed=0, **choices):
    torch.manual_seed(seed)
    sizes = {"embedding_size": 8, "ffn_size": 10, "attention_heads": 2, "encoder_layers": 1, "decoder_layers": 1}
    cfg = GroundedTransformerConfig(**{**sizes, **choices})
    model = GroundedTransformerModel.build_model(cfg, TASK).double().eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            # fairseq starts biases at 0, which would hide what becomes of them
            if name.endswith("bias"):
                parameter.normal_(std=0.3)
    return model


class Steadied(torch.autograd.Function):
    """A layer's outputs: with gradients times inputs for relevance, the epsilon rule is a factor of the gradient."""

    @staticmethod
    def forward(ctx, z, epsilon):
        ctx.save_for_backward(z)
        ctx.epsilon = epsilon
        return z.clone()

    @staticmethod
    def backward(ctx, gradient):
        (z,) = ctx.saved_tensors
        sign = torch.where(z < 0, -torch.ones_like(z), torch.ones_like(z))
        return gradient * z / (z + ctx.epsilon * sign), None


class Rewired:
    """One caption's forward pass of a model's own weights, with constant attention weights and deviations."""

    def __init__(self, model, net_input, epsilon):
        self.epsilon = epsilon
        encoder, decoder = model.encoder, model.decoder
        tokens = net_input["prev_output_tokens"]
        self.read = with_geometry(net_input["features"], net_input["boxes"], encoder.geometry)[0].requires_grad_()
        hidden = self.norm(self.linear(self.read, encoder.region_embedding), encoder.embedding_norm)
        for layer in encoder.layers:
            hidden = self.attend(hidden, hidden, layer, "self_attn")
            hidden = self.feed_forward(hidden, layer)
        if encoder.final_norm is not None:
            hidden = self.norm(hidden, encoder.final_norm)
        self.words = (decoder.embed_scale * decoder.embed_tokens(tokens[0])).detach().requires_grad_()
        spoken = self.steady(self.words + decoder.embed_positions(tokens)[0])
        for layer in decoder.layers:
            spoken = self.attend(spoken, spoken, layer, "self_attn")
            spoken = self.attend(spoken, hidden, layer, "encoder_attn")
            spoken = self.feed_forward(spoken, layer)
        if decoder.layer_norm is not None:
            spoken = self.norm(spoken, decoder.layer_norm)
        self.logits = self.linear(spoken, decoder.output_projection)

    def steady(self, z):
        return Steadied.apply(z, self.epsilon)

    def linear(self, x, layer):
        return self.steady(F.linear(x, layer.weight, layer.bias))

    def norm(self, x, layer):
        deviation = (x.var(-1, unbiased=False, keepdim=True) + layer.eps).sqrt().detach()
        return self.steady((x - x.mean(-1, keepdim=True)) / deviation * layer.weight + layer.bias)

    def attend(self, x, source, layer, kind):
        attention, norm = getattr(layer, kind), getattr(layer, f"{kind}_layer_norm")
        own = source is x
        before = self.norm(x, norm) if layer.normalize_before else x
        source = before if own else source
        query, key = attention.q_proj(before), attention.k_proj(source)
        values = self.linear(source, attention.v_proj)
        parts = []
        for q, k, v in zip(query.chunk(2, 1), key.chunk(2, 1), values.chunk(2, 1)):
            fits = q @ k.t() / q.shape[1] ** 0.5
            if own and kind == "self_attn" and hasattr(layer, "encoder_attn"):
                fits = fits.masked_fill(torch.ones_like(fits).triu(1).bool(), -torch.inf)
            # fairseq's attention to regions is in single precision
            kind_of_number = torch.float32 if kind == "encoder_attn" else torch.float64
            parts.append(self.steady(fits.softmax(1, dtype=kind_of_number).double().detach() @ v))
        total = self.steady(x + self.linear(torch.cat(parts, 1), attention.out_proj))
        return total if layer.normalize_before else self.norm(total, norm)

    def feed_forward(self, x, layer):
        norm = layer.final_layer_norm
        before = self.norm(x, norm) if layer.normalize_before else x
        total = self.steady(x + self.linear(self.linear(before, layer.fc1).relu(), layer.fc2))
        return total if layer.normalize_before else self.norm(total, norm)

    def relevance(self, place, word):
        gradients = torch.autograd.grad(self.logits[place, word], [self.read, self.words], retain_graph=True)
        return ((gradients[0] * self.read).sum(1), (gradients[1] * self.words).sum(1))


@pytest.mark.parametrize("choices", SHAPES)
@pytest.mark.parametrize("epsilon", [0.01, 0.5])
def test_relevance_is_that_of_a_rewired_forward_pass(choices, epsilon):
    model = build(**choices)
    sample = sample_of([[4, 5, 6], [7, 8], []], [3, 5, 1])
    found = explain(model, sample, "lrp", epsilon=epsilon)
    for row in range(3):
        own = pick(sample["net_input"], row)
        plain = Rewired(model, own, epsilon)
        near(plain.logits, model(**own)[0][0].detach(), 1e-5)
        for place, word in enumerate(sample["target"][row][sample["target"][row].ne(WORDS.pad())].tolist()):
            regions, words = plain.relevance(place, word)
            near(found.regions[row, place, : len(regions)], regions.detach(), 1e-6)
            near(found.words[row, place, : place + 1], words[: place + 1].detach(), 1e-6)
            assert not words[place + 1 :].any()
    near(sum(found.ledger.values()), found.logit.detach(), 1e-10)
    assert found.ledger["rest"].abs().max() < 1e-9
    assert found.regions.abs().max() > 1e-3


@pytest.mark.parametrize("choices", SHAPES)
def test_redistribution_is_exact_and_stays_in_the_past(choices):
    found = explain(build(**choices), sample_of([[4, 5, 6], [7]], [3, 2]), "lrp", bias="redistribute")
    near(found.ledger["inputs"], found.logit.detach(), 1e-10)
    assert not found.words.triu(1).any()
    assert not found.words[1, :, 2:].any()
    assert not found.regions[1, :, 2:].any()


def test_other_activations_are_refused():
    model = build()
    model.decoder.layers[0].activation_fn = F.gelu
    with pytest.raises(GroundingError, match="rules for ReLU alone"):
        explain(model, sample_of([[4]], [2]))
