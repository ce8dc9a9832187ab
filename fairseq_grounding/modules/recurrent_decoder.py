"""The time loop that recurrent captioners share, for training and for decoding step by step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from fairseq.models import FairseqIncrementalDecoder
from torch import Tensor, nn

from .scheduled_sampling import ScheduledSampling

State = tuple[Tensor, ...]
Parts = tuple[Tensor, ...]
# parts (P,.) and what is carried (P,.) of any steps -> the parts re-weighted
Weigher = Callable[[Parts, State], Parts]

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
    and :meth:`step`, or in place of the last its two halves, :meth:`read` and :meth:`say`; the vocabulary projection
    runs once, over all real tokens. In training, captions are sorted by length and drop out of the batch as they end,
    so that hardly a step is computed for padding.

    Args:
        dictionary: of the captions
        output_size: O, of what a step hands to the vocabulary projection
        sampling: how often a caption in training reads a word of its own (default: never)
    """

    STATE = "recurrent_state"

    def __init__(self, dictionary, output_size: int, sampling: ScheduledSampling | None = None):
        super().__init__(dictionary)
        self.sampling = sampling
        self._weigher: Weigher | None = None
        self.output_projection = nn.Linear(output_size, len(dictionary))

    def prepare(self, tokens: Tensor, rows: Tensor, encoder_out: dict[str, Tensor]) -> Tensor:
        """What steps read besides their state: tokens (P,) of any steps, rows (P,) of the encoder's -> (P,X)."""
        raise NotImplementedError

    def initial_state(self, encoder_out: dict[str, Tensor]) -> State:
        """The state before the first step, each tensor (N,.)."""
        raise NotImplementedError

    def step(self, inputs: Tensor, state: State, encoder_out: dict[str, Tensor]) -> tuple[Tensor, Tensor | None, State]:
        """One step: inputs (N,X) -> output (N,O), attention (N,R) or None for a model without, new state.

        A model that shows more than one attention returns (N,A), of which :meth:`shown` makes what users see.
        """
        parts, attention, carried = self.read(inputs, state, encoder_out)
        output, state = self.say(parts, carried)
        return output, attention, state

    def read(self, inputs: Tensor, state: State, encoder_out: dict[str, Tensor]) -> tuple[Parts, Tensor | None, State]:
        """The first half of a step: parts of the context that the word is said from, each (N,.), the attention, and
        what else :meth:`say` needs, each (N,.)."""
        raise NotImplementedError

    def say(self, parts: Parts, carried: State) -> tuple[Tensor, State]:
        """The second half: output (N,O) and the new state, from parts as they were read, or re-weighted."""
        raise NotImplementedError

    @contextmanager
    def weighing(self, weigher: Weigher) -> Iterator[None]:
        """For a while, words are said from parts that *weigher* re-weighted; the states that steps hand on are those
        of the parts as they were read. Logits are then of the re-weighted parts, and :meth:`forward` returns the
        others as ``plain`` [(B,T,V)] beside the attention. For decoders that define :meth:`read` and :meth:`say`."""
        self._weigher = weigher
        try:
            yield
        finally:
            self._weigher = None

    def shown(self, attention: Tensor) -> dict[str, list[Tensor | None]]:
        """What is returned beside logits, of the attention of all steps (B,T,A): ``attn`` [(B,T,R)] at least."""
        return {"attn": [attention]}

    def forward(
        self,
        prev_output_tokens: Tensor,
        encoder_out: dict[str, Tensor] | None = None,
        incremental_state: dict[str, dict[str, Tensor | None]] | None = None,
        **unused: Any,
    ) -> tuple[Tensor, dict[str, list[Tensor | None]]]:
        """Logits (B,T,V) and what :meth:`shown` gives, ``{"attn": [attention (B,T,R)]}``, both 0 at padding; with
        *incremental_state* of the last token only. A model without attention has ``{"attn": [None]}``."""
        assert encoder_out is not None
        if incremental_state is not None:
            return self._next(prev_output_tokens[:, -1:], encoder_out, incremental_state)
        batch, length = prev_output_tokens.shape
        sizes, order = prev_output_tokens.ne(self.dictionary.pad()).sum(1).sort(descending=True, stable=True)
        encoder_out = {name: tensor.index_select(0, order) for name, tensor in encoder_out.items()}
        alive = (sizes[None, :] > torch.arange(length, device=sizes.device)[:, None]).sum(1).tolist()
        running = _running(alive)
        steps, rows = _packed(running, batch, order.device)
        tokens = prev_output_tokens[order[rows], steps]
        # one tensor a step: slicing the whole would cost a whole tensor of zeros a step in the backward pass
        inputs = self.prepare(tokens, rows, encoder_out).split(running)
        state = self.initial_state(encoder_out)
        own_words = self.sampling.probability() if self.training and self.sampling is not None else 0.0
        outputs: list[Tensor] = []
        attentions: list[Tensor] = []
        halves: list[tuple[Parts, State]] = []
        for step_inputs, going, count in zip(inputs, running, alive):
            if going < len(state[0]):
                encoder_out = {name: tensor[:going] for name, tensor in encoder_out.items()}
                state = tuple(tensor[:going] for tensor in state)
            if own_words and outputs:
                step_inputs = self._with_own_words(step_inputs, outputs[-1][:count], encoder_out, own_words)
            if self._weigher is None:
                output, attention, state = self.step(step_inputs, state, encoder_out)
            else:
                parts, attention, carried = self.read(step_inputs, state, encoder_out)
                output, state = self.say(parts, carried)
                halves.append((tuple(part[:count] for part in parts), tuple(part[:count] for part in carried)))
            outputs.append(output[:count])
            if attention is not None:
                attentions.append(attention[:count])
        steps, rows = _packed(alive[: len(running)], batch, order.device)
        place = order[rows] * length + steps
        logits = _spread(self.output_projection(torch.cat(outputs)), place, batch, length)
        extra: dict[str, list[Tensor | None]] = {"attn": [None]}
        if attentions:
            extra = self.shown(_spread(torch.cat(attentions), place, batch, length))
        if not halves:
            return logits, extra
        parts, carried = (tuple(torch.cat(steps) for steps in zip(*half)) for half in zip(*halves))
        weighted = self.output_projection(self._weighted(parts, carried))
        return _spread(weighted, place, batch, length), {**extra, "plain": [logits]}

    def _weighted(self, parts: Parts, carried: State) -> Tensor:
        assert self._weigher is not None
        return self.say(self._weigher(parts, carried), carried)[0]

    def _with_own_words(
        self, inputs: Tensor, previous: Tensor, encoder_out: dict[str, Tensor], probability: float
    ) -> Tensor:
        """A step's inputs (N,X), with some captions' word drawn from what the model said before: previous (M,O)."""
        chosen = (torch.rand(len(previous), device=previous.device) < probability).nonzero()[:, 0]
        if len(chosen) == 0:
            return inputs
        with torch.no_grad():
            logits = self.output_projection(previous[chosen]).float()
            # fairseq's padding is no word; nothing else is kept from being said
            logits[:, self.dictionary.pad()] = -torch.inf
            tokens = logits.softmax(1).multinomial(1)[:, 0]
        return inputs.index_copy(0, chosen, self.prepare(tokens, chosen, encoder_out))

    def _next(
        self,
        tokens: Tensor,
        encoder_out: dict[str, Tensor],
        incremental_state: dict[str, dict[str, Tensor | None]],
    ) -> tuple[Tensor, dict[str, list[Tensor | None]]]:
        saved = self.get_incremental_state(incremental_state, self.STATE)
        if saved is None:
            state = self.initial_state(encoder_out)
        else:
            state = tuple(tensor for _, tensor in sorted(saved.items()) if tensor is not None)
        rows = torch.arange(len(tokens), device=tokens.device)
        inputs = self.prepare(tokens[:, 0], rows, encoder_out)
        if self._weigher is None:
            output, attention, state = self.step(inputs, state, encoder_out)
        else:
            parts, attention, carried = self.read(inputs, state, encoder_out)
            output, (_, state) = self._weighted(parts, carried), self.say(parts, carried)
        named: dict[str, Tensor | None] = {f"{number:02d}": tensor for number, tensor in enumerate(state)}
        self.set_incremental_state(incremental_state, self.STATE, named)
        logits = self.output_projection(output)[:, None]
        return (logits, {"attn": [None]}) if attention is None else (logits, self.shown(attention[:, None]))

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


def _running(alive: list[int]) -> list[int]:
    """How many captions each step runs over, at least those alive; steps after the last caption's end left out."""
    running: list[int] = []
    for count in alive:
        if count == 0:
            break
        running.append(count if not running or count < SHRINK * running[-1] else running[-1])
    return running


def _packed(counts: list[int], batch: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Steps (P,) and rows (P,) of batches that have the first ``counts[t]`` rows at step t, step after step."""
    taken = torch.arange(batch)[None, :] < torch.tensor(counts)[:, None]
    steps, rows = taken.nonzero(as_tuple=True)
    return steps.to(device), rows.to(device)


def _spread(rows: Tensor, place: Tensor, batch: int, length: int) -> Tensor:
    """Put rows (N,X) at their places (N,) in (B*T); zeros elsewhere -> (B,T,X)."""
    full = rows.new_zeros(batch * length, rows.shape[1])
    return full.index_copy(0, place, rows).view(batch, length, -1)


def gate_layer(input_size: int, hidden_size: int, bias: bool = True, gates: int = 4) -> nn.Linear:
    """A part of an LSTM's gate inputs, (.., input_size) -> (.., 4H), drawn as torch draws an LSTM's weights.

    Gate inputs are a sum of linear parts. Each in a layer of its own, those that need no state leave the loop. Further
    gates that read the same come after the LSTM's four.
    """
    layer = nn.Linear(input_size, gates * hidden_size, bias)
    for parameter in layer.parameters():
        nn.init.uniform_(parameter, -(hidden_size**-0.5), hidden_size**-0.5)
    return layer
