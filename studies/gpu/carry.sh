#!/usr/bin/env bash
# Pack what voidpad imports, beyond torch and transformers, into .carry/site: for a machine without a network.
# There: PYTHONPATH=.carry/site:. python -m voidpad.commands.train RECIPE.toml
# usage: studies/gpu/carry.sh [python version, default 3.12]
set -euo pipefail
cd "$(dirname "$0")/../.."
version=${1:-3.12}
target=.carry/site
packages=(
  peft typer rich pydantic pydantic-core annotated-types typing-inspection typing-extensions
  markdown-it-py mdurl pygments shellingham click annotated-doc pytest pluggy iniconfig hypothesis sortedcontainers
  fastapi opentelemetry-api starlette uvicorn h11 anyio idna sniffio httpx httpcore certifi prometheus-client
)
beside=$(mktemp -d)
trap 'rm -rf "$beside"' EXIT
pins=()
for package in "${packages[@]}"; do
  pin=$(python -m pip freeze | grep -i "^${package//[-_]/[-_]}==" | head -n 1 || true)
  pins+=("${pin:-$package}")
done
python -m pip download --quiet --no-deps --only-binary=:all: --python-version "$version" --implementation cp \
  --platform manylinux2014_x86_64 --platform manylinux_2_28_x86_64 --platform any --dest "$beside" "${pins[@]}"
rm -rf "$target"
mkdir -p "$target"
for wheel in "$beside"/*.whl; do
  python -m zipfile -e "$wheel" "$target"
done
# Runs note the version they were made with, which is read from the metadata of the installed package.
metadata=$(python -c 'from importlib.metadata import distribution; print(distribution("voidpad")._path)')
cp -r "$metadata" "$target" && rm -f "$target"/voidpad-*.dist-info/{RECORD,direct_url.json}
find "$target" \( -name __pycache__ -o -name tests \) -type d -prune -exec rm -rf {} +
du -sh "$target"
