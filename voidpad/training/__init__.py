"""The parts of training: recipe, batches, optimiser, Trainer, checkpoints. `voidpad.train` puts them together."""
