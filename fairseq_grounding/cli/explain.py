"""Say for every word of a caption which regions and which earlier words spoke for it, and which against.

The captions are those that the model writes (by beam search), the split's own (--given), or those of a grounding dump
that this model wrote (--dump). Methods:

  lrp                   layer-wise relevance propagation: what of the word's logit each input gets, layer by layer
  gradient              gradients, summed over a region's features
  gradient_input        gradients times features, summed
  guided                gradients, negative ones stopped at every ReLU
  grad_cam              Grad-CAM on embedded regions
  guided_grad_cam       the product of the two before
  integrated_gradients  gradients averaged on the way from nothing to the features, times them
  ablation              by how much the number falls without a region, or an earlier word
  attention             the captioner's own attention

lrp serves architectures whose layers have rules (all captioners with attention), attention those that have it, the
others all.

FILE.jsonl is a grounding dump (draw and evaluate read it) with a "relevance" in every step: "regions", a number a
region; "words", one for each word before; "start" for the start symbol; "logit", the number that is explained; "global"
and "sentinel", what of it went through the image's vector and the sentinel; and "inputs", "bias", "epsilon", "rest",
which add up to "logit". Numbers are signed, positive for the word, in logits (probability: from 0 to 1), rounded to 6
decimals; --hdf5 writes all digits.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from ..errors import GroundingError
from .inputs import add_cpu, add_regions
from .report import check_written


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The folder, the model, the captions, the method and its choices, and where to write."""
    add = parser.add_argument
    add("data", type=Path, metavar="DATA", help="prepared folder")
    add("--path", type=Path, required=True, metavar="CKPT", help="checkpoint of a captioner")
    add("--out", type=Path, required=True, metavar="FILE.jsonl", help="file to write, JSON lines")
    add("--hdf5", type=Path, metavar="FILE.h5", help="also write all numbers here, unrounded")
    add("--method", default="lrp", metavar="NAME", help="one of those above (default: %(default)s)")
    add("--split", default="test", metavar="NAME", help="train, valid or test (default: %(default)s)")
    captions = parser.add_mutually_exclusive_group()
    captions.add_argument("--given", action="store_true", help="explain the split's own captions")
    captions.add_argument("--dump", type=Path, metavar="FILE", help="explain the captions of this dump of the model's")
    add("--beam", type=int, default=5, metavar="N", help="beam of the captions that are written (default: %(default)s)")
    add("--image-ids", nargs="+", metavar="ID", help="explain captions of these images alone")
    add("--limit", type=int, metavar="N", help="explain at most N captions, the first (default: all)")
    add(
        "--position",
        type=int,
        nargs="+",
        metavar="N",
        help="explain these words of each caption alone, 0 the first; every caption must have them (default: all)",
    )
    add("--word", metavar="WORD", help="explain this word at each place, in place of the caption's")
    add(
        "--target",
        default="logit",
        choices=("logit", "margin", "probability"),
        help="the number that is explained: the word's logit, its logit minus that of the strongest other word, or its"
        " probability (default: %(default)s)",
    )
    add(
        "--epsilon",
        type=float,
        default=0.01,
        metavar="E",
        help="lrp: what steadies small denominators, 0 or more, in the units of a layer's outputs (default:"
        " %(default)s)",
    )
    add(
        "--bias",
        default="absorb",
        choices=("absorb", "redistribute"),
        help="lrp: biases and epsilon keep their part, or a layer's inputs share it evenly (default: %(default)s)",
    )
    add(
        "--alpha",
        type=float,
        metavar="A",
        help="lrp: embeddings of region features by the alpha-beta rule with beta = A - 1, A 1 or more (default: by"
        " epsilon as all layers)",
    )
    add(
        "--steps",
        type=int,
        default=32,
        metavar="N",
        help="integrated_gradients: points on the way (default: %(default)s)",
    )
    add_regions(parser)
    add("--max-regions", type=int, default=100, metavar="N", help="at most so many regions an image (default: 100)")
    add(
        "--max-target-positions",
        type=int,
        default=50,
        metavar="N",
        help="captions are cut to so many tokens, the end symbol included (default: 50)",
    )
    add("--batch-size", type=int, default=16, metavar="N", help="captions at once (default: %(default)s)")
    add_cpu(parser)
    parser.set_defaults(inputs=("data", "path", "dump", "regions"))


def run(args: argparse.Namespace) -> None:
    """Explain, and print where the logits went."""
    for flag, target in (("--out", args.out), ("--hdf5", args.hdf5)):
        check_written(args, flag, target)
    if args.hdf5 is not None and args.hdf5.resolve() == args.out.resolve():
        raise GroundingError(f"--hdf5 {args.hdf5}: is the file of --out; give another name")
    for flag in ("beam", "limit", "batch_size"):
        value = getattr(args, flag)
        if value is not None and value < 1:
            raise GroundingError(f"--{flag.replace('_', '-')} {value}: must be at least 1")
    from ..explain.split import explain_split

    found = explain_split(
        args.data,
        args.path,
        args.out,
        split=args.split,
        given=args.given,
        dump=args.dump,
        hdf5=args.hdf5,
        regions=args.regions,
        method=args.method,
        word=args.word,
        positions=args.position,
        image_ids=args.image_ids,
        limit=args.limit,
        beam=args.beam,
        max_regions=args.max_regions,
        max_target_positions=args.max_target_positions,
        batch_size=args.batch_size,
        cpu=args.cpu,
        target=args.target,
        epsilon=args.epsilon,
        bias=args.bias,
        alpha=args.alpha,
        steps=args.steps,
    )
    print(
        f"{found['words']:.0f} words of {found['captions']} captions, {found['milliseconds']:.2f} ms a word; mean"
        f" {args.target} {found['logit']:.4g} = inputs {found['inputs']:.4g} + biases {found['bias']:.4g} + epsilon"
        f" {found['epsilon']:.4g} + rest {found['rest']:.4g}"
    )
    for path in filter(None, (args.out, args.hdf5)):
        print(path)
