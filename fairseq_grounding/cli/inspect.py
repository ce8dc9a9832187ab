"""Say what is in a region store or a prepared folder, and what is broken in it.

A region store is read whole, in blocks. The exit code is 1 when something is broken in it.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from ..errors import GroundingError
from ..files import write_json
from .report import check_json


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The file, and where to put the report as JSON."""
    parser.add_argument("file", type=Path, metavar="FILE", help="a region store (.h5) or a prepared folder")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the report as JSON")
    parser.set_defaults(inputs=("file",))


def run(args: argparse.Namespace) -> None:
    """Print the report; raise when it names faults."""
    check_json(args)
    if args.file.is_dir():
        _inspect_folder(args)
    else:
        _inspect_store(args)


def _inspect_folder(args: argparse.Namespace) -> None:
    from ..data.prepared import PreparedFolder

    folder = PreparedFolder(args.file)
    print(f"prepared folder {args.file}")
    print("\n".join(_lines(folder.meta, 1)))
    if args.json is not None:
        write_json(args.json, folder.meta)
    folder.check()
    print("  nothing is broken")


def _inspect_store(args: argparse.Namespace) -> None:
    from ..data.region_report import describe_store
    from ..data.regions import RegionStore

    report = describe_store(RegionStore(args.file))
    per_image, values = report["regions_per_image"], report["features"]
    print(f"region store {args.file}")
    rows = [
        ("source", report["source"] or "not stated"),
        ("images", report["images"]),
        ("regions", report["regions"]),
        ("regions per image", " ".join(f"{key} {_number(per_image[key])}" for key in ("min", "mean", "max"))),
        ("features", f"size {report['feature_size']}, {report['dtype']}"),
        (
            "feature values",
            " ".join(f"{key} {_number(values[key])}" for key in ("min", "max", "mean", "std")),
        ),
        ("NaN, infinite", f"{values['nan']}, {values['infinite']}"),
        ("labels, scores", ", ".join("yes" if report[key] else "no" for key in ("labels", "scores"))),
        ("size on disk", f"{report['bytes'] / 1e6:,.1f} MB"),
        ("content hash", report["content_hash"]),
    ]
    if not report["has_boxes"]:
        rows.append(("boxes", "none in the source: drawing and grounding scores mean nothing"))
    rows += [("decided", f"{name}: {words}") for name, words in report["decisions"].items()]
    for fault, found in report["broken"].items():
        first = ", ".join(map(repr, found["ids"]))
        rows.append(("BROKEN", f"{fault}: {found['rows']}, in {found['images']} images, first {first}"))
    for name, value in rows:
        print(f"  {name:<18} {value}")
    if args.json is not None:
        write_json(args.json, report)
    if not report["broken"]:
        print("  nothing is broken")
    else:
        raise GroundingError(
            f"{args.file}: {', '.join(report['broken'])}; extract the images named above again or leave them out"
        )


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.6g}"


def _lines(value: dict[str, Any], depth: int) -> list[str]:
    """A JSON object as indented lines, ``name  value``."""
    width = max((len(key) for key in value), default=0)
    lines = []
    for key, inner in value.items():
        if isinstance(inner, dict):
            lines += [f"{'  ' * depth}{key}", *_lines(inner, depth + 1)]
        else:
            text = ", ".join(map(str, inner)) if isinstance(inner, list) else "-" if inner is None else str(inner)
            lines.append(f"{'  ' * depth}{key:<{width}}  {text}")
    return lines
