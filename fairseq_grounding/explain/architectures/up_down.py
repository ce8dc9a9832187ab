"""Up-Down's forward pass for relevance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from torch import Tensor, nn

from ...models.up_down import UpDownModel
from ..cells import lstm_cell
from ..tape import Node, Tape
from . import REGION_ENCODER, Architecture, Replay, describes, encoded_regions, first_word


@describes(UpDownModel)
class UpDown(Architecture):
    """Relevance goes from the language LSTM to attended regions and to the attention LSTM, and from there to the word
    and the global vector; both LSTMs' former states carry it back to earlier steps. Attention weights are constants.
    """

    layers: ClassVar[Mapping[str, type[nn.Module]]] = {
        **REGION_ENCODER,
        "decoder.embedding": nn.Embedding,
        "decoder.word_gates": nn.Linear,
        "decoder.global_gates": nn.Linear,
        "decoder.attention_gates": nn.Linear,
        "decoder.attention.query_projection": nn.Linear,
        "decoder.attention.score": nn.Linear,
        "decoder.language_gates": nn.Linear,
        "decoder.output_projection": nn.Linear,
        "decoder.dropout": nn.Dropout,
    }

    def say(self, tape: Tape, parts: Sequence[Node], carried: Sequence[Tensor]) -> Node:
        decoder = self.model.decoder
        attended, hidden = parts
        _, old, cell, _ = carried
        widths = [attended.value.shape[1], decoder.hidden_size, decoder.hidden_size]
        weights = decoder.language_gates.weight.split(widths, 1)
        read = list(zip([attended, hidden, tape.input(old)], weights))
        return lstm_cell(tape, "language LSTM", read, decoder.language_gates.bias, tape.input(cell))[0]

    def replay(self, tape: Tape, net_input: Mapping[str, Tensor], places: Sequence[int]) -> Replay:
        encoder, decoder = self.model.encoder, self.model.decoder
        mask = net_input["src_tokens"].ne(encoder.dictionary.pad())
        embedded, global_vector, regions = encoded_regions(tape, encoder, net_input, mask)
        keys = encoder.key_projection(embedded.value)
        tokens = net_input["prev_output_tokens"]
        hidden = decoder.hidden_size
        of_language, of_attention = decoder.attention_gates.weight.split(hidden, 1)
        of_attended, of_new, of_old = decoder.language_gates.weight.split([embedded.value.shape[2], hidden, hidden], 1)

        attention_hidden: Node | None = None
        attention_cell: Node | None = None
        language_hidden: Node | None = None
        language_cell: Node | None = None
        words, outputs = [], []
        for step in range(places[-1] + 1):
            word = tape.input(decoder.embedding(tokens[:, step]).relu(), first_word(places, step))
            parts = [(word, decoder.word_gates.weight), (global_vector, decoder.global_gates.weight)]
            if language_hidden is not None and attention_hidden is not None:
                parts += [(language_hidden, of_language), (attention_hidden, of_attention)]
            attention_hidden, attention_cell = lstm_cell(
                tape, "attention LSTM", parts, decoder.global_gates.bias, attention_cell
            )
            _, attention = decoder.attention(attention_hidden.value, keys, embedded.value, mask)
            attended = tape.attend("attention", attention, embedded, mask)
            parts = [(attended, of_attended), (attention_hidden, of_new)]
            if language_hidden is not None:
                parts.append((language_hidden, of_old))
            language_hidden, language_cell = lstm_cell(
                tape, "language LSTM", parts, decoder.language_gates.bias, language_cell
            )
            words.append(word)
            outputs.append(language_hidden)
        return Replay(
            outputs=[outputs[place] for place in places],
            regions=regions,
            words=words,
            global_vector=[global_vector],
        )
