"""fairseq's commands in this process, as a user types them."""

from __future__ import annotations

import io
import json
from argparse import Namespace
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

from fairseq import checkpoint_utils, options
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.logging import metrics
from fairseq_cli import generate as fairseq_generate
from fairseq_cli import train as fairseq_train
from fairseq_cli import validate as fairseq_validate

PLUGIN = str(Path(__file__).resolve().parents[1] / "fairseq_grounding")
COMMON = ("--user-dir", PLUGIN, "--task", "grounded_caption", "--num-workers", "0", "--cpu", "--no-progress-bar")

SMALL = {
    "scan": ("--word-embedding-size", "16", "--joint-size", "24"),
    "pos_scan": ("--word-embedding-size", "16", "--joint-size", "24"),
    "dvsa": ("--word-embedding-size", "16", "--hidden-size", "24", "--joint-size", "32"),
    "up_down_coco": (),
    "up_down": ("--embedding-size", "24", "--hidden-size", "24", "--attention-size", "16"),
    "adaptive_attention": ("--embedding-size", "24", "--hidden-size", "24", "--attention-size", "16"),
    "multihead_attention": ("--embedding-size", "24", "--hidden-size", "24", "--attention-heads", "3"),
    "multimodal_rnn": ("--embedding-size", "24", "--hidden-size", "24"),
    "grounded_transformer": (
        *("--embedding-size", "24", "--ffn-size", "32", "--attention-heads", "4"),
        *("--encoder-layers", "1", "--decoder-layers", "2"),
    ),
}


def train(folder: Path, save_dir: Path, arch: str, *flags: str) -> dict[str, Any]:
    """``fairseq-train``; returns the checkpoint that it leaves as ``checkpoint_last.pt``."""
    if hasattr(checkpoint_utils.save_checkpoint, "best"):
        del checkpoint_utils.save_checkpoint.best  # fairseq keeps it from run to run of one process
    metrics.reset()
    criterion = () if "--criterion" in flags else ("--criterion", "image_text_triplet")
    lr = () if "--lr" in flags else ("--lr", "0.005")
    arguments = [str(folder), *COMMON, "--arch", arch, *SMALL[arch], *criterion, *lr, "--optimizer", "adam"]
    arguments += ["--save-dir", str(save_dir), *flags]
    parser = options.get_training_parser()
    args = options.parse_args_and_arch(parser, arguments)
    fairseq_train.main(convert_namespace_to_omegaconf(args))
    return checkpoint_utils.load_checkpoint_to_cpu(str(save_dir / "checkpoint_last.pt"))


def generate(folder: Path, checkpoint: Path, *flags: str) -> list[str]:
    """``fairseq-generate``; returns the lines that it prints (T-, H-, A-, P- and others)."""
    parser = options.get_generation_parser()
    size = () if "--batch-size" in flags else ("--batch-size", "5")
    args = options.parse_args_and_arch(parser, [str(folder), *COMMON, "--path", str(checkpoint), *size, *flags])
    printed = io.StringIO()
    fairseq_generate._main(convert_namespace_to_omegaconf(args), printed)
    return printed.getvalue().splitlines()


def validate(folder: Path, checkpoint: Path, *flags: str, subset: str = "valid") -> dict[str, float]:
    """``fairseq-validate``; returns what it logs of *subset*, each name after ``valid_``."""
    arguments = [str(folder), *COMMON, "--path", str(checkpoint), "--batch-size", "5", "--valid-subset", subset, *flags]
    arguments += ["--log-format", "json"]
    args = options.parse_args_and_arch(options.get_validation_parser(), arguments)
    override = options.parse_args_and_arch(options.get_validation_parser(), arguments, suppress_defaults=True)
    printed = io.StringIO()
    with redirect_stdout(printed):
        fairseq_validate.main(convert_namespace_to_omegaconf(args), override_args=Namespace(**vars(override)))
    (line,) = [line for line in printed.getvalue().splitlines() if f'"{subset}_loss"' in line]
    logged = json.loads(line[line.index("{") :])
    return {f"valid_{name.removeprefix(subset + '_')}": float(value) for name, value in logged.items()}


def lines_of(printed: list[str], letter: str) -> dict[int, str]:
    """The lines of one kind, by id: what stands after the tab."""
    found = {}
    for line in printed:
        kind, _, rest = line.partition("-")
        if kind == letter and "\t" in rest and rest.split("\t")[0].isdigit():
            number, _, text = rest.partition("\t")
            found[int(number)] = text
    return found
