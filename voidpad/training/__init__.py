"""Training: padding, noising, losses, data, recipe, batches, Trainer, checkpoints. `train.py` puts them together."""
