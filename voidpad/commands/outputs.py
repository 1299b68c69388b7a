"""Callbacks of options that name an output: what cannot be written is refused before the work, not after it."""

from __future__ import annotations

import os
from pathlib import Path

import typer

from voidpad.errors import ConfigError
from voidpad.files import not_a_plain_file

PICTURES = (".png", ".pdf", ".svg", ".jpg", ".jpeg", ".webp", ".tif", ".tiff", ".eps")


def file_to_write(param: typer.CallbackParam, value: Path | None) -> Path | None:
    """In a folder that is there."""
    if value is None:
        return None
    if not value.parent.is_dir():
        raise ConfigError(f"{param.opts[0]} {value}: there is no folder {value.parent}; create it first.")
    return file_to_make(param, value)


def picture_to_write(param: typer.CallbackParam, value: Path | None) -> Path | None:
    if value is not None and value.suffix.lower() not in PICTURES:
        raise ConfigError(f"{param.opts[0]} {value}: a picture's name ends in .png, .pdf or .svg; rename it.")
    return file_to_write(param, value)


def page_to_write(param: typer.CallbackParam, value: Path | None) -> Path | None:
    if value is not None and value.suffix.lower() not in (".html", ".htm"):
        raise ConfigError(f"{param.opts[0]} {value}: a page's name ends in .html; rename it.")
    return file_to_write(param, value)


def file_to_make(param: typer.CallbackParam, value: Path) -> Path:
    """The folders above it are made when it is written."""
    if special := not_a_plain_file(value):
        raise ConfigError(f"{param.opts[0]} {value}: {special}.")
    return _reachable(param, value)


def folder_to_write(param: typer.CallbackParam, value: Path | None) -> Path | None:
    """It need not be there yet, nor those above it."""
    if value is None:
        return None
    if not value.exists():
        return _reachable(param, value)
    if what := _obstacle(value):
        raise ConfigError(f"{param.opts[0]} {value}: {what}; choose another folder.")
    return value


def folder_there(param: typer.CallbackParam, value: Path | None) -> Path | None:
    if value is not None and not value.is_dir():
        raise ConfigError(f"{param.opts[0]} {value}: there is no such folder; create it first.")
    return folder_to_write(param, value)


def _reachable(param: typer.CallbackParam, value: Path) -> Path:
    """The nearest thing above it that exists takes new files."""
    above = next(place for place in value.absolute().parents if place.exists())
    if what := _obstacle(above):
        raise ConfigError(f"{param.opts[0]} {value}: {above} {what}; choose another place.")
    return value


def _obstacle(place: Path) -> str:
    """Why nothing can be put here; empty if it can."""
    if not place.is_dir():
        return "is a file"
    return "" if os.access(place, os.W_OK) else "may not be written"
