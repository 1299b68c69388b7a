"""Key-value caches for block decoding. Approximate: with full attention every key depends on the block.

At the first pass of a block the whole row is computed and its keys and values are kept. The block's further
passes compute only the block (dual cache) or the block and everything right of it (prefix cache) and read the
rest from the cache.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from transformers import Cache

from voidpad.decode.canvas import Canvas, first
from voidpad.decode.denoise import HFDenoiser, additive
from voidpad.fast.graphs import Graphs, send


class Window(Cache):
    """A transformers cache over rows of a store: new keys replace those at their own positions."""

    def __init__(self, store: Store, slots: Tensor, columns: Tensor, width: int) -> None:
        super().__init__(layers=[])
        self.store, self.slots, self.columns, self.width = store, slots, columns, width

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        return self.store.write(layer_idx, self.slots, self.columns, (key_states, value_states), self.width)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return 0

    def get_mask_sizes(self, query_length: int, layer_idx: int = 0) -> tuple[int, int]:
        return self.width, 0


@dataclass
class Store:
    """Keys and values by layer, (slots, heads, width, size) each; grows as rows need it."""

    keys: list[Tensor] = field(default_factory=list)
    values: list[Tensor] = field(default_factory=list)
    room: int = 0  # slots and width asked for
    width: int = 0
    version: int = 0  # counts reallocations

    def reserve(self, slots: int, width: int) -> None:
        """Make room; what is stored stays."""
        slots, width = (
            1 << (slots - 1).bit_length(),
            -(-width // 128) * 128,
        )  # in large steps: growing copies all
        self.room, self.width = max(self.room, slots), max(self.width, width)
        if not self.keys or (self.keys[0].shape[0] >= slots and self.keys[0].shape[2] >= width):
            return
        self.version += 1
        self.keys = [widened(k, slots, width) for k in self.keys]
        self.values = [widened(v, slots, width) for v in self.values]

    def write(
        self, layer: int, slots: Tensor, columns: Tensor, pair: tuple[Tensor, Tensor], width: int
    ) -> tuple[Tensor, Tensor]:
        """Put (B, heads, n, size) pairs at (slot, column); the rows' keys and values up to `width`."""
        if layer == len(self.keys):
            shape = (self.room, pair[0].shape[1], self.width, pair[0].shape[3])
            self.keys.append(pair[0].new_zeros(shape))
            self.values.append(pair[1].new_zeros(shape))
        out = []
        for kept, new in zip((self.keys, self.values), pair, strict=True):
            kept[layer][slots[:, None], :, columns] = new.transpose(1, 2)
            out.append(kept[layer][slots, :, :width])
        return out[0], out[1]


def widened(old: Tensor, slots: int, width: int) -> Tensor:
    new = old.new_zeros(max(slots, old.shape[0]), old.shape[1], max(width, old.shape[2]), old.shape[3])
    new[: old.shape[0], :, : old.shape[2]] = old
    return new


@dataclass
class Held:
    """Where a row's keys are kept, and for which prompt, block and length they were computed."""

    slot: int
    prompt: Tensor
    start: int
    stop: int


@dataclass
class Cached:
    """A denoiser around a Hugging Face one that recomputes only part of a row inside a block."""

    inner: HFDenoiser
    block: int
    keep_suffix: bool = True  # dual cache; without it only the prefix is kept
    graphs: Graphs = field(default_factory=Graphs)
    store: Store = field(default_factory=Store)
    held: dict[int, Held] = field(default_factory=dict)
    free: list[int] = field(default_factory=list)

    @torch.inference_mode()
    def __call__(self, canvas: Canvas, where: Tensor) -> Tensor:
        start = (
            canvas.prompt
            + torch.div(
                first(where, otherwise=canvas.prompt) - canvas.prompt, self.block, rounding_mode="floor"
            )
            * self.block
        )
        last = where.shape[1] - 1 - first(where.flip(1), otherwise=torch.zeros_like(start))
        inside = last < start + self.block  # probes and observers look beyond the block: nothing to reuse
        known = torch.tensor([self._knows(canvas, row, int(start[row])) for row in range(len(canvas))])
        warm = known & inside
        parts = [(warm, self._block), (~warm & inside, self._refresh), (~warm & ~inside, self._plain)]
        logits: Tensor | None = None
        for rows, forward in parts:
            if rows.any():
                found = forward(canvas.select(rows), where[rows], start[rows])
                logits = found.new_empty(int(where.sum()), found.shape[1]) if logits is None else logits
                logits[rows[where.nonzero()[:, 0]].to(found.device)] = found
        assert logits is not None
        return logits

    def forget(self, key: int) -> None:
        """A row that ended gives its place back."""
        if key in self.held:
            self.free.append(self.held.pop(key).slot)

    def _knows(self, canvas: Canvas, row: int, start: int) -> bool:
        held = self.held.get(int(canvas.key[row]))
        if held is None or held.start != start or held.stop != int(canvas.stop[row]):
            return False
        return torch.equal(held.prompt, prompt(canvas, row))  # a key may come back with another prompt

    def _slot(self, key: int) -> int:
        if key in self.held:
            return self.held[key].slot
        return self.free.pop() if self.free else len(self.held)

    def _plain(self, canvas: Canvas, where: Tensor, start: Tensor) -> Tensor:
        return self.inner(canvas, where[:, : canvas.ids.shape[1]])

    def _refresh(self, canvas: Canvas, where: Tensor, start: Tensor) -> Tensor:
        """A full pass that keeps its keys and values."""
        for row, key in enumerate(canvas.key.tolist()):
            about = (prompt(canvas, row).clone(), int(start[row]), int(canvas.stop[row]))
            self.held[key] = Held(self._slot(key), *about)
        width = canvas.ids.shape[1]
        self.store.reserve(len(self.held) + len(self.free), width)
        columns = torch.arange(width).expand(len(canvas), width)
        return self._forward(canvas, where[:, :width], columns)

    def _block(self, canvas: Canvas, where: Tensor, start: Tensor) -> Tensor:
        """A pass over the active block, and over what lies right of it under a prefix cache."""
        width = canvas.ids.shape[1]
        begin = start - self.inner.shift
        span = self.block + self.inner.shift
        if not self.keep_suffix:
            span = int((canvas.stop - begin).max())
        columns = (begin[:, None] + torch.arange(span)[None]).clamp(max=width - 1)
        return self._forward(canvas, where[:, :width], columns)

    def _forward(self, canvas: Canvas, where: Tensor, columns: Tensor) -> Tensor:
        """Logits at `where`, computing the states of `columns` (B, n) only."""
        width = canvas.ids.shape[1]
        slots = torch.tensor([self.held[key].slot for key in canvas.key.tolist()])
        row, column = where.nonzero(as_tuple=True)
        local = column - self.inner.shift - columns[row, 0]
        parts = [canvas.ids.gather(1, columns), columns, slots]
        if not bool(canvas.inside.all()):
            visible = canvas.inside[:, None, None, :].expand(-1, 1, columns.shape[1], -1)
            parts.append(additive(visible, self.inner.body))
        *inputs, row, local = send(self.inner.device, *parts, row, local)

        def forward(ids: Tensor, places: Tensor, slots: Tensor, visible: Tensor | None = None) -> Tensor:
            return self.inner.body(
                input_ids=ids,
                position_ids=places,
                attention_mask=visible,
                past_key_values=Window(self.store, slots, places, width),
                use_cache=True,
            ).last_hidden_state

        # A graph freezes the store's addresses; the first pass of a row may move them.
        block_pass = columns.shape[1] < width
        run = self.graphs if block_pass else direct
        hidden = run(forward, tuple(inputs), tokens=columns.numel(), key=(width, self.store.version))
        return self.inner.head(hidden[row, local])


def prompt(canvas: Canvas, row: int) -> Tensor:
    return canvas.ids[row, : int(canvas.prompt[row])]


def direct(call: Callable[..., Tensor], inputs: tuple[Tensor, ...], **_: Any) -> Tensor:
    return call(*inputs)
