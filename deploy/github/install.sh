#!/bin/sh
# Installs `runyard` apart from everything else, and puts nothing but that command on the path of later steps.
# No package index is asked for the name `runyard`, since later steps hold a deploy key: it is this action's own
# checkout with locked packages, or a wheel that is named by its path, or by its address and digest.
set -eu
refuse() {
    echo "::error::$1"
    exit 1
}
case $INPUT_PACKAGE in
installed)
    command -v runyard > /dev/null || refuse "package is 'installed', and there is no runyard on PATH"
    exit 0
    ;;
"" | http*://*.whl#sha256=?*) ;;
-* | *://*) refuse "package must be the path of a wheel, or its address with #sha256=DIGEST" ;;
*.whl) ;;
*) refuse "package must be the path of a wheel, or its address with #sha256=DIGEST" ;;
esac

home="$RUNNER_TEMP/runyard"
python="$home/venv/bin/python"
rm -rf "$home"
mkdir -p "$home/bin"
if command -v uv > /dev/null; then
    uv venv --quiet --no-project --python python3 "$home/venv"
    install() { uv pip install --quiet --python "$python" "$@"; }
else
    python3 -m venv "$home/venv"
    install() { "$python" -m pip install --quiet --disable-pip-version-check "$@"; }
fi
if [ -n "$INPUT_PACKAGE" ]; then
    install "$INPUT_PACKAGE"
    ln -s "$home/venv/bin/runyard" "$home/bin/runyard"
else
    checkout=$(cd "$GITHUB_ACTION_PATH/../.." && pwd)
    install --require-hashes -r "$checkout/requirements-cli.lock"
    echo "$checkout/deploy/wheel" > "$("$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/runyard.pth"
    # Isolated: a folder named `runyard` in the project is not taken for the program.
    printf '#!/bin/sh\nexec "%s" -I -m runyard "$@"\n' "$python" > "$home/bin/runyard"
    chmod +x "$home/bin/runyard"
fi
echo "$home/bin" >> "$GITHUB_PATH"
echo "Installed runyard $("$home/bin/runyard" --version)."
