"""Training: padding, noise and loss, data, recipe, batches, loop, checkpoints. `train.py` puts them together."""
