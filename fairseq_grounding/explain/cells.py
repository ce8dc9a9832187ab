"""Parts of captioners, as layers of a tape."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from .tape import Node, Tape


def lstm_cell(
    tape: Tape, name: str, parts: Sequence[tuple[Node, Tensor]], bias: Tensor | None, cell: Node | None
) -> tuple[Node, Node]:
    """An LSTM cell whose gates are constant weights and get no relevance: the signal takes all (Arras et al., 2019).

    Relevance of the hidden state goes to the cell, from there to the former cell and to the candidate, and from the
    candidate to the inputs. tanh and the product with the input gate pass it whole.

    Args:
        tape: to write on
        name: of the cell, for the ledger
        parts: what the gates read: nodes (B,F) with weights (4H,F), in torch's order i f g o
        bias: (4H,), all biases added up
        cell: the former cell (B,H), None where it is the zeros of the start

    Returns:
        hidden, cell
    """
    gates = sum((node.value @ weight.t() for node, weight in parts[1:]), parts[0][0].value @ parts[0][1].t())
    gates = gates if bias is None else gates + bias
    i, f, g, o = gates.chunk(4, 1)
    candidate = tape.linear(
        f"{name}: candidate",
        [(node, weight.chunk(4)[2]) for node, weight in parts],
        None if bias is None else bias.chunk(4)[2],
        value=g,
    )
    terms: list[tuple[Node, Tensor | float]] = [(tape.passing(candidate, g.tanh()), i.sigmoid())]
    if cell is not None:
        terms.append((cell, f.sigmoid()))
    new_cell = tape.weighted(f"{name}: cell", terms)
    return tape.passing(new_cell, o.sigmoid() * new_cell.value.tanh()), new_cell
