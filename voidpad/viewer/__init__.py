"""The replay page: one HTML file that shows recorded decodes and asks nothing of the network."""

from voidpad.viewer.page import Named, page
from voidpad.viewer.serve import Server

__all__ = ["Named", "Server", "page"]
