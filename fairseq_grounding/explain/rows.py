"""A model run on rows of one's own making, with handles on what goes in: for methods of gradients and ablation.

A captioner may be any that embeds its words by a module ``decoder.embedding`` (or ``embed_tokens``). Methods that look
at embedded regions want a module ``encoder.region_embedding`` too, and the share of the global vector an entry
``global`` in what the encoder returns. For matching models see :mod:`.matching`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import GroundingError
from .architectures import model_name
from .asked import Asked

# numbers of region features, or of logits, in a chunk of rows: 64 MB of float32, of which a pass holds a few
CHUNK = 1 << 24


class Rows:
    """Rows of a model's own forward pass, each for one explained word or for all words of a caption.

    Attributes:
        model: the model
        features: (N,R,D) of the model's type
        words: (N,S,E) embeddings, 0 where there is no word
        real: (N,S) where there is one
        mask: (N,R) real regions
        net_input: what else the model reads
        encoded: what the encoder returned in the last pass, where that is a dictionary
        embedded: (N,R,H) embedded regions in the last pass, None for models that do not show them
    """

    def __init__(self, model: Any, net_input: Mapping[str, Tensor], captions: Tensor, tokens: Tensor, real: Tensor):
        images = net_input["image_index"][captions]
        self.model = model
        self.tokens, self.real = tokens, real
        self.features = net_input["features"][images]
        self.words = embedding_of(model)(tokens).detach() * real[:, :, None]
        self.net_input = {
            "src_tokens": net_input["src_tokens"][captions],
            "src_lengths": net_input["src_lengths"][captions],
            "boxes": net_input["boxes"][images],
            # one row's image is nothing to another: each has its own
            "image_index": torch.arange(len(captions), device=captions.device),
        }
        self.encoded: dict[str, Any] = {}
        self.embedded: Tensor | None = None

    @property
    def mask(self) -> Tensor:
        return self.net_input["src_tokens"].ne(padding_of(self.model))

    def numbers(self, features: Tensor | None = None, words: Tensor | None = None) -> Tensor:
        """What is explained of each row, with other features and embeddings: (N,), or (N,K) for all words."""
        raise NotImplementedError


class Subject:
    """What is to be explained: K words of each of B captions.

    Attributes:
        model, net_input: the model and its batch
        value: (B,K) the explained numbers, 0 where there is no word
        real: (B,K)
        steps: S, how many words take part at most
    """

    model: Any
    net_input: Mapping[str, Tensor]
    value: Tensor
    real: Tensor
    steps: int

    def rows(self, captions: Tensor, words: Tensor | None = None) -> Rows:
        """Rows for one word (N,) of K each of *captions* (N,), or for all words."""
        raise NotImplementedError

    def widest(self) -> int:
        """The most numbers that a row has of anything."""
        features = self.net_input["features"]
        return features.shape[1] * features.shape[2]

    def chunks(self, *along: Tensor) -> Iterator[tuple[Tensor, ...]]:
        """Parts of tensors of one length, so that their rows fit into memory."""
        size = max(1, CHUNK // self.widest())
        for begin in range(0, len(along[0]), size):
            yield tuple(tensor[begin : begin + size] for tensor in along)

    def words_in_turn(self) -> Iterator[tuple[Rows, tuple[Tensor, Tensor]]]:
        """A row for each word that is there, a bounded number at a time, with where it belongs in (B,K)."""
        captions, words = self.real.nonzero(as_tuple=True)
        # those at one place together: rows as short as can be
        order = words.argsort(stable=True)
        for at in self.chunks(captions[order], words[order]):
            yield self.rows(*at), (at[0], at[1])


class CaptionerRows(Rows):
    """Captions, each cut after the last word that is explained."""

    def __init__(self, subject: CaptionerSubject, captions: Tensor, words: Tensor | None):
        places = torch.tensor(subject.asked.places, device=captions.device)
        self.asked = subject.asked
        self.at: Any = captions if words is None else (captions, words)
        ends = (subject.real * places).max(1).values[captions] if words is None else places[words]
        self.read_at = places.clamp(max=int(ends.max())) if words is None else ends
        steps = torch.arange(int(ends.max()) + 1, device=ends.device)
        tokens = subject.net_input["prev_output_tokens"][captions, : len(steps)]
        tokens = tokens.masked_fill(steps > ends[:, None], padding_of(subject.model))
        super().__init__(subject.model, subject.net_input, captions, tokens, tokens.ne(padding_of(subject.model)))

    def numbers(self, features: Tensor | None = None, words: Tensor | None = None) -> Tensor:
        features = self.features if features is None else features
        with self._watched(self.words if words is None else words) as tokens:
            logits, _ = self.model(**self.net_input, features=features, prev_output_tokens=tokens)
        if isinstance(self.at, Tensor):
            return self.asked.values(logits[:, self.read_at], self.at)
        return self.asked.values(logits[torch.arange(len(logits), device=logits.device), self.read_at], self.at)

    @contextmanager
    def _watched(self, words: Tensor) -> Iterator[Tensor]:
        """Tokens that stand for *words*; inside, the model's embedding reads those instead of its own."""
        # a decoder may ask for the words of several rows and steps in an order of its own: give each a number
        first = len(self.model.decoder.dictionary)
        numbers = first + torch.arange(self.tokens.numel(), device=self.tokens.device).view_as(self.tokens)
        numbers = torch.where(self.real, numbers, self.tokens)
        asked: list[Tensor] = []

        def number_to_token(module: nn.Module, arguments: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            asked[:] = [arguments[0]]
            places = (arguments[0] - first).clamp(min=0)
            return torch.where(arguments[0] >= first, self.tokens.flatten()[places], arguments[0]), *arguments[1:]

        def our_words(module: nn.Module, arguments: tuple[Tensor, ...], output: Tensor) -> Tensor:
            ours = words.flatten(0, 1)[(asked[0] - first).clamp(min=0)]
            return torch.where((asked[0] >= first)[..., None], ours, output)

        def keep_embedded(module: nn.Module, arguments: tuple[Tensor, ...], output: Tensor) -> None:
            self.embedded = output

        def keep_encoded(module: nn.Module, arguments: tuple[Tensor, ...], output: Any) -> None:
            self.encoded = output if isinstance(output, dict) else {}

        embedding, encoder = embedding_of(self.model), self.model.encoder
        hooks = [
            embedding.register_forward_pre_hook(number_to_token),
            embedding.register_forward_hook(our_words),
            encoder.register_forward_hook(keep_encoded),
        ]
        if isinstance(getattr(encoder, "region_embedding", None), nn.Module):
            hooks.append(encoder.region_embedding.register_forward_hook(keep_embedded))
        try:
            yield numbers
        finally:
            for hook in hooks:
                hook.remove()


class CaptionerSubject(Subject):
    """Words of captions that a captioner reads."""

    def __init__(self, model: Any, net_input: Mapping[str, Tensor], logits: Tensor, asked: Asked):
        self.model, self.net_input, self.asked = model, net_input, asked
        self.value = asked.values(logits).masked_fill(~asked.real, 0.0)
        self.real = asked.real
        self.steps = max(asked.places) + 1

    def rows(self, captions: Tensor, words: Tensor | None = None) -> CaptionerRows:
        return CaptionerRows(self, captions, words)

    def widest(self) -> int:
        return max(super().widest(), self.steps * len(self.model.decoder.dictionary))


def padding_of(model: Any) -> int:
    """The number that stands for no word and no region."""
    return model.decoder.dictionary.pad() if hasattr(model, "decoder") else model.words.pad()


def embedding_of(model: Any) -> nn.Module:
    """The module that embeds a model's words.

    Raises:
        GroundingError: it has none of a name that is known
    """
    holder = getattr(model, "decoder", model)
    for name in ("embedding", "embed_tokens"):
        found = getattr(holder, name, None)
        if isinstance(found, nn.Module):
            return found
    raise GroundingError(f"{model_name(model)}: has no module 'embedding' of words, so no word can be asked about")
