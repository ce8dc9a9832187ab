"""A captioner run on rows of one's own making, with handles on what goes in: for methods of gradients and ablation.

It works with any captioner of this plugin that has a module ``decoder.embedding`` (or ``embed_tokens``) which embeds
its words. Methods that look at embedded regions want a module ``encoder.region_embedding`` too, and the share of the
global vector an entry ``global`` in what the encoder returns.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import GroundingError
from .architectures import model_name


class Rows:
    """Rows (b, t): captions of a batch, each cut after the word at step t, which is the one explained.

    Attributes:
        captions: (N,) row's caption in the batch
        ends: (N,) row's last step
        features: (N,R,D) of the model's type
        words: (N,S,E) embeddings of the steps' words, 0 after the end
        net_input: what else the captioner reads
    """

    def __init__(self, model: Any, net_input: Mapping[str, Tensor], captions: Tensor, ends: Tensor):
        self.model = model
        self.captions = captions
        self.ends = ends
        steps = int(ends.max()) + 1
        pad = model.decoder.dictionary.pad()
        later = torch.arange(steps, device=ends.device)[None, :] > ends[:, None]
        images = net_input["image_index"][captions]
        # one row's length is nothing to another: each reads its own prefix
        self.tokens = net_input["prev_output_tokens"][captions, :steps].masked_fill(later, pad)
        self.real = self.tokens.ne(pad)
        self.features = net_input["features"][images]
        self.words = embedding_of(model)(self.tokens).detach() * self.real[:, :, None]
        self.net_input = {
            "src_tokens": net_input["src_tokens"][captions],
            "src_lengths": net_input["src_lengths"][captions],
            "boxes": net_input["boxes"][images],
            "image_index": torch.arange(len(captions), device=captions.device),
        }
        self.encoded: dict[str, Any] = {}
        self.embedded: Tensor | None = None

    def all_logits(self, features: Tensor | None = None, words: Tensor | None = None) -> Tensor:
        """(N,S,V) at every step; keeps ``encoded`` and ``embedded`` (N,R,H) regions of this pass."""
        features = self.features if features is None else features
        with self._watched(self.words if words is None else words) as tokens:
            logits, _ = self.model(**self.net_input, features=features, prev_output_tokens=tokens)
        return logits

    def logits(self, features: Tensor | None = None, words: Tensor | None = None) -> Tensor:
        """(N,V) at each row's last step; see :meth:`all_logits`."""
        logits = self.all_logits(features, words)
        return logits[torch.arange(len(self.ends), device=logits.device), self.ends]

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


def embedding_of(model: Any) -> nn.Module:
    """The module that embeds a captioner's words.

    Raises:
        GroundingError: it has none of a name that is known
    """
    for name in ("embedding", "embed_tokens"):
        found = getattr(model.decoder, name, None)
        if isinstance(found, nn.Module):
            return found
    raise GroundingError(f"{model_name(model)}: its decoder has no module 'embedding', so no word can be asked about")
