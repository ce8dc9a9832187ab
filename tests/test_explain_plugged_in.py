"""A captioner of somebody else's, with heads and a sentinel, plugged into the relevance of this package."""

from __future__ import annotations

from typing import ClassVar

import pytest
import torch
from fairseq.models import FairseqEncoder, FairseqEncoderDecoderModel
from torch import nn

from fairseq_grounding.explain import METHODS, explain
from fairseq_grounding.explain.architectures import Architecture, Replay, describes, first_word
from fairseq_grounding.explain.cells import lstm_cell
from fairseq_grounding.modules.recurrent_decoder import RecurrentDecoder, gate_layer
from fairseq_grounding.modules.recurrent_decoder import lstm_cell as plain_cell

from .slow_lrp import share
from .test_explain import sample_of
from .test_up_down import FEATURES, WORDS, near

SIZE, HEADS = 6, 2


class Encoder(FairseqEncoder):
    def __init__(self):
        super().__init__(WORDS)
        self.region_embedding = nn.Linear(FEATURES, SIZE)
        self.value_projection = nn.Linear(SIZE, SIZE)

    def forward(self, src_tokens, src_lengths, features, boxes, image_index):
        values = self.value_projection(self.region_embedding(features))[image_index]
        return {"values": values, "mask": src_tokens.ne(WORDS.pad())}


class Decoder(RecurrentDecoder):
    def __init__(self):
        super().__init__(WORDS, SIZE)
        self.embedding = nn.Embedding(len(WORDS), SIZE)
        self.word_gates = gate_layer(SIZE, SIZE)
        self.hidden_gates = gate_layer(SIZE, SIZE, bias=False)
        self.query = nn.Linear(SIZE, SIZE)
        self.sentinel_gate = nn.Linear(SIZE, SIZE)
        self.sentinel_weight = nn.Linear(SIZE, 1)

    def prepare(self, tokens, rows, encoder_out):
        return self.word_gates(self.embedding(tokens))

    def initial_state(self, encoder_out):
        zero = encoder_out["values"].new_zeros(len(encoder_out["values"]), SIZE)
        return zero, zero

    def weights(self, hidden, values, mask):
        query, keys = self.query(hidden).unflatten(-1, (HEADS, -1)), values.unflatten(-1, (HEADS, -1))
        fits = torch.einsum("bmf,brmf->bmr", query, keys)
        return fits.masked_fill(~mask[:, None], -1e9).softmax(-1)

    def step(self, inputs, state, encoder_out):
        hidden, cell = plain_cell(inputs + self.hidden_gates(state[0]), state[1])
        values = encoder_out["values"]
        weights = self.weights(hidden, values, encoder_out["mask"])
        context = torch.einsum("bmr,brmf->bmf", weights, values.unflatten(-1, (HEADS, -1))).flatten(1)
        sentinel = self.sentinel_gate(hidden).sigmoid() * cell.tanh()
        beta = self.sentinel_weight(hidden).sigmoid()
        return hidden + beta * sentinel + (1 - beta) * context, weights.mean(1), (hidden, cell)


class Captioner(FairseqEncoderDecoderModel):
    pass


@describes(Captioner)
class Description(Architecture):
    layers: ClassVar = {
        "encoder.region_embedding": nn.Linear,
        "encoder.value_projection": nn.Linear,
        "decoder.embedding": nn.Embedding,
        **{
            f"decoder.{name}": nn.Linear
            for name in (
                *("word_gates", "hidden_gates", "query", "sentinel_gate", "sentinel_weight", "output_projection"),
            )
        },
    }

    def replay(self, tape, net_input, places):
        encoder, decoder = self.model.encoder, self.model.decoder
        mask = net_input["src_tokens"].ne(WORDS.pad())
        regions = tape.input(net_input["features"][net_input["image_index"]])
        embedding, projection = encoder.region_embedding, encoder.value_projection
        embedded = tape.linear("embedding", [(regions, embedding.weight)], embedding.bias)
        values = tape.linear("values", [(embedded, projection.weight)], projection.bias)
        hidden = cell = None
        words, outputs, sentinels = [], [], []
        for step in range(places[-1] + 1):
            tokens = net_input["prev_output_tokens"][:, step]
            word = tape.input(decoder.embedding(tokens), first_word(places, step))
            parts = [(word, decoder.word_gates.weight)]
            if hidden is not None:
                parts.append((hidden, decoder.hidden_gates.weight))
            hidden, cell = lstm_cell(tape, "LSTM", parts, decoder.word_gates.bias, cell)
            weights = decoder.weights(hidden.value, values.value, mask)
            context = tape.attend("attention", weights, values, mask, HEADS)
            gate = decoder.sentinel_gate(hidden.value).sigmoid()
            sentinel = tape.passing(cell, gate * cell.value.tanh())
            beta = decoder.sentinel_weight(hidden.value).sigmoid()
            output = tape.weighted("output", [(hidden, 1.0), (sentinel, beta), (context, 1 - beta)])
            words.append(word)
            outputs.append(output)
            sentinels.append(sentinel)
        return Replay(
            outputs=[outputs[place] for place in places],
            regions=[regions],
            words=words,
            sentinel=sentinels,
            heads=[values],
            number_of_heads=HEADS,
        )


@pytest.fixture
def model():
    torch.manual_seed(0)
    return Captioner(Encoder(), Decoder()).double().eval()


def test_every_method_serves_it(model):
    sample = sample_of([[4, 5, 6], [7]], [3, 2])
    for method in set(METHODS) - {"guided", "guided_grad_cam"}:
        found = explain(model, sample, method, steps=2)
        assert found.regions.any()
        near(sum(found.ledger.values()), found.logit.detach())


def test_heads_add_up_to_regions(model):
    found = explain(model, sample_of([[4, 5, 6], [7]], [3, 2]), "lrp")
    assert found.heads.shape == (2, 4, HEADS, 3)
    near(found.heads.sum(2), found.regions)
    assert (found.heads[:, :2, 0] - found.heads[:, :2, 1]).abs().max() > 1e-4
    assert not found.heads[1, 2:].any()
    assert not found.heads[1, :, :, 2].any()


@pytest.mark.parametrize("policy", ["absorb", "redistribute"])
def test_one_step_is_as_by_hand(model, policy):
    sample = sample_of([[]], [2])
    found = explain(model, sample, "lrp", bias=policy)
    net_input, encoder, decoder = sample["net_input"], model.encoder, model.decoder
    features = net_input["features"][0]
    embedded = encoder.region_embedding(features)
    values = encoder.value_projection(embedded)
    token = decoder.embedding.weight[WORDS.eos()]
    hidden, cell = plain_cell(decoder.word_gates(token)[None], torch.zeros(1, SIZE, dtype=torch.float64))
    weights = decoder.weights(hidden, values[None], torch.ones(1, 2, dtype=torch.bool))[0]
    context = torch.cat([weights[m] @ values[:, m * 3 : m * 3 + 3] for m in range(HEADS)])
    beta = float(decoder.sentinel_weight(hidden).sigmoid())
    sentinel = (decoder.sentinel_gate(hidden).sigmoid() * cell.tanh())[0]
    parts = torch.cat([hidden[0], beta * sentinel, (1 - beta) * context])
    output = parts.view(3, SIZE).sum(0)
    layer = decoder.output_projection
    logits = layer(output)
    start = [float(z) if word == WORDS.eos() else 0.0 for word, z in enumerate(logits)]

    def through(x, weight, bias, held):
        got, _, _ = share(x.tolist(), weight.tolist(), bias.tolist(), held, 0.01, policy)
        return torch.tensor(got, dtype=torch.float64)

    none, eye = torch.zeros(SIZE, dtype=torch.float64), torch.eye(SIZE, dtype=torch.float64)
    of_output = through(output, layer.weight, layer.bias, start)
    of_parts = through(parts, torch.cat([eye, eye, eye], 1), none, of_output.tolist()).view(3, SIZE)
    near(found.sentinel_share[0, 0], of_parts[1].sum())
    matrix = torch.zeros(SIZE, 2, SIZE, dtype=torch.float64)
    for f in range(SIZE):
        matrix[f, :, f] = weights[f // 3]
    of_values = through(values.flatten(), matrix.flatten(1), none, of_parts[2].tolist()).view(2, SIZE)
    for head in range(HEADS):
        for region in range(2):
            held = [float(r) if f // 3 == head else 0.0 for f, r in enumerate(of_values[region])]
            projection, embedding = encoder.value_projection, encoder.region_embedding
            held = through(embedded[region], projection.weight, projection.bias, held)
            got = through(features[region], embedding.weight, embedding.bias, held.tolist()).sum()
            near(found.heads[0, 0, head, region], got)
