"""A model's configuration with every key: what an older checkpoint does not know has its default."""

from __future__ import annotations

from typing import Any

from fairseq.models import ARCH_MODEL_NAME_REGISTRY, MODEL_DATACLASS_REGISTRY
from omegaconf import DictConfig, OmegaConf, open_dict


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
