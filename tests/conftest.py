"""Fixtures that several test files share."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

FIGURES = Path(__file__).parent / "figures"


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of real data and parity figures that lies beside a developer's checkout."""
    folder = Path(__file__).resolve().parents[2] / "shared"
    if not folder.is_dir():
        pytest.skip(f"needs the real data in {folder}, which is not here")
    return folder
