"""The attention losses against the reference code's figures and plain loops."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from fairseq_grounding.criterions.annotated_attention import annotated_target
from fairseq_grounding.criterions.kl_attention_distill import KINDS, attention_loss

FIGURES = Path(__file__).parent / "figures"


@pytest.fixture(scope="module")
def figures():
    data = np.load(FIGURES / "e_attention_losses.npz")
    return {name: torch.from_numpy(np.asarray(data[name])) for name in data.files}


def targets(figures, case: str):
    """Target, mask and kind as the reference's options mean them; annotation starts at the first word."""
    teacher, nouns = figures["teacher"][:, :17], figures["noun_mask"]
    overlap, box = figures["gt_iou"][:, 1:], figures["gt_box_index"][:, 1:]
    best = F.one_hot(box.clamp(min=0).long(), overlap.shape[2])
    return {
        "kl_teacher": (teacher, nouns, "kl"),
        "kl_teacher_w1": (teacher, nouns, "kl"),
        "nll_teacher": (teacher, nouns, "nll"),
        "kl_gt": (F.softmax(overlap / 0.5, -1), box >= 0, "kl"),
        "nll_gt": (best, box >= 0, "nll"),
        "extendnll_gt": ((overlap > 0.5).double(), box >= 0, "nll-all"),
    }[case]


CASES = ("kl_teacher", "kl_teacher_w1", "nll_teacher", "kl_gt", "nll_gt", "extendnll_gt")


@pytest.mark.parametrize("case", CASES)
def test_loss_and_gradients_are_the_reference_codes(figures, case):
    logits = figures["attn_logits"].clone().requires_grad_()
    student = logits.softmax(-1)
    total, count = attention_loss(student, *targets(figures, case))
    loss = total / count
    assert float(loss.detach()) == pytest.approx(float(figures[f"{case}.att_loss"]), abs=1e-10)
    weight = 1.0 if case == "kl_teacher_w1" else float(figures["att_supervise_weight"])
    of_attention, of_logits = torch.autograd.grad(weight * loss, (student, logits))
    np.testing.assert_allclose(of_attention, figures[f"{case}.grad_attn"], rtol=0, atol=1e-10)
    np.testing.assert_allclose(of_logits, figures[f"{case}.grad_attn_logits"], rtol=0, atol=1e-10)
    whole = float(figures[f"{case}.xe"]) + weight * float(loss.detach())
    assert whole == pytest.approx(float(figures[f"{case}.loss"]), abs=1e-10)


@pytest.mark.parametrize(
    ("case", "boxes", "kind"),
    [("kl_gt", "soft", "kl"), ("nll_gt", "best", "nll"), ("extendnll_gt", "all", "nll-all")],
)
def test_targets_from_overlaps_give_the_reference_codes_losses(figures, case, boxes, kind):
    # the reference's overlaps start at the symbol that begins a caption, and are 1e-8 where nothing is annotated
    overlap = figures["gt_iou"][:, 1:]
    annotated = overlap.amax(2) > 1e-7
    assert 0 < int(annotated.sum()) < annotated.numel()
    logits = figures["attn_logits"].clone().requires_grad_()
    target, looks = annotated_target(overlap[annotated], boxes)
    total, count = attention_loss(logits.softmax(-1)[annotated][None], target[None], looks[None], kind)
    assert float((total / count).detach()) == pytest.approx(float(figures[f"{case}.att_loss"]), abs=1e-10)
    (gradient,) = torch.autograd.grad(float(figures["att_supervise_weight"]) * total / count, logits)
    np.testing.assert_allclose(gradient, figures[f"{case}.grad_attn_logits"], rtol=0, atol=1e-10)


def test_the_two_directions_of_kl(figures):
    student = figures["attn_logits"].softmax(-1)
    teacher, nouns, _ = targets(figures, "kl_teacher")
    for kind, name in (("kl", "check.kl_alpha_beta"), ("reverse-kl", "check.kl_beta_alpha")):
        total, count = attention_loss(student, teacher, nouns, kind)
        assert float(total / count) == pytest.approx(float(figures[name]), abs=1e-10)


@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_without_nouns_costs_nothing(figures, kind):
    # the reference's loss is NaN here
    assert math.isnan(float(figures["kl_teacher_no_noun.att_loss"]))
    logits = figures["attn_logits"].clone().requires_grad_()
    total, count = attention_loss(
        logits.softmax(-1), figures["teacher"][:, :17], torch.zeros_like(figures["noun_mask"]), kind
    )
    assert float(total.detach()) == 0
    assert int(count) == 0
    total.backward()
    assert torch.equal(logits.grad, torch.zeros_like(logits))


def plain_loss(student, target, kind):
    """One token: where it looks and where it should, both lists."""
    floored = [max(p, 1e-8) for p in student]
    if kind == "nll":
        return -math.log(floored[target.index(max(target))])
    if kind == "nll-all":
        return sum(-math.log(p) for p, right in zip(floored, target) if right)
    wanted = [max(q, 1e-8) for q in target]
    if kind == "kl":
        return sum(q * math.log(q / p) for p, q in zip(floored, wanted))
    return sum(p * math.log(p / q) for p, q in zip(floored, wanted))


def random_attention(seed, captions, tokens, regions, kind):
    generator = torch.Generator().manual_seed(seed)
    student = torch.randn(captions, tokens, regions, generator=generator, dtype=torch.float64).softmax(-1)
    if kind == "nll-all":
        target = (torch.rand(captions, tokens, regions, generator=generator) < 0.4).double()
    else:
        target = torch.randn(captions, tokens, regions, generator=generator, dtype=torch.float64).mul(3).softmax(-1)
    return student, target, torch.rand(captions, tokens, generator=generator) < 0.5


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**20),
    captions=st.integers(1, 4),
    tokens=st.integers(1, 5),
    regions=st.integers(1, 6),
    kind=st.sampled_from(KINDS),
    padded=st.booleans(),
)
def test_the_sum_is_over_tokens_that_count(seed, captions, tokens, regions, kind, padded):
    student, target, mask = random_attention(seed, captions, tokens, regions, kind)
    if padded and regions > 1:
        # exact zeros, as at padding
        student[:, :, -1], target[:, :, -1] = 0, 0
    expected = [
        plain_loss(student[row, token].tolist(), target[row, token].tolist(), kind)
        for row in range(captions)
        for token in range(tokens)
        if mask[row, token]
    ]
    for form in (mask, mask.to(torch.uint8), mask.double()):
        total, count = attention_loss(student, target, form, kind)
        assert int(count) == (int(target[mask].sum()) if kind == "nll-all" else len(expected))
        assert float(total) == pytest.approx(sum(expected), abs=1e-9)


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**20),
    more_tokens=st.integers(0, 3),
    more_regions=st.integers(0, 3),
    kind=st.sampled_from(KINDS),
)
def test_padding_changes_nothing(seed, more_tokens, more_regions, kind):
    student, target, mask = random_attention(seed, 3, 4, 5, kind)

    def loss_and_gradient(tokens, regions):
        # as the softmax over real regions and the data set leave padding
        seen = F.pad(student, (0, regions, 0, tokens)).requires_grad_()
        wanted, counts = F.pad(target, (0, regions, 0, tokens)), F.pad(mask, (0, tokens))
        total, count = attention_loss(seen, wanted, counts, kind)
        return total.detach(), int(count), torch.autograd.grad(total, seen)[0]

    total, count, gradient = loss_and_gradient(0, 0)
    padded, still, of_padded = loss_and_gradient(more_tokens, more_regions)
    assert still == count
    assert torch.allclose(padded, total, atol=1e-10)
    assert torch.allclose(of_padded[:, :4, :5], gradient, atol=1e-10)
    assert not of_padded[:, 4:].any()
    assert not of_padded[:, :, 5:].any()


@pytest.mark.parametrize("kind", KINDS)
def test_a_token_is_compared_with_its_own_target(kind):
    student, target, mask = random_attention(5, 3, 4, 5, kind)
    target[:, :, 0] = 1.0
    mask[:] = True
    total = attention_loss(student, target, mask, kind)[0]
    order = torch.tensor([2, 0, 3, 1])
    moved = attention_loss(student[:, order], target[:, order], mask, kind)[0]
    assert float(moved) == pytest.approx(float(total), abs=1e-10)
    regions = torch.tensor([4, 0, 3, 1, 2])
    turned = attention_loss(student[:, :, regions], target[:, :, regions], mask, kind)[0]
    assert float(turned) == pytest.approx(float(total), abs=1e-10)
    crossed = attention_loss(student[:, :, regions], target, mask, kind)[0]
    assert abs(float(crossed) - float(total)) > 1e-3


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_are_those_of_finite_differences(kind):
    student, target, mask = random_attention(9, 2, 3, 4, kind)
    mask[0, 0], mask[0, 1] = True, False
    target[:, :, 0] = 1.0
    assert torch.autograd.gradcheck(lambda s: attention_loss(s, target, mask, kind)[0], (student.requires_grad_(),))
    (gradient,) = torch.autograd.grad(attention_loss(student, target, mask, kind)[0], student)
    assert not gradient[~mask].any()
    assert gradient[mask].any()


@pytest.mark.parametrize("kind", KINDS)
def test_attention_of_zero_has_a_finite_loss_and_gradient(kind):
    student = torch.tensor([[[0.0, 1.0]]], dtype=torch.float64, requires_grad=True)
    total, _ = attention_loss(
        student, torch.tensor([[[1.0, 0.0]]], dtype=torch.float64), torch.ones(1, 1, dtype=torch.bool), kind
    )
    # all of these are the logarithm of the floor for a student that looks away completely
    assert float(total.detach()) == pytest.approx(-math.log(1e-8), rel=1e-6)
    (gradient,) = torch.autograd.grad(total, student)
    assert torch.isfinite(gradient).all()


def test_an_unknown_kind_names_those_that_exist():
    one = torch.ones(1, 1, 1)
    with pytest.raises(ValueError, match="kind is 'l2'; it can be kl, reverse-kl, nll, nll-all"):
        attention_loss(one, one, one[..., 0], "l2")
