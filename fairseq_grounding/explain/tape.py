"""A forward pass written down layer by layer, and relevance sent back through it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor

from . import lrp

Back = Callable[[Tensor], None]


class Node:
    """A value of the forward pass, (B,..,F).

    Attributes:
        value: the tensor
        since: the first of the explained words that it can speak for; its relevance has rows for those from there on
        total: an input of which only the relevance of each row is asked, summed over F
    """

    def __init__(self, value: Tensor, since: int = 0, total: bool = False):
        self.value = value
        self.since = since
        self.total = total


class Tape:
    """Runs the layers that a captioner is made of, remembers them, and sends relevance back through all of them.

    Whoever describes an architecture calls these methods in place of the layers (:mod:`.architectures`). The
    backward pass is then known: layers in the opposite order, each by its rule, relevance from several uses of a
    value added up. So a value may be used by any number of layers and steps, and none is forgotten.

    ``ledger`` holds, after :meth:`propagate`, for each layer's name what its bias and epsilon kept, two (B,K).

    Args:
        rules: epsilon, what becomes of biases, and alpha
        words: K, how many words are explained at once
    """

    def __init__(self, rules: lrp.Rules, words: int):
        self.rules = rules
        self.words = words
        self.ledger: dict[str, tuple[Tensor, Tensor]] = {}
        self._layers: list[tuple[Node, Back]] = []
        self._relevance: dict[Node, Tensor] = {}
        self._own: set[Node] = set()

    # ---- the forward pass ----

    def input(self, value: Tensor, since: int = 0, total: bool = True) -> Node:
        """What relevance is asked of; with *total* one number a row, which saves the widest products."""
        return Node(value, since, total)

    def linear(
        self,
        name: str,
        parts: Sequence[tuple[Node, Tensor]],
        bias: Tensor | None = None,
        value: Tensor | None = None,
        positive: bool = False,
    ) -> Node:
        """A linear layer on one or several inputs: the sum of x W^T over (x (B,..,I), W (O,I)), and the bias (O,).

        The inputs are one layer's: they share one denominator.

        Args:
            name: for the ledger
            value: the result, where it is known already
            positive: the inputs are positive: the alpha-beta rule may serve, where it is asked for
        """
        if value is None:
            value = sum((node.value @ weight.t() for node, weight in parts[1:]), parts[0][0].value @ parts[0][1].t())
            value = value if bias is None else value + bias
        inputs = [node for node, _ in parts]
        output = self._output(inputs, value)
        if positive and self.rules.alpha is not None:
            if len(parts) != 1:
                raise ValueError(f"{name}: the alpha-beta rule is for layers of one input")
            self._record(output, self._alpha_beta(name, output, *parts[0], self.rules.alpha))
            return output
        width = sum(node.value.shape[-1] for node in inputs)

        def back(relevance: Tensor) -> None:
            scale, left = self._divide(name, output, relevance, value, bias)
            for node, weight in parts:
                if node.total:
                    product = node.value @ weight.t() if len(parts) > 1 else _without(value, bias)
                    got = (scale * product[:, None]).sum(-1)
                    got = got if left is None else got + left.sum(-1) * (node.value.shape[-1] / width)
                else:
                    got = lrp.linear(scale, node.value, weight)
                    got = got if left is None else got + left.sum(-1, keepdim=True) / width
                self._add(node, got, output.since)

        self._record(output, back)
        return output

    def weighted(self, name: str, terms: Sequence[tuple[Node, Tensor | float]], bias: Tensor | None = None) -> Node:
        """A sum of values, each times a weight that is no input but a constant (a gate, a mixing weight, 1).

        *bias* (B,..,F) is added and nobody's (positions).
        """
        value = sum((node.value * weight for node, weight in terms[1:]), terms[0][0].value * terms[0][1])
        value = value if bias is None else value + bias
        output = self._output([node for node, _ in terms], value)
        width = len(terms) * value.shape[-1]

        def back(relevance: Tensor) -> None:
            scale, left = self._divide(name, output, relevance, value, None if bias is None else bias[:, None])
            for node, weight in terms:
                got = (node.value * weight)[:, None] * scale
                got = got if left is None else got + left.sum(-1, keepdim=True) / width
                self._add(node, got, output.since)

        self._record(output, back)
        return output

    def passing(self, node: Node, value: Tensor) -> Node:
        """A function of each number on its own (ReLU, tanh, a gate's product), through which relevance passes whole."""
        output = self._output([node], value)
        self._record(output, lambda relevance: self._add(node, relevance, output.since))
        return output

    def attend(self, name: str, attention: Tensor, values: Node, mask: Tensor, heads: int = 1) -> Node:
        """Weighted means over rows, the weights being constants.

        Args:
            name: for the ledger
            attention: (B,R) for one query, (B,M,R) for one query of several heads, or (B,M,Q,R)
            values: (B,R,F); head m owns the m-th of M equal parts of F
            mask: (B,R) or (B,Q,R) True = what can be attended to; other rows get nothing
            heads: M

        Returns:
            (B,F), or (B,Q,F) for attention with four axes
        """
        one_query = attention.dim() < 4
        if attention.dim() == 2:
            attention = attention[:, None]
        if one_query:
            attention = attention[:, :, None]
        mask = mask[:, None] if mask.dim() == 2 else mask
        attention = attention.masked_fill(~mask[:, None], 0.0)
        split = values.value.unflatten(-1, (heads, -1)).masked_fill(~mask.any(1)[:, :, None, None], 0.0)
        mixed = torch.einsum("bmqr,brmf->bqmf", attention, split).flatten(2)
        output = self._output([values], mixed[:, 0] if one_query else mixed)
        shares = (mask.to(mixed.dtype) / mask.sum(2, keepdim=True).clamp(min=1)).expand(-1, attention.shape[2], -1)

        def back(relevance: Tensor) -> None:
            scale, left = self._divide(name, output, relevance[:, :, None] if one_query else relevance, mixed)
            scale = scale.unflatten(-1, (heads, -1))
            spread = None if left is None else torch.einsum("bkq,bqr->bkr", left.sum(3), shares)
            if values.total:
                got = lrp.attended_total(scale, attention, split)
                got = got if spread is None else got + spread
            else:
                got = lrp.attended(scale, attention, split).flatten(3)
                got = got if spread is None else got + spread[..., None] / got.shape[-1]
            self._add(values, got, output.since)

        self._record(output, back)
        return output

    def normalised(self, name: str, node: Node, weight: Tensor, bias: Tensor, epsilon: float) -> Node:
        """Layer normalisation: linear in its input, the standard deviation being a constant."""
        deviation = (node.value.var(-1, unbiased=False, keepdim=True) + epsilon).sqrt()
        value = (node.value - node.value.mean(-1, keepdim=True)) / deviation * weight + bias
        output = self._output([node], value)

        def back(relevance: Tensor) -> None:
            scale, left = self._divide(name, output, relevance, value, bias)
            scale = scale * weight / deviation[:, None]
            got = node.value[:, None] * (scale - scale.mean(-1, keepdim=True))
            self._add(node, got if left is None else got + left.mean(-1, keepdim=True), output.since)

        self._record(output, back)
        return output

    def row(self, node: Node, place: int, since: int) -> Node:
        """One row (B,F) of (B,S,F), which speaks for explained words from *since* on."""
        output = Node(node.value[:, place], max(node.since, since))

        def back(relevance: Tensor) -> None:
            whole = relevance.new_zeros(*relevance.shape[:2], *node.value.shape[1:])
            whole[:, :, place] = relevance
            self._add(node, whole, output.since)

        self._record(output, back)
        return output

    def _alpha_beta(self, name: str, output: Node, node: Node, weight: Tensor, alpha: float) -> Back:
        def back(relevance: Tensor) -> None:
            rule = lrp.alpha_beta_total if node.total else lrp.alpha_beta
            got = rule(relevance, node.value, weight, alpha)
            left = relevance.sum(-1) - (got if node.total else got.sum(-1))
            if self._keep(name, output, None, left):
                got = got + (left if node.total else left[..., None] / node.value.shape[-1])
            self._add(node, got, output.since)

        return back

    def _output(self, inputs: Sequence[Node], value: Tensor) -> Node:
        return Node(value, max(node.since for node in inputs))

    def _record(self, output: Node, back: Back) -> None:
        self._layers.append((output, back))

    # ---- back ----

    def propagate(self, seeds: Iterable[tuple[Node, Tensor, int]], wanted: Sequence[Node]) -> list[Tensor]:
        """Send relevance back from *seeds* to everything that was written down before them.

        Args:
            seeds: (node, relevance (B,k,..,F), the first of the k explained words it is for)
            wanted: nodes whose relevance is asked for

        Returns:
            for each node that is wanted, relevance (B,K,..,F), or (B,K,..) for an input that gives totals; exactly 0
            where nothing came
        """
        self.ledger, self._relevance, self._own = {}, {}, set()
        asked = set(wanted)
        for node, relevance, first in seeds:
            self._add(node, relevance, first)
        for output, back in reversed(self._layers):
            if output in self._relevance:
                back(self._relevance[output])
                if output not in asked:
                    del self._relevance[output]
        found = [self._whole(node) for node in wanted]
        self._relevance, self._own = {}, set()
        return found

    def _add(self, node: Node, relevance: Tensor, first: int) -> None:
        if node.total and relevance.dim() > node.value.dim():
            relevance = relevance.sum(-1)
        held = self._relevance.get(node)
        if held is None and relevance.shape[1] == self.words - node.since:
            # several nodes may share it: not to be added to in place
            self._relevance[node] = relevance
            return
        if node not in self._own:
            whole = relevance.new_zeros(len(relevance), self.words - node.since, *relevance.shape[2:])
            self._relevance[node] = whole if held is None else whole.copy_(held)
            self._own.add(node)
        begin = first - node.since
        self._relevance[node][:, begin : begin + relevance.shape[1]] += relevance

    def _whole(self, node: Node) -> Tensor:
        shape = node.value.shape[1:-1] if node.total else node.value.shape[1:]
        whole = node.value.new_zeros(len(node.value), self.words, *shape)
        held = self._relevance.get(node)
        if held is not None:
            whole[:, node.since :] = held
        return whole

    def _divide(
        self, name: str, output: Node, relevance: Tensor, z: Tensor, bias: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """The epsilon rule's scale (B,K,..,F), and of each output what its inputs are to share beside, or None."""
        portions = lrp.portions(relevance, z, self.rules.epsilon, bias)
        shared = self._keep(name, output, portions.by_bias, portions.by_epsilon)
        return portions.scale, portions.kept if shared else None

    def _keep(self, name: str, output: Node, by_bias: Tensor | None, by_epsilon: Tensor) -> bool:
        """Note what a layer's bias and epsilon keep (B,k,..); True when its inputs are to share it instead."""
        if self.rules.redistributes:
            return True
        entry = self.ledger.get(name)
        if entry is None:
            zeros = by_epsilon.new_zeros(len(by_epsilon), self.words)
            entry = self.ledger[name] = zeros, zeros.clone()
        for booked, kept in zip(entry, (by_bias, by_epsilon)):
            if kept is not None:
                booked[:, output.since :] += kept.flatten(2).sum(2) if kept.dim() > 2 else kept
        return False


def _without(value: Tensor, bias: Tensor | None) -> Tensor:
    return value if bias is None else value - bias
