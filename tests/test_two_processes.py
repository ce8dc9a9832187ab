"""Two processes: gradients are shared, a resumed run loads, and metrics are those of the whole split."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from . import commands


def run_two(arguments: list[str], folder: Path) -> list[str]:
    """The same fairseq-train in two processes; what the first prints."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    shared = ["--distributed-world-size", "2", "--distributed-no-spawn", "--distributed-backend", "gloo"]
    shared += ["--distributed-init-method", f"tcp://localhost:{port}", "--ddp-backend", "legacy_ddp"]
    command = [sys.executable, "-m", "fairseq_cli.train", *arguments, *shared]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    processes = []
    for rank in ("0", "1"):
        output = (folder / f"rank{rank}.log").open("w")
        process = subprocess.Popen(
            [*command, "--distributed-rank", rank], stdout=output, stderr=subprocess.STDOUT, env=environment
        )
        processes.append(process)
    codes = [process.wait(timeout=240) for process in processes]
    log = (folder / "rank0.log").read_text()
    assert codes == [0, 0], log[-2000:]
    return log.splitlines()


@pytest.mark.parametrize(
    ("arch", "criterion", "metric", "epochs"),
    [("scan", "image_text_triplet", "rsum", 6), ("up_down", "cross_entropy", "cider", 40)],
)
def test_two_processes(toy_folder: Path, tmp_path: Path, arch: str, criterion: str, metric: str, epochs: int) -> None:
    evaluated = "--eval-retrieval" if metric == "rsum" else "--eval-caption-metrics"
    arguments = [str(toy_folder), *commands.COMMON, "--arch", arch, *commands.SMALL[arch], "--criterion", criterion]
    arguments += ["--optimizer", "adam", "--lr", "0.01", "--batch-size", "8", "--log-format", "json", evaluated]
    arguments += ["--save-dir", str(tmp_path / "run"), "--best-checkpoint-metric", metric, "--no-epoch-checkpoints"]
    run_two([*arguments, "--max-epoch", str(epochs), "--validate-interval", str(epochs)], tmp_path)
    lines = run_two([*arguments, "--max-epoch", str(epochs + 1)], tmp_path)
    assert any("Loaded checkpoint" in line and f"epoch {epochs + 1}" in line for line in lines)
    (line,) = [line for line in lines if '"valid_loss"' in line]
    together = json.loads(line[line.index("{") :])
    alone = commands.validate(toy_folder, tmp_path / "run" / "checkpoint_last.pt")
    assert alone[f"valid_{metric}"] == pytest.approx(float(together[f"valid_{metric}"]), abs=2e-3)
    assert alone[f"valid_{metric}"] > 0
