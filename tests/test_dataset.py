"""The data set and its collater, against the files they read."""

from __future__ import annotations

import pickle
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fairseq_grounding.data.grounded_caption_dataset import GroundedCaptionDataset
from fairseq_grounding.data.prepared import PreparedFolder
from fairseq_grounding.data.regions import RegionStore


@pytest.fixture(scope="module")
def parts(toy_folder: Path):
    folder = PreparedFolder(toy_folder)
    return folder.split("train"), RegionStore(folder.regions_path), folder.dictionary()


@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_batch_says_what_the_files_say(parts, data) -> None:
    split, store, dictionary = parts
    items = data.draw(st.sampled_from(["caption", "image", "group"]))
    limits = data.draw(st.tuples(st.integers(1, 12), st.integers(2, 12)))
    dataset = GroundedCaptionDataset(split, store, dictionary, items, *limits)
    chosen = data.draw(st.lists(st.integers(0, len(dataset) - 1), min_size=1, max_size=6, unique=True))
    batch = dataset.collater([dataset[item] for item in chosen])
    net_input = batch["net_input"]
    captions = batch["caption"].tolist()
    if items == "group":
        assert captions == [5 * image + k for image in chosen for k in range(5)]
        assert batch["id"].tolist() == captions
    elif items == "image":
        assert captions == [5 * image for image in chosen]
        assert batch["id"].tolist() == chosen
        assert batch["target"] is None
        assert "prev_output_tokens" not in net_input
    else:
        assert captions == chosen == batch["id"].tolist()
    assert batch["nsentences"] == len(captions)
    images = {split.image_ids[caption] for caption in captions}
    assert len(net_input["features"]) == len(images)
    tokens = 0
    for row, caption in enumerate(captions):
        image = store.index(split.image_ids[caption])
        count = min(int(store.counts[image]), limits[0])
        real = net_input["src_tokens"][row].ne(dictionary.pad())
        assert real.tolist() == [True] * count + [False] * (len(real) - count)
        assert net_input["src_tokens"][row][:count].eq(dictionary.unk()).all()
        assert net_input["src_lengths"][row] == count
        place = net_input["image_index"][row]
        assert np.array_equal(net_input["features"][place, :count].numpy(), store.features(image)[:count])
        assert bool((net_input["features"][place, count:] == 0).all())
        width, height = store.image_sizes[image]
        pixels = net_input["boxes"][place, :count].numpy() * [width, height, width, height]
        assert pixels == pytest.approx(store.boxes(image)[:count], abs=1e-3)
        if items == "image":
            continue
        given_tokens, nouns = split.tokens[caption].tolist(), split.nouns[caption].tolist()
        target = batch["target"][row].tolist()
        length = min(len(given_tokens), limits[1])
        assert target[: length - 1] == given_tokens[: length - 1]
        assert target[length - 1] == dictionary.eos()
        assert set(target[length:]) <= {dictionary.pad()}
        assert batch["noun_mask"][row].tolist()[: length - 1] == nouns[: length - 1]
        assert not batch["noun_mask"][row, length - 1 :].any()
        previous = net_input["prev_output_tokens"][row].tolist()
        assert previous[:length] == [dictionary.eos(), *target[: length - 1]]
        assert set(previous[length:]) <= {dictionary.pad()}
        tokens += length
        if items == "caption":
            assert dataset.size(caption) == (count, length)
            assert dataset.num_tokens(caption) == length
    assert items == "image" or batch["ntokens"] == tokens


def test_features_are_read_once_an_image_and_batch(parts, monkeypatch: pytest.MonkeyPatch) -> None:
    split, store, dictionary = parts
    reads: Counter[int] = Counter()
    read = RegionStore.features

    def counted(self, n, limit=None):
        reads[n] += 1
        return read(self, n, limit)

    monkeypatch.setattr(RegionStore, "features", counted)
    dataset = GroundedCaptionDataset(split, store, dictionary)
    dataset.collater([dataset[item] for item in (0, 7, 3, 1, 8, 4)])
    assert dict(reads) == {store.index(split.image_ids[0]): 1, store.index(split.image_ids[7]): 1}


def test_no_item_is_lost_or_doubled(parts) -> None:
    split, store, dictionary = parts
    for size in (3, 7, 8, 9):
        for multiple in (1, 8):
            dataset = GroundedCaptionDataset(split, store, dictionary, shuffle=True)
            batches = dataset.batch_by_size(dataset.ordered_indices(), None, size, multiple)
            assert sorted(int(item) for batch in batches for item in batch) == list(range(80))
            assert max(map(len, batches)) == size


def test_each_epoch_has_an_order_of_its_own_and_the_same_when_repeated(parts) -> None:
    split, store, dictionary = parts
    dataset = GroundedCaptionDataset(split, store, dictionary, shuffle=True, seed=3)
    orders = []
    for epoch in (1, 2, 1):
        dataset.set_epoch(epoch)
        orders.append(dataset.ordered_indices().tolist())
    assert orders[0] == orders[2] != orders[1]
    assert sorted(orders[0]) == list(range(80))
    assert not dataset.can_reuse_epoch_itr_across_epochs
    still = GroundedCaptionDataset(split, store, dictionary)
    assert still.ordered_indices().tolist() == list(range(80))


def test_it_can_be_sent_to_a_worker(parts) -> None:
    split, store, dictionary = parts
    dataset = GroundedCaptionDataset(split, store, dictionary, "group")
    here = dataset.collater([0, 5])
    there = pickle.loads(pickle.dumps(dataset)).collater([0, 5])
    for name, tensor in here["net_input"].items():
        assert torch.equal(tensor, there["net_input"][name])


def test_unknown_items(parts) -> None:
    with pytest.raises(ValueError, match="it can be caption, image, group"):
        GroundedCaptionDataset(*parts, items="pair")
    assert GroundedCaptionDataset(*parts).collater([]) == {}
