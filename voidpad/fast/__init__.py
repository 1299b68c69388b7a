"""Faster denoisers: packed rows on a GPU (exact), key-value caches (approximate, off unless asked for)."""
