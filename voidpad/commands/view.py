"""`voidpad view`."""

from __future__ import annotations

import os
import sys
import webbrowser
from pathlib import Path

from typer import Argument, Option

from voidpad.commands.ui import output_file
from voidpad.errors import ConfigError
from voidpad.files import refuse_own_source, store


def view(
    traces: list[Path] = Argument(..., help="trace files; the first two are shown side by side"),
    out: Path | None = output_file(None, "the page to write (default: the first trace's name, .html)"),
    serve: bool = Option(False, "--serve", help="show it on 127.0.0.1 instead; --out writes it too"),
    port: int = Option(0, help="port for --serve; 0 takes a free one", min=0, max=65535),
) -> None:
    """Replay recorded decodes in one self-contained page."""
    from voidpad.diagnose.page import Named, page
    from voidpad.diagnose.trace import read

    shown: list[Named] = []
    for path in traces:
        rows = read(path)
        names = [path.name if len(rows) == 1 else f"{path.name} row {trace.row}" for trace in rows]
        shown += [Named(name, trace) for name, trace in zip(names, rows, strict=True)]
    text = page(shown)
    if out is not None or not serve:
        target = out or traces[0].with_suffix(".html")
        refuse_own_source(target, *traces)
        store(target, [text])
        print(f"{target}: {len(shown)} trace{'s' if len(shown) > 1 else ''}, {len(text) / 1e6:.1f} MB")
    if serve:
        _show(text, port)


def _show(text: str, port: int) -> None:
    from voidpad.diagnose.page import PageServer

    try:
        server = PageServer(text, port)
    except OSError as error:
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
