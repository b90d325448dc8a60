#!/bin/sh
# Installs `runyard` apart from everything else, and puts nothing but that command on the path of later steps.
set -eu
case $INPUT_VERSION in
installed)
    command -v runyard > /dev/null || { echo "::error::version is 'installed', and there is no runyard on PATH"; exit 1; }
    exit 0
    ;;
-*) echo "::error::version must be a version, a path or an address"; exit 1 ;;
"") wanted=runyard ;;
*/* | *.whl | *.tar.gz) wanted=$INPUT_VERSION ;;
*) wanted="runyard==$INPUT_VERSION" ;;
esac

home="$RUNNER_TEMP/runyard"
mkdir -p "$home/bin"
if command -v uv > /dev/null; then
    UV_TOOL_DIR="$home/tools" UV_TOOL_BIN_DIR="$home/bin" uv tool install --quiet --force "$wanted"
else
    python3 -m venv --clear "$home/venv"
    "$home/venv/bin/python" -m pip install --quiet --disable-pip-version-check "$wanted"
    ln -sf "$home/venv/bin/runyard" "$home/bin/runyard"
fi
echo "$home/bin" >> "$GITHUB_PATH"
echo "Installed runyard $("$home/bin/runyard" --version)."
