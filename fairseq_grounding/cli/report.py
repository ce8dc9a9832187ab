"""What every score of ``evaluate`` shares: its dumps and folder, the printed table, and the JSON report."""

from __future__ import annotations

import argparse
import importlib.metadata
import platform
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ..errors import GroundingError
from ..files import content_hash, write_json

# said in the report where a score imported them
_OPTIONAL_TOOLS = ("pycocoevalcap", "spacy", "nltk", "textblob")


def add_common(parser: argparse.ArgumentParser, inputs: Sequence[str] = ()) -> None:
    """The arguments of every score; *inputs* names those of its own that are files to read."""
    parser.add_argument("dumps", nargs="+", type=Path, metavar="DUMP", help="grounding dumps (JSON lines)")
    add_json(parser, ("dumps", "data", *inputs))


def add_json(parser: argparse.ArgumentParser, inputs: Sequence[str]) -> None:
    """``--json``; *inputs* names the arguments that are files or folders to read."""
    parser.add_argument(
        "--json",
        type=Path,
        metavar="FILE",
        help="also write everything as JSON, with versions, the hashes of the files that were read, and the arguments",
    )
    parser.set_defaults(inputs=tuple(inputs))


def add_data(parser: argparse.ArgumentParser, required: bool = True) -> None:
    """``--data``, the prepared folder."""
    parser.add_argument("--data", type=Path, required=required, metavar="FOLDER", help="the prepared folder")


def add_resampling(parser: argparse.ArgumentParser, what: str) -> None:
    """``--bootstrap`` and ``--seed``; *what* is it that gets intervals."""
    from ..scoring.bootstrap import ROUNDS

    parser.add_argument(
        "--bootstrap",
        type=int,
        default=ROUNDS,
        metavar="N",
        help=f"resamples of the images for the 95%% intervals of {what} (default: {ROUNDS}; 0: no intervals)",
    )
    parser.add_argument("--seed", type=int, default=1, help="seed of the resamples (default: 1)")


def check_json(args: argparse.Namespace) -> None:
    """Refuse a ``--json`` that cannot be written, or would replace an input, before the minutes of scoring."""
    check_written(args, "--json", args.json)


def check_written(args: argparse.Namespace, flag: str, target: Path | None) -> None:
    """Refuse a file that *flag* wants written where there is no folder, or where an input lies."""
    if target is None:
        return
    real = target.resolve()
    if not real.parent.is_dir():
        raise GroundingError(f"{flag} {target}: its folder does not exist; make it first")
    if real.is_dir():
        raise GroundingError(f"{flag} {target}: is a folder; give the name of a file")
    for path in _read(args):
        if path.resolve() in (real, real.parent) or (path.exists() and real.exists() and path.samefile(real)):
            what = "lies in the folder" if path.is_dir() else "is the file"
            raise GroundingError(f"{flag} {target}: {what} {path} that is read; give it another name or place")


def check_written_folder(args: argparse.Namespace, flag: str, target: Path | None) -> None:
    """Refuse a folder that *flag* wants written where it would replace an input or mix with one."""
    if target is None:
        return
    real = target.resolve()
    for path in _read(args):
        if real in (path.resolve(), *path.resolve().parents):
            what = "is" if real == path.resolve() else "holds"
            raise GroundingError(f"{flag} {target}: {what} {path} that is read; give another folder")


def check_csv(args: argparse.Namespace) -> None:
    """Refuse a ``--csv`` as :func:`check_json` does, and one that is the ``--json`` file as well."""
    check_written(args, "--csv", args.csv)
    if args.csv is not None and args.json is not None and args.csv.resolve() == args.json.resolve():
        raise GroundingError(f"--csv {args.csv}: is the --json file as well; give it another name")


def write_report(args: argparse.Namespace, report: dict[str, Any]) -> None:
    """Write *report* to ``--json``, where asked, with what it was computed from and by."""
    if args.json is None:
        return
    hidden = ("command", "run", "run_score", "inputs", "json", "score")
    made_with = {
        "versions": _versions(),
        "files": _file_hashes(args),
        "arguments": {name: _plain(value) for name, value in vars(args).items() if name not in hidden},
        "seed": getattr(args, "seed", None),
    }
    write_json(args.json, {**report, **made_with})


def percent(fraction: float | None) -> str:
    """A fraction in percent, a dash for None."""
    return "-" if fraction is None else f"{100 * fraction:.1f}"


def interval(bounds: Sequence[float] | None) -> str:
    """The ends of an interval in percent, a dash for None."""
    return "-" if bounds is None else "-".join(map(percent, bounds))


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print aligned columns, the first to the left and the others to the right."""
    widths = [max(map(len, column)) for column in zip(header, *rows)]
    for row in (header, *rows):
        cells = [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:]))]
        print("  ".join(cells).rstrip())


def _versions() -> dict[str, str]:
    import fairseq
    import numpy
    import torch

    from .. import __version__

    versions = {
        "fairseq_grounding": __version__,
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "numpy": numpy.__version__,
        "fairseq": str(fairseq.__version__),
    }
    for name in _OPTIONAL_TOOLS:
        if name in sys.modules:
            versions[name] = importlib.metadata.version(name)
    return versions


def _file_hashes(args: argparse.Namespace) -> dict[str, str]:
    """SHA-256 by path: of a file's bytes, or what a prepared folder or a region store calls its content."""
    from ..data.prepared import PreparedFolder
    from ..data.regions import RegionStore

    hashes = {}
    for name, path in _inputs(args):
        if name == "data":
            hashes[str(path)] = PreparedFolder(path).content_hash()
            objects = path / "objects.json"
            if objects.is_file():
                hashes[str(objects)] = content_hash(objects)
        elif name == "regions":
            hashes[str(path)] = RegionStore(path).content_hash()
        else:
            hashes[str(path)] = content_hash(path)
    return hashes


def _inputs(args: argparse.Namespace) -> Iterator[tuple[str, Path]]:
    """The argument and the path of each file or folder that the user named to be read."""
    for name in args.inputs:
        value = getattr(args, name, None)
        for path in value if isinstance(value, list) else [value]:
            if path is not None:
                yield name, path


def _read(args: argparse.Namespace) -> Iterator[Path]:
    """What :func:`_inputs` names, and the region store of each prepared folder among it."""
    from ..data.prepared import PreparedFolder

    for _, path in _inputs(args):
        yield path
        if (path / "meta.json").is_file():
            yield PreparedFolder(path).regions_path


def _plain(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return str(value) if isinstance(value, Path) else value
