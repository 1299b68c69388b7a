"""Training: padding, noising, losses, data, recipe, batches, Trainer, checkpoints. `run.py` puts them together."""
