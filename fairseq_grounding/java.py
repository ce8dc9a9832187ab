"""The Java programs that pycocoevalcap brings: the PTB tokenizer, METEOR and SPICE.

They are run as pycocoevalcap runs them, with the same arguments, and so give the same figures; but they write
nothing to our streams or into the package's folder, are told to end when they take too long, and say in one line
why they failed.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

_METEOR_JAR = "meteor-1.5.jar"
_SPICE_JARS = ("spice-1.0.jar", "lib/stanford-corenlp-3.6.0.jar", "lib/stanford-corenlp-3.6.0-models.jar")
# METEOR writes 0,5 in a German locale, and cannot read it back
_OPTIONS = "-Duser.language=en -Duser.country=US -Duser.language.format=en -Duser.country.format=US"
# SPICE looks into classes that later versions of Java keep closed
_SPICE_FAILS_FROM = 16
_VERSION_SECONDS = 120


class JavaError(Exception):
    """A Java program is not there or failed; the message is one line."""


class JavaTimeout(JavaError):
    """A Java program took too long."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"it was not done after {seconds:g} s and was ended")


def java_version() -> int | None:
    """The number of the Java that runs here (8, 17), or None where it does not say."""
    if shutil.which("java") is None:
        raise JavaError("there is no java command here (install a Java runtime, 8 or newer)")
    try:
        said = _run(["-version"], _package(), _VERSION_SECONDS)[1]
    except JavaError as error:
        raise JavaError(f"java -version: {error}") from error
    found = re.search(r'version "(?:1\.)?(\d+)', said)
    return int(found[1]) if found else None


def tokenize_lines(lines: Sequence[str], timeout: float) -> list[str]:
    """PTB tokens of each caption, lower case and without punctuation, joined by spaces.

    Args:
        lines: captions without line breaks
        timeout: in seconds

    Raises:
        JavaError: Java is not there, failed, or lost a line
    """
    from pycocoevalcap.tokenizer import ptbtokenizer

    jar = _jar("tokenizer", ptbtokenizer.STANFORD_CORENLP_3_4_1_JAR)
    output, complaint = _run(
        ["-cp", jar.name, "edu.stanford.nlp.process.PTBTokenizer", "-preserveLines", "-lowerCase"],
        jar.parent,
        timeout,
        "".join(f"{line}\n" for line in lines),
    )
    tokens = output.split("\n")
    if len(tokens) != len(lines) + 1:
        raise JavaError(f"it read {len(lines)} captions and wrote {len(tokens) - 1} ({_tail(complaint)})")
    punctuation = set(ptbtokenizer.PUNCTUATIONS)
    return [" ".join(word for word in line.split() if word not in punctuation) for line in tokens[:-1]]


def tokenize(captions: Mapping[str, Sequence[str]], timeout: float) -> dict[str, list[str]]:
    """:func:`tokenize_lines` of each image's captions, in one run."""
    lines = [one_line(caption) for own in captions.values() for caption in own]
    kept = iter(tokenize_lines(lines, timeout))
    return {image: [next(kept) for _ in own] for image, own in captions.items()}


class Meteor:
    """METEOR's program, which takes seconds to start and then answers any number of times; :meth:`close` ends it."""

    def __init__(self) -> None:
        jar = _jar("meteor", _METEOR_JAR)
        self._complaint = tempfile.TemporaryFile()  # noqa: SIM115 (lives as long as the program)
        try:
            self._process = subprocess.Popen(
                ["java", "-jar", "-Xmx2G", jar.name, "-", "-", "-stdio", "-l", "en", "-norm"],
                cwd=jar.parent,
                env=_environment(),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._complaint,
                encoding="utf-8",
                errors="replace",
            )
        except OSError as error:
            self._complaint.close()
            raise JavaError(f"java cannot be run ({error.strerror})") from error

    def score(
        self, references: Mapping[str, Sequence[str]], said: Mapping[str, str], timeout: float
    ) -> tuple[float, list[float]]:
        """METEOR over all images of *said*, and of each; the program is of no use after a :class:`JavaError`."""
        late = threading.Event()

        def end() -> None:
            late.set()
            self._process.kill()

        timer = threading.Timer(timeout, end)
        timer.daemon = True
        timer.start()
        try:
            statistics = [self._ask(["SCORE", *map(_without_bars, (*references[i], said[i]))]) for i in said]
            each = [float(self._ask(["EVAL", *statistics]))]
            each += [float(self._read()) for _ in statistics[1:]]
            return float(self._read()), each
        except (OSError, ValueError) as error:
            if late.is_set():
                raise JavaTimeout(timeout) from error
            raise JavaError(f"it broke off ({self._last_words() or one_line(str(error))})") from error
        finally:
            timer.cancel()

    def _ask(self, parts: Sequence[str]) -> str:
        assert self._process.stdin is not None
        self._process.stdin.write(" ||| ".join(parts) + "\n")
        self._process.stdin.flush()
        return self._read()

    def _read(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line.endswith("\n"):
            raise OSError("no answer")
        return line.strip()

    def _last_words(self) -> str:
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(1)
        self._complaint.seek(0)
        return _tail(self._complaint.read().decode(errors="replace"))

    def close(self) -> None:
        """End the program."""
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._complaint):
            with suppress(OSError):
                stream.close()  # type: ignore[union-attr]


def missing_spice_jars() -> list[str]:
    """The files that SPICE needs and that are not here; pycocoevalcap does not bring its parser."""
    return [str(jar) for jar in (_package() / "spice" / name for name in _SPICE_JARS) if not jar.is_file()]


def spice(
    references: Mapping[str, Sequence[str]], said: Mapping[str, str], cache: Path, timeout: float
) -> dict[str, float]:
    """The F score of each image's scene graph, NaN where SPICE has none; *cache* is a folder for parsed captions."""
    jar = _jar("spice", _SPICE_JARS[0])
    # numbers stand for the images, whose ids the program might write in another encoding
    asked = [{"image_id": n, "test": said[image], "refs": list(references[image])} for n, image in enumerate(said)]
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder, "captions.json"), Path(folder, "scores.json")
        source.write_text(json.dumps(asked), encoding="utf-8")
        files = [str(source), "-cache", str(cache), "-out", str(target)]
        _run(["-jar", "-Xmx8G", jar.name, *files, "-subset", "-silent"], jar.parent, timeout)
        try:
            items = json.loads(target.read_text(encoding="utf-8", errors="replace"))
            scores = {int(item["image_id"]): item["scores"]["All"]["f"] for item in items}
            return {image: float("nan" if scores[n] is None else scores[n]) for n, image in enumerate(said)}
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise JavaError("it wrote no scores, or not for every image") from error


def spice_advice(version: int | None) -> str:
    """What to add to a failure of SPICE on this Java; nothing where the version is not to blame."""
    if version is not None and version < _SPICE_FAILS_FROM:
        return ""
    here = "" if version is None else f", and this is Java {version}"
    return f"; it is known to fail on Java {_SPICE_FAILS_FROM} and newer{here}: put an older java first in PATH"


def one_line(text: str) -> str:
    """The words of *text* with single spaces between them."""
    return " ".join(text.split())


def _without_bars(caption: str) -> str:
    # three bars separate captions in what METEOR reads
    return one_line(caption.replace("|||", " "))


def _package() -> Path:
    import pycocoevalcap

    return Path(next(iter(pycocoevalcap.__path__)))


def _jar(*parts: str) -> Path:
    path = _package().joinpath(*parts)
    if not path.is_file():
        raise JavaError(f"{path} is missing; install pycocoevalcap again")
    return path


def _environment() -> dict[str, str]:
    before = os.environ.get("JAVA_TOOL_OPTIONS", "")
    return {**os.environ, "JAVA_TOOL_OPTIONS": f"{before} {_OPTIONS}".strip()}


def _run(arguments: Sequence[str], folder: Path, timeout: float, given: str = "") -> tuple[str, str]:
    """What ``java`` writes to its output and to its error output, once it has ended well."""
    try:
        ran = subprocess.run(
            ["java", *arguments],
            cwd=folder,
            env=_environment(),
            input=given.encode(errors="replace"),
            capture_output=True,
            timeout=timeout,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise JavaTimeout(timeout) from error
    except OSError as error:
        raise JavaError(f"java cannot be run ({error.strerror})") from error
    complaint = ran.stderr.decode(errors="replace")
    if ran.returncode:
        raise JavaError(f"it ended with {ran.returncode} ({_tail(complaint)})")
    try:
        return ran.stdout.decode(), complaint
    except UnicodeDecodeError as error:
        raise JavaError(f"its output is not UTF-8 ({error.reason})") from error


def _tail(complaint: str) -> str:
    """The end of what a program complains of, without Java's word on the options it was given."""
    lines = [line for line in complaint.splitlines() if not line.startswith("Picked up ")]
    return one_line(" ".join(lines))[-200:]
