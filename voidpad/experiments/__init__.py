"""Sweeps: recipes as cells, run here or on a Ray cluster."""
