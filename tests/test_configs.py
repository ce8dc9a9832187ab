"""The YAML files for ``fairseq-hydra-train``: every key is one, and each of them trains."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from fairseq import checkpoint_utils
from fairseq.dataclass.configs import FairseqConfig
from fairseq.dataclass.initialize import hydra_init
from fairseq.logging import metrics
from fairseq.models import ARCH_MODEL_NAME_REGISTRY, MODEL_DATACLASS_REGISTRY
from fairseq.registry import REGISTRIES
from fairseq.tasks import TASK_DATACLASS_REGISTRY
from fairseq_cli.hydra_train import _hydra_main
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

import fairseq_grounding  # noqa: F401

from . import commands

CONFIGS = Path(__file__).resolve().parents[1] / "examples" / "configs"
NAMES = sorted(path.stem for path in CONFIGS.glob("*.yaml"))
SMALL = {
    "scan": ("+model.word_embedding_size=16", "+model.joint_size=24"),
    "up_down": ("+model.embedding_size=24", "+model.hidden_size=24", "+model.attention_size=16"),
}


def test_there_is_one_for_each_training() -> None:
    assert set(NAMES) == {"scan", "pos_scan", "up_down", "distilled", "scst"}
    readme = (CONFIGS / "README.md").read_text()
    assert all(f"`{name}.yaml`" in readme for name in NAMES)


def dataclass_of(section: str, name: str) -> Any:
    if section == "task":
        return TASK_DATACLASS_REGISTRY[name]
    if section == "model":
        return MODEL_DATACLASS_REGISTRY[ARCH_MODEL_NAME_REGISTRY.get(name, name)]
    return REGISTRIES[section]["dataclass_registry"][name]


@pytest.mark.parametrize("name", NAMES)
def test_every_key_is_one_with_a_fitting_value(name: str) -> None:
    sections = OmegaConf.load(CONFIGS / f"{name}.yaml")
    del sections["hydra"]
    assert {"common", "task", "model", "criterion", "optimizer", "lr_scheduler"} <= set(sections)
    for section, values in sections.items():
        chosen = values.get("_name")
        config = dataclass_of(section, chosen) if chosen else FairseqConfig.__dataclass_fields__[section].default
        # raises for a key that is none, and for a value of another type
        OmegaConf.merge(OmegaConf.structured(config), values)
        assert set(values) <= set(config.__dataclass_fields__), section


def train(name: str, folder: Path, save_dir: Path, *overrides: str) -> dict[str, Any]:
    """What ``fairseq-hydra-train --config-name NAME`` does, in this process; returns the last checkpoint."""
    if hasattr(checkpoint_utils.save_checkpoint, "best"):
        del checkpoint_utils.save_checkpoint.best
    metrics.reset()
    hydra_init(name)
    given = [f"task.data={folder}", f"checkpoint.save_dir={save_dir}", f"common.user_dir={commands.PLUGIN}"]
    given += ["common.cpu=true", "dataset.num_workers=0", "optimization.max_epoch=1", *SMALL["up_down"], *overrides]
    with initialize_config_dir(str(CONFIGS), version_base="1.1"):
        cfg = compose(name, given)
    _hydra_main(cfg)
    return torch.load(save_dir / "checkpoint_last.pt")


@pytest.fixture(scope="module")
def teacher(toy_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the command itself leaves, called as the README says."""
    root = tmp_path_factory.mktemp("hydra")
    command = [sys.executable, "-m", "fairseq_cli.hydra_train", "--config-dir", str(CONFIGS)]
    command += ["--config-name", "pos_scan", f"task.data={toy_folder}", f"checkpoint.save_dir={root}/teacher"]
    command += ["common.cpu=true", "dataset.num_workers=0", "optimization.max_epoch=1", *SMALL["scan"]]
    done = subprocess.run(
        command, cwd=CONFIGS.parents[1], env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert (root / "teacher" / "hydra" / "hydra_train.log").is_file()
    return root / "teacher" / "checkpoint_best.pt"


def test_the_command_trains_a_teacher(teacher: Path) -> None:
    state = torch.load(teacher)
    assert state["cfg"]["model"]["_name"] == "pos_scan"
    assert state["cfg"]["model"]["noun_attention"] == "before"
    assert state["model"]["region_projection.weight"].shape == (24, 12)
    assert state["cfg"]["lr_scheduler"]["step_epochs"] == 15


def test_the_captioner_is_taught_read_and_rewarded(teacher: Path, toy_folder: Path, tmp_path: Path) -> None:
    state = train("distilled", toy_folder, tmp_path / "distilled", f"criterion.teacher_path={teacher}")
    assert state["cfg"]["criterion"]["attention_weight"] == 0.1
    assert state["cfg"]["task"]["clip_value"] == 0.1
    assert state["cfg"]["model"]["scheduled_sampling_max"] == 0.25
    last = tmp_path / "distilled" / "checkpoint_last.pt"
    printed = commands.generate(toy_folder, last, "--items", "image", "--beam", "1", "--print-alignment", "hard")
    assert len(commands.lines_of(printed, "A")) == 4
    start, reward = f"checkpoint.finetune_from_model={last}", f"criterion.reward_path={teacher}"
    rewarded = train("scst", toy_folder, tmp_path / "scst", start, reward, "dataset.batch_size=4")
    assert rewarded["cfg"]["model"]["scheduled_sampling_increase"] == 0
    # one epoch of four small steps from the weights that were given
    moved = [
        (rewarded["model"][name] - state["model"][name]).abs().max() for name in state["model"] if "weight" in name
    ]
    assert 0 < max(moved) < 1e-3
