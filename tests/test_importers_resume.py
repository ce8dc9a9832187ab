"""Imports that are stopped, and go on."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import signal
import tempfile
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairseq_grounding.data.importers import IMPORTERS, Importer, Record, import_regions, resumable
from fairseq_grounding.data.importers.base import grouped
from fairseq_grounding.data.importers.decoding import Decoder, decoded
from fairseq_grounding.data.regions import RegionStore
from fairseq_grounding.errors import GroundingError

from .region_files import command

IMAGES = 40


class Drawn(Importer):
    """Images drawn at random; number 7 and 23 are wrong. Stops before a number, however it is told to."""

    summary = "drawn"

    def __init__(self, path, stop=None, how=None, labels=False):
        super().__init__(path)
        if not path.exists():
            path.touch()
        self.stop, self.how, self.labels, self.seen = stop, how, labels, []

    def jobs(self):
        return grouped((f"number {n}", n) for n in range(IMAGES))

    def read(self, what):
        if what == self.stop:
            self.how()
        self.seen.append(what)
        if what in (7, 23):
            raise GroundingError(f"number {what} is wrong")
        rng = np.random.default_rng(what)
        count = 1 + what % 4
        boxes = np.tile([0.0, 0, 50, what + 1], (count, 1))
        labels = np.full(count, what) if self.labels else None
        return Record(f"im{what}", rng.normal(size=(count, 6)), boxes, (50, 60), labels)


def interrupt():
    raise KeyboardInterrupt


def run(folder, stop=None, how=interrupt, labels=False, **options):
    importer = Drawn(folder / "input", stop, how, labels)
    try:
        writer = import_regions(importer, folder / "out" / "r.h5", skip_bad=True, **options)
    except KeyboardInterrupt:
        return importer, None
    return importer, writer


def names(folder):
    return sorted(path.name for path in (folder / "out").iterdir())


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "out").mkdir()
    return tmp_path


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Content hash and list of skipped images of an import that nobody stopped, without labels and with."""
    found = {}
    for labels in (False, True):
        folder = tmp_path_factory.mktemp("whole")
        (folder / "out").mkdir()
        run(folder, labels=labels)
        assert names(folder) == ["r.h5", "r.h5.skipped.tsv"]
        found[labels] = result(folder)
    assert found[False][1].splitlines()[1:] == [f"number {n}\tnumber {n} is wrong" for n in (7, 23)]
    return found


def result(folder):
    store = RegionStore(folder / "out" / "r.h5")
    features = np.concatenate([block for _, block in store.blocks("features")])
    return (
        (store.content_hash(), features.tobytes()),
        (folder / "out" / "r.h5.skipped.tsv").read_text(),
    )


@settings(max_examples=12, deadline=None)
@given(st.integers(0, IMAGES - 1), st.integers(0, 200), st.booleans(), st.sampled_from([0, 1 << 26]))
def test_stopped_import_goes_on_from_what_reached_the_disk(whole, stop, lost, labels, commit):
    with tempfile.TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        patch.setattr(resumable, "_COMMIT_BYTES", commit)
        folder = Path(name)
        (folder / "out").mkdir()
        first, _ = run(folder, stop, labels=labels)
        assert first.seen == list(range(stop))
        assert names(folder) == ["r.h5.partial"]
        # a kill may lose the end of the journal, also within a line, though the rows are there
        journal = folder / "out" / "r.h5.partial" / "journal"
        content = journal.read_bytes()[: max(0, journal.stat().st_size - lost)]
        journal.write_bytes(content)
        done = sum(b'"features"' not in line for line in content.split(b"\n")[:-1])
        again, _ = run(folder, labels=labels, resume=True)
        assert again.seen == list(range(done, IMAGES))
        assert names(folder) == ["r.h5", "r.h5.skipped.tsv"]
        assert result(folder) == whole[labels]


def test_import_can_be_stopped_more_than_once(folder, whole):
    for stop in (5, 5, 12, 30):
        run(folder, stop, resume=True)
    importer, _ = run(folder, resume=True)
    assert importer.seen == list(range(30, IMAGES))
    assert result(folder) == whole[False]


def killed(folder, workers):
    resumable._COMMIT_BYTES = 0
    run(folder, 33, lambda: os.kill(os.getpid() if workers == 1 else os.getppid(), signal.SIGKILL), workers=workers)


@pytest.mark.parametrize("workers", [1, 2])
def test_killed_import_goes_on(folder, whole, workers):
    process = multiprocessing.get_context("fork").Process(target=killed, args=(folder, workers))
    process.start()
    process.join(30)
    assert process.exitcode == -signal.SIGKILL
    assert names(folder) == ["r.h5.partial"]
    importer, _ = run(folder, resume=True)
    assert importer.seen[-1] == IMAGES - 1
    # in processes, those that were being read when the program was killed are read again
    assert 33 - 2 * 2 * 8 - 8 <= importer.seen[0] <= 33
    assert workers == 2 or importer.seen[0] == 33
    assert result(folder) == whole[False]


def finish_slowly(folder, begun):
    def slow(self, path):
        path.write_bytes(b"half")
        begun.set()
        time.sleep(60)

    resumable.ResumableWriter._write = slow
    run(folder)


def test_import_killed_while_it_finishes_goes_on(folder, whole):
    context = multiprocessing.get_context("fork")
    begun = context.Event()
    process = context.Process(target=finish_slowly, args=(folder, begun))
    process.start()
    assert begun.wait(30)
    process.kill()
    process.join(30)
    # the list of what was skipped is complete by then
    assert names(folder) == ["r.h5.partial", "r.h5.skipped.tsv"]
    importer, _ = run(folder, resume=True)
    assert importer.seen == []
    assert result(folder) == whole[False]


def children(pid):
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


def endless(folder, begun):
    def wait():
        begun.set()
        time.sleep(60)

    run(folder, 20, wait, workers=2)


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="needs /proc to see processes")
def test_killed_import_leaves_no_process(folder):
    context = multiprocessing.get_context("fork")
    begun = context.Event()
    process = context.Process(target=endless, args=(folder, begun))
    process.start()
    assert begun.wait(30)
    workers = children(process.pid)
    assert len(workers) == 2
    process.kill()
    process.join(30)
    deadline = time.monotonic() + 20
    while any(alive(pid) for pid in workers) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(alive(pid) for pid in workers)


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_going_on_is_asked_for(folder, whole):
    run(folder, 5)
    with pytest.raises(GroundingError, match=r"r\.h5\.partial: a stopped import left it; add --resume"):
        run(folder)
    assert names(folder) == ["r.h5.partial"]
    run(folder, resume=True)
    # with nothing to go on with, it begins anew
    importer, _ = run(folder, resume=True)
    assert importer.seen == list(range(IMAGES))
    assert result(folder) == whole[False]


CHANGES = {
    "--dtype": {"dtype": "float32"},
    "--box-format": {"box_format": "xywh"},
    "--source": {"source": "other"},
    "flag of the format": {"flags": {"columns": "butd"}},
    "--input": None,
}


@pytest.mark.parametrize("name", CHANGES)
def test_other_input_or_flags_are_refused(folder, name):
    run(folder, 5)
    if name == "--input":
        (folder / "input").write_text("changed")
    with pytest.raises(GroundingError, match=f"was begun with another {name};"):
        run(folder, resume=True, **(CHANGES[name] or {}))
    assert names(folder) == ["r.h5.partial"]


def test_change_of_a_file_in_a_folder_is_seen(tmp_path):
    for name in "ab":
        (tmp_path / name).write_text(name)
    before = resumable.fingerprint([tmp_path])
    (tmp_path / "out.partial").mkdir()
    assert resumable.fingerprint([tmp_path]) == before
    os.utime(tmp_path / "a", ns=(1, 1))
    assert resumable.fingerprint([tmp_path]) != before


def test_two_imports_do_not_write_one_file(folder):
    run(folder, 5)

    def other():
        with pytest.raises(GroundingError, match="another import is writing it"):
            run(folder, resume=True)
        raise KeyboardInterrupt

    run(folder, 9, other, resume=True)
    assert names(folder) == ["r.h5.partial"]


def test_damaged_partial_folder_is_named(folder):
    run(folder, 5)
    partial = folder / "out" / "r.h5.partial"
    kept = folder / "kept"
    shutil.copytree(partial, kept)
    os.truncate(partial / "boxes.rows", 10)
    with pytest.raises(GroundingError, match=r"boxes\.rows: is shorter than the journal says"):
        run(folder, resume=True)
    shutil.rmtree(partial)
    shutil.copytree(kept, partial)
    (partial / "plan.json").write_text("[]")
    with pytest.raises(GroundingError, match="was begun with another"):
        run(folder, resume=True)


def test_error_leaves_nothing(folder):
    importer = Drawn(folder / "input")
    with pytest.raises(GroundingError, match="number 7 is wrong"):
        import_regions(importer, folder / "out" / "r.h5")
    assert names(folder) == []
    assert importer.seen == list(range(8))


def test_any_other_error_leaves_nothing_either(folder):
    def fail():
        raise ZeroDivisionError("a fault of the program")

    with pytest.raises(ZeroDivisionError):
        run(folder, 9, fail)
    assert names(folder) == []


def test_process_that_dies_is_said(folder):
    importer = Drawn(folder / "input", 20, lambda: os._exit(1))
    with pytest.raises(GroundingError, match="--workers 2: a process that read images was ended"):
        import_regions(importer, folder / "out" / "r.h5", skip_bad=True, workers=2)
    assert names(folder) == []
    with pytest.raises(GroundingError, match="--workers 0"):
        import_regions(importer, folder / "out" / "r.h5", workers=0)


def test_jobs_run_ahead_of_the_writer_by_a_few_only(folder):
    seen = []

    class Counted(Drawn):
        def jobs(self):
            for job in super().jobs():
                seen.append(job.what)
                yield job

    decoder = Decoder([Counted(folder / "input")], ["xyxy"], "float16")
    results = decoded(decoder, 1)
    for _ in range(3):
        next(results)
    assert len(seen) <= 9
    assert [job.what for _, job, _ in results] == list(range(3, IMAGES))


def test_command_says_how_to_go_on(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(IMPORTERS, "drawn", Drawn)
    monkeypatch.setattr(Drawn, "read", lambda self, what: interrupt())
    out = tmp_path / "r.h5"
    with pytest.raises(KeyboardInterrupt):
        command("prepare_regions", "--format", "drawn", "--input", tmp_path / "in", "--out", out)
    assert f"stopped; {out}.partial keeps what was read: go on with --resume" in capsys.readouterr().err
    plan = json.loads((tmp_path / "r.h5.partial" / "plan.json").read_text())
    assert plan["--dtype"] == "float16"
