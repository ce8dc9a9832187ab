"""Whether explanations are any good: what happens without what they name, and whether they point at the object.

Reads files that `fairseq-grounding explain` wrote, one a method (attention is one of them), and runs the experiments of
Sun et al. (arXiv 2001.01037):

regions        delete the regions of the highest relevance: how far the probability of the word falls (fall), and how
               often it is gone from the caption that is then decoded (gone, of the words that the whole image gives)
words          leave out the earlier words of the highest relevance: how far the probability of the word falls
correctness    the share of positive relevance inside the box of the word's object (mass, at thresholds of the highest
               relevance), and how often the highest region is one of the object's (pointing)
hallucination  how well statistics of a word's explanation separate object words that the references have from those
               they lack: AUC over all pairs (auc) and over pairs of the same word (auc_same_word)

Each figure stands beside its control: random regions, random words, the same relevance in random order, a random
statistic; and the difference to it. The first two run the model, so they need --path.

The table shows percent; intervals are 95%, from resampled images. --json and --csv hold fractions.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable

from ..errors import GroundingError
from .inputs import add_cpu, add_regions
from .report import add_data, add_json, add_resampling, check_csv, percent, print_table

if TYPE_CHECKING:
    from ..scoring.explained import Explanations

EXPERIMENTS = ("regions", "words", "correctness", "hallucination")
_RUN_THE_MODEL = EXPERIMENTS[:2]

Experiment = Callable[["Explanations"], "dict[str, Any]"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The explanations, the folder and the model, and each experiment's choices."""
    add = parser.add_argument
    add("explanations", nargs="+", type=Path, metavar="EXPLANATIONS", help="files that explain wrote (JSON lines)")
    add_data(parser)
    add("--path", type=Path, metavar="CKPT", help="checkpoint of the captioner that was explained")
    add(
        "--experiments",
        nargs="+",
        choices=EXPERIMENTS,
        metavar="NAME",
        help="some of those above (default: all that the files and --path allow)",
    )
    add("--split", default="test", metavar="NAME", help="split of the images, for --path (default: %(default)s)")
    add(
        "--delete-regions",
        nargs="+",
        default=["1", "2", "4", "8", "16"],
        metavar="N|P%%",
        help="regions: how many to delete, or percent of the image's (default: 1 2 4 8 16)",
    )
    add(
        "--delete-words",
        nargs="+",
        default=["1", "2", "3"],
        metavar="N|P%%",
        help="words: how many to leave out, or percent of those before (default: 1 2 3)",
    )
    add(
        "--deletion",
        default="mask",
        choices=("mask", "zero"),
        help="regions: mask: a deleted region is not there; zero: its features are 0 (default: %(default)s)",
    )
    add("--all-words", action="store_true", help="regions: ask about all words (default: object words of objects.json)")
    add("--first-region-word", type=int, default=1, metavar="N", help="regions: words from place N, 0 the first (1)")
    add("--first-word", type=int, default=6, metavar="N", help="words: words from place N on (default: 6)")
    add("--beam", type=int, default=1, metavar="N", help="regions: beam of what is decoded (default: 1, greedy)")
    add("--no-decoding", action="store_true", help="regions: decode nothing, leave out how often words are gone")
    add("--synonyms", type=Path, metavar="FILE", help="hallucination: words of one line are the same object")
    add(
        "--frequent",
        type=int,
        default=0,
        metavar="N",
        help="hallucination: only the N objects that are said most (default: 0, all; the paper: 20 on Flickr30k)",
    )
    add_regions(parser)
    add("--max-regions", type=int, default=100, metavar="N", help="at most so many regions an image (default: 100)")
    add("--batch-size", type=int, default=16, metavar="N", help="captions at once (default: %(default)s)")
    add_cpu(parser)
    add("--csv", type=Path, metavar="FILE", help="also write a line a figure")
    add_resampling(parser, "all figures")
    add_json(parser, ("explanations", "data", "path", "synonyms", "regions"))


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Run the experiments, print a table for each, and return the report."""
    from ..scoring.controlled import write_figures
    from ..scoring.explained import read_explanations

    _check(args)
    experiments = _experiments(args)
    results, notes = [], []
    for path in args.explanations:
        explanations = read_explanations(path)
        result: dict[str, Any] = {"explanations": str(path), "method": explanations.method, "experiments": {}}
        for name, experiment in experiments.items():
            reason = _nothing_to_say(explanations, name)
            if reason and (args.experiments is None or name == "words"):
                notes.append(f"{path}: {name}: {reason}")
            else:
                result["experiments"][name] = experiment(explanations)
        results.append(result)
    for number, name in enumerate(experiments):
        print(("\n" if number else "") + name)
        print_table(*_table(name, results))
    for note in notes:
        print(note)
    if args.csv is not None:
        write_figures(args.csv, results)
    bootstrap = {"rounds": args.bootstrap, "seed": args.seed}
    return {"score": "explanations", "results": results, "notes": notes, "bootstrap": bootstrap}


def _experiments(args: argparse.Namespace) -> dict[str, Experiment]:
    """What to run on each file, by name."""
    from ..data.prepared import PreparedFolder
    from ..scoring.correctness import score_correctness
    from ..scoring.deletions import Amount, score_deletions
    from ..scoring.detection import score_detection
    from ..scoring.synonyms import read_synonyms
    from ..scoring.unreferenced import UnreferencedWords
    from ..viewer.overlay import STOP_WORDS

    names = args.experiments or (EXPERIMENTS if args.path is not None else EXPERIMENTS[2:])
    amounts = {
        "regions": [Amount.parse(text, "--delete-regions") for text in args.delete_regions],
        "words": [Amount.parse(text, "--delete-words") for text in args.delete_words],
    }
    folder = PreparedFolder(args.data)
    objects = folder.objects()
    needs = [name for name in names if name != "words" and not (name == "regions" and args.all_words)]
    if objects is None and needs:
        raise GroundingError(
            f"{args.data}: has no objects.json, which {', '.join(needs)} need; prepare it with boxes (prepare-captions"
            " --entities FOLDER), or give --experiments regions words --all-words"
        )
    classes, lemmas = (set(objects["classes"]), objects["lemmas"]) if objects is not None else (set(), {})

    def kind(token: str) -> str:
        if lemmas.get(token, token) in classes:
            return "object words"
        return "stop words" if token in STOP_WORDS else "other words"

    def asked(token: str) -> str | None:
        found = kind(token)
        return found if args.all_words or found == "object words" else None

    resampling = (args.bootstrap, args.seed)
    found: dict[str, Experiment] = {}
    if set(names) & set(_RUN_THE_MODEL):
        from ..explain.deletion import Deleter
        from ..explain.split import open_captions

        captions = open_captions(
            args.data,
            args.path,
            args.split,
            regions=args.regions,
            max_regions=args.max_regions,
            batch_size=args.batch_size,
            cpu=args.cpu,
        )
        deleter = Deleter(captions, args.deletion, args.beam, args.seed)

        def regions(explanations: Explanations) -> dict[str, Any]:
            if not args.all_words:
                explanations.check_whole_words()
            choices = (amounts["regions"], args.first_region_word, not args.no_decoding)
            return score_deletions(
                deleter.delete_regions(explanations, asked, *choices), amounts["regions"], *resampling
            )

        def words(explanations: Explanations) -> dict[str, Any]:
            deletions = deleter.delete_words(explanations, kind, amounts["words"], args.first_word)
            return score_deletions(deletions, amounts["words"], *resampling)

        found.update(regions=regions, words=words)
    if objects is not None:
        store = folder.region_store(args.regions)
        mentions = UnreferencedWords(objects, read_synonyms(args.synonyms) if args.synonyms is not None else ())
        found["correctness"] = lambda explanations: score_correctness(
            explanations, objects, store, args.max_regions, *resampling
        )
        found["hallucination"] = lambda explanations: score_detection(
            explanations, mentions, args.frequent, *resampling
        )
    return {name: found[name] for name in EXPERIMENTS if name in names}


def _nothing_to_say(explanations: Explanations, experiment: str) -> str | None:
    """Why a file is left out of an experiment."""
    if experiment == "hallucination" and not any(explanations.written()):
        return "left out, ground-truth captions make nothing up"
    if experiment == "words" and not any(
        word.words.any() for caption in explanations.captions for word in caption.words
    ):
        return f"left out, {explanations.method} gives earlier words no relevance"
    return None


def _check(args: argparse.Namespace) -> None:
    """Refuse what would fail only after the minutes of scoring."""
    check_csv(args)
    for flag, least in (
        *(("max_regions", 1), ("batch_size", 1), ("beam", 1)),
        *(("first_word", 1), ("first_region_word", 0), ("frequent", 0), ("bootstrap", 0), ("seed", 0)),
    ):
        if getattr(args, flag) < least:
            raise GroundingError(f"--{flag.replace('_', '-')} {getattr(args, flag)}: give at least {least}")
    wanted = [name for name in args.experiments or () if name in _RUN_THE_MODEL]
    if wanted and args.path is None:
        raise GroundingError(f"--experiments {' '.join(wanted)}: run the model; give its checkpoint by --path")


def _table(experiment: str, results: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[list[str]]]:
    names = {"regions": ("group", "at"), "words": ("group", "at")}.get(experiment, ("at",))
    titles = {"regions": "deleted", "words": "deleted", "correctness": "threshold", "hallucination": "statistic"}
    header = ["explanations", "method", "measure", *names[:-1], titles[experiment]]
    for side in ("figure", "control", "difference"):
        header += [side, "interval"]
    rows = []
    for result in results:
        for each in result["experiments"].get(experiment, {"figures": []})["figures"]:
            cells = [result["explanations"], result["method"], each["measure"]]
            cells += [str(each.get(name, "")) for name in names]
            for side in ("value", "control", "difference"):
                bounds = each[f"{side}_interval"]
                # differences may be below 0, where a dash between the ends would be lost
                cells += [percent(each[side]), "-" if bounds is None else " to ".join(map(percent, bounds))]
            rows.append([*cells, str(each["words"])])
    return [*header, "words"], rows
