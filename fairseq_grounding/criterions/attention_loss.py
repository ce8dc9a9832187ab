"""How far a captioner's attention is from where it should look."""

from __future__ import annotations

from torch import Tensor

KINDS = ("kl", "reverse-kl", "nll", "nll-all")
FLOOR = 1e-8


def attention_loss(student: Tensor, target: Tensor, mask: Tensor, kind: str = "kl") -> tuple[Tensor, Tensor]:
    """How far a captioner's attention is from where it should look.

    Attention is floored at 1e-8 and not renormalised, as in the code behind the published numbers.

    Args:
        student: (B,T,R) the captioner's attention
        target: (B,T,R) where it should look; for ``nll-all`` 1 at each right region and 0 elsewhere
        mask: (B,T) True or 1 at the tokens that count
        kind: ``kl``: KL(target, student), what the published code computes; ``reverse-kl``: KL(student, target),
            POS-SCAN's Eq. 15 as printed; ``nll``: -log of the student's attention on the target's highest region;
            ``nll-all``: -log of its attention on every right region (Eq. 16)

    Returns:
        the sum over tokens that count, and their number (``nll-all``: over their right regions, and the number of
        those, by which the published code divides); both 0 where none counts
    """
    if kind not in KINDS:
        raise ValueError(f"kind is {kind!r}; it can be {', '.join(KINDS)}")
    chosen = mask.bool()
    student, target = student[chosen], target[chosen].to(student.dtype)
    if kind == "nll":
        best = student.gather(1, target.argmax(1, keepdim=True)) if len(student) else student[:, :1]
        total = -best.clamp(min=FLOOR).log().sum()
    elif kind == "nll-all":
        right = target > 0
        return -student[right].clamp(min=FLOOR).log().sum(), right.sum()
    else:
        student, target = student.clamp(min=FLOOR), target.clamp(min=FLOOR)
        ratio = target.log() - student.log()
        total = (target * ratio).sum() if kind == "kl" else -(student * ratio).sum()
    return total, chosen.sum()
