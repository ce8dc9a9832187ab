"""Up-Down's training step with cross-entropy, forward and backward, at the size of the published training."""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from fairseq.data import Dictionary
from torch import Tensor, nn
from torch.nn import functional as F

from fairseq_grounding.models.up_down import UpDownConfig, UpDownModel

from .measure import IMPLEMENTATIONS, measure


@dataclass
class Sizes:
    """Of the published training: 29 images with 5 captions each. Lengths count the end symbol."""

    images: int = 29
    captions: int = 5
    regions: int = 36
    features: int = 2048
    vocabulary: int = 7000
    units: int = 512
    shortest: int = 8
    longest: int = 17


def make_inputs(sizes: Sizes, seed: int = 0) -> tuple[Dictionary, dict[str, Any], Tensor]:
    """Dictionary, ``net_input`` as the data set hands it out, and target."""
    words = Dictionary()
    for number in range(sizes.vocabulary - words.nspecial):
        words.add_symbol(f"w{number}")
    generator = torch.Generator().manual_seed(seed)
    rows = sizes.images * sizes.captions
    lengths = torch.randint(sizes.shortest, sizes.longest + 1, (rows, 1), generator=generator)
    place = torch.arange(int(lengths.max()))[None]
    target = torch.randint(words.nspecial, sizes.vocabulary, (rows, place.shape[1]), generator=generator)
    target[place == lengths - 1] = words.eos()
    target[place >= lengths] = words.pad()
    previous = target.roll(1, 1).masked_fill(place >= lengths, words.pad())
    previous[:, 0] = words.eos()
    net_input = {
        "src_tokens": torch.full((rows, sizes.regions), words.unk()),
        "src_lengths": torch.full((rows,), sizes.regions),
        "features": torch.rand(sizes.images, sizes.regions, sizes.features, generator=generator),
        "boxes": torch.rand(sizes.images, sizes.regions, 4, generator=generator),
        "image_index": torch.arange(sizes.images).repeat_interleave(sizes.captions),
        "prev_output_tokens": previous,
    }
    return words, net_input, target


def make_model(sizes: Sizes, words: Dictionary) -> UpDownModel:
    """The package's captioner."""
    torch.manual_seed(0)
    task = SimpleNamespace(target_dictionary=words, model_feature_size=lambda cfg: sizes.features)
    config = UpDownConfig(embedding_size=sizes.units, hidden_size=sizes.units, attention_size=sizes.units)
    return UpDownModel.build_model(config, task)


class PlainUpDown(nn.Module):
    """The same captioner step by step: every caption with regions of its own, every step with its own words,
    attention and vocabulary."""

    def __init__(self, model: UpDownModel):
        super().__init__()
        encoder, decoder = model.encoder, model.decoder
        units = decoder.hidden_size
        self.regions, self.whole, self.keys = (
            encoder.region_embedding,
            encoder.global_embedding,
            encoder.key_projection,
        )
        self.embedding, self.attention, self.output = decoder.embedding, decoder.attention, decoder.output_projection
        self.dropout = decoder.dropout
        # LSTMCell inputs: [language state; global vector; word] and [attended regions; attention state]
        self.attention_cell, self.language_cell = nn.LSTMCell(3 * units, units), nn.LSTMCell(2 * units, units)
        with torch.no_grad():
            for cell in (self.attention_cell, self.language_cell):
                cell.bias_hh.zero_()
            language_state, own_state = decoder.attention_gates.weight.chunk(2, 1)
            self.attention_cell.weight_ih.copy_(
                torch.cat([language_state, decoder.global_gates.weight, decoder.word_gates.weight], 1)
            )
            self.attention_cell.weight_hh.copy_(own_state)
            self.attention_cell.bias_ih.copy_(decoder.global_gates.bias)
            from_inputs, from_state = decoder.language_gates.weight.split([2 * units, units], 1)
            self.language_cell.weight_ih.copy_(from_inputs)
            self.language_cell.weight_hh.copy_(from_state)
            self.language_cell.bias_ih.copy_(decoder.language_gates.bias)

    def forward(self, features: Tensor, image_index: Tensor, tokens: Tensor) -> Tensor:
        """Log-probabilities (B,T,V)."""
        features = features[image_index]
        values, whole = self.regions(features), self.whole(features.mean(1))
        keys = self.keys(values)
        state = [(whole.new_zeros(len(whole), self.attention_cell.hidden_size),) * 2 for _ in range(2)]
        steps = []
        for token in tokens.unbind(1):
            word = self.dropout(self.embedding(token).relu())
            state[0] = self.attention_cell(torch.cat([state[1][0], whole, word], 1), state[0])
            query = self.attention.query_projection(state[0][0]).unsqueeze(1).expand_as(keys)
            weights = self.attention.score(torch.tanh(keys + query)).squeeze(-1).softmax(-1)
            attended = torch.bmm(weights.unsqueeze(1), values).squeeze(1)
            state[1] = self.language_cell(torch.cat([attended, state[0][0]], 1), state[1])
            steps.append(self.output(self.dropout(state[1][0])).log_softmax(-1))
        return torch.stack(steps, 1)


def plain_loss(model: PlainUpDown, words: Dictionary, net_input: dict[str, Any], target: Tensor) -> Tensor:
    """Cross-entropy summed over real tokens."""
    lprobs = model(net_input["features"], net_input["image_index"], net_input["prev_output_tokens"])
    real = target.ne(words.pad())
    return -(lprobs.gather(2, target.unsqueeze(2)).squeeze(2) * real).sum()


def our_loss(model: UpDownModel, words: Dictionary, net_input: dict[str, Any], target: Tensor) -> Tensor:
    """Cross-entropy summed over real tokens, as fairseq's criterion computes it."""
    lprobs = model.get_normalized_probs(model(**net_input), log_probs=True)
    return F.nll_loss(lprobs.view(-1, len(words)), target.view(-1), ignore_index=words.pad(), reduction="sum")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("implementation", choices=IMPLEMENTATIONS)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    sizes = Sizes()
    words, net_input, target = make_inputs(sizes)
    ours = make_model(sizes, words)
    plain = PlainUpDown(ours)

    def work() -> None:
        if args.implementation == "ours":
            ours.zero_grad(set_to_none=True)
            our_loss(ours, words, net_input, target).backward()
        else:
            plain.zero_grad(set_to_none=True)
            plain_loss(plain, words, net_input, target).backward()

    print(json.dumps(measure(work, args.runs)))


if __name__ == "__main__":
    main()
