"""Words in captions of subword pieces: where they are, how they are spelled, what they attend to."""

from __future__ import annotations

import io

import pytest
import torch
from fairseq.data import Dictionary
from hypothesis import given, settings
from hypothesis import strategies as st

from fairseq_grounding.data.pieces import MARK, PieceReader
from fairseq_grounding.errors import GroundingError
from fairseq_grounding.generation import whole_words
from fairseq_grounding.modules.pieces import by_words, word_attention


def dictionary(symbols: list[str]) -> Dictionary:
    made = Dictionary()
    for symbol in symbols:
        made.add_symbol(symbol)
    return made


PIECES = dictionary([MARK, "a", "b", f"{MARK}a", f"{MARK}b", f"{MARK}ab", "ab", f"{MARK}c"])
WORDS = dictionary(["a", "ab", "c", "aba", "<x>"])
READER = PieceReader(PIECES, WORDS)
PAD, EOS, UNK = PIECES.pad(), PIECES.eos(), PIECES.unk()
CAPTIONS = st.lists(
    st.tuples(st.lists(st.sampled_from([UNK, *range(4, len(PIECES))]), max_size=9), st.booleans()),
    min_size=1,
    max_size=5,
)


def batch(captions: list[tuple[list[int], bool]]) -> torch.Tensor:
    rows = [[*pieces, EOS] if ended else pieces for pieces, ended in captions]
    longest = max(map(len, rows))
    return torch.tensor([row + [PAD] * (longest - len(row)) for row in rows], dtype=torch.long).view(len(rows), longest)


def spelled(pieces: list[int]) -> list[str]:
    return "".join(PIECES[piece] for piece in pieces).replace(MARK, " ").split()


def owners(pieces: list[int]) -> list[int]:
    """Letter by letter: a mark ends the word before it, a letter after one begins the next."""
    word, ended, owner = -1, True, {}
    for place, piece in enumerate(pieces):
        for letter in PIECES[piece]:
            if letter == MARK:
                ended = True
            else:
                word += ended
                ended = False
                owner.setdefault(place, word)
    found = []
    for place in range(len(pieces)):
        later = [owner[p] for p in range(place, len(pieces)) if p in owner]
        found.append(later[0] if later else word)
    return found


@settings(deadline=None, max_examples=100)
@given(captions=CAPTIONS)
def test_words_are_what_a_reader_of_the_text_sees(captions) -> None:
    tokens = batch(captions)
    index = READER.word_index(tokens)
    ids, same = READER.read(tokens)
    strict, _ = READER.read(tokens, unknown=99)
    assert torch.equal(index, same)
    assert index.shape == tokens.shape
    most = max(1, *(len(spelled(pieces)) + ended for pieces, ended in captions))
    assert ids.shape == (len(captions), most)
    for row, (pieces, ended) in enumerate(captions):
        assert index[row].tolist() == owners(pieces) + [-1] * (tokens.shape[1] - len(pieces))
        words = spelled(pieces)
        assert READER.strings(pieces) == words
        known = [WORDS.index(word) if "<unk>" not in word else WORDS.unk() for word in words]
        end = [WORDS.eos()] * ended
        rest = [WORDS.pad()] * (most - len(words) - len(end))
        assert ids[row].tolist() == [*known, *end, *rest]
        assert strict[row].tolist() == [*(99 if word == WORDS.unk() else word for word in known), *end, *rest]


def test_a_spelled_out_special_symbol_is_the_word_unknown() -> None:
    pieces = dictionary([f"{MARK}<", "p", "ad", ">", MARK])
    reader = PieceReader(pieces, WORDS)
    ids, _ = reader.read(torch.tensor([[pieces.index(piece) for piece in (f"{MARK}<", "p", "ad", ">")]]))
    assert ids.tolist() == [[WORDS.unk()]]


@settings(deadline=None, max_examples=100)
@given(captions=CAPTIONS, regions=st.integers(1, 4), seed=st.integers(0, 99), how=st.sampled_from(["first", "mean"]))
def test_a_word_attends_as_its_pieces_do(captions, regions, seed, how) -> None:
    index = READER.word_index(batch(captions))
    words = int(index.max()) + 1 if index.numel() else 0
    generator = torch.Generator().manual_seed(seed)
    attention = torch.rand(*index.shape, regions, generator=generator, dtype=torch.float64, requires_grad=True)
    found = word_attention(attention, index, words, how)
    assert found.shape == (len(captions), words, regions)
    for row, (pieces, _) in enumerate(captions):
        own = owners(pieces)
        for word in range(words):
            places = [place for place, owner in enumerate(own) if owner == word]
            if not places:
                assert not found[row, word].any()
                continue
            rows = attention[row, places[:1] if how == "first" else places]
            torch.testing.assert_close(found[row, word], rows.mean(0))
    if words and len(captions) < 3:
        assert torch.autograd.gradcheck(
            lambda given_attention: word_attention(given_attention, index, words, how), attention
        )


def test_a_batch_of_words_stays_as_it_is() -> None:
    sample, attention = {"target": torch.zeros(1, 2)}, torch.rand(1, 2, 3)
    given_sample, given_attention = by_words(sample, attention, "first")
    assert given_sample is sample
    assert given_attention is attention


def test_an_unknown_way_to_attend() -> None:
    with pytest.raises(ValueError, match="it can be first, mean"):
        word_attention(torch.rand(1, 1, 1), torch.zeros(1, 1, dtype=torch.long), 1, "last")


@settings(deadline=None, max_examples=100)
@given(
    pieces=st.lists(st.sampled_from([UNK, *range(4, len(PIECES))]), max_size=9), how=st.sampled_from(["first", "mean"])
)
def test_a_written_caption_in_words(pieces, how) -> None:
    # with the end symbol's column and logarithm
    attention = torch.rand(3, len(pieces) + 1)
    logprobs = [-0.5 * n for n in range(1, len(pieces) + 2)]
    words, weights, sums = whole_words(READER, pieces, attention, logprobs, how)
    assert words == spelled(pieces)
    assert weights.shape == (3, len(words))
    own = owners(pieces)
    for word in range(len(words)):
        places = [place for place, owner in enumerate(own) if owner == word]
        assert sums[word] == pytest.approx(sum(logprobs[place] for place in places))
        rows = attention[:, places[:1] if how == "first" else places]
        torch.testing.assert_close(weights[:, word], rows.mean(1))
    assert whole_words(READER, pieces, None, None, how) == (words, None, None)


# ---- spelling ----

SENTENCES = ["a dog runs", "the dog sits", "a running cat", "cats and dogs", "some fine days"] * 3


def model_of(**choices) -> bytes:
    """A SentencePiece model of the sentences, by the package's own trainer."""
    spm = pytest.importorskip("sentencepiece", reason="needs the extra 'subwords'")
    written = io.BytesIO()
    flags = {"vocab_size": 24, "model_type": "unigram", "bos_id": -1, "eos_id": -1, "minloglevel": 2, **choices}
    spm.SentencePieceTrainer.train(sentence_iterator=iter(SENTENCES), model_writer=written, **flags)
    return written.getvalue()


@pytest.fixture(scope="module", params=["own", "nmt_nfkc", "bpe"])
def speller(request: pytest.FixtureRequest):
    pytest.importorskip("sentencepiece", reason="needs the extra 'subwords'")
    from fairseq_grounding.data.spelling import Speller, load_speller

    if request.param == "own":
        return load_speller("24", SENTENCES)
    return Speller(model_of(model_type="bpe" if request.param == "bpe" else "unigram"), "--sentencepiece m")


WRITTEN = st.text(st.sampled_from("adogscatrunéﬁ\u00b4▁<>\u0301"), min_size=1, max_size=8) | st.sampled_from(
    ["<unk>", "\u00b4", MARK]
)


@settings(deadline=None, max_examples=80)
@given(words=st.lists(WRITTEN, max_size=6))
def test_every_word_is_spelled_as_one_word(speller, words) -> None:
    pieces = speller.dictionary((word, 1) for word in words)
    assert sorted(pieces.symbols[pieces.nspecial :]) == sorted(speller.pieces)
    ids = [pieces.index(piece) for word in words for piece in speller.spell(word)]
    read = PieceReader(pieces, WORDS).strings(ids)
    assert len(read) == len(words)
    for word, seen in zip(words, read):
        if set(word) <= set("adogscatrun"):
            assert seen == word
        elif word == "<unk>" or MARK in word:
            assert seen == "<unk>"
    for piece in speller.pieces:
        assert pieces.count[pieces.index(piece)] == sum(speller.spell(word).count(piece) for word in words)


@pytest.mark.parametrize(
    ("choices", "reason"),
    [
        ({"byte_fallback": True, "vocab_size": 280}, "spells in bytes"),
        ({"model_type": "word", "vocab_size": 12}, "do not begin with"),
        ({"treat_whitespace_as_suffix": True}, "do not begin with"),
        ({"add_dummy_prefix": False}, "do not begin with"),
    ],
)
def test_models_that_do_not_mark_words_are_refused(choices, reason) -> None:
    model = model_of(**choices)
    from fairseq_grounding.data.spelling import Speller

    with pytest.raises(GroundingError, match=f"^--sentencepiece m: .*{reason}"):
        Speller(model, "--sentencepiece m")


def test_what_is_no_model_is_named(tmp_path) -> None:
    pytest.importorskip("sentencepiece", reason="needs the extra 'subwords'")
    from fairseq_grounding.data.spelling import load_speller

    with pytest.raises(GroundingError, match=r"no\.model: cannot be read"):
        load_speller(tmp_path / "no.model", [])
    (tmp_path / "text.model").write_text("no model")
    with pytest.raises(GroundingError, match=r"text\.model: is not a SentencePiece model"):
        load_speller(tmp_path / "text.model", [])
    with pytest.raises(GroundingError, match=r"^--sentencepiece 4000: no model of so many pieces .* <= "):
        load_speller("4000", SENTENCES)


def test_the_extra_is_named_where_the_package_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    from fairseq_grounding.data import spelling

    monkeypatch.setattr(spelling, "find_spec", lambda name: None)
    with pytest.raises(GroundingError, match=r"pip install 'fairseq-grounding\[subwords\]'"):
        spelling.load_speller("30", SENTENCES)
