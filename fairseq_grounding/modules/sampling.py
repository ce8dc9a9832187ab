"""Captions that a captioner writes itself, drawn at random or greedily, through its incremental decoder."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from fairseq.models import FairseqIncrementalDecoder
from torch import Tensor, nn

from ..errors import GroundingError

# ended captions leave the batch once so large a share of it has ended; leaving costs a copy of what was encoded
SHRINK = 0.7


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode for a while; then every module is in the mode that it was in."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True


def rows_of(net_input: dict[str, Any], rows: Tensor) -> dict[str, Any]:
    """A batch's input with these rows (N,), without captions; a row may come several times, its image once."""
    given = {name: net_input[name] for name in ("features", "boxes")}
    return {**given, **{name: net_input[name][rows] for name in ("src_tokens", "src_lengths", "image_index")}}


def shifted(target: Tensor, eos: int, pad: int) -> Tensor:
    """What the decoder reads to say target (B,T), which is padded after its end: ``prev_output_tokens`` (B,T)."""
    before = target.roll(1, 1)
    before = before.masked_fill(before.eq(eos), pad)
    before[:, 0] = eos
    return before


def log_policy(logits: Tensor, pad: int, temperature: float) -> Tensor:
    """Log-probabilities (N,V), in single precision at least, with which words are drawn; padding is no word."""
    wide = logits if logits.dtype == torch.float64 else logits.float()
    never = torch.zeros(wide.shape[-1], dtype=torch.bool, device=wide.device)
    never[pad] = True
    return (wide / temperature).masked_fill(never, -torch.inf).log_softmax(-1)


def sample_captions(model: nn.Module, net_input: dict[str, Any], max_length: int, temperature: float = 1.0) -> Tensor:
    """Draw a caption for each row, in the mode that the model is in: with dropout in training.

    Args:
        model: an encoder and an incremental decoder
        net_input: as the data set hands it out; each of its rows is one caption, see :func:`rows_of`
        max_length: of a caption, the end symbol included; a caption that is cut here has no end symbol
        temperature: by which logits are divided

    Returns:
        (B,T) with the end symbol, padding after it

    Raises:
        GroundingError: the model has no incremental decoder, or not for so long captions
    """

    def draw(logits: Tensor, pad: int) -> Tensor:
        return log_policy(logits, pad, temperature).exp().multinomial(1)[:, 0]

    return _write(model, net_input, max_length, draw)


def greedy_captions(model: nn.Module, net_input: dict[str, Any], max_length: int) -> Tensor:
    """The likeliest word at each step, in evaluation mode; otherwise as :func:`sample_captions`."""

    def likeliest(logits: Tensor, pad: int) -> Tensor:
        return log_policy(logits, pad, 1.0).argmax(1)

    with evaluating(model):
        return _write(model, net_input, max_length, likeliest)


@torch.no_grad()
def _write(
    model: nn.Module, net_input: dict[str, Any], max_length: int, choose: Callable[[Tensor, int], Tensor]
) -> Tensor:
    encoder, decoder = getattr(model, "encoder", None), getattr(model, "decoder", None)
    if encoder is None or not isinstance(decoder, FairseqIncrementalDecoder):
        raise GroundingError(f"{type(model).__name__} writes no captions: it has no decoder that goes word by word")
    if max_length > decoder.max_positions():
        raise GroundingError(f"the captioner writes at most {decoder.max_positions()} tokens, {max_length} are asked")
    pad, eos = decoder.dictionary.pad(), decoder.dictionary.eos()
    encoder_out = encoder(**{name: tensor for name, tensor in net_input.items() if name != "prev_output_tokens"})
    rows = torch.arange(len(net_input["src_tokens"]), device=net_input["src_tokens"].device)
    written = torch.full((len(rows), max_length + 1), pad, device=rows.device)
    written[:, 0] = eos
    state: dict[str, dict[str, Tensor | None]] = {}
    going = torch.ones_like(rows, dtype=torch.bool)
    length = 0
    for length in range(1, max_length + 1):
        logits, _ = decoder(written[rows, :length], encoder_out=encoder_out, incremental_state=state)
        written[rows, length] = choose(logits[:, -1], pad).masked_fill(~going, pad)
        going &= written[rows, length].ne(eos)
        alive = int(going.sum())
        if alive == 0:
            break
        if alive < SHRINK * len(rows):
            (kept,) = going.nonzero(as_tuple=True)
            encoder_out = encoder.reorder_encoder_out(encoder_out, kept)
            decoder.reorder_incremental_state_scripting(state, kept)
            rows, going = rows[kept], going[kept]
    return written[:, 1 : length + 1]
