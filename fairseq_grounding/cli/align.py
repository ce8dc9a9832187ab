"""Align captions with the regions of their images, and cut them into phrases.

Each word of a caption gets a region, such that the words' scores with their regions plus beta for each two neighbouring
words of one region are at their highest (a chain-structured Markov random field, maximised exactly). Beta 0 gives each
word's own best region, a large one a region a caption. Scores are the dot products of the model's vectors: of any size
with dvsa, cosines with scan and pos_scan, where beta is to be smaller. Which beta is best is to be measured:

  fairseq-grounding align DATA --path dvsa.pt --split test --beta 0,0.5,1,2 --out phrases.jsonl
  fairseq-grounding evaluate grounding phrases.jsonl --data DATA --protocol phrase

--out is a grounding dump with a row for each caption and beta, and in each row beside the usual: "beta", "energy", and
"phrases", a list of {"span": [first word, word after the last], "text", "region", "box", "score"}. Attention is 1 at
the word's region. A model on nouns (pos_scan) aligns the nouns alone, and a phrase reaches from noun to noun.

--export-snippets makes a prepared folder of the phrases, whose images are regions: train multimodal_rnn on it with
--image-vector region.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from ..errors import GroundingError
from .inputs import add_cpu, add_regions


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The folder, the model, beta, and what to write."""
    parser.add_argument("data", type=Path, metavar="DATA", help="prepared folder")
    parser.add_argument("--path", type=Path, required=True, metavar="CKPT", help="checkpoint of a matching model")
    parser.add_argument(
        "--split",
        default="test",
        metavar="NAMES",
        help="splits, with commas: train, valid, test (default: %(default)s)",
    )
    parser.add_argument(
        "--beta",
        default="1",
        metavar="NUMBERS",
        help="what two neighbouring words of one region are worth, 0 or more, in the units of the scores; several with "
        "commas (default: %(default)s)",
    )
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the phrases here, JSON lines")
    parser.add_argument(
        "--export-snippets",
        type=Path,
        metavar="FOLDER",
        help="write a prepared folder of phrases and their regions here; needs one beta, and to be trained on the "
        "splits train and valid",
    )
    parser.add_argument(
        "--min-words", type=int, default=1, metavar="N", help="words of an exported phrase, at least (default: 1)"
    )
    parser.add_argument("--overwrite", action="store_true", help="replace the folder of --export-snippets")
    add_regions(parser)
    parser.add_argument(
        "--max-regions", type=int, default=100, metavar="N", help="at most so many regions an image (default: 100)"
    )
    parser.add_argument("--batch-size", type=int, default=100, metavar="N", help="captions at once (default: 100)")
    add_cpu(parser)
    parser.add_argument(
        "--skip-bad", action="store_true", help="leave out captions of which the model knows no word, and count them"
    )
    parser.set_defaults(inputs=("data", "path", "regions"))


def run(args: argparse.Namespace) -> None:
    """Write, and print for each beta how long phrases came out."""
    from .report import check_written, check_written_folder, print_table

    betas = parse_betas(args.beta)
    splits = _names("--split", args.split)
    for flag, value in (
        ("--batch-size", args.batch_size),
        ("--max-regions", args.max_regions),
        ("--min-words", args.min_words),
    ):
        if value < 1:
            raise GroundingError(f"{flag} {value}: must be at least 1")
    if args.out is None and args.export_snippets is None:
        raise GroundingError("nothing to write: give --out FILE, --export-snippets FOLDER, or both")
    if args.export_snippets is not None and len(betas) > 1:
        raise GroundingError(f"--export-snippets: needs one beta, and --beta {args.beta} gives {len(betas)}")
    check_written(args, "--out", args.out)
    check_written_folder(args, "--export-snippets", args.export_snippets)
    if None not in (args.out, args.export_snippets) and args.export_snippets.resolve() in args.out.resolve().parents:
        raise GroundingError(f"--out {args.out}: lies in the folder of --export-snippets; give it another place")
    from ..align import align

    totals = align(
        args.data,
        args.path,
        splits,
        betas,
        out=args.out,
        snippets=args.export_snippets,
        regions=args.regions,
        max_regions=args.max_regions,
        batch_size=args.batch_size,
        cpu=args.cpu,
        skip_bad=args.skip_bad,
        min_words=args.min_words,
        overwrite=args.overwrite,
    )
    rows = [
        [
            f"{total['beta']:g}",
            str(total["captions"]),
            str(total["phrases"]),
            f"{total['words'] / total['phrases']:.2f}" if total["phrases"] else "-",
            f"{total['energy']:.4g}",
        ]
        for total in totals
    ]
    print_table(["beta", "captions", "phrases", "words a phrase", "energy a caption"], rows)
    if totals[0]["left_out"]:
        print(f"{totals[0]['left_out']} captions left out, of which the model knows no word")
    for path in filter(None, (args.out, args.export_snippets)):
        print(path)


def _names(flag: str, text: str) -> list[str]:
    names = [name.strip() for name in text.split(",")]
    if not all(names) or len(set(names)) < len(names):
        raise GroundingError(f"{flag} {text}: give each once, with commas between them")
    return names


def parse_betas(text: str) -> list[float]:
    """The numbers of ``--beta``; a :class:`GroundingError` for what is none, negative, or there twice."""
    from ..modules.alignment import check_beta

    try:
        betas = [float(number) for number in _names("--beta", text)]
    except ValueError:
        raise GroundingError(f"--beta {text}: give numbers with commas between them, such as 0,0.5,1") from None
    for beta in betas:
        check_beta(beta, "--beta")
    if len(set(betas)) < len(betas):
        raise GroundingError(f"--beta {text}: give each once, with commas between them")
    return betas
