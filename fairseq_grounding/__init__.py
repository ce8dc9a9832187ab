"""Grounded image captioning for fairseq: ``--user-dir`` points here, and importing registers everything."""
