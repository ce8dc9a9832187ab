"""The time loop that recurrent captioners share, for training and for decoding step by step."""

from __future__ import annotations

from typing import Any

import torch
from fairseq.models import FairseqIncrementalDecoder
from torch import Tensor, nn

State = tuple[Tensor, ...]

# ended captions leave the batch once so large a share of it has ended; leaving costs a copy in the backward pass
SHRINK = 0.85


def lstm_cell(gates: Tensor, cell: Tensor) -> tuple[Tensor, Tensor]:
    """LSTM from summed gate inputs: gates (N,4H) in torch's order i f g o, cell (N,H) -> hidden, cell."""
    i, f, g, o = gates.chunk(4, 1)
    cell = f.sigmoid() * cell + i.sigmoid() * g.tanh()
    return o.sigmoid() * cell.tanh(), cell


class RecurrentDecoder(FairseqIncrementalDecoder):
    """Runs a cell over a caption.

    A subclass defines :meth:`prepare` (all that needs no state, for all steps at once), :meth:`initial_state`
    and :meth:`step`; the vocabulary projection runs once, over all tokens. In training, captions are sorted by
    length and drop out of the batch as they end, so that hardly a step is computed for padding.
    """

    STATE = "recurrent_state"

    def __init__(self, dictionary, output_size: int):
        super().__init__(dictionary)
        self.output_projection = nn.Linear(output_size, len(dictionary))

    def prepare(self, tokens: Tensor, encoder_out: dict[str, Tensor]) -> Tensor:
        """What each step reads besides its state: tokens (N,T) -> (N,T,X)."""
        raise NotImplementedError

    def initial_state(self, encoder_out: dict[str, Tensor]) -> State:
        """The state before the first step, each tensor (N,.)."""
        raise NotImplementedError

    def step(self, inputs: Tensor, state: State, encoder_out: dict[str, Tensor]) -> tuple[Tensor, Tensor, State]:
        """One step: inputs (N,X) -> output (N,O), attention (N,R), new state."""
        raise NotImplementedError

    def forward(
        self,
        prev_output_tokens: Tensor,
        encoder_out: dict[str, Tensor] | None = None,
        incremental_state: dict[str, dict[str, Tensor | None]] | None = None,
        **unused: Any,
    ) -> tuple[Tensor, dict[str, list[Tensor]]]:
        """Logits (B,T,V) and ``{"attn": [attention (B,T,R)]}``; with *incremental_state* of the last token only."""
        assert encoder_out is not None
        if incremental_state is not None:
            return self._next(prev_output_tokens[:, -1:], encoder_out, incremental_state)
        batch, length = prev_output_tokens.shape
        sizes, order = prev_output_tokens.ne(self.dictionary.pad()).sum(1).sort(descending=True, stable=True)
        encoder_out = {name: tensor.index_select(0, order) for name, tensor in encoder_out.items()}
        # one tensor a step: slicing the whole would cost a whole tensor of zeros a step in the backward pass
        inputs = self.prepare(prev_output_tokens.index_select(0, order), encoder_out).unbind(1)
        state = self.initial_state(encoder_out)
        alive = (sizes[None, :] > torch.arange(length, device=sizes.device)[:, None]).sum(1).tolist()
        outputs, attentions, places = [], [], []
        going = batch
        for time, count in enumerate(alive):
            if count == 0:
                break
            if count < SHRINK * going:
                encoder_out = {name: tensor[:count] for name, tensor in encoder_out.items()}
                state = tuple(tensor[:count] for tensor in state)
                going = count
            output, attention, state = self.step(inputs[time][:going], state, encoder_out)
            outputs.append(output[:count])
            attentions.append(attention[:count])
            places.append(order[:count] * length + time)
        place = torch.cat(places)
        logits = self.output_projection(_spread(torch.cat(outputs), place, batch, length))
        return logits, {"attn": [_spread(torch.cat(attentions), place, batch, length)]}

    def _next(
        self,
        tokens: Tensor,
        encoder_out: dict[str, Tensor],
        incremental_state: dict[str, dict[str, Tensor | None]],
    ) -> tuple[Tensor, dict[str, list[Tensor]]]:
        saved = self.get_incremental_state(incremental_state, self.STATE)
        if saved is None:
            state = self.initial_state(encoder_out)
        else:
            state = tuple(tensor for _, tensor in sorted(saved.items()) if tensor is not None)
        output, attention, state = self.step(self.prepare(tokens, encoder_out)[:, 0], state, encoder_out)
        named: dict[str, Tensor | None] = {f"{number:02d}": tensor for number, tensor in enumerate(state)}
        self.set_incremental_state(incremental_state, self.STATE, named)
        return self.output_projection(output)[:, None], {"attn": [attention[:, None]]}

    def reorder_incremental_state(
        self, incremental_state: dict[str, dict[str, Tensor | None]], new_order: Tensor
    ) -> None:
        """Follow beam search's choice of hypotheses."""
        saved = self.get_incremental_state(incremental_state, self.STATE)
        if saved is not None:
            moved = {name: None if t is None else t.index_select(0, new_order) for name, t in saved.items()}
            self.set_incremental_state(incremental_state, self.STATE, moved)

    def max_positions(self) -> int:
        """No limit of its own (fairseq wants a number here)."""
        return int(1e6)


def _spread(rows: Tensor, place: Tensor, batch: int, length: int) -> Tensor:
    """Put rows (N,X) at their places (N,) in (B*T); zeros elsewhere -> (B,T,X)."""
    full = rows.new_zeros(batch * length, rows.shape[1])
    return full.index_copy(0, place, rows).view(batch, length, -1)


def gate_layer(input_size: int, hidden_size: int, bias: bool = True) -> nn.Linear:
    """A part of an LSTM's gate inputs, (.., input_size) -> (.., 4H), drawn as torch draws an LSTM's weights.

    Gate inputs are a sum of linear parts. Each in a layer of its own, those that need no state leave the loop.
    """
    layer = nn.Linear(input_size, 4 * hidden_size, bias)
    for parameter in layer.parameters():
        nn.init.uniform_(parameter, -(hidden_size**-0.5), hidden_size**-0.5)
    return layer
