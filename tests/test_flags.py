"""``fairseq-grounding flags``: what fairseq's own --help does not show."""

from __future__ import annotations

import pytest

from fairseq_grounding.cli import main
from fairseq_grounding.criterions.kl_attention_distill import KlAttentionDistillConfig
from fairseq_grounding.tasks.grounded_caption import GroundedCaptionConfig


def test_all_flags_with_their_defaults(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["flags"]) == 0
    printed = capsys.readouterr().out
    heads = [line for line in printed.splitlines() if line.startswith("--")]
    assert set(heads) >= {
        "--task grounded_caption",
        "--arch scan",
        "--arch pos_scan",
        "--arch up_down",
        "--criterion image_text_triplet",
        "--criterion kl_attention_distill",
    }
    for config in (GroundedCaptionConfig, KlAttentionDistillConfig):
        for name in config.__dataclass_fields__:
            if name not in ("_name", "data", "seed", "best_checkpoint_metric"):
                assert f"  --{name.replace('_', '-')}" in printed
    assert "--items caption|image|group" in printed
    assert "[caption]" in printed
    assert "DATA" in printed


def test_one_of_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["flags", "up_down"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("--arch up_down\n")
    assert "[512]" in printed
    assert "--margin" not in printed
    assert main(["flags", "nothing"]) == 1
    assert "nothing: the plugin has grounded_caption" in capsys.readouterr().err
