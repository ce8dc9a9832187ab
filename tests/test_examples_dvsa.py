"""The script of DVSA's experiments runs from drawn pictures to its table."""

from __future__ import annotations

import json
import subprocess
import tempfile
from pathlib import Path

import pytest

from .forked import forked_commands

ROOT = Path(__file__).resolve().parents[1]


def test_the_smoke_run_ends_in_its_table(tmp_path):
    pytest.importorskip("spacy", reason="needs the extra 'text'")
    out = tmp_path / "out"
    # a socket's path has to be short
    with tempfile.TemporaryDirectory() as folder, forked_commands(Path(folder)) as environment:
        script = [str(ROOT / "examples" / "dvsa" / "run.sh"), "--smoke", str(out)]
        environment |= {"BETAS": "0,1", "OMP_NUM_THREADS": "1"}
        first = subprocess.run(script, env=environment, capture_output=True, text=True, timeout=1800)
        assert first.returncode == 0, first.stderr
        for title in ("Retrieval among", "Phrases", "Captions of whole images", "Captions of regions"):
            assert title in first.stdout
        # what the paper measured stands beside what was measured here
        (line,) = [line for line in first.stdout.splitlines() if line.startswith("| image to sentence |")]
        assert line.split("|")[3].strip() == "22.2"
        described = [json.loads(line) for line in (out / "described.jsonl").read_text().splitlines()]
        assert described
        assert all(row["regions"] for row in described)
        assert len(list((out / "drawn").glob("*.png"))) == 3
        # all is finished: nothing is done again
        again = subprocess.run(script, env=environment, capture_output=True, text=True, timeout=1800)
        assert again.returncode == 0, again.stderr
        assert (again.stdout, again.stderr) == (first.stdout, "")


@pytest.mark.parametrize("arguments", [[], ["--tiny"], ["a", "b", "c"]])
def test_wrong_arguments_say_how_it_is_used(arguments):
    found = subprocess.run(
        [str(ROOT / "examples" / "dvsa" / "run.sh"), *arguments], capture_output=True, text=True, cwd=ROOT
    )
    assert found.returncode == 2
    assert found.stderr.startswith("usage: ")
