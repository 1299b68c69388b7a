"""`voidpad view`."""

from __future__ import annotations

import os
import sys
import webbrowser
from pathlib import Path
from typing import Annotated

import typer

from voidpad.errors import ConfigError, DataError
from voidpad.files import same_file


def view(
    traces: Annotated[list[Path], typer.Argument(help="trace files; the first two are shown side by side")],
    out: Annotated[
        Path | None, typer.Option(help="the page to write (default: the first trace's name, .html)")
    ] = None,
    serve: Annotated[
        bool, typer.Option("--serve", help="show it on 127.0.0.1 instead; --out writes it too")
    ] = False,
    port: Annotated[int, typer.Option(help="port for --serve; 0 takes a free one")] = 0,
) -> None:
    """Replay recorded decodes in one self-contained page."""
    from voidpad.diagnose.page import Named, page
    from voidpad.diagnose.trace import read

    shown: list[Named] = []
    for path in traces:
        rows = read(path)
        shown += [Named(_name(path, trace.row, of=len(rows)), trace) for trace in rows]
    text = page(shown)
    if out is not None or not serve:
        target = out or traces[0].with_suffix(".html")
        _save(text, target, traces)
        print(f"{target}: {len(shown)} trace{'s' if len(shown) > 1 else ''}, {len(text) / 1e6:.1f} MB")
    if serve:
        _show(text, port)


def _name(path: Path, row: int, *, of: int) -> str:
    return path.name if of == 1 else f"{path.name} row {row}"


def _save(text: str, target: Path, traces: list[Path]) -> None:
    from voidpad.files import store

    if any(same_file(target, path) for path in traces):
        raise ConfigError(f"out={target} is one of the traces; name another file.")
    try:
        store(target, [text])
    except OSError as error:
        raise DataError(f"out={target} cannot be written ({error.strerror}); name another file.") from None


def _show(text: str, port: int) -> None:
    from voidpad.diagnose.page import PageServer

    try:
        server = PageServer(text, port)
    except (OSError, OverflowError) as error:
        raise ConfigError(f"port={port} cannot be used ({error}); leave it out to take a free one.") from None
    with server:
        print(f"{server.address} (Ctrl-C stops)", flush=True)
        # Without a screen the browser module may start a text browser over this very terminal.
        if sys.platform in ("darwin", "win32") or {"DISPLAY", "WAYLAND_DISPLAY"} & os.environ.keys():
            webbrowser.open(server.address)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            return
