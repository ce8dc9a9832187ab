"""Up-Down against the reference code's figures, and what every recurrent captioner promises."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from fairseq.data import Dictionary
from fairseq.sequence_generator import SequenceGenerator
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from fairseq_grounding.errors import GroundingError
from fairseq_grounding.models.up_down import UpDownConfig, UpDownModel

FIGURES = Path(__file__).parent / "figures"
CASES = ("nomask", "mask")
IMPOSSIBLE = -1e9


def dictionary(words: int) -> Dictionary:
    made = Dictionary()
    for number in range(words):
        made.add_symbol(f"w{number}")
    return made


def build(words: Dictionary, feature_size: int, **choices) -> UpDownModel:
    task = SimpleNamespace(target_dictionary=words, model_feature_size=lambda cfg: feature_size)
    return UpDownModel.build_model(UpDownConfig(**choices), task).double().eval()


@pytest.fixture(scope="module")
def figures():
    data = np.load(FIGURES / "d_updown.npz")
    return {name: torch.from_numpy(np.asarray(data[name])) for name in data.files}


# The reference's symbol 0 begins, ends and pads; its last one is the unknown word, which its beam search avoids.
REFERENCE_WORDS = dictionary(24)
EOS, UNK = REFERENCE_WORDS.eos(), REFERENCE_WORDS.unk()
OURS = torch.tensor([EOS, *range(4, 28), UNK])


def reference_model(figures) -> UpDownModel:
    """Ours with the reference's weights; its words are two numbers narrower than its regions, filled with 0."""
    model = build(REFERENCE_WORDS, 14, embedding_size=12, hidden_size=12, attention_size=8)
    weights = {name[2:]: tensor for name, tensor in figures.items() if name.startswith("w.")}
    word_size = weights["embed.0.weight"].shape[1]
    attention_ih, attention_hh = weights["core.att_lstm.weight_ih"], weights["core.att_lstm.weight_hh"]
    language_hidden, whole, word = attention_ih.split([12, 12, word_size], 1)
    decoder = model.decoder
    with torch.no_grad():
        decoder.embedding.weight.zero_()
        decoder.embedding.weight[OURS, :word_size] = weights["embed.0.weight"]
        decoder.word_gates.weight[:, :word_size] = word
        decoder.global_gates.weight.copy_(whole)
        decoder.global_gates.bias.copy_(weights["core.att_lstm.bias_ih"] + weights["core.att_lstm.bias_hh"])
        decoder.attention_gates.weight.copy_(torch.cat([language_hidden, attention_hh], 1))
        decoder.language_gates.weight.copy_(
            torch.cat([weights["core.lang_lstm.weight_ih"], weights["core.lang_lstm.weight_hh"]], 1)
        )
        decoder.language_gates.bias.copy_(weights["core.lang_lstm.bias_ih"] + weights["core.lang_lstm.bias_hh"])
        decoder.output_projection.weight.zero_()
        decoder.output_projection.weight[OURS] = weights["logit.weight"]
        decoder.output_projection.bias.fill_(IMPOSSIBLE)
        decoder.output_projection.bias[OURS] = weights["logit.bias"]
    for layer, name in (
        (model.encoder.region_embedding[0], "att_embed.0"),
        (model.encoder.global_embedding[0], "fc_embed.0"),
        (model.encoder.key_projection, "ctx2att"),
        (decoder.attention.query_projection, "core.attention.h2att"),
        (decoder.attention.score, "core.attention.alpha_net"),
    ):
        layer.load_state_dict({"weight": weights[f"{name}.weight"], "bias": weights[f"{name}.bias"]})
    return model


def reference_input(figures, case: str):
    mask = figures["att_masks"].bool() if case == "mask" else torch.ones(4, 6, dtype=torch.bool)
    return {
        "src_tokens": torch.full(mask.shape, REFERENCE_WORDS.pad()).masked_fill(mask, UNK),
        "src_lengths": mask.sum(1),
        "features": figures[f"{case}.att_feats"],
        "boxes": torch.zeros(4, 6, 4, dtype=torch.float64),
        "image_index": torch.arange(4),
    }


def near(ours, theirs, tolerance=1e-10):
    torch.testing.assert_close(ours.detach(), theirs, rtol=0, atol=tolerance)


@pytest.mark.parametrize("case", CASES)
def test_encoder_is_the_reference_codes(figures, case):
    given_input = reference_input(figures, case)
    encoded = reference_model(figures).encoder(**given_input)
    real = encoded["mask"]
    near(encoded["global"], figures[f"{case}.p_fc"])
    near(encoded["values"][real], figures[f"{case}.p_att"][real])
    near(encoded["keys"][real], figures[f"{case}.pp_att"][real])
    assert not encoded["values"][~real].any()


@pytest.mark.parametrize("case", CASES)
def test_teacher_forcing_is_the_reference_codes(figures, case):
    model = reference_model(figures)
    tokens = OURS[figures["seq"][:, :-1]]
    logits, extra = model(**reference_input(figures, case), prev_output_tokens=tokens)
    near(logits.log_softmax(-1)[..., OURS], figures[f"{case}.logprobs"])
    near(extra["attn"][0], figures[f"{case}.attn"])
    # the mean over real tokens, the end symbol included
    target = OURS[figures["seq"][:, 1:]]
    loss = F.cross_entropy(logits.transpose(1, 2), target, reduction="none")
    mask = figures["masks"][:, 1:]
    near((loss * mask).sum() / mask.sum(), figures[f"{case}.xe_loss"])


@pytest.mark.parametrize("case", CASES)
def test_loss_with_padding_is_the_reference_codes(figures, case):
    model = reference_model(figures)
    real = figures["masks"][:, 1:].bool()
    tokens = OURS[figures["seq"]]
    logits, extra = model(
        **reference_input(figures, case), prev_output_tokens=tokens[:, :-1].masked_fill(~real, REFERENCE_WORDS.pad())
    )
    near(F.cross_entropy(logits[real], tokens[:, 1:][real]), figures[f"{case}.xe_loss"])
    near(extra["attn"][0][real], figures[f"{case}.attn"][real])
    assert not extra["attn"][0][~real].any()


@pytest.mark.parametrize("case", CASES)
def test_steps_are_the_reference_codes(figures, case):
    model = reference_model(figures)
    encoded = model.encoder(**reference_input(figures, case))
    state = {}
    for time in (0, 1):
        logits, extra = model.decoder(OURS[figures["seq"][:, : time + 1]], encoded, incremental_state=state)
        saved = model.decoder.get_incremental_state(state, model.decoder.STATE)
        attention_hidden, attention_cell, language_hidden, language_cell = (saved[f"{n:02d}"] for n in range(4))
        near(logits[:, 0].log_softmax(-1)[:, OURS], figures[f"{case}.step{time}.logprobs"])
        near(extra["attn"][0][:, 0], figures[f"{case}.step{time}.attn"])
        near(torch.stack([attention_hidden, language_hidden]), figures[f"{case}.step{time}.h"])
        near(torch.stack([attention_cell, language_cell]), figures[f"{case}.step{time}.c"])


def steps_with_a_swap(model, net_input, seed):
    """Decode given captions step by step; before the second step hypotheses take each other's places, one twice.

    Yields, for each step, the caption of each row, the step's number, which rows are still in their caption, and what
    the decoder returned.
    """
    tokens = net_input["prev_output_tokens"]
    order = torch.randint(len(tokens), (len(tokens) + 1,), generator=torch.Generator().manual_seed(seed))
    encoded = model.encoder(**{k: v for k, v in net_input.items() if k != "prev_output_tokens"})
    state: dict = {}
    rows = torch.arange(len(tokens))
    for time in range(tokens.shape[1]):
        if time == 1:
            rows = order
            encoded = model.encoder.reorder_encoder_out(encoded, order)
            model.decoder.reorder_incremental_state_scripting(state, order)
        step_logits, step = model.decoder(tokens[rows, : time + 1], encoded, incremental_state=state)
        yield rows, time, tokens[rows, time].ne(WORDS.pad()), step_logits, step


def generate(model, words, net_input, **choices):
    """fairseq's own generator, as its commands build it."""
    with torch.no_grad():
        return SequenceGenerator([model], words, **choices).generate([model], {"net_input": net_input})


@pytest.mark.parametrize("case", CASES)
def test_greedy_decoding_with_fairseq_is_the_reference_codes(figures, case):
    hypotheses = generate(
        reference_model(figures), REFERENCE_WORDS, reference_input(figures, case), beam_size=1, max_len_a=0, max_len_b=9
    )
    for row, (best,) in enumerate(hypotheses):
        expected = figures[f"{case}.greedy.seq"][row]
        assert torch.equal(best["tokens"], torch.cat([OURS[expected], torch.tensor([EOS])]))
        # fairseq's log-probabilities are in single precision
        near(best["positional_scores"][:9].double(), figures[f"{case}.greedy.seqlogprobs"][row], 1e-5)
        near(best["attention"].t()[:9].double(), figures[f"{case}.greedy.attn"][row], 1e-6)


@pytest.mark.parametrize("case", CASES)
def test_beam_search_with_fairseq_is_the_reference_codes(figures, case):
    hypotheses = generate(
        reference_model(figures),
        REFERENCE_WORDS,
        reference_input(figures, case),
        beam_size=3,
        max_len_a=0,
        max_len_b=9,
        normalize_scores=False,
        unk_penalty=1000.0,
    )
    for row, found in enumerate(hypotheses):
        # the reference stops at nine words without asking for the end symbol's probability
        best = max(found, key=lambda hypothesis: float(hypothesis["positional_scores"][:9].sum()))
        assert torch.equal(best["tokens"], torch.cat([OURS[figures[f"{case}.beam3.seq"][row]], torch.tensor([EOS])]))
        near(best["positional_scores"][:9].sum().double(), figures[f"{case}.beam3.sum"][row], 1e-4)
        near(best["positional_scores"][:9], figures[f"{case}.beam3.seqlogprobs"][row], 1e-5)


# ---- properties ----

WORDS = dictionary(9)
FEATURES = 5


def small_model(seed=0, **choices) -> UpDownModel:
    torch.manual_seed(seed)
    return build(WORDS, FEATURES, embedding_size=6, hidden_size=7, attention_size=4, **choices)


def batch_of(captions, regions, image_index=None, seed=0, garbage=0.0):
    """Captions as lists of tokens, regions as counts an image -> net_input and target."""
    generator = torch.Generator().manual_seed(seed)
    image_index = torch.arange(len(captions)) if image_index is None else torch.as_tensor(image_index)
    counts = torch.tensor(regions)
    real = torch.arange(max(regions))[None] < counts[:, None]
    features = torch.randn(len(regions), max(regions), FEATURES, generator=generator, dtype=torch.float64)
    boxes = torch.rand(len(regions), max(regions), 4, generator=generator, dtype=torch.float64)
    length = max(map(len, captions)) + 1
    target = torch.full((len(captions), length), WORDS.pad())
    previous = target.clone()
    for row, caption in enumerate(captions):
        target[row, : len(caption) + 1] = torch.tensor([*caption, WORDS.eos()])
        previous[row, : len(caption) + 1] = torch.tensor([WORDS.eos(), *caption])
    net_input = {
        "src_tokens": torch.full((len(captions), max(regions)), WORDS.pad()).masked_fill(
            real[image_index], WORDS.unk()
        ),
        "src_lengths": counts[image_index],
        "features": features.masked_fill(~real[..., None], garbage),
        "boxes": boxes.masked_fill(~real[..., None], garbage),
        "image_index": image_index,
        "prev_output_tokens": previous,
    }
    return net_input, target


def pick(net_input, row):
    """One caption of a batch, with its own regions and length alone."""
    image = int(net_input["image_index"][row])
    regions = int(net_input["src_lengths"][row])
    tokens = net_input["prev_output_tokens"][row]
    return {
        "src_tokens": net_input["src_tokens"][row : row + 1, :regions],
        "src_lengths": net_input["src_lengths"][row : row + 1],
        "features": net_input["features"][image : image + 1, :regions],
        "boxes": net_input["boxes"][image : image + 1, :regions],
        "image_index": torch.zeros(1, dtype=torch.long),
        "prev_output_tokens": tokens[tokens.ne(WORDS.pad())][None],
    }


CAPTIONS = st.lists(st.lists(st.integers(4, 12), max_size=7), min_size=1, max_size=6)
CHOICES = {
    "global_feature": st.sampled_from(["raw-mean", "embedded-mean"]),
    "region_geometry": st.sampled_from(["none", "box5"]),
}


@st.composite
def batches(draw):
    captions = draw(CAPTIONS)
    # every image has a caption
    images = draw(st.integers(1, len(captions)))
    rest = draw(st.lists(st.integers(0, images - 1), min_size=len(captions), max_size=len(captions)))
    image_index = draw(st.permutations([*range(images), *rest[images:]]))
    regions = draw(st.lists(st.integers(1, 5), min_size=images, max_size=images))
    return captions, regions, image_index


@settings(max_examples=40, deadline=None)
@given(batch=batches(), seed=st.integers(0, 1000), garbage=st.sampled_from([0.0, 1e6, -3.0]), **CHOICES)
def test_a_caption_is_the_same_alone_and_in_any_batch(batch, seed, garbage, global_feature, region_geometry):
    model = small_model(global_feature=global_feature, region_geometry=region_geometry)
    net_input, _ = batch_of(*batch, seed=seed, garbage=garbage)
    net_input["features"].requires_grad_()
    logits, extra = model(**net_input)
    (attention,) = extra["attn"]
    for row in range(len(logits)):
        own_logits, own = model(**pick(net_input, row))
        length, regions = own_logits.shape[1], own["attn"][0].shape[2]
        near(own_logits[0], logits[row, :length].detach(), 1e-12)
        near(own["attn"][0][0], attention[row, :length, :regions].detach(), 1e-12)
        near(attention[row, :length].sum(1), torch.ones(length, dtype=torch.float64), 1e-12)
        assert not attention[row, :, regions:].any()
        assert not attention[row, length:].any()
    (gradient,) = torch.autograd.grad(logits.square().sum(), net_input["features"])
    counts = torch.zeros(len(gradient), dtype=torch.long)
    counts[net_input["image_index"]] = net_input["src_lengths"]
    for image, count in enumerate(counts.tolist()):
        assert not gradient[image, count:].any()
        assert gradient[image, :count].any()


@settings(max_examples=25, deadline=None)
@given(batch=batches(), seed=st.integers(0, 1000))
def test_gradients_of_a_batch_are_the_sum_of_its_captions(batch, seed):
    model = small_model()
    net_input, target = batch_of(*batch, seed=seed)

    def loss_of(given_input, wanted):
        logits, extra = model(**given_input)
        (attention,) = extra["attn"]
        real = wanted.ne(WORDS.pad())
        # of both outputs, since attention is taught
        return F.cross_entropy(logits[real], wanted[real], reduction="sum") + attention[real].square().sum()

    parameters = list(model.parameters())
    whole = torch.autograd.grad(loss_of(net_input, target), parameters)
    one_by_one = [torch.zeros_like(parameter) for parameter in parameters]
    for row in range(len(target)):
        wanted = target[row][target[row].ne(WORDS.pad())][None]
        for total, part in zip(one_by_one, torch.autograd.grad(loss_of(pick(net_input, row), wanted), parameters)):
            total += part
    for mine, theirs in zip(whole, one_by_one):
        near(mine, theirs, 1e-10)


def test_the_order_of_captions_means_nothing():
    model = small_model()
    captions = [[4, 5, 6, 7, 8], [9], [], [10, 11, 12], [4, 4, 4, 4, 4], [5, 6]]
    regions = [3, 5, 1, 2, 4, 5]
    net_input, _ = batch_of(captions, regions)
    logits, extra = model(**net_input)
    order = torch.tensor([3, 5, 0, 2, 4, 1])
    moved = {name: tensor if name in ("features", "boxes") else tensor[order] for name, tensor in net_input.items()}
    turned_logits, turned = model(**moved)
    near(turned_logits, logits[order].detach(), 1e-12)
    near(turned["attn"][0], extra["attn"][0][order].detach(), 1e-12)


def test_regions_in_another_order_get_the_same_attention():
    model = small_model()
    net_input, _ = batch_of([[4, 5, 6]], [5])
    logits, extra = model(**net_input)
    order = torch.tensor([3, 0, 4, 1, 2])
    moved_logits, moved = model(**{**net_input, "features": net_input["features"][:, order]})
    near(moved_logits, logits.detach(), 1e-12)
    near(moved["attn"][0], extra["attn"][0][..., order].detach(), 1e-12)


@settings(max_examples=25, deadline=None)
@given(batch=batches(), seed=st.integers(0, 1000))
def test_step_by_step_is_teacher_forcing(batch, seed):
    model = small_model()
    net_input, _ = batch_of(*batch, seed=seed)
    tokens = net_input["prev_output_tokens"]
    logits, extra = model(**net_input)
    encoded = model.encoder(**{k: v for k, v in net_input.items() if k != "prev_output_tokens"})
    state: dict = {}
    for time in range(tokens.shape[1]):
        step_logits, step = model.decoder(tokens[:, : time + 1], encoded, incremental_state=state)
        real = tokens[:, time].ne(WORDS.pad())
        near(step_logits[real, 0], logits[real, time].detach(), 1e-12)
        near(step["attn"][0][real, 0], extra["attn"][0][real, time].detach(), 1e-12)


def test_the_state_follows_the_hypotheses():
    model = small_model()
    net_input, _ = batch_of([[4, 5, 6], [7, 8, 9], [10, 11, 12]], [2, 5, 3])
    encoded = model.encoder(**{k: v for k, v in net_input.items() if k != "prev_output_tokens"})
    tokens, order = net_input["prev_output_tokens"], torch.tensor([2, 0, 0, 1])
    state: dict = {}
    for time in (0, 1):
        model.decoder(tokens[:, : time + 1], encoded, incremental_state=state)
    model.decoder.reorder_incremental_state_scripting(state, order)
    moved = model.encoder.reorder_encoder_out(encoded, order)
    logits, extra = model.decoder(tokens[order, :3], moved, incremental_state=state)
    expected, attention = model.decoder(tokens, encoded)
    near(logits[:, 0], expected[order, 2].detach(), 1e-12)
    near(extra["attn"][0][:, 0], attention["attn"][0][order, 2].detach(), 1e-12)


def test_beams_that_swap_images_stay_with_their_own():
    model = small_model(seed=5)
    with torch.no_grad():
        # decided enough to end at different times
        model.decoder.output_projection.weight.mul_(5)
    net_input, _ = batch_of([[4]] * 5, [2, 5, 3, 1, 4], seed=2)
    del net_input["prev_output_tokens"]
    together = generate(model, WORDS, net_input, beam_size=3, max_len_a=0, max_len_b=8)
    lengths = set()
    for row, found in enumerate(together):
        own = pick({**net_input, "prev_output_tokens": torch.zeros(5, 1, dtype=torch.long)}, row)
        del own["prev_output_tokens"]
        (alone,) = generate(model, WORDS, own, beam_size=3, max_len_a=0, max_len_b=8)
        for mine, theirs in zip(found, alone):
            assert torch.equal(mine["tokens"], theirs["tokens"])
            near(mine["positional_scores"], theirs["positional_scores"], 1e-5)
            near(mine["attention"][: own["src_tokens"].shape[1]], theirs["attention"], 1e-6)
            lengths.add(len(mine["tokens"]))
    assert len(lengths) > 1


def test_dropout_is_for_training_alone():
    model = small_model(dropout=0.5)
    net_input, _ = batch_of([[4, 5, 6], [7]], [3, 2])
    first, second = (model(**net_input)[0] for _ in range(2))
    assert torch.equal(first, second)
    model.train()
    first, second = (model(**net_input)[0] for _ in range(2))
    assert not torch.equal(first, second)


def test_a_checkpoint_of_another_dictionary_is_refused():
    model = small_model()
    other = dictionary(10)
    with pytest.raises(GroundingError, match=r"another dictionary \(9 words\) than the prepared folder's \(10 words\)"):
        build(other, FEATURES, embedding_size=6, hidden_size=7, attention_size=4).load_state_dict(model.state_dict())
