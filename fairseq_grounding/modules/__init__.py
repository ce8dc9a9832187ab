"""Parts that models share: attention scoring, encoders, decoder loops."""
