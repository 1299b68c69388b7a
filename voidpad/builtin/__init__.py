"""The built-in model: generated tasks, tokenizer, weights."""
