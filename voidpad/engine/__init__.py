"""Decoding many rows at once: the queue and its passes, packing, CUDA graphs (exact), KV caches (approximate)."""
