"""What the benchmarks compare computes the same numbers."""

from __future__ import annotations

import pytest
import torch

from benchmarks import alignment, captioner_step, matching_scores


@pytest.mark.parametrize("direction", ["t2i", "i2t"])
def test_plain_matching_scores_are_ours(direction):
    sizes = matching_scores.Sizes(pairs=5, regions=4, width=8, shortest=1, longest=6)
    regions, words, lengths = matching_scores.make_inputs(sizes)
    ours = matching_scores.our_scores(regions.double(), words.double(), lengths, direction)
    plain = matching_scores.plain_scores(regions.double(), words.double(), lengths, direction)
    torch.testing.assert_close(ours, plain, rtol=0, atol=1e-12)


def test_plain_captioner_is_ours():
    sizes = captioner_step.Sizes(images=3, captions=2, regions=4, features=6, vocabulary=20, units=8, longest=12)
    words, net_input, target = captioner_step.make_inputs(sizes)
    model = captioner_step.make_model(sizes, words).eval()
    plain = captioner_step.PlainUpDown(model).eval()
    assert int(target.ne(words.pad()).sum(1).min()) >= sizes.shortest
    assert target.eq(words.eos()).sum(1).tolist() == [1] * 6
    losses = (
        captioner_step.our_loss(model, words, net_input, target),
        captioner_step.plain_loss(plain, words, net_input, target),
    )
    torch.testing.assert_close(*losses, rtol=1e-5, atol=0)
    gradients = [torch.autograd.grad(loss, model.decoder.embedding.weight)[0] for loss in losses]
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-6)


def test_plain_phrases_are_ours():
    sizes = alignment.Sizes(captions=30, shortest=1, longest=6, regions=4)
    scores, lengths = alignment.make_inputs(sizes)
    assert set(lengths.tolist()) == set(range(1, 7))
    for beta in (0.0, 0.7):
        ours, plain = (paths(scores, lengths, beta) for paths in (alignment.our_paths, alignment.plain_paths))
        assert ours == plain
        assert [len(path) for path in ours] == lengths.tolist()
