"""Losses; fairseq does not import this folder by itself, so the package does."""

from . import image_text_triplet, kl_attention_distill, lrp_inference, scst_cider_scan
