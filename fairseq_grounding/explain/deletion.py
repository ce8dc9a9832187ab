"""Running a captioner on captions of which the most relevant regions, or earlier words, are deleted.

What this asks, and after which paper, says :mod:`fairseq_grounding.scoring.deletions`.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Optional

import numpy as np
import torch
from fairseq.sequence_generator import SequenceGenerator
from torch import Tensor
from tqdm import tqdm

from ..errors import GroundingError
from ..scoring.deletions import Amount, Deletion, most_relevant
from ..scoring.explained import ExplainedCaption, ExplainedWord, Explanations
from .rows import CHUNK
from .split import Captions

HOW = ("mask", "zero")

# what kind of word a token is; None leaves it out
Group = Callable[[str], Optional[str]]


class Trial(NamedTuple):
    """A word after some words before it, in an image without some regions.

    Attributes:
        row: of the batch, where the image is
        image: its id
        previous: the tokens that are read, the start symbol first
        target: the token whose probability is asked
        deleted: numbers of the regions that are deleted, ascending
    """

    row: int
    image: str
    previous: tuple[int, ...]
    target: int
    deleted: tuple[int, ...]


class Deleter:
    """Deletes regions and words of explained captions.

    What was run once is kept: files that explain the same captions share their control, and whatever else they delete
    alike.

    Args:
        captions: the captioner before a split
        how: ``mask``: a deleted region is not there (where all are deleted, their features are 0); ``zero``: its
            features are 0, as the paper blanks patches
        beam: of the captions that are decoded; 1 is greedy
        seed: of the control
    """

    def __init__(self, captions: Captions, how: str = "mask", beam: int = 1, seed: int = 1) -> None:
        if how not in HOW:
            raise GroundingError(f"how {how!r}: it can be {', '.join(HOW)}")
        self.captions, self.how, self.seed = captions, how, seed
        self.model = captions.model
        self._longest = captions.dataset.max_tokens - 1
        self._generator = SequenceGenerator(
            [self.model], self.model.words, beam_size=beam, max_len_a=0, max_len_b=self._longest
        )
        self._logprobs: dict[tuple[Any, ...], float] = {}
        self._said: dict[tuple[str, tuple[int, ...]], frozenset[int]] = {}

    def delete_regions(
        self, explanations: Explanations, group: Group, amounts: Sequence[Amount], first: int = 1, decode: bool = True
    ) -> list[Deletion]:
        """Region ablation: the most relevant regions are deleted, and in the control as many drawn ones.

        Args:
            explanations: of captions of the split
            group: which words to ask about, and what kind each is
            amounts: A of them
            first: only words from this place on
            decode: also decode a caption each time

        Raises:
            GroundingError: explanations of another model, split or region store, or without a word to ask about
        """

        def trials(whole: Trial, word: ExplainedWord) -> list[Trial]:
            return [
                whole._replace(deleted=tuple(sorted(order[: amount.of(len(order))].tolist())))
                for order in self._orders(whole, word.regions)
                for amount in amounts
            ]

        return self._delete(explanations, group, first, trials, decode)

    def delete_words(
        self, explanations: Explanations, group: Group, amounts: Sequence[Amount], first: int = 6
    ) -> list[Deletion]:
        """Word ablation: the caption is read without the most relevant of the words before, the start symbol kept.

        See :meth:`delete_regions`; in the control as many drawn words are left out.
        """

        def trials(whole: Trial, word: ExplainedWord) -> list[Trial]:
            found = []
            for order in self._orders(whole, word.words):
                for amount in amounts:
                    left_out = set(order[: amount.of(word.place)].tolist())
                    kept = (token for place, token in enumerate(whole.previous[1:]) if place not in left_out)
                    found.append(whole._replace(previous=(whole.previous[0], *kept)))
            return found

        return self._delete(explanations, group, max(first, 1), trials, decode=False)

    def _orders(self, whole: Trial, relevance: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """In which order to delete: by relevance, and by chance, which is the same whatever the method."""
        random = np.random.default_rng([self.seed, zlib.crc32(whole.image.encode()), *whole.previous])
        drawn = random.permutation(len(relevance))
        return most_relevant(relevance, random), drawn

    def _delete(
        self,
        explanations: Explanations,
        group: Group,
        first: int,
        trials_of: Callable[[Trial, ExplainedWord], list[Trial]],
        decode: bool,
    ) -> list[Deletion]:
        picked = []
        for caption in explanations.captions:
            self.captions.is_asked_for(dict(caption.row), explanations.name)
            self._check_regions(explanations.name, caption)
            words = [(word, kind) for word in caption.words if word.place >= first and (kind := group(word.token))]
            if words:
                picked.append((caption, words))
        if not picked:
            raise GroundingError(f"{explanations.name}: explains no word to ask about from place {first} on")
        found: list[Deletion] = []
        with tqdm(total=sum(len(words) for _, words in picked), unit=" words", disable=None) as bar:
            for begin in range(0, len(picked), self.captions.batch_size):
                part = picked[begin : begin + self.captions.batch_size]
                rows = [dict(caption.row) for caption, _ in part]
                ((sample, _),) = self.captions.read_dumped(rows, explanations.name)
                asked = []
                for row, (caption, words) in enumerate(part):
                    for word, kind in words:
                        whole = self._whole(sample, row, caption, word)
                        asked.append((kind, [whole, *trials_of(whole, word)]))
                found += self._run(sample, asked, decode)
                bar.update(len(asked))
        return found

    def _check_regions(self, file: str, caption: ExplainedCaption) -> None:
        read = int(self.captions.dataset.region_counts[self.captions.numbers[caption.image]])
        for word in caption.words:
            if len(word.regions) != read:
                raise GroundingError(
                    f"{file}: image {caption.image}: has relevance of {len(word.regions)} regions, the model reads"
                    f" {read}; give the --regions and --max-regions that were explained"
                )

    def _whole(self, sample: Mapping[str, Any], row: int, caption: ExplainedCaption, word: ExplainedWord) -> Trial:
        previous = sample["net_input"]["prev_output_tokens"][row, : word.place + 1].tolist()
        return Trial(row, caption.image, tuple(previous), int(sample["target"][row, word.place]), ())

    def _run(self, sample: Mapping[str, Any], asked: list[tuple[str, list[Trial]]], decode: bool) -> Iterator[Deletion]:
        """Of each word: its kind, and its trials, first with all there, then A of the method's and A of the control."""
        every = [trial for _, trials in asked for trial in trials]
        self._read(sample, every)
        if decode:
            self._decode(sample, every)
        for kind, trials in asked:
            before, *after = (math.exp(self._logprobs[_key(trial)]) for trial in trials)
            half = len(after) // 2
            gone: list[bool] | None = None
            if decode and trials[0].target in self._said[trials[0].image, ()]:
                gone = [trial.target not in self._said[trial.image, trial.deleted] for trial in trials[1:]]
            yield Deletion(
                trials[0].image,
                kind,
                before,
                after[:half],
                after[half:],
                None if gone is None else gone[:half],
                None if gone is None else gone[half:],
            )

    @torch.no_grad()
    def _read(self, sample: Mapping[str, Any], trials: Sequence[Trial]) -> None:
        """Note the log-probability of each trial."""
        waiting = list({_key(trial): trial for trial in trials if _key(trial) not in self._logprobs}.values())
        # those of one length together: few padding, and hardly a step after the asked word
        waiting.sort(key=lambda trial: len(trial.previous))
        longest = len(waiting[-1].previous) if waiting else 0
        for part in self._chunks(sample, waiting, longest * len(self.model.words)):
            steps = max(len(trial.previous) for trial in part)
            pad = self.model.words.pad()
            net_input = self._net_input(sample, part)
            device = net_input["src_tokens"].device
            tokens = [[*trial.previous, *[pad] * (steps - len(trial.previous))] for trial in part]
            logits, _ = self.model(**net_input, prev_output_tokens=torch.tensor(tokens, device=device))
            rows = torch.arange(len(part), device=device)
            last = torch.tensor([len(trial.previous) - 1 for trial in part], device=device)
            target = torch.tensor([trial.target for trial in part], device=device)
            logprobs = logits[rows, last].float().log_softmax(-1)[rows, target].tolist()
            self._logprobs.update(zip(map(_key, part), logprobs))

    @torch.no_grad()
    def _decode(self, sample: Mapping[str, Any], trials: Sequence[Trial]) -> None:
        """Note the words of the caption that is decoded without what each trial deletes."""
        waiting = {(trial.image, trial.deleted): trial for trial in trials}
        left = [trial for key, trial in waiting.items() if key not in self._said]
        for part in self._chunks(sample, left, self._generator.beam_size * len(self.model.words)):
            found = self._generator.generate([self.model], {"net_input": self._net_input(sample, part)})
            for trial, hypotheses in zip(part, found):
                self._said[trial.image, trial.deleted] = frozenset(hypotheses[0]["tokens"].tolist())

    def _chunks(self, sample: Mapping[str, Any], trials: list[Trial], logits: int) -> Iterator[list[Trial]]:
        """Parts whose features and *logits* (numbers a row) fit into memory."""
        features = sample["net_input"]["features"]
        size = max(1, CHUNK // max(features.shape[1] * features.shape[2], logits))
        for begin in range(0, len(trials), size):
            yield trials[begin : begin + size]

    def _net_input(self, sample: Mapping[str, Any], trials: Sequence[Trial]) -> dict[str, Tensor]:
        """An image for each trial, without what it deletes."""
        net_input = sample["net_input"]
        rows = torch.tensor([trial.row for trial in trials], device=net_input["src_tokens"].device)
        images = net_input["image_index"][rows]
        tokens = net_input["src_tokens"][rows]
        pad = self.model.words.pad()
        real = tokens.ne(pad)
        deleted = torch.zeros_like(real)
        for number, trial in enumerate(trials):
            deleted[number, list(trial.deleted)] = True
        if self.how == "mask":
            some_left = (real & ~deleted).any(1, keepdim=True)
            masked, blank = deleted & some_left, deleted & ~some_left
        else:
            masked, blank = torch.zeros_like(deleted), deleted
        tokens = tokens.masked_fill(masked, pad)
        return {
            "src_tokens": tokens,
            "src_lengths": tokens.ne(pad).sum(1),
            "features": net_input["features"][images].masked_fill(blank[:, :, None], 0.0),
            "boxes": net_input["boxes"][images],
            # one trial's image is nothing to another: each has its own
            "image_index": torch.arange(len(trials), device=rows.device),
        }


def _key(trial: Trial) -> tuple[Any, ...]:
    """What its probability depends on: not the batch."""
    return trial[1:]
