"""Multi-head attention's forward pass for relevance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from torch import Tensor, nn

from ...models.multihead_attention import MultiheadAttentionModel
from ..cells import lstm_cell
from ..tape import Node, Tape
from . import REGION_ENCODER, Architecture, Replay, describes, encoded_regions, first_word


@describes(MultiheadAttentionModel)
class MultiheadAttention(Architecture):
    """Relevance goes from the output to the LSTM and to the gated context, from there to each head's values; the
    LSTM's former states carry it back to earlier steps. Attention weights and the context's gate are constants, keys
    and queries get nothing (Sun et al., arXiv 2001.01037).
    """

    layers: ClassVar[Mapping[str, type[nn.Module]]] = {
        **REGION_ENCODER,
        "decoder.embedding": nn.Embedding,
        "decoder.word_gates": nn.Linear,
        "decoder.global_gates": nn.Linear,
        "decoder.state_gates": nn.Linear,
        "decoder.context_projection": nn.Linear,
        "decoder.context_gate": nn.Linear,
        "decoder.output_projection": nn.Linear,
        "decoder.embedding_dropout": nn.Dropout,
        "decoder.attention_dropout": nn.Dropout,
        "decoder.dropout": nn.Dropout,
    }

    def say(self, tape: Tape, parts: Sequence[Node], carried: Sequence[Tensor]) -> Node:
        return tape.weighted("output", [(part, 1.0) for part in parts])

    def replay(self, tape: Tape, net_input: Mapping[str, Tensor], places: Sequence[int]) -> Replay:
        encoder, decoder = self.model.encoder, self.model.decoder
        mask = net_input["src_tokens"].ne(encoder.dictionary.pad())
        embedded, global_vector, regions = encoded_regions(tape, encoder, net_input, mask)
        (of_keys, of_values), (key_bias, value_bias) = (
            parameter.chunk(2) for parameter in (encoder.key_projection.weight, encoder.key_projection.bias)
        )
        keys = (embedded.value @ of_keys.t() + key_bias).unflatten(2, (decoder.heads, -1)).transpose(1, 2)
        values = tape.linear("values", [(embedded, of_values)], value_bias)
        projection = decoder.context_projection
        tokens = net_input["prev_output_tokens"]

        hidden: Node | None = None
        cell: Node | None = None
        words, outputs = [], []
        for step in range(places[-1] + 1):
            word = tape.input(decoder.embedding(tokens[:, step]), first_word(places, step))
            parts = [(word, decoder.word_gates.weight), (global_vector, decoder.global_gates.weight)]
            if hidden is not None:
                parts.append((hidden, decoder.state_gates.weight))
            hidden, cell = lstm_cell(tape, "LSTM", parts, decoder.global_gates.bias, cell)
            attention = decoder.attend(hidden.value, keys, mask)
            context = tape.attend("attention", attention, values, mask, decoder.heads)
            projected = tape.linear("context", [(context, projection.weight)], projection.bias)
            gated = tape.passing(projected, decoder.context_gate(hidden.value).sigmoid() * projected.value)
            words.append(word)
            outputs.append(self.say(tape, [hidden, gated], []))
        return Replay(
            outputs=[outputs[place] for place in places],
            regions=regions,
            words=words,
            global_vector=[global_vector],
            heads=[values],
            number_of_heads=decoder.heads,
        )
