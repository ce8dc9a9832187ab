"""Rules of relevance against figures of published code and of an independent computation, and against slow loops."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from fairseq_grounding.errors import GroundingError
from fairseq_grounding.explain import lrp
from fairseq_grounding.explain.cells import lstm_cell
from fairseq_grounding.explain.gradients import grad_cam
from fairseq_grounding.explain.tape import Node, Tape

from .slow_lrp import share

FIGURES = Path(__file__).parent / "figures"


def figures(name: str) -> dict[str, torch.Tensor]:
    with np.load(FIGURES / f"{name}.npz") as data:
        return {key: torch.from_numpy(np.asarray(data[key])) for key in data.files}


def near(ours: torch.Tensor, theirs: torch.Tensor, tolerance: float) -> None:
    torch.testing.assert_close(ours, theirs.to(ours.dtype), rtol=0, atol=tolerance)


@pytest.fixture(scope="module")
def ops():
    return figures("lrp_ops")


@pytest.mark.parametrize("case", range(10))
def test_the_epsilon_rule_is_the_published_codes(ops, case):
    x, w, z, r, expected = (ops[f"eps{case:02d}_{name}"].double() for name in "xwzrR")
    tape = Tape(lrp.Rules(float(ops["eps_value"])), 1)
    read = tape.input(x[None], total=False)
    written = tape.linear("layer", [(read, w)], z - w @ x)
    (found,) = tape.propagate([(written, r[None, None], 0)], [read])
    near(found[0, 0], expected, 1e-5 * (1 + float(expected.abs().max())))
    bias, epsilon = tape.ledger["layer"]
    near(found.sum() + bias.sum() + epsilon.sum(), r.sum(), 1e-12)


def test_sums_are_the_published_codes(ops):
    a, b, r = (ops[f"add_{name}"].double() for name in "abr")
    tape = Tape(lrp.Rules(0.01), 1)
    first, second = tape.input(a, total=False), tape.input(b, total=False)
    total = tape.weighted("sum", [(first, 1.0), (second, 1.0)])
    ours = tape.propagate([(total, r[:, None], 0)], [first, second])
    for found, name in zip(ours, ("add_R1", "add_R2")):
        near(found[:, 0], ops[name], 1e-5 * (1 + float(ops[name].abs().max())))


def test_heads_are_the_published_codes(ops):
    attention, values, relevance = ops["mha_alpha"].double(), ops["mha_value"].double(), ops["mha_rctx"].double()
    tape = Tape(lrp.Rules(0.01), 1)
    read = tape.input(values[None], total=False)
    context = tape.attend("heads", attention[None], read, torch.ones(1, len(values), dtype=torch.bool), heads=2)
    near(context.value, ops["mha_context"], 1e-6)
    width = values.shape[1] // 2
    (found,) = tape.propagate([(context, relevance[:, None], 0)], [read])
    for head in (0, 1):
        own = torch.zeros_like(values)
        own[:, head * width : (head + 1) * width] = found[0, 0, :, head * width : (head + 1) * width]
        near(own, ops[f"mha_R_head{head}"], 1e-5)


def dense_convolution(weight: torch.Tensor, size: int) -> torch.Tensor:
    """A 3x3 convolution as one matrix."""
    channels = weight.shape[1]
    eye = torch.eye(channels * size * size, dtype=weight.dtype).view(-1, channels, size, size)
    return F.conv2d(eye, weight, padding=1).flatten(1).t()


def test_the_alpha_beta_rule_is_the_published_codes_on_convolutions(ops):
    weights = {layer: ops[f"cnn_{layer}.weight"].double() for layer in (0, 2, 5)}
    biases = {layer: ops[f"cnn_{layer}.bias"].double() for layer in (0, 2, 5)}
    image = ops["cnn_img"].double()
    first = F.conv2d(image, weights[0], biases[0], padding=1).relu()
    second = F.conv2d(first, weights[2], biases[2], padding=1).relu()
    pooled, winners = F.max_pool2d(second, 2, return_indices=True)
    near(F.conv2d(pooled, weights[5], biases[5], padding=1).relu(), ops["cnn_out"], 1e-5)

    def through(read, layer, relevance):
        dense = dense_convolution(weights[layer], read.shape[2])
        found = lrp.alpha_beta(relevance.flatten(1)[:, None], read.flatten(1), dense, 1.0)
        return found[:, 0].view_as(read)

    relevance = through(pooled, 5, ops["cnn_target_relevance"].double())
    relevance = F.max_unpool2d(relevance, winners, 2)
    relevance = through(image, 0, through(first, 2, relevance))
    near(relevance, ops["cnn_R"], 1e-5 * float(ops["cnn_R"].abs().max()))


def test_grad_cam_is_the_published_codes(ops):
    activations, gradients = (ops[f"cam_{name}"].double().flatten(2).transpose(1, 2) for name in "Ag")
    ours = grad_cam(activations, gradients, torch.ones(activations.shape[:2], dtype=torch.bool))[0]
    near(ours / (ours.max() + 1e-6), ops["cam"], 1e-5)


# ---- an LSTM, both ways (Arras et al.) ----

LENGTH = 5


@pytest.mark.parametrize("epsilon", ["0.001", "0.01"])
@pytest.mark.parametrize("bias_factor", [0, 1])
@pytest.mark.parametrize("label", [0, 1, 2])
def test_lstms_are_the_published_codes(epsilon, bias_factor, label):
    data = figures("arras_lrp_lstm")
    tape = Tape(lrp.Rules(float(epsilon), "redistribute" if bias_factor else "absorb"), 1)
    words = data["E"][data["words"]]
    hidden_size = data["Whh_Left"].shape[1]
    # theirs are in the order i g f o, and share epsilon's part with the zeros that the LSTM starts from
    order = torch.arange(4 * hidden_size).view(4, hidden_size)[[0, 2, 1, 3]].flatten()
    inputs, ends, zeros = {}, [], []
    for side in ("Left", "Right"):
        sequence = words if side == "Left" else words.flip(0)
        inputs[side] = [tape.input(word[None], total=False) for word in sequence]
        start = [tape.input(torch.zeros(1, hidden_size, dtype=words.dtype), total=False) for _ in range(2)]
        zeros += start
        hidden, cell = start
        for word in inputs[side]:
            parts = [(word, data[f"Wxh_{side}"][order]), (hidden, data[f"Whh_{side}"][order])]
            bias = (data[f"bxh_{side}"] + data[f"bhh_{side}"])[order]
            hidden, cell = lstm_cell(tape, side, parts, bias, cell)
        ends.append((hidden, data[f"Why_{side}"]))
    scores = tape.linear("scores", ends)
    near(scores.value[0], data["scores"], 1e-12)
    seed = torch.zeros_like(scores.value)
    seed[0, label] = scores.value[0, label]
    wanted = [*inputs["Left"], *inputs["Right"], *zeros]
    found = [relevance[0, 0] for relevance in tape.propagate([(scores, seed[:, None], 0)], wanted)]
    case = f"c{label}_eps{epsilon}_bf{bias_factor}"
    near(torch.stack(found[:LENGTH]), data[f"Rx_{case}"], 1e-12)
    # ours are in the order in which the reversed sentence is read
    near(torch.stack(found[LENGTH : 2 * LENGTH]).flip(0), data[f"Rxrev_{case}"], 1e-12)
    near(sum(part.sum() for part in found[2 * LENGTH :]), data[f"Rrest_{case}"], 1e-12)


# ---- a whole captioner with adaptive attention, as published, its defects mended ----


def adaptive_captioner(tape: Tape, p: dict[str, torch.Tensor], features: torch.Tensor, caption: torch.Tensor):
    """Up-Down with a visual sentinel on the tape; returns outputs and inputs, and what the figures name beside."""
    steps = len(caption) - 1
    mask = torch.ones(1, len(features), dtype=torch.bool)
    regions = tape.input(features[None], total=False)
    before = tape.linear("projection", [(regions, p["proj_w"])], p["proj_b"])
    values = tape.passing(before, before.value.relu())
    mean = tape.attend("mean", mask.to(features.dtype) / len(features), regions, mask)
    before = tape.linear("global", [(mean, p["g_w"])], p["g_b"])
    whole = tape.passing(before, before.value.relu())
    of_language, of_whole, of_word = p["a_wi"].split([6, 5, 5], 1)
    of_attended, of_hidden = p["l_wi"].split([6, 6], 1)
    hidden: Node | None = None
    cell: Node | None = None
    language: Node | None = None
    language_cell: Node | None = None
    words, outputs, alphas, betas = [], [], [], []
    for step in range(steps):
        word = tape.input(p["emb"][caption[step]][None], since=step, total=False)
        parts = [(whole, of_whole), (word, of_word)]
        read = torch.cat([language.value if language else torch.zeros(1, 6), whole.value, word.value], 1)
        former = hidden.value if hidden is not None else torch.zeros(1, 6, dtype=read.dtype)
        if language is not None and hidden is not None:
            parts += [(language, of_language), (hidden, p["a_wh"])]
        hidden, cell = lstm_cell(tape, "attention LSTM", parts, p["a_bi"] + p["a_bh"], cell)
        gate = torch.sigmoid(read @ p["xg_w"].t() + p["xg_b"] + former @ p["hg_w"].t() + p["hg_b"])
        sentinel = tape.passing(cell, gate * cell.value.tanh())
        query = hidden.value @ p["at_g"].t()
        # the published code adds the query to rows in place of columns
        fit = torch.tanh(values.value @ p["at_v"].t() + p["at_vb"] + query[:, :, None]) @ p["at_h"][0]
        sentinel_fit = torch.tanh(sentinel.value @ p["at_s"].t() + p["at_sb"] + query) @ p["at_h"].t()
        alpha = fit.softmax(1)
        beta = torch.cat([fit, sentinel_fit], 1).softmax(1)[:, -1:]
        attended = tape.attend("attention", alpha, values, mask)
        mixed = tape.weighted("sentinel", [(sentinel, beta), (attended, 1 - beta)])
        parts = [(mixed, of_attended), (hidden, of_hidden)]
        if language is not None:
            parts.append((language, p["l_wh"]))
        language, language_cell = lstm_cell(tape, "language LSTM", parts, p["l_bi"] + p["l_bh"], language_cell)
        total = tape.weighted("output", [(language, 1.0), (mixed, 1.0)])
        outputs.append(tape.linear("logits", [(total, p["fc_w"])], p["fc_b"]))
        words.append(word)
        alphas.append(alpha)
        betas.append(beta)
    return outputs, regions, values, words, torch.cat(alphas), torch.cat(betas)[:, 0]


@pytest.mark.parametrize("epsilon", [1e-2, 1e-9])
@pytest.mark.parametrize("case", ["generic_bias", "generic_nobias"])
def test_a_whole_captioner_is_as_computed_independently(case, epsilon):
    data = figures(f"lrp_gridtd_{case}")
    p = {name[2:]: tensor for name, tensor in data.items() if name.startswith("p_")}
    caption = data["caption"]
    steps = len(caption) - 1
    name = "fixed_eps1e-2" if epsilon == 1e-2 else "fixed_eps1e-9"
    tape = Tape(lrp.Rules(epsilon), steps)
    outputs, regions, values, words, alpha, beta = adaptive_captioner(tape, p, data["feats"], caption)
    logits = torch.cat([node.value for node in outputs])
    near(logits, data["y"], 1e-12)
    near(alpha, data["alpha"], 1e-12)
    near(beta, data["beta"], 1e-12)
    seeds = []
    for step, node in enumerate(outputs):
        seed = torch.zeros_like(logits[:1])
        seed[0, caption[step + 1]] = logits[step, caption[step + 1]]
        seeds.append((node, seed[:, None], step))
    found = tape.propagate(seeds, [regions, values, *words])
    kept = sum(bias + epsilon_part for bias, epsilon_part in tape.ledger.values())[0]
    for step in range(steps):
        near(found[0][0, step], data[f"{name}_r_feat_t{step}"], 1e-10)
        near(found[1][0, step], data[f"{name}_r_V_t{step}"], 1e-10)
        of_words = torch.stack([relevance[0, step] for relevance in found[2:]])
        near(of_words[: step + 1], data[f"{name}_r_wordemb_t{step}"], 1e-10)
        assert not of_words[step + 1 :].any()
        logit = logits[step, caption[step + 1]]
        total = found[0][0, step].sum() + of_words.sum()
        near(total / logit, data[f"{name}_total_over_logit_t{step}"], 1e-8)
        near(total + kept[step], logit, 1e-10)
        if case == "generic_nobias" and epsilon == 1e-9:
            near(total, logit, 1e-6)


@pytest.mark.parametrize("case", ["generic_bias", "generic_nobias"])
def test_a_whole_captioner_conserves_with_redistribution(case):
    data = figures(f"lrp_gridtd_{case}")
    p = {name[2:]: tensor for name, tensor in data.items() if name.startswith("p_")}
    caption = data["caption"]
    tape = Tape(lrp.Rules(0.01, "redistribute"), len(caption) - 1)
    outputs, regions, _, words, _, _ = adaptive_captioner(tape, p, data["feats"], caption)
    seeds, logits = [], []
    for step, node in enumerate(outputs):
        seed = torch.zeros_like(node.value)
        seed[0, caption[step + 1]] = node.value[0, caption[step + 1]]
        logits.append(seed.sum())
        seeds.append((node, seed[:, None], step))
    found = tape.propagate(seeds, [regions, *words])
    near(sum(relevance[0].flatten(1).sum(1) for relevance in found), torch.stack(logits), 1e-10)
    assert not tape.ledger


# ---- single layers against loops ----


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    epsilon=st.sampled_from([0.0, 1e-9, 0.01, 1.0]),
    policy=st.sampled_from(lrp.BIAS_POLICIES),
    outputs=st.integers(1, 4),
    widths=st.lists(st.integers(1, 3), min_size=1, max_size=3),
    total=st.booleans(),
    dead=st.booleans(),
)
def test_a_linear_layer_of_several_inputs_is_one_layer(seed, epsilon, policy, outputs, widths, total, dead):
    random = torch.Generator().manual_seed(seed)

    def draw(*shape):
        return torch.randn(*shape, dtype=torch.float64, generator=random)

    values, weights, bias = [draw(1, n) for n in widths], [draw(outputs, n) for n in widths], draw(outputs)
    if dead:
        for weight in weights:
            weight[0] = 0
        bias[0] = 0
    relevance = draw(1, 2, outputs)
    tape = Tape(lrp.Rules(epsilon, policy), 2)
    nodes = [tape.input(value, total=total) for value in values]
    layer = tape.linear("layer", list(zip(nodes, weights)), bias)
    found = tape.propagate([(layer, relevance, 0)], nodes)
    x, w = torch.cat(values, 1)[0].tolist(), torch.cat(weights, 1).tolist()
    for word in (0, 1):
        got, kept_by_bias, kept_by_epsilon = share(x, w, bias.tolist(), relevance[0, word].tolist(), epsilon, policy)
        parts = torch.tensor(got, dtype=torch.float64).split(widths)
        for node, part in zip(found, parts):
            near(node[0, word], part.sum() if total else part, 1e-9)
        if policy == "absorb":
            near(tape.ledger["layer"][0][0, word], torch.tensor(kept_by_bias, dtype=torch.float64), 1e-9)
            near(tape.ledger["layer"][1][0, word], torch.tensor(kept_by_epsilon, dtype=torch.float64), 1e-9)


@pytest.mark.parametrize("policy", lrp.BIAS_POLICIES)
def test_a_neuron_that_says_nothing_passes_nothing_on(policy):
    tape = Tape(lrp.Rules(0.0, policy), 1)
    read = tape.input(torch.tensor([[1.0, 2.0]]), total=False)
    silent = tape.linear("silent", [(read, torch.tensor([[2.0, -1.0]]))])
    (found,) = tape.propagate([(silent, torch.tensor([[[3.0]]]), 0)], [read])
    if policy == "absorb":
        assert found.tolist() == [[[0.0, 0.0]]]
        assert [part.tolist() for part in tape.ledger["silent"]] == [[[0.0]], [[3.0]]]
    else:
        assert found.tolist() == [[[1.5, 1.5]]]


@pytest.mark.parametrize("alpha", [1.0, 2.0])
@pytest.mark.parametrize("policy", lrp.BIAS_POLICIES)
def test_the_alpha_beta_rule_is_its_formula(alpha, policy):
    random = torch.Generator().manual_seed(3)
    x = torch.rand(1, 3, dtype=torch.float64, generator=random)
    weight, bias, relevance = (torch.randn(s, dtype=torch.float64, generator=random) for s in ((4, 3), (4,), (1, 1, 4)))
    weight[3] = -weight[3].abs()
    expected, kept = [0.0, 0.0, 0.0], 0.0
    for j in range(4):
        products = [float(weight[j, i] * x[0, i]) for i in range(3)]
        positive, negative = sum(p for p in products if p > 0), sum(p for p in products if p < 0)
        passed = [
            (alpha * p / positive if p > 0 else 0.0) - ((alpha - 1) * p / negative if p < 0 else 0.0) for p in products
        ]
        lost = float(relevance[0, 0, j]) * (1 - sum(passed))
        kept += lost
        for i in range(3):
            expected[i] += passed[i] * float(relevance[0, 0, j])
            expected[i] += lost / 3 if policy == "redistribute" else 0.0
    for total in (False, True):
        tape = Tape(lrp.Rules(0.01, policy, alpha), 1)
        read = tape.input(x, total=total)
        layer = tape.linear("layer", [(read, weight)], bias, positive=True)
        (found,) = tape.propagate([(layer, relevance, 0)], [read])
        wanted = torch.tensor(expected, dtype=torch.float64)
        near(found[0, 0], wanted.sum() if total else wanted, 1e-12)
        if policy == "absorb":
            near(tape.ledger["layer"][1][0, 0], torch.tensor(kept, dtype=torch.float64), 1e-12)


@pytest.mark.parametrize("policy", lrp.BIAS_POLICIES)
def test_layer_normalisation_is_a_linear_layer_with_a_constant_deviation(policy):
    random = torch.Generator().manual_seed(5)
    x, weight, bias, relevance = (torch.randn(4, dtype=torch.float64, generator=random) for _ in range(4))
    deviation = float((x.var(unbiased=False) + 1e-5).sqrt())
    matrix = [[float(weight[j]) / deviation * ((i == j) - 0.25) for i in range(4)] for j in range(4)]
    expected, _, _ = share(x.tolist(), matrix, bias.tolist(), relevance.tolist(), 0.01, policy)
    tape = Tape(lrp.Rules(0.01, policy), 1)
    read = tape.input(x[None], total=False)
    layer = tape.normalised("norm", read, weight, bias, 1e-5)
    near(layer.value[0], F.layer_norm(x, (4,), weight, bias), 1e-12)
    (found,) = tape.propagate([(layer, relevance[None, None], 0)], [read])
    near(found[0, 0], torch.tensor(expected, dtype=torch.float64), 1e-12)


def test_attention_of_several_queries_and_heads_is_a_layer_for_each_query():
    random = torch.Generator().manual_seed(6)
    values = torch.randn(1, 3, 4, dtype=torch.float64, generator=random)
    attention = torch.rand(1, 2, 2, 3, dtype=torch.float64, generator=random)
    relevance = torch.randn(1, 1, 2, 4, dtype=torch.float64, generator=random)
    mask = torch.tensor([[True, True, False]])
    for policy in lrp.BIAS_POLICIES:
        expected = np.zeros((3, 4))
        for query in range(2):
            # one layer reads all of the two real rows: its matrix has a weight where head and feature agree
            matrix = np.zeros((4, 2, 4))
            for f in range(4):
                for row in range(2):
                    matrix[f, row, f] = attention[0, f // 2, query, row]
            x = values[0, :2].flatten().tolist()
            got, _, _ = share(x, matrix.reshape(4, 8).tolist(), [0.0] * 4, relevance[0, 0, query].tolist(), 0.1, policy)
            expected[:2] += np.array(got).reshape(2, 4)
        for total in (False, True):
            tape = Tape(lrp.Rules(0.1, policy), 1)
            read = tape.input(values, total=total)
            context = tape.attend("attention", attention, read, mask, heads=2)
            (found,) = tape.propagate([(context, relevance, 0)], [read])
            near(found[0, 0], torch.from_numpy(expected.sum(1) if total else expected), 1e-12)


def test_relevance_of_a_value_with_several_uses_adds_up():
    tape = Tape(lrp.Rules(0.0), 3)
    value = tape.input(torch.tensor([[[1.0, 2.0], [3.0, 4.0]]]), total=False)
    first = tape.row(value, 0, since=0)
    again = tape.row(value, 1, since=1)
    both = tape.weighted("sum", [(first, 1.0), (again, 1.0)])
    seeds = [(both, torch.tensor([[[4.0, 6.0]]]), 1), (first, torch.tensor([[[5.0, 7.0]]]), 0)]
    (found,) = tape.propagate(seeds, [value])
    assert found[0].tolist() == [
        [[5.0, 7.0], [0.0, 0.0]],
        [[1.0, 2.0], [3.0, 4.0]],
        [[0.0, 0.0], [0.0, 0.0]],
    ]


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ({"epsilon": -0.1}, "epsilon -0.1: give 0 or more"),
        ({"epsilon": float("nan")}, "epsilon nan: give 0 or more"),
        ({"bias": "share"}, "bias 'share': it can be absorb or redistribute"),
        ({"alpha": 0.5}, "alpha 0.5: give 1 or more"),
    ],
)
def test_rules_that_make_no_sense_are_refused(choices, message):
    with pytest.raises(GroundingError, match=message):
        lrp.Rules(**choices)
