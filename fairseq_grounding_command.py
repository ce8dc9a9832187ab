"""The command ``fairseq-grounding``; beside the package, because importing the package needs fairseq."""

from __future__ import annotations

import sys
from importlib.util import find_spec


def main() -> int:
    """Run ``fairseq-grounding``; where the package cannot be imported, say why in one line."""
    if sys.argv[1:] == ["user-dir"]:
        spec = find_spec("fairseq_grounding")
        assert spec is not None, "this module is installed together with the package"
        print(next(iter(spec.submodule_search_locations or [])))
        return 0
    try:
        from fairseq_grounding.cli import main as run
    except ImportError as error:
        print(f"fairseq-grounding: error: {error}", file=sys.stderr)
        return 1
    return run()


if __name__ == "__main__":
    sys.exit(main())
