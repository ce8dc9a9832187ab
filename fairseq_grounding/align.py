"""Phrases by a matching model: which words of a caption belong together, and to which region of its image."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import torch
from fairseq import utils
from tqdm import tqdm

from .checkpoints import load_matching_model
from .data.grounded_caption_dataset import GroundedCaptionDataset
from .data.prepared import PreparedFolder
from .data.skipped import Skipped
from .dump import DumpWriter
from .errors import GroundingError
from .generation import dump_steps
from .modules.alignment import smooth_alignment
from .modules.teacher import Teacher
from .snippets import writing_snippets


class Phrase(NamedTuple):
    """Words ``start:stop`` of a caption and their region; ``score`` is the sum of their scores with it."""

    start: int
    stop: int
    region: int
    score: float


class Aligned(NamedTuple):
    """A caption at one beta: the region of each word, -1 where the model leaves it out, and the energy of the whole."""

    caption: int
    regions: list[int]
    phrases: list[Phrase]
    energy: float


def phrases_of(regions: Sequence[int], scores: Sequence[float]) -> list[Phrase]:
    """Runs of words of one region; words without one (-1) neither end a run nor belong to its ends."""
    found: list[Phrase] = []
    for place, (region, score) in enumerate(zip(regions, scores)):
        if region < 0:
            continue
        if found and found[-1].region == region:
            start, _, _, before = found.pop()
            found.append(Phrase(start, place + 1, region, before + score))
        else:
            found.append(Phrase(place, place + 1, region, score))
    return found


def align_split(
    teacher: Teacher,
    dataset: GroundedCaptionDataset,
    betas: Sequence[float],
    name: str,
    *,
    batch_size: int = 100,
    cpu: bool = False,
    skipped: Skipped | None = None,
) -> Iterator[list[list[Aligned]]]:
    """Align the captions of a split, batch by batch: for each caption, in the split's order, its phrases at each beta.

    The scores are the dot products of the model's vectors: cosines where it normalises them (SCAN). A model on nouns
    (POS-SCAN) aligns those; then nouns are neighbours with no noun between them.

    Args:
        teacher: the model behind its own dictionary
        dataset: one caption an item
        betas: see :func:`smooth_alignment`
        name: what the model came by, named in errors
        batch_size: captions at once
        cpu: not on the GPU, even if there is one
        skipped: lists captions that are left out because the model knows none of their words; None refuses them

    Raises:
        GroundingError: such a caption, or scores that are not finite
    """
    skipped = skipped or Skipped()
    unknown = teacher.model.words.unk()
    for start in range(0, len(dataset), batch_size):
        numbers = list(range(start, min(start + batch_size, len(dataset))))
        sample = dataset.collater(numbers)
        if torch.cuda.is_available() and not cpu:
            sample = utils.move_to_cuda(sample)
        net_input = sample["net_input"]
        encoded = teacher.encode(sample)
        image_index, stored = net_input["image_index"], net_input["src_tokens"].shape[1]
        # a model may have put the whole image behind the store's regions
        regions = encoded.regions[image_index, :stored]
        region_mask = encoded.region_mask[image_index, :stored]
        mask = teacher.model.attending(encoded.word_mask, encoded.noun_mask)
        known = ((teacher.table[sample["target"]] != unknown) & encoded.word_mask).any(1).tolist()
        scores = encoded.words @ regions.transpose(1, 2)
        finite = torch.isfinite(scores) | ~(mask[:, :, None] & region_mask[:, None])
        sound = finite.flatten(1).all(1).tolist()
        for number, knows, holds in zip(numbers, known, sound):
            where = f"caption {dataset.split.caption_index[number]} of image {dataset.split.image_ids[number]!r}"
            if not holds:
                raise GroundingError(
                    f"{name}: its scores of {where} are NaN or infinite; training went astray, give another checkpoint"
                )
            if not knows:
                skipped.leave_out(
                    name,
                    dataset.split.image_ids[number],
                    f"caption {dataset.split.caption_index[number]}",
                    f"knows no word of {where}; remove it, or leave such captions out (--skip-bad)",
                )
        found: list[list[Aligned]] = [[] for _ in numbers]
        lengths = encoded.word_mask.sum(1).tolist()
        for beta in betas:
            paths, energies = smooth_alignment(scores, mask, region_mask, beta)
            own = scores.gather(2, paths.clamp(min=0)[:, :, None])[:, :, 0]
            rows = zip(numbers, lengths, paths.tolist(), own.tolist(), energies.tolist())
            for into, (number, length, path, word_scores, energy) in zip(found, rows):
                phrases = phrases_of(path[:length], word_scores)
                into.append(Aligned(number, path[:length], phrases, energy))
        yield [aligned for aligned, knows in zip(found, known) if knows]


class _Rows:
    """Aligned captions of a split as rows of a grounding dump, with ``beta``, ``energy`` and ``phrases``."""

    def __init__(self, dataset: GroundedCaptionDataset, model: str) -> None:
        self.dataset, self.model = dataset, model

    def __call__(self, aligned: Aligned, beta: float) -> dict[str, Any]:
        dataset, number = self.dataset, aligned.caption
        split, image = dataset.split, int(dataset.image_of_caption[number])
        words = split.texts[number].split()
        tokens = [dataset.dictionary[token] for token in split.tokens[number].tolist()[:-1]]
        count, boxes = int(dataset.region_counts[image]), None
        if dataset.store.has_boxes:
            boxes = dataset.store.boxes(int(dataset.stored[image]), limit=dataset.max_regions)
        attention = torch.zeros(count, len(tokens), dtype=torch.uint8)
        for place, region in enumerate(aligned.regions):
            if region >= 0:
                attention[region, place] = 1
        return {
            "id": number,
            "image_id": split.image_ids[number],
            "caption_index": int(split.caption_index[number]),
            "model": f"{self.model}, beta {beta:g}",
            "reference": True,
            "text": split.texts[number],
            "tokens": tokens,
            "steps": dump_steps(tokens, attention, count, boxes, None),
            "beta": beta,
            "energy": aligned.energy,
            "phrases": [
                {
                    "span": [phrase.start, phrase.stop],
                    "text": " ".join(words[phrase.start : phrase.stop]),
                    "region": phrase.region,
                    "box": None if boxes is None else boxes[phrase.region].tolist(),
                    "score": phrase.score,
                }
                for phrase in aligned.phrases
            ],
        }


def align(
    data: str | os.PathLike[str],
    path: str | os.PathLike[str],
    splits: Sequence[str],
    betas: Sequence[float],
    *,
    out: Path | None = None,
    snippets: Path | None = None,
    regions: Path | None = None,
    max_regions: int = 100,
    batch_size: int = 100,
    cpu: bool = False,
    skip_bad: bool = False,
    min_words: int = 1,
    overwrite: bool = False,
) -> list[dict[str, Any]]:
    """Write the phrases of *splits*; see :mod:`fairseq_grounding.cli.align` for the arguments.

    Returns:
        for each beta ``beta``, ``captions``, ``phrases``, ``words`` (in phrases), ``energy`` (mean), ``left_out``

    Raises:
        GroundingError: one of the inputs is wrong; then neither *out* nor *snippets* is written
    """
    folder = PreparedFolder(data)
    store = folder.region_store(regions)
    name = f"--path {path}"
    dictionary = folder.dictionary()
    teacher = Teacher(load_matching_model(path, "--path"), dictionary, store.feature_size, name)
    kind = type(teacher.model).__name__.removesuffix("Model").lower()
    skipped = Skipped(skip_bad)
    read = [folder.split(split) for split in splits]
    totals = [dict.fromkeys(("captions", "phrases", "words", "energy"), 0.0) for _ in betas]
    with ExitStack() as stack:
        # left last to first: the dump gets its name when the folder has its own
        writer = None if out is None else stack.enter_context(DumpWriter(out))
        exporter = None
        if snippets is not None:
            how = {"checkpoint": Path(path).name, "beta": betas[0]}
            exporter = stack.enter_context(
                writing_snippets(
                    snippets,
                    folder,
                    store,
                    max_regions=max_regions,
                    min_words=min_words,
                    overwrite=overwrite,
                    meta=how,
                )
            )
        bar = stack.enter_context(tqdm(total=sum(map(len, read)), desc="aligning", unit=" captions", disable=None))
        for split in read:
            dataset = GroundedCaptionDataset(
                split, store, dictionary, max_regions=max_regions, max_tokens=int(split.sizes.max())
            )
            row_of = _Rows(dataset, kind)
            batches = align_split(teacher, dataset, betas, name, batch_size=batch_size, cpu=cpu, skipped=skipped)
            for batch in batches:
                for by_beta in batch:
                    for total, beta, aligned in zip(totals, betas, by_beta):
                        total["captions"] += 1
                        total["phrases"] += len(aligned.phrases)
                        total["words"] += sum(region >= 0 for region in aligned.regions)
                        total["energy"] += aligned.energy
                        if writer is not None:
                            writer.write(row_of(aligned, beta))
                    if exporter is not None:
                        exporter.add(split, by_beta[0].caption, [phrase[:3] for phrase in by_beta[0].phrases])
                bar.update(len(batch))
        if not totals[0]["captions"]:
            raise GroundingError(f"{name}: knows no word of any caption of {', '.join(splits)}")
    return [
        {
            "beta": beta,
            **{name: int(total[name]) for name in ("captions", "phrases", "words")},
            "energy": total["energy"] / total["captions"],
            "left_out": len(skipped.rows),
        }
        for beta, total in zip(betas, totals)
    ]
