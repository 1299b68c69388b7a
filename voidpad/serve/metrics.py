"""Figures for Prometheus: requests, tokens, passes, waiting and live rows, and where the time goes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)


class Metrics:
    """One registry per server, so that two servers in one process do not share counts."""

    def __init__(self, *, waiting: Callable[[], int], live: Callable[[], int]) -> None:
        self.registry = CollectorRegistry()
        own: dict[str, Any] = {"registry": self.registry}
        self.requests = Counter(
            "voidpad_requests", "Requests by route and status", ["route", "status"], **own
        )
        self.prompt_tokens = Counter("voidpad_prompt_tokens", "Tokens of accepted prompts", **own)
        self.answer_tokens = Counter("voidpad_answer_tokens", "Tokens of answers, before their end", **own)
        self.passes = Counter("voidpad_passes", "Forward passes of the engine", **own)
        self.row_passes = Counter(
            "voidpad_row_passes", "Passes that finished rows took part in", ["kind"], **own
        )
        self.cancelled = Counter(
            "voidpad_rows_cancelled", "Rows that ended before their answer", ["why"], **own
        )
        self.queue_seconds = Histogram(
            "voidpad_queue_seconds", "In the queue, of rows that have ended", buckets=SECONDS, **own
        )
        self.decode_seconds = Histogram(
            "voidpad_decode_seconds", "From leaving the queue to the end of the row", buckets=SECONDS, **own
        )
        Gauge("voidpad_rows_waiting", "Rows in the queue", **own).set_function(waiting)
        Gauge("voidpad_rows_live", "Rows that take part in passes", **own).set_function(live)

    def text(self) -> bytes:
        return generate_latest(self.registry)
