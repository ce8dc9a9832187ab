"""Layer-wise relevance of Up-Down in plain loops over numbers, one caption and one word at a time."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np

Numbers = list[float]


def share(
    x: Numbers, weight: list[Numbers], bias: Numbers, relevance: Numbers, epsilon: float, policy: str
) -> tuple[Numbers, float, float]:
    """The epsilon rule of one linear layer: what each input gets, what the bias keeps, what epsilon keeps."""
    got, by_bias, by_epsilon = [0.0] * len(x), 0.0, 0.0
    for row, own_bias, held in zip(weight, bias, relevance):
        z = own_bias + sum(w * value for w, value in zip(row, x))
        denominator = z + epsilon if z >= 0 else z - epsilon
        unit = 0.0 if denominator == 0 else held / denominator
        by_bias += own_bias * unit
        by_epsilon += held - z * unit
        for number, (w, value) in enumerate(zip(row, x)):
            got[number] += w * value * unit
            if policy == "redistribute":
                got[number] += (own_bias * unit + held - z * unit) / len(x)
    return got, by_bias, by_epsilon


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


class SlowUpDown:
    """Up-Down on one caption: the forward pass of its own weights, and relevance of one word."""

    def __init__(self, model: Any, features: np.ndarray, boxes: np.ndarray, tokens: list[int]):
        self.weights = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
        self.geometry = model.encoder.geometry
        self.embedded_mean = model.encoder.global_embedding is None
        self.size = model.decoder.hidden_size
        self.features, self.tokens = features, tokens
        self.read = features
        if self.geometry == "box5":
            area = ((boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1]))[:, None]
            self.read = np.concatenate([features, np.concatenate([boxes, area], 1) * 2 - 1], 1)
        self.forward()

    def layer(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        return self.weights[f"{name}.weight"], self.weights[f"{name}.bias"]

    def forward(self) -> None:
        weight, bias = self.layer("encoder.region_embedding.0")
        self.values = np.maximum(self.read @ weight.T + bias, 0)
        self.mean = self.features.mean(0)
        if self.embedded_mean:
            self.whole = self.values.mean(0)
        else:
            weight, bias = self.layer("encoder.global_embedding.0")
            self.whole = np.maximum(weight @ self.mean + bias, 0)
        weight, bias = self.layer("encoder.key_projection")
        keys = self.values @ weight.T + bias
        zero = np.zeros(self.size)
        attention_hidden, attention_cell, language_hidden, language_cell = zero, zero, zero, zero
        self.steps: list[dict[str, Any]] = []
        self.logits = []
        word_gates = self.weights["decoder.word_gates.weight"]
        global_gates, global_bias = self.layer("decoder.global_gates")
        attention_gates = self.weights["decoder.attention_gates.weight"]
        self.attention_weight = np.concatenate([word_gates, global_gates, attention_gates], 1)
        self.attention_bias = global_bias
        for token in self.tokens:
            word = np.maximum(self.weights["decoder.embedding.weight"][token], 0)
            kept: dict[str, Any] = {"former": (attention_cell, language_cell), "first": not self.steps}
            kept["read"] = np.concatenate([word, self.whole, language_hidden, attention_hidden])
            kept["attention LSTM"] = self.cell(
                self.attention_weight @ kept["read"] + self.attention_bias, attention_cell
            )
            attention_hidden, attention_cell = kept["attention LSTM"]["state"]
            weight, bias = self.layer("decoder.attention.query_projection")
            score, score_bias = self.layer("decoder.attention.score")
            fit = np.tanh(keys + weight @ attention_hidden + bias) @ score[0] + score_bias
            kept["attention"] = np.exp(fit - fit.max()) / np.exp(fit - fit.max()).sum()
            kept["attended"] = kept["attention"] @ self.values
            kept["read again"] = np.concatenate([kept["attended"], attention_hidden, language_hidden])
            weight, bias = self.layer("decoder.language_gates")
            kept["language LSTM"] = self.cell(weight @ kept["read again"] + bias, language_cell)
            language_hidden, language_cell = kept["language LSTM"]["state"]
            weight, bias = self.layer("decoder.output_projection")
            kept["hidden"] = language_hidden
            self.logits.append(weight @ language_hidden + bias)
            self.steps.append(kept)

    def cell(self, gates: np.ndarray, former: np.ndarray) -> dict[str, Any]:
        i, f, g, o = np.split(gates, 4)
        terms = [sigmoid(i) * np.tanh(g), sigmoid(f) * former]
        new = terms[0] + terms[1]
        return {"terms": terms, "state": (sigmoid(o) * np.tanh(new), new)}

    def relevance(self, place: int, start: dict[int, float], epsilon: float, policy: str) -> dict[str, Any]:
        """Relevance of regions (R,), of the words up to *place*, through the global vector, and what was kept."""
        kept = np.zeros(2)

        def through(x, weight, bias, held):
            got, by_bias, by_epsilon = share(
                list(x), np.asarray(weight).tolist(), list(bias), list(held), epsilon, policy
            )
            if policy == "absorb":
                kept[:] += by_bias, by_epsilon
            return np.array(got)

        size = self.size
        regions, words = np.zeros(len(self.features)), [0.0] * (place + 1)
        of_whole, of_values = np.zeros(len(self.whole)), np.zeros_like(self.values)
        hidden: dict[str, np.ndarray] = defaultdict(lambda: np.zeros(size))
        cells: dict[str, np.ndarray] = defaultdict(lambda: np.zeros(size))
        weight, bias = self.layer("decoder.output_projection")
        held = [start.get(word, 0.0) for word in range(len(bias))]
        hidden["language LSTM"] = through(self.steps[place]["hidden"], weight, bias, held)

        def through_cell(name, step, read, weight, bias, zeros):
            """Relevance of what the cell reads; *zeros*: how many numbers at the end are the start's."""
            state = cells[name] + hidden[name]
            terms = step[name]["terms"]
            first = step["first"]
            matrix = np.eye(size) if first else np.concatenate([np.eye(size), np.eye(size)], 1)
            got = through(terms[0] if first else np.concatenate(terms), matrix, np.zeros(size), state)
            cells[name] = np.zeros(size) if first else got[size:]
            rows = slice(2 * size, 3 * size)
            width = len(read) - (zeros if first else 0)
            found = through(read[:width], weight[rows, :width], bias[rows], got[:size])
            return np.concatenate([found, np.zeros(len(read) - width)])

        for number in range(place, -1, -1):
            step = self.steps[number]
            weight, bias = self.layer("decoder.language_gates")
            found = through_cell("language LSTM", step, step["read again"], weight, bias, size)
            attended, hidden_now, hidden["language LSTM"] = np.split(found, [-2 * size, -size])
            hidden["attention LSTM"] = hidden["attention LSTM"] + hidden_now
            # attention: one layer that reads all regions
            width = self.values.shape[1]
            matrix = np.concatenate([weight * np.eye(width) for weight in step["attention"]], 1)
            got = through(self.values.flatten(), matrix, np.zeros(width), attended)
            of_values += got.reshape(self.values.shape)
            found = through_cell(
                "attention LSTM", step, step["read"], self.attention_weight, self.attention_bias, 2 * size
            )
            word_width = len(found) - 2 * size - len(self.whole)
            word, whole, language, hidden["attention LSTM"] = np.split(
                found, [word_width, word_width + len(self.whole), -size]
            )
            hidden["language LSTM"] = hidden["language LSTM"] + language
            words[number] = word.sum()
            of_whole += whole
        if self.embedded_mean:
            width = self.values.shape[1]
            matrix = np.concatenate([np.eye(width) / len(self.values)] * len(self.values), 1)
            got = through(self.values.flatten(), matrix, np.zeros(width), of_whole)
            of_values += got.reshape(self.values.shape)
        else:
            weight, bias = self.layer("encoder.global_embedding.0")
            of_mean = through(self.mean, weight, bias, of_whole)
            width = len(self.mean)
            matrix = np.concatenate([np.eye(width) / len(self.features)] * len(self.features), 1)
            got = through(self.features.flatten(), matrix, np.zeros(width), of_mean)
            regions += got.reshape(self.features.shape).sum(1)
        weight, bias = self.layer("encoder.region_embedding.0")
        for region, (read, held) in enumerate(zip(self.read, of_values)):
            regions[region] += through(read, weight, bias, held).sum()
        return {
            "regions": regions,
            "words": np.array(words),
            "global": of_whole.sum(),
            "bias": kept[0],
            "epsilon": kept[1],
        }
