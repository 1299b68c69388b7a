"""What an operator sees: figures for Prometheus and the lines of the log."""

from __future__ import annotations

import json
import logging
import sys
from functools import partial
from typing import Any

import torch
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from voidpad.decode.outcome import Outcome
from voidpad.errors import printable

SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)


class Metrics:
    """One registry per server, so that two servers in one process do not share counts."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        counter, gauge = partial(Counter, registry=self.registry), partial(Gauge, registry=self.registry)
        histogram = partial(Histogram, registry=self.registry, buckets=SECONDS)
        self.model = gauge("voidpad_model", "A model that is served", ["name"])
        self.requests = counter("voidpad_requests", "Requests by route and status", ["route", "status"])
        self.prompt_tokens = counter("voidpad_prompt_tokens", "Tokens of accepted prompts")
        self.answer_tokens = counter("voidpad_answer_tokens", "Tokens of answers, before their end")
        self.passes = counter("voidpad_passes", "Forward passes of the engine")
        self.row_passes = counter("voidpad_row_passes", "Passes that finished rows took part in", ["kind"])
        self.cancelled = counter("voidpad_rows_cancelled", "Rows that ended before their answer", ["why"])
        self.queue_seconds = histogram("voidpad_queue_seconds", "In the queue, of rows that have ended")
        self.decode_seconds = histogram("voidpad_decode_seconds", "From leaving the queue to the row's end")
        self.first_token_seconds = histogram(
            "voidpad_time_to_first_token_seconds", "From submission to the first final token"
        )
        self.tokens_per_pass = histogram(
            "voidpad_tokens_per_pass",
            "Answer tokens of a finished row for each pass that it took part in",
            buckets=(0.25, 0.5, 1, 1.5, 2, 3, 4, 6, 8, 12, 16, 32),
        )
        self.waiting = gauge("voidpad_rows_waiting", "Rows in the queue")
        self.live = gauge("voidpad_rows_live", "Rows that take part in passes")
        memory = gauge("voidpad_device_memory_bytes", "Memory that torch holds on the GPU")
        memory.set_function(lambda: torch.cuda.memory_allocated() if torch.cuda.is_available() else 0)

    def count_row(self, outcome: Outcome, queued: float) -> None:
        """Count a row that has ended after so many seconds in the queue."""
        self.queue_seconds.observe(queued)
        self.decode_seconds.observe(outcome.seconds)
        if outcome.passes:
            self.tokens_per_pass.observe(len(outcome.tokens) / outcome.passes)
        self.row_passes.labels("decode").inc(outcome.passes_decode)
        self.row_passes.labels("probe").inc(outcome.passes_probe)
        if outcome.stop_reason in ("cancelled", "deadline"):
            self.cancelled.labels(outcome.stop_reason).inc()

    def text(self) -> bytes:
        return generate_latest(self.registry)


class LogLines(logging.Formatter):
    """One line for each request, as words or as JSON. Nothing that a client sent can write to the terminal."""

    def __init__(self, *, as_json: bool) -> None:
        super().__init__("%(asctime)s %(levelname)s %(message)s")
        self.as_json = as_json

    def format(self, record: logging.LogRecord) -> str:
        about: dict[str, Any] = getattr(record, "request", None) or {}
        if not self.as_json:
            if about:
                record.msg = " ".join(f"{name}={printable(str(value))}" for name, value in about.items())
                record.args = ()
            return super().format(record)
        when, level = self.formatTime(record), record.levelname
        content = {"time": when, "level": level, "message": record.getMessage(), **about}
        if record.exc_info:
            content["error"] = self.formatException(record.exc_info)
        return json.dumps(content)

    def formatException(self, info: Any) -> str:
        """A traceback whose last lines, which quote the error, hold no control characters."""
        return "\n".join(printable(line) for line in super().formatException(info).split("\n"))


def log_to_stderr(*, as_json: bool) -> None:
    """Write the log lines of requests to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LogLines(as_json=as_json))
    logger = logging.getLogger("voidpad.serve")
    logger.handlers, logger.propagate = [handler], False
    logger.setLevel(logging.INFO)
