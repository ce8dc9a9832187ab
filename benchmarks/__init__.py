"""What the hot paths cost, beside plain implementations of the same equations: ``python -m benchmarks``."""

# before anything imports fairseq itself, whose own import would log
import fairseq_grounding  # noqa: F401
