"""Adaptive attention's forward pass for relevance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from torch import Tensor, nn

from ...models.adaptive_attention import AdaptiveAttentionModel
from ..cells import lstm_cell
from ..tape import Node, Tape
from . import REGION_ENCODER, Architecture, Replay, describes, encoded_regions, first_word


@describes(AdaptiveAttentionModel)
class AdaptiveAttention(Architecture):
    """Relevance goes from the output to the language LSTM and to the mixture, from there to the sentinel, so to the
    adaptive LSTM's cell, and to attended regions. The attention, beta and the sentinel's gate are constants (Sun et
    al., arXiv 2001.01037), with all of the recurrent state, which the published code leaves out in part.
    """

    layers: ClassVar[Mapping[str, type[nn.Module]]] = {
        **REGION_ENCODER,
        "decoder.embedding": nn.Embedding,
        "decoder.word_gates": nn.Linear,
        "decoder.global_gates": nn.Linear,
        "decoder.state_gates": nn.Linear,
        "decoder.attention.query_projection": nn.Linear,
        "decoder.attention.score": nn.Linear,
        "decoder.attention.sentinel_projection": nn.Linear,
        "decoder.language_gates": nn.Linear,
        "decoder.output_projection": nn.Linear,
        "decoder.embedding_dropout": nn.Dropout,
        "decoder.dropout": nn.Dropout,
    }

    def say(self, tape: Tape, parts: Sequence[Node], carried: Sequence[Tensor]) -> Node:
        return tape.weighted("output", [(part, 1.0) for part in parts])

    def replay(self, tape: Tape, net_input: Mapping[str, Tensor], places: Sequence[int]) -> Replay:
        encoder, decoder = self.model.encoder, self.model.decoder
        mask = net_input["src_tokens"].ne(encoder.dictionary.pad())
        embedded, global_vector, regions = encoded_regions(tape, encoder, net_input, mask)
        keys = encoder.key_projection(embedded.value)
        tokens = net_input["prev_output_tokens"]
        lstm = 4 * decoder.hidden_size
        of_language, of_hidden = decoder.state_gates.weight.chunk(2, 1)
        of_mixed, of_new, of_old = decoder.language_gates.weight.chunk(3, 1)
        bias = decoder.global_gates.bias

        hidden: Node | None = None
        cell: Node | None = None
        language_hidden: Node | None = None
        language_cell: Node | None = None
        words, sentinels, outputs = [], [], []
        for step in range(places[-1] + 1):
            word = tape.input(decoder.embedding(tokens[:, step]), first_word(places, step))
            parts = [(word, decoder.word_gates.weight), (global_vector, decoder.global_gates.weight)]
            if language_hidden is not None and hidden is not None:
                parts += [(language_hidden, of_language), (hidden, of_hidden)]
            gate = sum((node.value @ weight[lstm:].t() for node, weight in parts), bias[lstm:]).sigmoid()
            hidden, cell = lstm_cell(
                tape, "adaptive LSTM", [(node, weight[:lstm]) for node, weight in parts], bias[:lstm], cell
            )
            sentinel = tape.passing(cell, gate * cell.value.tanh())
            attention, beta = decoder.attention.weights(hidden.value, sentinel.value, keys, mask)
            attended = tape.attend("attention", attention, embedded, mask)
            mixed = tape.weighted("sentinel and regions", [(sentinel, beta), (attended, 1 - beta)])
            parts = [(mixed, of_mixed), (hidden, of_new)]
            if language_hidden is not None:
                parts.append((language_hidden, of_old))
            language_hidden, language_cell = lstm_cell(
                tape, "language LSTM", parts, decoder.language_gates.bias, language_cell
            )
            words.append(word)
            sentinels.append(sentinel)
            outputs.append(self.say(tape, [language_hidden, mixed], []))
        return Replay(
            outputs=[outputs[place] for place in places],
            regions=regions,
            words=words,
            global_vector=[global_vector],
            sentinel=sentinels,
        )
