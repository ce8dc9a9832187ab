"""Why a word matches what it attends to."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fairseq_grounding.errors import GroundingError
from fairseq_grounding.explain import explain
from fairseq_grounding.explain.matching import METHODS
from fairseq_grounding.models.dvsa import DvsaConfig, DvsaModel
from fairseq_grounding.models.scan import ScanConfig, ScanModel

from .test_explain import sample_of
from .test_up_down import FEATURES, WORDS, near


def scan(**choices):
    torch.manual_seed(0)
    return ScanModel(ScanConfig(word_embedding_size=4, joint_size=6, **choices), WORDS, FEATURES).double().eval()


def dvsa():
    torch.manual_seed(0)
    cfg = DvsaConfig(word_embedding_size=4, hidden_size=5, joint_size=6)
    return DvsaModel(cfg, WORDS, FEATURES).double().eval()


MODELS = {"scan": scan, "pos_scan": lambda: scan(noun_attention="before"), "dvsa": dvsa}


def batch(garbage=0.0):
    sample = sample_of([[4, 5, 4, 6], [7, 8]], [3, 5], garbage=garbage)
    sample["noun_mask"] = torch.tensor([[0, 1, 0, 1, 0], [0, 0, 0, 0, 0]], dtype=torch.uint8)
    return sample


def similarity(model, sample, row, features, table=None):
    """The similarities (T,) of one caption with its own image, written plainly; words from *table* (T,E)."""
    count = int(sample["net_input"]["src_lengths"][row])
    target = sample["target"][row : row + 1]
    target = target[:, : int(target.ne(WORDS.pad()).sum())]
    hook = model.embedding.register_forward_hook(lambda module, arguments, output: output if table is None else table)
    encoded = model.encode(
        sample["net_input"]["src_tokens"][row : row + 1, :count],
        features,
        sample["net_input"]["boxes"][row : row + 1, :count],
        torch.zeros(1, dtype=torch.long),
        target,
        sample["noun_mask"][row : row + 1, : target.shape[1]],
    )
    hook.remove()
    return model.attend_own(encoded, torch.zeros(1, dtype=torch.long), "normalised")


@pytest.mark.parametrize("name", MODELS)
def test_gradients_are_autograds(name):
    model, sample = MODELS[name](), batch()
    plain, product = (explain(model, sample, method) for method in ("gradient", "gradient_input"))
    for row in (0, 1):
        count = int(sample["net_input"]["src_lengths"][row])
        features = sample["net_input"]["features"][row : row + 1, :count].clone().requires_grad_()
        tokens = sample["target"][row][sample["target"][row].ne(WORDS.pad())]
        table = nn.Parameter(model.embedding.weight[tokens][None].detach())
        numbers, attention = similarity(model, sample, row, features, table)
        for place in range(len(tokens) - 1):
            near(plain.logit[row, place], numbers[0, place].detach())
            if not attention[0, place].any():
                assert not plain.regions[row, place].any()
                continue
            by_feature, by_word = torch.autograd.grad(numbers[0, place], [features, table], retain_graph=True)
            by_word = by_word[0, :-1]
            near(plain.regions[row, place, :count], by_feature[0].sum(1))
            near(plain.words[row, place, : len(by_word)], by_word.sum(1))
            near(product.regions[row, place, :count], (by_feature * features)[0].sum(1).detach())
            near(product.words[row, place, : len(by_word)], (by_word * table[0, :-1]).sum(1).detach())
    assert plain.target == "similarity"


@pytest.mark.parametrize("name", MODELS)
def test_ablation_and_attention(name):
    model, sample = MODELS[name](), batch()
    ablated, attended = (explain(model, sample, method) for method in ("ablation", "attention"))
    features = sample["net_input"]["features"][1:2]
    whole, attention = similarity(model, sample, 1, features)
    near(attended.regions[1, :3], attention[0].detach())
    near(attended.logit[1, :2], whole[0, :2].detach())
    less = {**sample, "net_input": {**sample["net_input"], "src_lengths": torch.tensor([3, 4])}}
    without, _ = similarity(model, less, 1, features[:, :4])
    near(ablated.regions[1, :2, 4], (whole - without)[0, :2].detach())


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("method", METHODS)
def test_what_all_methods_promise(name, method):
    model = MODELS[name]()
    if name != "dvsa" and "guided" in method:
        with pytest.raises(GroundingError, match="has no ReLU to guide"):
            explain(model, batch(), method)
        return
    found, other = (explain(model, batch(garbage), method, steps=2) for garbage in (0.0, float("nan")))
    for part, again in zip((found.regions, found.words, found.logit), (other.regions, other.words, other.logit)):
        near(part, again.detach())
        # the end symbol and padding
        assert not part[0, 4:].any()
        assert not part[1, 2:].any()
    assert not found.regions[0, :, 3:].any()
    assert not found.words[0, :, 4:].any()
    assert found.regions.any() or method == "grad_cam"
    near(sum(found.ledger.values()), found.logit.detach())
    some = explain(model, batch(), method, steps=2, positions=[1])
    near(some.regions[:, 1], found.regions[:, 1].detach())
    assert not some.regions[:, [0, 2]].any()
    if name == "pos_scan":
        assert not found.regions[0, [0, 2]].any()


def test_what_matching_models_do_not_have_is_refused():
    model = scan()
    model.architecture = "scan"
    for choices, message in (
        ({"method": "lrp"}, "lrp: there are no rules for the layers of scan; it can be explained by gradient"),
        ({"method": "gradient", "target": "margin"}, "gives words no logits: leave target and token"),
        ({"method": "gradient", "token": 4}, "gives words no logits"),
        ({"method": "gradient", "positions": [2]}, "position 2: is past the end of caption 1 of the batch; it has"),
    ):
        with pytest.raises(GroundingError, match=message):
            explain(model, batch(), **choices)
    with pytest.raises(GroundingError, match="holds no words"):
        explain(model, {**sample_of([[]], [2]), "noun_mask": torch.zeros(1, 1)}, "gradient")
