"""The replay page: one HTML file that shows recorded decodes and asks nothing of the network."""

from voidpad.diagnose.page.page import Named, PageExtension, page
from voidpad.diagnose.page.show import PageServer

__all__ = ["Named", "PageExtension", "PageServer", "page"]
