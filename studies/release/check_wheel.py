"""Build the distributions, check them, and try the wheel where it is alone. Uploads nothing.

`python -m studies.release.check_wheel FOLDER` (`make release`) leaves an sdist and a wheel in FOLDER. What it checks:
the version has an entry in CHANGELOG.md; twine accepts the metadata and the README; in a fresh environment, with the
versions of constraints.txt, the wheel prints its version and answers a prompt with the built-in model.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
import venv
from pathlib import Path

ROOT = Path(__file__).parents[2]


def run(*command: object, **options) -> str:
    """Standard output of a command; its whole output and the end of this program if it fails."""
    words = [str(word) for word in command]
    print("$", " ".join(words), flush=True)
    ran = subprocess.run(words, capture_output=True, text=True, timeout=1800, **options)
    if ran.returncode:
        sys.exit(f"{ran.stdout}{ran.stderr}\nfailed with status {ran.returncode}: {' '.join(words)}")
    return ran.stdout


def check_changelog(version: str) -> None:
    """A release has an entry; a development version needs only the heading of the version it leads to."""
    final = version.partition(".dev")[0]
    if not re.search(rf"^## {re.escape(final)}\b", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE):
        sys.exit(f"CHANGELOG.md: no entry `## {final}`; write what changed.")


def build(folder: Path) -> Path:
    """The wheel, beside its sdist in an otherwise empty folder."""
    shutil.rmtree(folder, ignore_errors=True)
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, ROOT)
    run(sys.executable, "-m", "twine", "check", "--strict", *sorted(folder.iterdir()))
    [wheel] = folder.glob("*.whl")
    return wheel


def try_wheel(wheel: Path, version: str) -> None:
    """Install the wheel into a bare environment and use it offline, away from the sources."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL"))}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        venv.create(folder / "venv", with_pip=True)
        programs = folder / "venv" / ("Scripts" if os.name == "nt" else "bin")
        pip = (programs / "python", "-m", "pip", "--disable-pip-version-check", "--quiet")
        run(*pip, "install", "--constraint", ROOT / "constraints.txt", wheel.resolve(), env=kept)
        offline = {"cwd": folder, "env": kept | {"HF_HUB_OFFLINE": "1"}, "stdin": subprocess.DEVNULL}
        shown = run(programs / "voidpad", "--version", **offline).strip()
        if shown != f"voidpad {version}":
            sys.exit(f"the wheel says {shown!r}, pyproject.toml {version!r}")
        story = "Leo has 26 shells.\n(1) Leo takes 4.\n(2) Leo buys 53.\nWhat is left after (2)?"
        answer = run(programs / "voidpad", "generate", story, "--canvas", 64, "--block", 32, **offline)
        if "####" not in answer:
            sys.exit(f"the built-in model's answer has no result line: {answer!r}")


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit("usage: python -m studies.release.check_wheel FOLDER")
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    check_changelog(version)
    wheel = build(Path(sys.argv[1]))
    try_wheel(wheel, version)
    print(f"{wheel}: built, checked and tried; upload with `twine upload {wheel.parent}/*`")


if __name__ == "__main__":
    main()
