"""Theorems 1 and 2 of the paper, a model that has learnt its data perfectly, and how far trained models follow them."""
