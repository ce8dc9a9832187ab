"""The multimodal RNN against the reference code's figures, and what it promises of its image and its output."""

from __future__ import annotations

import json
import logging
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from fairseq.sequence_generator import SequenceGenerator
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from fairseq_grounding.errors import GroundingError
from fairseq_grounding.models.multimodal_rnn import MultimodalRnnConfig, MultimodalRnnModel, log_frequencies
from fairseq_grounding.modules.regions import whole_image
from fairseq_grounding.tasks import grounded_caption

from .commands import generate, lines_of, train, validate
from .test_up_down import IMPOSSIBLE, dictionary, near

FIGURES = Path(__file__).parent / "figures"

# The reference's symbol 0 begins and ends; the others are words. Its image is an encoded vector of 6 numbers.
WORDS = dictionary(8)
OURS = torch.tensor([WORDS.eos(), *range(4, 12)])
UNK, PAD = WORDS.unk(), WORDS.pad()
VARIANTS = [(once, relu) for once in (0, 1) for relu in (0, 1)]


class Task:
    """As much of a task as a model reads of it."""

    def __init__(self, words, feature_size: int):
        self.target_dictionary, self.feature_size = words, feature_size

    def model_feature_size(self, cfg) -> int:
        return self.feature_size


def build(words, feature_size: int, seed: int = 0, **choices) -> MultimodalRnnModel:
    torch.manual_seed(seed)
    choices = {"embedding_size": 5, "hidden_size": 6, **choices}
    return MultimodalRnnModel.build_model(MultimodalRnnConfig(**choices), Task(words, feature_size)).double().eval()


@pytest.fixture(scope="module")
def figures():
    data = np.load(FIGURES / "neuraltalk_rnn.npz", allow_pickle=False)
    return {name: torch.from_numpy(np.asarray(data[name])) for name in data.files}


def reference_model(figures, once: int, relu: int) -> MultimodalRnnModel:
    model = build(WORDS, 6, image_steps="first" if once else "all", linear_inputs=not relu)
    decoder = model.decoder
    with torch.no_grad():
        # the reference multiplies rows by matrices, and encodes the image outside of what was recorded
        model.encoder.projection.weight.copy_(torch.eye(6))
        model.encoder.projection.bias.zero_()
        decoder.embedding.weight[OURS] = figures["Ws"]
        decoder.word_projection.weight.copy_(figures["Wxh"].t())
        decoder.word_projection.bias.copy_(figures["bxh"][0])
        decoder.recurrent.weight.copy_(figures["Whh"].t())
        decoder.recurrent.bias.copy_(figures["bhh"][0])
        decoder.output_projection.weight.zero_()
        decoder.output_projection.weight[OURS] = figures["Wd"].t()
        decoder.output_projection.bias.fill_(IMPOSSIBLE)
        decoder.output_projection.bias[OURS] = figures["bd"][0]
    return model


def regions(features: torch.Tensor, boxes: torch.Tensor | None = None, counts: list[int] | None = None):
    """A batch of images (I,R,D), one caption each."""
    images, most = features.shape[:2]
    lengths = torch.tensor(counts or [most] * images)
    real = torch.arange(most)[None, :] < lengths[:, None]
    return {
        "src_tokens": torch.full(real.shape, PAD).masked_fill(real, UNK),
        "src_lengths": lengths,
        "features": features,
        "boxes": torch.zeros(images, most, 4, dtype=features.dtype) if boxes is None else boxes,
        "image_index": torch.arange(images),
    }


@pytest.mark.parametrize(("once", "relu"), VARIANTS)
def test_outputs_and_gradients_are_the_reference_codes(figures, once, relu):
    model, tag = reference_model(figures, once, relu), f"once{once}_reluenc{relu}"
    image = figures["Xi"].clone()[None, None].requires_grad_()
    states = []
    model.decoder.output_projection.register_forward_pre_hook(lambda module, given_input: states.append(given_input[0]))
    logits, extra = model(**regions(image), prev_output_tokens=OURS[figures["tokens_in"]][None])
    assert extra["attn"] == [None]
    near(states[0], figures[f"H_{tag}"], 1e-12)
    near(logits[0][:, OURS], figures[f"Y_{tag}"], 1e-12)
    loss = F.cross_entropy(logits[0], OURS[figures["targets"]], reduction="sum")
    near(loss, figures[f"nll_{tag}"], 1e-10)
    loss.backward()
    decoder = model.decoder
    near(image.grad[0, 0], figures[f"grad_dXi_{tag}"], 1e-10)
    near(decoder.word_projection.weight.grad.t(), figures[f"grad_Wxh_{tag}"], 1e-10)
    near(decoder.word_projection.bias.grad, figures[f"grad_bxh_{tag}"][0], 1e-10)
    near(decoder.recurrent.weight.grad.t(), figures[f"grad_Whh_{tag}"], 1e-10)
    near(decoder.recurrent.bias.grad, figures[f"grad_bhh_{tag}"][0], 1e-10)
    near(decoder.output_projection.weight.grad[OURS].t(), figures[f"grad_Wd_{tag}"], 1e-10)
    near(decoder.output_projection.bias.grad[OURS], figures[f"grad_bd_{tag}"][0], 1e-10)
    # no word occurs twice among the inputs, so that a word's gradient is its step's
    near(decoder.embedding.weight.grad[OURS[figures["tokens_in"]]], figures[f"grad_dXs_{tag}"], 1e-10)


@pytest.mark.parametrize(("once", "relu"), VARIANTS)
@pytest.mark.parametrize("beam", [1, 3, 7])
def test_decoding_is_the_reference_codes(figures, once, relu, beam):
    model, tag = reference_model(figures, once, relu), f"once{once}_reluenc{relu}_beam{beam}"
    generator = SequenceGenerator([model], WORDS, beam_size=beam, max_len_a=0, max_len_b=20, normalize_scores=False)
    found = generator.generate([model], {"net_input": regions(figures["Xi"][None, None])})[0][0]
    assert torch.equal(found["tokens"], OURS[figures[f"pred_seq_{tag}"]])
    assert float(found["score"]) == pytest.approx(float(figures[f"pred_logp_{tag}"]), abs=1e-6)
    assert found["attention"].numel() == 0


CHOICES = st.fixed_dictionaries(
    {
        "cell": st.sampled_from(["relu", "lstm"]),
        "image_steps": st.sampled_from(["first", "all"]),
        "linear_inputs": st.booleans(),
    }
)
CAPTIONS = st.lists(st.lists(st.integers(4, 11), max_size=6), min_size=1, max_size=5)


def captions_of(captions: list[list[int]]) -> torch.Tensor:
    longest = max(map(len, captions))
    return torch.tensor([[WORDS.eos(), *words, *[PAD] * (longest - len(words))] for words in captions])


@settings(max_examples=30, deadline=None)
@given(choices=CHOICES, captions=CAPTIONS, seed=st.integers(0, 99))
def test_step_by_step_is_teacher_forcing_alone_or_in_a_batch(choices, captions, seed):
    model = build(WORDS, 4, seed, **choices)
    net_input = regions(torch.randn(len(captions), 3, 4, dtype=torch.float64))
    tokens = captions_of(captions)
    logits, _ = model(**net_input, prev_output_tokens=tokens)
    assert not logits[tokens.eq(PAD)].any()
    encoded = model.encoder(**net_input)
    # hypotheses in another order after two steps, some of them twice, as beam search does it
    order = torch.randint(len(captions), (len(captions) + 1,))
    state: dict = {}
    for time in range(tokens.shape[1]):
        if time == 2:
            model.decoder.reorder_incremental_state_scripting(state, order)
            encoded = model.encoder.reorder_encoder_out(encoded, order)
            tokens, logits = tokens[order], logits[order]
        step, extra = model.decoder(tokens[:, : time + 1], encoded, incremental_state=state)
        real = tokens[:, time].ne(PAD)
        near(step[real, 0], logits[real, time].detach(), 1e-12)
        assert extra["attn"] == [None]


def test_an_lstm_reads_the_sum_of_word_and_image():
    model = build(WORDS, 4, cell="lstm")
    decoder = model.decoder
    features = torch.randn(1, 1, 4, dtype=torch.float64)
    tokens = torch.tensor([[WORDS.eos(), 5, 9]])
    logits, _ = model(**regions(features), prev_output_tokens=tokens)
    plain = torch.nn.LSTMCell(6, 6).double()
    with torch.no_grad():
        plain.weight_ih.copy_(decoder.gates.weight)
        plain.bias_ih.copy_(decoder.gates.bias)
        plain.weight_hh.copy_(decoder.recurrent.weight)
        plain.bias_hh.zero_()
    state = None
    for time, token in enumerate(tokens[0]):
        read = decoder.word_projection(decoder.embedding(token)).relu()[None]
        if time == 0:
            read = read + model.encoder.projection(features[0]).relu()
        state = plain(read, state)
        near(decoder.output_projection(state[0])[0], logits[0, time].detach(), 1e-12)


def test_the_image_is_read_once_or_always():
    tokens = captions_of([[5, 6, 7]])
    for steps, seen in (("first", [True, False, False, False]), ("all", [True] * 4)):
        model = build(WORDS, 4, image_steps=steps)
        with torch.no_grad():
            # no memory: what is seen at a step was read at it
            model.decoder.recurrent.weight.zero_()
        one, other = (
            model(**regions(torch.full((1, 1, 4), value, dtype=torch.float64)), prev_output_tokens=tokens)[0]
            for value in (1.0, -1.0)
        )
        assert [bool(different) for different in (one != other).any(-1)[0]] == seen


FULL, PART, NEARLY = [0.0, 0.0, 1.0, 1.0], [0.0, 0.0, 0.5, 1.0], [0.0, 0.0, 0.99, 0.99]


@pytest.mark.parametrize(
    ("boxes", "count", "expected"),
    [
        ([PART, FULL, NEARLY], 3, 1),
        ([PART, PART, NEARLY], 3, 2),
        ([PART, NEARLY, FULL], 2, 1),
        ([PART, PART, FULL], 2, None),
        ([PART, PART, PART], 3, None),
    ],
)
def test_the_whole_image_is_the_region_that_covers_it_or_the_mean(boxes, count, expected):
    features = torch.randn(1, 3, 4)
    mask = torch.arange(3)[None] < count
    for kind in (torch.float32, torch.float16):
        found = whole_image(features, torch.tensor([boxes], dtype=kind), mask)
        near(found[0], features[0, :count].mean(0) if expected is None else features[0, expected], 1e-6)


def test_the_vector_is_the_one_that_the_flags_name():
    features = torch.randn(2, 3, 4, dtype=torch.float64)
    boxes = torch.tensor([[PART, FULL, PART], [PART, PART, PART]], dtype=torch.float64)
    net_input = regions(features, boxes, [3, 2])
    whole = torch.stack([features[0, 1], features[1, :2].mean(0)])
    mean = torch.stack([features[0].mean(0), features[1, :2].mean(0)])
    for flags, vectors in (
        ({}, whole),
        ({"image_vector": "mean"}, mean),
        ({"image_vector": "region"}, features[:, 0]),
        ({"image_vector": "region", "image_context": "concat"}, torch.cat([features[:, 0], whole], 1)),
    ):
        model = build(WORDS, 4, **flags)
        expected = (vectors @ model.encoder.projection.weight.t() + model.encoder.projection.bias).relu()
        near(model.encoder(**net_input)["image"], expected.detach(), 1e-12)


def test_context_without_a_region_is_refused():
    with pytest.raises(GroundingError, match="--image-context concat: --image-vector whole is the whole image already"):
        build(WORDS, 4, image_context="concat")


def test_the_output_starts_from_the_words_frequencies(toy_folder):
    task = grounded_caption.GroundedCaptionTask(grounded_caption.GroundedCaptionConfig(data=str(toy_folder)))
    bias = MultimodalRnnModel.build_model(MultimodalRnnConfig(), task).decoder.output_projection.bias.detach()
    lines = (toy_folder / "dict.txt").read_text().splitlines()
    counts = {word: int(count) for word, _, count in (line.rpartition(" ") for line in lines)}
    captions = json.loads((toy_folder / "meta.json").read_text())["splits"]["train"]["captions"]
    words = task.target_dictionary
    for word, count in (*counts.items(), ("</s>", captions)):
        share = bias[words.index(word)] - bias[words.index("a")]
        assert float(share) == pytest.approx(math.log(count / counts["a"]), abs=1e-5)
    assert float(bias.exp().sum()) == pytest.approx(1, abs=1e-5)


def test_symbols_never_seen_are_rare_and_unknown_words_as_frequent_as_they_were():
    words = dictionary(3)
    words.count = [1, 1, 1, 1, 50, 30, 9]
    shares = log_frequencies(words, captions=20, unknown=7).exp()
    # bos, pad; eos, unk; the words
    near(shares, torch.tensor([1, 1, 20, 7, 50, 30, 9], dtype=torch.float64) / 118, 1e-12)


@pytest.fixture(scope="module")
def trained(toy_folder, tmp_path_factory):
    folder = tmp_path_factory.mktemp("rnn")
    flags = ("--batch-size", "20", "--lr", "0.01", "--max-epoch", "6", "--dropout", "0", "--clip-norm", "5")
    flags += ("--criterion", "cross_entropy", "--eval-caption-metrics", "--best-checkpoint-metric", "cider")
    state = train(toy_folder, folder, "multimodal_rnn", *flags, "--maximize-best-checkpoint-metric")
    return folder / "checkpoint_best.pt", state


def test_training_validates_by_cider(trained):
    assert trained[1]["extra_state"]["best"] > 0.2


def test_alignment_is_left_out_in_one_line(trained, toy_folder, caplog, tmp_path):
    with caplog.at_level(logging.WARNING):
        for form, kind in (("hard", ("--items", "image")), ("soft", ("--score-reference",))):
            dump = tmp_path / f"{form}.jsonl"
            printed = generate(
                toy_folder, trained[0], "--print-alignment", form, "--grounding-dump", str(dump), *kind, "--beam", "2"
            )
            assert len(lines_of(printed, "H")) == (4 if form == "hard" else 20)
            assert not lines_of(printed, "A")
            rows = [json.loads(line) for line in dump.read_text().splitlines()]
            steps = [step for row in rows for step in row["steps"]]
            assert steps
            assert all(step[name] is None for step in steps for name in ("region", "box", "attention"))
            assert all(step["logprob"] <= 0 for step in steps)
    said = [record.getMessage() for record in caplog.records if "--print-alignment" in record.getMessage()]
    assert said == ["--print-alignment: MultimodalRnnModel has no attention, so no alignment is printed"] * 2


def test_grounding_is_not_evaluated_without_attention(trained, toy_folder, monkeypatch):
    said: list[str] = []
    # fairseq-validate sets up logging anew, and pytest's own handler is gone
    monkeypatch.setattr(grounded_caption.logger, "warning", said.append)
    logged = validate(toy_folder, trained[0], "--eval-grounding", "--eval-caption-metrics")
    assert "valid_cider" in logged
    assert not any(name.endswith(("f1_all", "attention_accuracy")) for name in logged)
    assert "--eval-grounding is for models with attention: it does nothing here" in said


def test_a_best_checkpoint_by_grounding_is_refused_without_attention(toy_folder, tmp_path):
    with pytest.raises(GroundingError, match="--best-checkpoint-metric f1_all is for models with attention"):
        train(
            toy_folder,
            tmp_path,
            "multimodal_rnn",
            *("--criterion", "cross_entropy", "--batch-size", "20", "--max-epoch", "1"),
            *("--eval-grounding", "--best-checkpoint-metric", "f1_all"),
        )
    assert not list(tmp_path.iterdir())
