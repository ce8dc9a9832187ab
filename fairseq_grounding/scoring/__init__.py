"""Scores of captions, grounding and retrieval; one module a kind of score, none needs a model."""
