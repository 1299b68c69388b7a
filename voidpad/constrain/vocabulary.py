"""The bytes that each token of a vocabulary writes."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from voidpad.constrain.patterns import ConstraintError

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_known: WeakKeyDictionary[Any, tuple[int, tuple[bytes | None, ...]]] = WeakKeyDictionary()


@dataclass(frozen=True)
class Vocabulary:
    """The bytes of every token that is text, one after the other. Other tokens have no bytes here."""

    data: NDArray[np.uint8]
    start: NDArray[np.int64]  # (V,) where each token's bytes start in `data`
    length: NDArray[np.int64]  # (V,) 0 for tokens that are no text

    @classmethod
    def of(cls, tokens: Sequence[bytes | None], *, exclude: Iterable[int] = (), size: int = 0) -> Vocabulary:
        """A vocabulary of these tokens without the excluded ids; `size` is the network's, if it has more ids."""
        left_out = set(exclude)
        texts = [b"" if text is None or index in left_out else text for index, text in enumerate(tokens)]
        texts += [b""] * (size - len(texts))
        length = np.array([len(text) for text in texts], np.int64)
        start = np.cumsum(length) - length
        return cls(np.frombuffer(b"".join(texts), np.uint8), start, length)

    def __len__(self) -> int:
        return len(self.length)

    @cached_property
    def digest(self) -> str:
        """The identity of the vocabulary."""
        content = hashlib.sha256(self.data.tobytes())
        content.update(self.length.tobytes())
        return content.hexdigest()


def bytes_of_tokens(tokenizer: Any) -> tuple[bytes | None, ...]:
    """What each id of a fast tokenizer writes, as bytes; None for special tokens and for ids without an entry.

    Knows byte-level vocabularies (Qwen2, Llama 3 and their like), vocabularies of plain text, and byte tokens such as
    `<0x0A>` in them. A tokenizer that changes text between tokens, as SentencePiece's does with spaces, is refused.
    """
    size = len(tokenizer)
    known = _known.get(tokenizer)
    if known is not None and known[0] == size:
        return known[1]
    described = json.loads(tokenizer.backend_tokenizer.to_str())
    kinds = {part["type"] for part in _parts(described.get("decoder"))}
    if not kinds <= {"ByteLevel", "ByteFallback", "Fuse"}:
        odd = ", ".join(sorted(kinds - {"ByteLevel", "ByteFallback", "Fuse"}))
        raise ConstraintError(
            f"this tokenizer's decoder ({odd}) is not supported for structured output.", "tokenizer"
        )
    added = tokenizer.added_tokens_decoder
    special = set(tokenizer.all_special_ids) | {token for token, entry in added.items() if entry.special}
    characters = _byte_characters() if "ByteLevel" in kinds else None
    texts: list[bytes | None] = [None] * (max(tokenizer.get_vocab().values(), default=-1) + 1)
    for name, token in tokenizer.get_vocab().items():
        if token in special:
            continue
        if token in added:
            texts[token] = added[token].content.encode()
        elif characters is not None:
            texts[token] = bytes(characters[letter] for letter in name)
        elif "ByteFallback" in kinds and (match := _BYTE_TOKEN.fullmatch(name)):
            texts[token] = bytes([int(match[1], 16)])
        else:
            texts[token] = name.encode()
    _known[tokenizer] = (size, tuple(texts))
    return _known[tokenizer][1]


def _parts(decoder: Any) -> list[Any]:
    if decoder is None:
        return []
    return (
        [inner for part in decoder["decoders"] for inner in _parts(part)]
        if "decoders" in decoder
        else [decoder]
    )


def _byte_characters() -> dict[str, int]:
    """GPT-2's table: the printable character that stands for each byte in a byte-level vocabulary."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {chr(256 + index): byte for index, byte in enumerate(others)}
