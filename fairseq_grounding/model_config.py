"""A model's configuration with every key: what an older checkpoint does not know has its default."""

from __future__ import annotations

from typing import Any

from fairseq.models import ARCH_MODEL_NAME_REGISTRY, MODEL_DATACLASS_REGISTRY
from omegaconf import DictConfig, OmegaConf, open_dict

from .errors import GroundingError


def complete(cfg: Any) -> None:
    """Add to *cfg* the defaults of the keys that its model has and it lacks.

    fairseq does so for models by their own name, but not for their further architectures (pos_scan, up_down_coco),
    whose checkpoints would stop loading once the model has a new flag.
    """
    if not isinstance(cfg, DictConfig):
        return
    name = cfg.get("_name")
    config = MODEL_DATACLASS_REGISTRY.get(ARCH_MODEL_NAME_REGISTRY.get(name, name))
    if config is None:
        return
    defaults = OmegaConf.to_container(OmegaConf.structured(config), enum_to_str=True)
    assert isinstance(defaults, dict)
    with open_dict(cfg):
        for key, value in defaults.items():
            if key not in cfg:
                cfg[key] = value


def check_sizes(cfg: Any) -> None:
    """Refuse sizes and numbers of heads below 1, and dropout that is no probability below 1, in any model's *cfg*.

    Raises:
        GroundingError: names the flag
    """
    values = OmegaConf.to_container(cfg) if isinstance(cfg, DictConfig) else vars(cfg)
    assert isinstance(values, dict)
    for key, value in values.items():
        name = str(key)
        flag = f"--{name.replace('_', '-')} {value}"
        if not isinstance(value, (int, float)):
            continue
        if (name.endswith("_size") or name == "attention_heads") and value < 1:
            raise GroundingError(f"{flag}: give at least 1")
        if name.endswith("dropout") and not 0 <= value < 1:
            raise GroundingError(f"{flag}: give 0 or more, and less than 1")
