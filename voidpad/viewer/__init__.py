"""The replay page: one HTML file that shows recorded decodes and asks nothing of the network."""

from voidpad.viewer.page import Named, page, write

__all__ = ["Named", "page", "write"]
