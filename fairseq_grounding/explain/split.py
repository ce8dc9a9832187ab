"""Explaining the captions of a split: those given, those a model writes, or those of a dump."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from fairseq import utils
from fairseq.data import data_utils
from fairseq.sequence_generator import SequenceGenerator
from torch import Tensor
from tqdm import tqdm

from ..checkpoints import load_captioner
from ..dump import DumpWriter, read_dump
from ..errors import GroundingError
from ..files import writing
from ..generation import dump_steps
from ..tasks.grounded_caption import GroundedCaptionConfig, GroundedCaptionTask
from .architectures import model_name
from .explain import explain
from .explanation import Explanation
from .files import PER_WORD, ExplanationWriter

# log-probabilities of a dump may differ by so much: half precision on the GPU
_SAME_LOGPROB = 0.1

Row = dict[str, Any]


class Captions:
    """Batches of captions to explain, each with the rows that a dump has for them.

    Args:
        model: a captioner, on its device
        task: whose dictionary and regions are the model's
        split: of the prepared folder
        batch_size: captions at once
        cpu: whether the batches stay on the CPU
        image_ids: of these images alone
        limit: at most so many captions, the first
    """

    def __init__(
        self,
        model: Any,
        task: GroundedCaptionTask,
        split: str,
        *,
        batch_size: int,
        cpu: bool,
        image_ids: Sequence[str] | None = None,
        limit: int | None = None,
    ) -> None:
        self.model, self.task, self.split = model, task, split
        self.batch_size, self.cpu, self.limit = batch_size, cpu, limit
        task.load_dataset(split)
        self.dataset = task.datasets[split]
        self.numbers = {image_id: number for number, image_id in enumerate(self.dataset.image_ids)}
        self.wanted = None if image_ids is None else set(image_ids)
        for image_id in image_ids or ():
            if image_id not in self.numbers:
                raise GroundingError(f"--image-ids: image {image_id} is not in the split {split}")

    def given(self) -> list[int]:
        """The numbers of the split's captions that are asked for."""
        numbers = [n for n, image_id in enumerate(self.dataset.split.image_ids) if self._asked_for(image_id)]
        return numbers[: self.limit]

    def images(self) -> list[int]:
        """The numbers of the split's images that are asked for."""
        numbers = [n for n, image_id in enumerate(self.dataset.image_ids) if self._asked_for(image_id)]
        return numbers[: self.limit]

    def read_given(self, numbers: Sequence[int]) -> Iterator[tuple[dict[str, Any], list[Row]]]:
        """The split's captions."""
        split = self.dataset.split
        for part in self._parts(numbers):
            sample = self.dataset.collater(part)
            rows = [
                {
                    "id": number,
                    "image_id": split.image_ids[number],
                    "caption_index": int(split.caption_index[number]),
                    "reference": True,
                    "text": split.texts[number],
                }
                for number in part
            ]
            yield self._ready(sample, rows)

    def write(self, images: Sequence[int], beam: int) -> Iterator[tuple[dict[str, Any], list[Row]]]:
        """Captions that the model writes, by beam search; one an image."""
        longest = self.dataset.max_tokens - 1
        generator = SequenceGenerator([self.model], self.model.words, beam_size=beam, max_len_a=0, max_len_b=longest)
        for part in self._parts(images):
            sample = self._images_of(part)
            decoded = dict(sample["net_input"])
            del decoded["prev_output_tokens"]
            with torch.no_grad():
                found = generator.generate([self.model], {"net_input": decoded})
            tokens = [hypotheses[0]["tokens"].cpu() for hypotheses in found]
            rows = [
                {
                    "id": number,
                    "image_id": self.dataset.image_ids[number],
                    "caption_index": None,
                    "reference": False,
                    "text": self._text(words.tolist()),
                }
                for number, words in zip(part, tokens)
            ]
            yield self._ready(self._with_captions(sample, tokens), rows)

    def rows_of_dump(self, path: Path) -> list[Row]:
        """The rows of a dump that are asked for; all must be of this model's name and of images of the split."""
        if self.task.reader is not None:
            raise GroundingError(
                f"--dump {path}: holds words, but {model_name(self.model)} writes pieces of words; leave --dump out, or"
                " add --given"
            )
        rows = [row for row in read_dump(path) if self.is_asked_for(row, f"--dump {path}")]
        if not rows:
            raise GroundingError(f"--dump {path}: has no caption of the images of --image-ids")
        return rows[: self.limit]

    def is_asked_for(self, row: Row, where: str) -> bool:
        """Whether a dump's row is of the images that are asked for; *where* it stands, for errors.

        Raises:
            GroundingError: it is not of this model, or of an image of another split
        """
        if row["model"] != model_name(self.model):
            raise GroundingError(f"{where}: was written by {row['model']}, but --path holds {model_name(self.model)}")
        if row["image_id"] not in self.numbers:
            raise GroundingError(f"{where}: image {row['image_id']} is not in the split {self.split}; give its --split")
        if not self._asked_for(row["image_id"]):
            return False
        for token in row["tokens"]:
            if token not in self.model.words.indices:
                raise GroundingError(
                    f"{where}: {token!r} of image {row['image_id']} is no word of the model's dictionary; is it a dump"
                    " of another model?"
                )
        return True

    def read_dumped(self, rows: Sequence[Row], where: str) -> Iterator[tuple[dict[str, Any], list[Row]]]:
        """Captions of a dump, read again; *where* they stand, for errors.

        Raises:
            GroundingError: the model gives them other probabilities
        """
        words = self.model.words
        for begin in range(0, len(rows), self.batch_size):
            part = rows[begin : begin + self.batch_size]
            tokens = [torch.tensor([*map(words.index, row["tokens"]), words.eos()]) for row in part]
            sample = self._with_captions(self._images_of([self.numbers[row["image_id"]] for row in part]), tokens)
            sample, ready = self._ready(sample, list(part))
            for row, again in zip(part, ready):
                _same_model(row, again, where)
            yield sample, ready

    def _asked_for(self, image_id: str) -> bool:
        return self.wanted is None or image_id in self.wanted

    def _parts(self, numbers: Sequence[int]) -> Iterator[list[int]]:
        for begin in range(0, len(numbers), self.batch_size):
            yield list(numbers[begin : begin + self.batch_size])

    def _images_of(self, images: Sequence[int]) -> dict[str, Any]:
        """A batch with these images, each the image of a caption of its own."""
        first = [int(self.dataset.first_caption[image]) for image in images]
        sample = self.dataset.collater(first)
        return sample if self.cpu else utils.move_to_cuda(sample)

    def _with_captions(self, sample: dict[str, Any], tokens: list[Tensor]) -> dict[str, Any]:
        pad, eos = self.model.words.pad(), self.model.words.eos()
        device = sample["net_input"]["src_tokens"].device
        previous = data_utils.collate_tokens(tokens, pad, eos, left_pad=False, move_eos_to_beginning=True)
        net_input = {**sample["net_input"], "prev_output_tokens": previous.to(device)}
        return {**sample, "net_input": net_input, "target": data_utils.collate_tokens(tokens, pad).to(device)}

    def _text(self, tokens: list[int]) -> str:
        words = [token for token in tokens if token != self.model.words.eos()]
        if self.task.reader is not None:
            return " ".join(self.task.reader.strings(words))
        return " ".join(self.model.words[token] for token in words)

    def _ready(self, sample: dict[str, Any], rows: list[Row]) -> tuple[dict[str, Any], list[Row]]:
        """The batch on its device, and its rows with tokens and steps as the model reads them."""
        if not self.cpu:
            sample = utils.move_to_cuda(sample)
        sample = {**sample, "id": [row["id"] for row in rows], "image_ids": [row["image_id"] for row in rows]}
        with torch.no_grad():
            logits, extra = self.model(**sample["net_input"])
        target = sample["target"]
        logprobs = logits.float().log_softmax(-1).gather(2, target[:, :, None])[:, :, 0].cpu()
        attention = extra["attn"][0] if extra.get("attn") else None
        attention = None if attention is None else attention.float().transpose(1, 2).cpu()
        ready = []
        for number, row in enumerate(rows):
            image = self.numbers[row["image_id"]]
            ids = [token for token in target[number].tolist() if token != self.model.words.pad()][:-1]
            tokens = [self.model.words[token] for token in ids]
            boxes = None
            if self.dataset.store.has_boxes:
                boxes = self.dataset.store.boxes(int(self.dataset.stored[image]), limit=self.dataset.max_regions)
            steps = dump_steps(
                tokens,
                None if attention is None else attention[number],
                int(self.dataset.region_counts[image]),
                boxes,
                logprobs[number].tolist(),
            )
            ready.append({**row, "model": model_name(self.model), "tokens": tokens, "steps": steps})
        return sample, ready


def _same_model(row: Row, again: Row, where: str) -> None:
    """Refuse a dump whose probabilities are not this checkpoint's."""
    for said, ours in zip(row["steps"], again["steps"]):
        if said["logprob"] is not None and not abs(said["logprob"] - ours["logprob"]) <= _SAME_LOGPROB:
            raise GroundingError(
                f"{where}: gives {said['token']!r} of image {row['image_id']} the log-probability"
                f" {said['logprob']:.3f}, the model of --path {ours['logprob']:.3f}: a dump of another model; give the"
                " checkpoint that wrote it"
            )


def add_relevance(row: Row, numbers: dict[str, Any], positions: Sequence[int] | None) -> None:
    """Put what explains each step into a dump's row: ``relevance``, null for words that were not asked for.

    ``words[s]`` is the relevance of the word s, for those before the step; ``start`` that of the start symbol.
    """
    for place, step in enumerate(row["steps"]):
        if positions is not None and place not in positions:
            step["relevance"] = None
            continue
        step["relevance"] = {
            "regions": numbers["regions"][place].tolist(),
            "words": numbers["words"][place, 1 : place + 1].tolist(),
            "start": float(numbers["words"][place, 0]),
            **{name: float(numbers[name][place]) for name in PER_WORD},
        }


def numbers_of(explanation: Explanation, row: int, length: int, regions: int) -> dict[str, Any]:
    """One caption of an explanation, the end symbol left out, as arrays."""
    parts = {
        "regions": explanation.regions[row, :length, :regions],
        "words": explanation.words[row, :length, :length],
        "logit": explanation.logit[row, :length],
        "global": explanation.global_share[row, :length],
        "sentinel": explanation.sentinel_share[row, :length],
        **{name: part[row, :length] for name, part in explanation.ledger.items()},
    }
    return {name: part.detach().float().cpu().numpy() for name, part in parts.items()}


def open_captions(
    data: str | os.PathLike[str],
    path: str | os.PathLike[str],
    split: str,
    *,
    regions: Path | None = None,
    max_regions: int = 100,
    max_target_positions: int = 50,
    batch_size: int = 16,
    cpu: bool = False,
    image_ids: Sequence[str] | None = None,
    limit: int | None = None,
) -> Captions:
    """The captioner of a checkpoint before the captions of a split; on the GPU, where there is one and not *cpu*.

    Raises:
        GroundingError: one of the inputs is wrong, or they do not belong together
    """
    model: Any = load_captioner(path, "--path")
    cfg = GroundedCaptionConfig(
        data=str(data),
        regions=None if regions is None else str(regions),
        max_regions=max_regions,
        max_target_positions=max_target_positions,
        seed=1,
        best_checkpoint_metric="loss",
    )
    task = GroundedCaptionTask(cfg)
    _fits(model, task, path)
    cpu = cpu or not torch.cuda.is_available()
    model = model if cpu else model.cuda()
    return Captions(model, task, split, batch_size=batch_size, cpu=cpu, image_ids=image_ids, limit=limit)


def explain_split(
    data: str | os.PathLike[str],
    path: str | os.PathLike[str],
    out: Path,
    *,
    split: str = "test",
    given: bool = False,
    dump: Path | None = None,
    hdf5: Path | None = None,
    regions: Path | None = None,
    method: str = "lrp",
    word: str | None = None,
    positions: Sequence[int] | None = None,
    image_ids: Sequence[str] | None = None,
    limit: int | None = None,
    beam: int = 5,
    max_regions: int = 100,
    max_target_positions: int = 50,
    batch_size: int = 16,
    cpu: bool = False,
    **choices: Any,
) -> dict[str, float]:
    """Explain captions of a split and write them; see :mod:`fairseq_grounding.cli.explain` for the arguments.

    *choices* go to :func:`~fairseq_grounding.explain.explain`.

    Returns:
        ``captions``, ``words``, ``milliseconds`` (a word, explaining alone), and means over words of ``logit`` and of
        the parts of the ledger

    Raises:
        GroundingError: one of the inputs is wrong; then neither *out* nor *hdf5* is written
    """
    captions = open_captions(
        data,
        path,
        split,
        regions=regions,
        max_regions=max_regions,
        max_target_positions=max_target_positions,
        batch_size=batch_size,
        cpu=cpu,
        image_ids=image_ids,
        limit=limit,
    )
    model = captions.model
    token = None if word is None else _number(model, word)
    if dump is not None:
        rows_of_dump = captions.rows_of_dump(dump)
        total, batches = len(rows_of_dump), captions.read_dumped(rows_of_dump, f"--dump {dump}")
    elif given:
        numbers = captions.given()
        total, batches = len(numbers), captions.read_given(numbers)
    else:
        images = captions.images()
        total, batches = len(images), captions.write(images, beam)
    made = {"method": method, **choices, "word": word, "model": model_name(model), "checkpoint": str(path)}
    sums = dict.fromkeys((*PER_WORD, "words", "seconds"), 0.0)
    with ExitStack() as stack:
        lines = stack.enter_context(DumpWriter(out))
        store = None
        if hdf5 is not None:
            store = ExplanationWriter(stack.enter_context(writing(hdf5)), made)
            stack.callback(store.close)
        bar = stack.enter_context(tqdm(total=total, desc=method, unit=" captions", disable=None))
        for sample, rows in batches:
            began = time.perf_counter()
            found = explain(model, sample, method, token=token, positions=positions, **choices)
            sums["seconds"] += time.perf_counter() - began
            for number, row in enumerate(rows):
                length = len(row["tokens"])
                count = int(sample["net_input"]["src_tokens"][number].ne(model.words.pad()).sum())
                numbers_here = numbers_of(found, number, length, count)
                asked = length if positions is None else sum(place < length for place in set(positions))
                sums["words"] += asked
                for name in PER_WORD:
                    sums[name] += float(numbers_here[name].sum())
                add_relevance(row, numbers_here, positions)
                lines.write({**row, "explained": {k: v for k, v in made.items() if v is not None}})
                if store is not None:
                    store.add(row["id"], row["image_id"], row["tokens"], numbers_here)
            bar.update(len(rows))
    words = max(sums["words"], 1)
    means = {name: sums[name] / words for name in PER_WORD}
    return {"captions": total, "words": sums["words"], "milliseconds": 1000 * sums["seconds"] / words, **means}


def _fits(model: Any, task: GroundedCaptionTask, path: str | os.PathLike[str]) -> None:
    if model.words.symbols != task.dictionary.symbols:
        raise GroundingError(
            f"--path {path}: was trained with another dictionary ({len(model.words)} symbols) than that of"
            f" {task.folder.path} ({len(task.dictionary)}); give the folder that it was trained on"
        )
    if model.feature_size != task.feature_size:
        raise GroundingError(
            f"--path {path}: reads features of width {model.feature_size}, {task.store.path} has"
            f" {task.feature_size}; give --regions the store that it was trained on"
        )


def _number(model: Any, word: str) -> int:
    if word not in model.words.indices:
        raise GroundingError(f"--word {word}: is not in the model's dictionary")
    return int(model.words.index(word))
