#!/usr/bin/env bash
# Makes an environment, then runs the linters, the type checker and the tests. Arguments go to pytest.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/environment.sh
export OMP_NUM_THREADS=1
ruff check .
ruff format --check .
mypy fairseq_grounding
# a file's tests stay in one process, since they share trained models
python -m pytest --numprocesses 2 --dist loadfile "$@"
