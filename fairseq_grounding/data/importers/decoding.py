"""From the jobs of importers to checked images, in order, in this process or in several."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from itertools import groupby, islice
from typing import NamedTuple, Union

from ...errors import GroundingError
from ..regions import CheckedImage, check_image
from .base import Importer, Job, boxes_in_pixels

# each process has so many groups of jobs ahead of the one whose images are being written
_AHEAD = 2


class Failure(NamedTuple):
    """An image that cannot be imported, and why, in one line."""

    reason: str


Decoded = tuple[int, Job, Union[CheckedImage, Failure]]
"""number of the importer, job, what came of it"""


class Decoder(NamedTuple):
    """Reads jobs; the part of the work that goes to other processes."""

    importers: Sequence[Importer]
    box_formats: Sequence[str]
    dtype: str

    def __call__(self, number: int, jobs: Sequence[Job]) -> list[CheckedImage | Failure]:
        """The images of *jobs* of importer *number*."""
        return [self._one(self.importers[number], self.box_formats[number], job) for job in jobs]

    def _one(self, importer: Importer, box_format: str, job: Job) -> CheckedImage | Failure:
        try:
            record = importer.read(job.what)
        except GroundingError as error:
            return Failure(str(error))
        try:
            record = record._replace(boxes=boxes_in_pixels(record, box_format))
            return check_image(**record._asdict(), dtype=self.dtype)
        except GroundingError as error:
            return Failure(f"{importer.where(job.what)}: {error}")


def decoded(decoder: Decoder, workers: int = 1, start: int = 0) -> Iterator[Decoded]:
    """Read all jobs of all importers but the first *start*; the order does not depend on *workers*.

    Args:
        decoder: what to read, and how.
        workers: processes that read; 1 reads in this one.
        start: jobs to leave out, in the order of the importers.

    Raises:
        GroundingError: a process ended unexpectedly.
    """
    groups = _groups(decoder.importers, start)
    if workers == 1:
        for number, jobs in groups:
            for job in jobs:
                yield number, job, decoder(number, [job])[0]
        return
    try:
        yield from _in_processes(decoder, groups, workers)
    except BrokenProcessPool as error:
        raise GroundingError(
            f"--workers {workers}: a process that read images was ended, maybe for want of memory; use fewer"
        ) from error


def _groups(importers: Sequence[Importer], start: int) -> Iterator[tuple[int, list[Job]]]:
    numbered = ((number, job) for number, importer in enumerate(importers) for job in importer.jobs())
    for (number, _), pairs in groupby(islice(numbered, start, None), lambda pair: (pair[0], pair[1].group)):
        yield number, [job for _, job in pairs]


def _in_processes(decoder: Decoder, groups: Iterator[tuple[int, list[Job]]], workers: int) -> Iterator[Decoded]:
    waiting: deque[tuple[int, list[Job], Future[list[CheckedImage | Failure]]]] = deque()
    pool = ProcessPoolExecutor(workers, multiprocessing.get_context(), _start, (decoder,))
    try:
        while True:
            for number, jobs in islice(groups, _AHEAD * workers - len(waiting)):
                waiting.append((number, jobs, pool.submit(_run, number, jobs)))
            if not waiting:
                return
            number, jobs, future = waiting.popleft()
            yield from ((number, job, result) for job, result in zip(jobs, future.result()))
    finally:
        pool.shutdown(cancel_futures=True)


_decoder: Decoder


def _start(decoder: Decoder) -> None:
    global _decoder
    _decoder = decoder
    # the parent answers signals, and ends the pool
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    # a killed parent cannot end its pool, and its children would wait for work for ever
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _run(number: int, jobs: list[Job]) -> list[CheckedImage | Failure]:
    return _decoder(number, jobs)
