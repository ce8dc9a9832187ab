"""The captioners with a sentinel and with heads, and their relevance, in loops: one caption and one word at a time."""

from __future__ import annotations

from typing import Any

import numpy as np

from .slow_lrp import share, sigmoid


def softmax(x: np.ndarray) -> np.ndarray:
    whole = np.exp(x - x.max())
    return whole / whole.sum()


class SlowCaptioner:
    """A model's weights on one caption: ``logits`` and ``attention`` of each step, and relevance of one word."""

    def __init__(self, model: Any, features: np.ndarray, boxes: np.ndarray, tokens: list[int]):
        self.weights = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
        self.size = model.decoder.hidden_size
        self.heads = getattr(model.decoder, "heads", 1)
        self.features, self.tokens, self.read = features, tokens, features
        if model.encoder.geometry == "box5":
            area = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
            self.read = np.concatenate([features, np.concatenate([boxes, area[:, None]], 1) * 2 - 1], 1)
        self.embedded = np.stack([np.maximum(self.of("encoder.region_embedding.0", x), 0) for x in self.read])
        self.mean = features.mean(0)
        self.embedded_mean = "encoder.global_embedding.0.weight" not in self.weights
        if self.embedded_mean:
            self.whole = self.embedded.mean(0)
        else:
            self.whole = np.maximum(self.of("encoder.global_embedding.0", self.mean), 0)
        self.steps: list[dict[str, Any]] = []
        self.logits: list[np.ndarray] = []
        self.forward()

    def forward(self) -> None:
        raise NotImplementedError

    def layer(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        weight = self.weights[f"{name}.weight"]
        return weight, self.weights.get(f"{name}.bias", np.zeros(len(weight)))

    def of(self, name: str, x: np.ndarray) -> np.ndarray:
        weight, bias = self.layer(name)
        return weight @ x + bias

    def cell(self, gates: np.ndarray, former: np.ndarray) -> dict[str, Any]:
        i, f, g, o = np.split(gates, 4)
        terms = [sigmoid(i) * np.tanh(g), sigmoid(f) * former]
        cell = terms[0] + terms[1]
        return {"terms": terms, "hidden": sigmoid(o) * np.tanh(cell), "cell": cell}

    # ---- back ----

    def start(self, epsilon: float, policy: str) -> None:
        self.epsilon, self.policy, self.kept = epsilon, policy, np.zeros(2)
        self.of_embedded = np.zeros_like(self.embedded)
        self.of_whole = np.zeros(len(self.whole))

    def through(self, x: np.ndarray, weight: np.ndarray, bias: np.ndarray, held: np.ndarray) -> np.ndarray:
        got, by_bias, by_epsilon = share(
            list(x), np.asarray(weight).tolist(), list(bias), list(held), self.epsilon, self.policy
        )
        if self.policy == "absorb":
            self.kept += by_bias, by_epsilon
        return np.array(got)

    def through_sum(self, terms: list[np.ndarray], held: np.ndarray) -> list[np.ndarray]:
        width = len(held)
        eyes = np.concatenate([np.eye(width)] * len(terms), 1)
        return np.split(self.through(np.concatenate(terms), eyes, np.zeros(width), held), len(terms))

    def through_cell(
        self, state: dict[str, Any], first: bool, parts: list[np.ndarray], weight, bias, held, zeros: int
    ) -> tuple[list[np.ndarray], np.ndarray]:
        """Relevance of what a cell reads and of its former cell; *zeros*: so many parts at the end are the start's."""
        found = self.through_sum(state["terms"][: 1 if first else 2], held)
        former = np.zeros(self.size) if first else found[1]
        rows = slice(2 * self.size, 3 * self.size)
        used = parts[: len(parts) - zeros] if first else parts
        read = np.concatenate(used)
        got = self.through(read, weight[rows, : len(read)], bias[rows], found[0])
        split = np.split(got, np.cumsum([len(part) for part in used])[:-1])
        return [*split, *(np.zeros(len(part)) for part in parts[len(used) :])], former

    def through_attention(self, attention: np.ndarray, values: np.ndarray, held: np.ndarray) -> np.ndarray:
        """attention (M,R), values (R,F), one layer that reads all regions."""
        count, width = values.shape
        matrix = np.zeros((width, count, width))
        for f in range(width):
            matrix[f, :, f] = attention[f * len(attention) // width]
        got = self.through(values.flatten(), matrix.reshape(width, -1), np.zeros(width), held)
        return got.reshape(values.shape)

    def to_regions(self, of_embedded: np.ndarray) -> np.ndarray:
        weight, bias = self.layer("encoder.region_embedding.0")
        return np.array([self.through(x, weight, bias, held).sum() for x, held in zip(self.read, of_embedded)])

    def finish(self, words: list[float]) -> dict[str, Any]:
        even = np.full((1, len(self.features)), 1 / len(self.features))
        regions = np.zeros(len(self.features))
        if self.embedded_mean:
            self.of_embedded += self.through_attention(even, self.embedded, self.of_whole)
        else:
            weight, bias = self.layer("encoder.global_embedding.0")
            of_mean = self.through(self.mean, weight, bias, self.of_whole)
            regions += self.through_attention(even, self.features, of_mean).sum(1)
        return {
            "regions": regions + self.to_regions(self.of_embedded),
            "words": np.array(words),
            "global": self.of_whole.sum(),
            "bias": self.kept[0],
            "epsilon": self.kept[1],
        }


class SlowAdaptive(SlowCaptioner):
    """With a sentinel: ``attention`` is (1,R) a step, ``beta`` the sentinel's weight."""

    def forward(self) -> None:
        size = self.size
        keys = np.stack([self.of("encoder.key_projection", v) for v in self.embedded])
        word_gates, global_gates, state_gates = (
            self.weights[f"decoder.{name}.weight"] for name in ("word_gates", "global_gates", "state_gates")
        )
        self.first_weight = np.concatenate([word_gates, global_gates, state_gates], 1)
        self.first_bias = self.weights["decoder.global_gates.bias"]
        hidden, cell, language, language_cell = (np.zeros(size) for _ in range(4))
        for token in self.tokens:
            word = self.weights["decoder.embedding.weight"][token]
            step: dict[str, Any] = {"first": not self.steps, "read": [word, self.whole, language, hidden]}
            gates = self.first_weight @ np.concatenate(step["read"]) + self.first_bias
            step["adaptive"] = self.cell(gates[: 4 * size], cell)
            hidden, cell = step["adaptive"]["hidden"], step["adaptive"]["cell"]
            sentinel = sigmoid(gates[4 * size :]) * np.tanh(cell)
            query = self.of("decoder.attention.query_projection", hidden)
            fits = [self.of("decoder.attention.score", np.tanh(key + query))[0] for key in keys]
            sentinel_key = self.of("decoder.attention.sentinel_projection", sentinel)
            own = self.of("decoder.attention.score", np.tanh(sentinel_key + query))[0]
            all_weights = softmax(np.array([*fits, own]))
            step["beta"] = all_weights[-1]
            step["attention"] = (all_weights[:-1] / all_weights[:-1].sum())[None]
            attended = step["attention"][0] @ self.embedded
            step["mixture"] = [step["beta"] * sentinel, (1 - step["beta"]) * attended]
            mixed = step["mixture"][0] + step["mixture"][1]
            step["read again"] = [mixed, hidden, language]
            weight, bias = self.layer("decoder.language_gates")
            step["language"] = self.cell(weight @ np.concatenate(step["read again"]) + bias, language_cell)
            language, language_cell = step["language"]["hidden"], step["language"]["cell"]
            step["output"] = [language, mixed]
            self.logits.append(self.of("decoder.output_projection", language + mixed))
            self.steps.append(step)

    def relevance(self, place: int, start: dict[int, float], epsilon: float, policy: str) -> dict[str, Any]:
        self.start(epsilon, policy)
        size = self.size
        words, sentinel_share = [0.0] * (place + 1), 0.0
        weight, bias = self.layer("decoder.output_projection")
        output = self.steps[place]["output"]
        held = [start.get(word, 0.0) for word in range(len(bias))]
        language, mixed = self.through_sum(output, self.through(output[0] + output[1], weight, bias, held))
        language_cell, hidden, cell = (np.zeros(size) for _ in range(3))
        for number in range(place, -1, -1):
            step = self.steps[number]
            weight, bias = self.layer("decoder.language_gates")
            (more, of_new, language), language_cell = self.through_cell(
                step["language"], step["first"], step["read again"], weight, bias, language + language_cell, 1
            )
            hidden = hidden + of_new
            sentinel, attended = self.through_sum(step["mixture"], mixed + more)
            mixed = np.zeros(size)
            sentinel_share += sentinel.sum()
            self.of_embedded += self.through_attention(step["attention"], self.embedded, attended)
            (word, whole, of_language, hidden), cell = self.through_cell(
                *(step["adaptive"], step["first"], step["read"], self.first_weight, self.first_bias),
                *(hidden + cell + sentinel, 2),
            )
            language = language + of_language
            words[number] = word.sum()
            self.of_whole += whole
        return {**self.finish(words), "sentinel": sentinel_share}


class SlowMultihead(SlowCaptioner):
    """With heads: ``attention`` is (M,R) a step."""

    def forward(self) -> None:
        size = self.size
        width = size // self.heads
        weight, bias = self.layer("encoder.key_projection")
        keys = self.embedded @ weight[:size].T + bias[:size]
        self.value_weight, self.value_bias = weight[size:], bias[size:]
        self.values = self.embedded @ self.value_weight.T + self.value_bias
        self.first_weight = np.concatenate(
            [self.weights[f"decoder.{name}.weight"] for name in ("word_gates", "global_gates", "state_gates")], 1
        )
        self.first_bias = self.weights["decoder.global_gates.bias"]
        hidden, cell = np.zeros(size), np.zeros(size)
        for token in self.tokens:
            word = self.weights["decoder.embedding.weight"][token]
            step: dict[str, Any] = {"first": not self.steps, "read": [word, self.whole, hidden]}
            step["lstm"] = self.cell(self.first_weight @ np.concatenate(step["read"]) + self.first_bias, cell)
            hidden, cell = step["lstm"]["hidden"], step["lstm"]["cell"]
            attention, context = [], []
            for head in range(self.heads):
                part = slice(head * width, (head + 1) * width)
                attention.append(softmax(keys[:, part] @ hidden[part] / np.sqrt(width)))
                context.append(attention[-1] @ self.values[:, part])
            step["attention"], step["context"] = np.stack(attention), np.concatenate(context)
            gate = sigmoid(self.of("decoder.context_gate", hidden))
            step["output"] = [hidden, gate * self.of("decoder.context_projection", step["context"])]
            self.logits.append(self.of("decoder.output_projection", step["output"][0] + step["output"][1]))
            self.steps.append(step)

    def relevance(self, place: int, start: dict[int, float], epsilon: float, policy: str) -> dict[str, Any]:
        self.start(epsilon, policy)
        words = [0.0] * (place + 1)
        of_values = np.zeros_like(self.values)
        weight, bias = self.layer("decoder.output_projection")
        output = self.steps[place]["output"]
        held = [start.get(word, 0.0) for word in range(len(bias))]
        hidden, gated = self.through_sum(output, self.through(output[0] + output[1], weight, bias, held))
        weight, bias = self.layer("decoder.context_projection")
        context = self.through(self.steps[place]["context"], weight, bias, gated)
        of_values += self.through_attention(self.steps[place]["attention"], self.values, context)
        cell = np.zeros(self.size)
        for number in range(place, -1, -1):
            step = self.steps[number]
            (word, whole, hidden), cell = self.through_cell(
                step["lstm"], step["first"], step["read"], self.first_weight, self.first_bias, hidden + cell, 1
            )
            words[number] = word.sum()
            self.of_whole += whole
        heads = []
        for head in range(self.heads):
            own = np.zeros_like(of_values)
            part = slice(head * self.size // self.heads, (head + 1) * self.size // self.heads)
            own[:, part] = of_values[:, part]
            kept = self.kept.copy()
            of_embedded = self.of_values(own)
            heads.append(self.to_regions(of_embedded))
            self.kept = kept
        self.of_embedded += self.of_values(of_values)
        return {**self.finish(words), "sentinel": 0.0, "heads": np.stack(heads)}

    def of_values(self, held: np.ndarray) -> np.ndarray:
        pairs = zip(self.embedded, held)
        return np.stack([self.through(x, self.value_weight, self.value_bias, row) for x, row in pairs])
