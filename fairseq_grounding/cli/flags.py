"""Print the flags that the plugin adds to fairseq-train, fairseq-generate and fairseq-validate.

fairseq's own --help stops before it reads which task, architecture and criterion are meant, and so shows none of
them.
"""

from __future__ import annotations

import argparse
import textwrap
from dataclasses import MISSING, Field, fields
from enum import EnumMeta
from typing import Any

from ..errors import GroundingError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Which of them."""
    parser.add_argument(
        "names",
        nargs="*",
        metavar="NAME",
        help="a task, architecture, criterion or learning-rate schedule of the plugin, such as up_down (default: all)",
    )


def run(args: argparse.Namespace) -> None:
    """Print each one's flags with what they mean and their defaults."""
    groups = _groups()
    unknown = [name for name in args.names if name not in groups]
    if unknown:
        raise GroundingError(f"{unknown[0]}: the plugin has {', '.join(groups)}")
    for name in args.names or groups:
        flag, config = groups[name]
        print(f"{flag} {name}")
        for item in fields(config):
            if item.name == "_name" or "help" not in item.metadata:
                continue
            print(_described(item))
        print()


def _groups() -> dict[str, tuple[str, Any]]:
    """Name -> the flag that chooses it, and its configuration."""
    from fairseq.criterions import CRITERION_DATACLASS_REGISTRY
    from fairseq.models import ARCH_MODEL_REGISTRY, MODEL_DATACLASS_REGISTRY
    from fairseq.optim.lr_scheduler import LR_SCHEDULER_DATACLASS_REGISTRY
    from fairseq.tasks import TASK_DATACLASS_REGISTRY

    plugin = __name__.partition(".")[0]
    found: dict[str, tuple[str, Any]] = {}
    registries = (
        ("--task", TASK_DATACLASS_REGISTRY),
        ("--criterion", CRITERION_DATACLASS_REGISTRY),
        ("--lr-scheduler", LR_SCHEDULER_DATACLASS_REGISTRY),
    )
    for flag, registry in registries:
        found.update({name: (flag, config) for name, config in registry.items() if _is_ours(config, plugin)})
    by_class = {id(ARCH_MODEL_REGISTRY[name]): config for name, config in MODEL_DATACLASS_REGISTRY.items()}
    for name, model in ARCH_MODEL_REGISTRY.items():
        if _is_ours(model, plugin):
            found[name] = ("--arch", by_class[id(model)])
    return found


def _is_ours(thing: Any, plugin: str) -> bool:
    return getattr(thing, "__module__", "").partition(".")[0] == plugin


def _described(item: Field[Any]) -> str:
    kind = item.type
    choices = "|".join(str(choice.value) for choice in kind) if isinstance(kind, EnumMeta) else ""
    default = item.default
    if default is MISSING or default == "???":
        name, shown = item.name.upper(), "required"
    else:
        name = f"--{item.name.replace('_', '-')}{' ' + choices if choices else ''}"
        shown = "off" if default is False else "none" if default is None else str(default)
    words = f"{item.metadata['help']} [{shown}]"
    lines = textwrap.wrap(words, 100, initial_indent=" " * 8, subsequent_indent=" " * 8, break_on_hyphens=False)
    return "\n".join([f"  {name}", *lines])
