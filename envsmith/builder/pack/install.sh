#!/bin/sh
# Install and prove the environment of this archive, without a network and without root:
#
#   sh install.sh DIR
#
# The host needs Python @MINOR@ (PYTHON names another one than python@MINOR@ on PATH) and a C library of @GLIBC@ or newer.
set -eu

fail() { # sentence, hint, exit code
    printf 'error: %s\nhint: %s\n' "$1" "$2" >&2
    exit "$3"
}

here=$(cd "$(dirname "$0")" && pwd -P)
[ $# -eq 1 ] || fail "Cannot install: one folder is expected." "Run sh install.sh DIR." 2
[ "$(uname -m)" = "@MACHINE@" ] || fail "Cannot install: this archive is for @MACHINE@, and this host is $(uname -m)." \
    "Pack again with another --platform." 6
python=${PYTHON:-$(command -v "python@MINOR@" || true)}
[ -n "$python" ] || fail "Cannot install: this host has no python@MINOR@ on PATH." "Set PYTHON to a Python @MINOR@." 6
"$python" -c "import sys; sys.exit('%d.%d' % sys.version_info[:2] != '@MINOR@')" ||
    fail "Cannot install: $python is not Python @MINOR@." "Set PYTHON to a Python @MINOR@." 6
mkdir -p "$1"
target=$(cd "$1" && pwd -P)
archive=$(sha256sum <"$here/SHA256SUMS" | cut -d " " -f 1)
state=$(cat "$target/.envsmith-archive" 2>/dev/null || true)
[ ! -e "$target/env" ] || [ "${state% *}" = "$archive" ] ||
    fail "Cannot install into $target: env is there already, and not from this archive." "Choose another folder." 10
# What this script makes may lie here too.
made=.${target#"$here"}
list() { # type
    find . \( -path "$made/env" -o -path "$made/tool" -o -path "$made/.uv" -o -path "$made/.cache" \
        -o -path "$made/.envsmith-archive" -o -path ./SHA256SUMS \) -prune -o "$@" -print | cut -c 3- | LC_ALL=C sort
}
(cd "$here" && [ -z "$(list ! -type f ! -type d)" ] && [ "$(list -type f)" = "$(cut -c 67- SHA256SUMS)" ] &&
    sha256sum --strict --quiet --check SHA256SUMS) ||
    fail "Cannot install: a file is not the one that was packed." "Copy the archive again." 8

prove() {
    echo "smoke test"
    "$target/tool/bin/envsmith" smoke --python "$target/env"@IMPORTS@
}
if [ "$state" = "$archive installed" ]; then
    echo "installed already"
    prove
    exit
fi
# What an earlier run left unfinished is made again.
rm -rf "$target/env" "$target/tool" "$target/.uv" "$target/.cache"
echo "$archive begun" >"$target/.envsmith-archive"

unset VIRTUAL_ENV CONDA_PREFIX PYTHONPATH PYTHONHOME
export UV_OFFLINE=1 UV_NO_CONFIG=1 UV_PYTHON_DOWNLOADS=never UV_NO_PROGRESS=1 UV_CACHE_DIR="$target/.cache"
export PYTHONHASHSEED=0 DS_BUILD_OPS=0 BUILD_EXT=0 CUDA_EXT=0
"$python" -m zipfile -e "$here"/wheels/uv-*.whl "$target/.uv"
uv=$(echo "$target"/.uv/uv-*.data/scripts/uv)
chmod +x "$uv"
trap 'rm -rf "$target/.uv" "$target/.cache"' EXIT

install() { # environment, requirements, further options
    environment=$1 requirements=$2
    shift 2
    "$uv" venv --quiet --no-project --python "$python" "$environment"
    "$uv" pip install --quiet --python "$environment/bin/python" --no-index --find-links "$here/wheels" \
        --no-deps --require-hashes "$@" --requirements "$requirements"
}

echo "install the environment into $target/env"
if [ -e "$here/requirements-build.txt" ]; then
    install "$target/env" "$here/requirements.txt" --build-constraints "$here/requirements-build.txt" \
        --require-build-hashes --preview-features build-dependency-hashes
else
    install "$target/env" "$here/requirements.txt"
fi
echo "install envsmith into $target/tool"
install "$target/tool" "$here/requirements-envsmith.txt"
echo "$archive installed" >"$target/.envsmith-archive"
prove
