"""What ``fairseq-generate`` runs on captions that exist, and what a dump row says of any caption."""

from __future__ import annotations

from typing import Any

import torch
from fairseq.data import Dictionary
from fairseq.sequence_scorer import SequenceScorer
from torch import Tensor

from .data.pieces import PieceReader
from .errors import GroundingError
from .modules.matching import MatchingModel
from .modules.pieces import word_attention


def _alignment(attention: Tensor, form: str | None) -> Any:
    """What the ``A-`` line prints: attention (R,T) over real regions, end symbol's column last.

    ``hard``: pairs (region, word) without the end symbol and without words that attend to nothing; ``soft``: a
    row of numbers a token.
    """
    if not form:
        return None
    if form == "soft":
        return [[f"{weight:.6f}" for weight in column] for column in attention.t().tolist()]
    columns = attention[:, :-1].t()
    return [(int(column.argmax()), word) for word, column in enumerate(columns) if bool(column.max() > 0)]


class CaptionScorer(SequenceScorer):
    """Reads given captions with a captioner (teacher forcing): fairseq's scorer with both forms of alignment.

    Upstream's extracts hard alignment only and crashes where soft is printed. ``attention`` is (R,T), as
    fairseq's generator has it.
    """

    def __init__(self, dictionary: Dictionary, print_alignment: str | None = None):
        super().__init__(dictionary)
        self.print_alignment = print_alignment

    @torch.no_grad()
    def generate(self, models: list[Any], sample: dict[str, Any], **kwargs: Any) -> list[list[dict[str, Any]]]:
        """One hypothesis a caption: the caption itself, scored."""
        hypotheses = super().generate(models, sample, **kwargs)
        counts = sample["net_input"]["src_tokens"].ne(self.pad).sum(1).tolist()
        for (hypothesis,), regions in zip(hypotheses, counts):
            if hypothesis["attention"] is None:
                continue
            attention = hypothesis["attention"][: len(hypothesis["tokens"]), :regions].t().cpu()
            hypothesis["attention"] = attention
            hypothesis["alignment"] = _alignment(attention, self.print_alignment)
        return hypotheses


class MatchingScorer:
    """Reads given captions with matching models: score, similarity of each word, and where it looks.

    Several models are averaged; a word that only some of them attend with, as one on nouns does, has the mean of
    those. In the hypotheses ``score`` is the matching score, ``positional_scores`` the words' similarities (0 at the
    end symbol).
    """

    def __init__(self, dictionary: Dictionary, readout: str, print_alignment: str | None = None):
        self.pad = dictionary.pad()
        self.symbols_to_strip_from_output = {dictionary.eos()}
        self.readout = readout
        self.print_alignment = print_alignment

    @torch.no_grad()
    def generate(
        self, models: list[MatchingModel], sample: dict[str, Any], **kwargs: Any
    ) -> list[list[dict[str, Any]]]:
        """One hypothesis a caption: the caption itself, scored."""
        net_input, target = sample["net_input"], sample["target"]
        if target is None:
            raise GroundingError("a matching model reads captions, but --items image hands out none: leave it out")
        image_index = net_input["image_index"]
        scores, similarities, attentions = [], [], []
        for model in models:
            model.eval()
            encoded = model(**net_input, target=target, noun_mask=sample["noun_mask"])
            scores.append(model.pair_scores(encoded, image_index))
            similarity, attention = model.attend_own(encoded, image_index, self.readout)
            similarities.append(similarity)
            attentions.append(attention)
        looks = torch.stack([attention.sum(-1) > 0 for attention in attentions])
        each = torch.stack([look / looks.sum(0).clamp(min=1) for look in looks])
        score = torch.stack(scores).mean(0).cpu()
        similarity = (torch.stack(similarities) * each).sum(0).cpu()
        attention = (torch.stack(attentions) * each[..., None]).sum(0).cpu()
        hypotheses = []
        for row, regions in enumerate(net_input["src_tokens"].ne(self.pad).sum(1).tolist()):
            length = int(target[row].ne(self.pad).sum())
            weights = attention[row, :length, :regions].t()
            hypotheses.append(
                [
                    {
                        "tokens": target[row, :length],
                        "score": score[row],
                        "attention": weights,
                        "alignment": _alignment(weights, self.print_alignment),
                        "positional_scores": similarity[row, :length],
                    }
                ]
            )
        return hypotheses


def whole_words(
    reader: PieceReader, tokens: list[int], attention: Tensor | None, logprobs: list[float] | None, how: str
) -> tuple[list[str], Tensor | None, list[float] | None]:
    """A caption of pieces as one of words.

    Args:
        reader: of the captioner's pieces
        tokens: T pieces, without the end symbol
        attention: (R,>=T), or None; logprobs: at least T, or None
        how: a word attends as its ``first`` piece, or as the ``mean`` of its pieces

    Returns:
        W words, attention (R,W), and W sums of logarithms
    """
    words = reader.strings(tokens)
    index = reader.word_index(torch.tensor([tokens], dtype=torch.long))
    if attention is not None:
        given = attention[None, :, : len(tokens)].transpose(1, 2)
        attention = word_attention(given, index.to(attention.device), len(words), how)[0].t()
    if logprobs is not None:
        sums = torch.zeros(len(words) + 1, dtype=torch.double)
        sums.index_add_(0, index[0] % (len(words) + 1), torch.tensor(logprobs[: len(tokens)], dtype=torch.double))
        logprobs = sums[: len(words)].tolist()
    return words, attention, logprobs


def dump_steps(
    tokens: list[str], attention: Tensor | None, regions: int, boxes: Any, logprobs: list[float] | None
) -> list[dict[str, Any]]:
    """The ``steps`` of a dump row.

    Args:
        tokens: T words, without the end symbol
        attention: (R,>=T) over at least the image's real regions, or None
        regions: the number R of the image's real regions
        boxes: (R,4) of the real regions, in pixels; None where the region store has none
        logprobs: T natural logarithms, or None

    Returns:
        one entry a token; a token that attends to nothing has region, box and attention null
    """
    steps = []
    for place, token in enumerate(tokens):
        weights = None if attention is None else attention[:regions, place]
        looks = weights is not None and weights.numel() > 0 and bool(weights.max() > 0)
        region = int(weights.argmax()) if looks and weights is not None else None
        steps.append(
            {
                "token": token,
                "region": region,
                "box": None if region is None or boxes is None else boxes[region].tolist(),
                "attention": weights.tolist() if looks and weights is not None else None,
                "logprob": None if logprobs is None else logprobs[place],
            }
        )
    return steps
