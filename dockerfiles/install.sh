#!/bin/sh
# Installs packages into a virtual environment of an image: install.sh VENV PIP-ARGUMENT...
#
# With wheels in WHEELHOUSE, pip compares every one with its hash in requirements.lock and installs from those alone,
# without a network. Without wheels, it asks the package index for the versions that CONSTRAINTS names.
set -eu
venv=$1
shift
wheelhouse=${WHEELHOUSE_DIR:-/wheelhouse} verified=${VERIFIED_DIR:-/verified} constraints=${CONSTRAINTS:-}
if ls "$wheelhouse"/*.whl >/dev/null 2>&1; then
  if [ ! -f "$wheelhouse/requirements.lock" ]; then
    echo "the wheelhouse has no requirements.lock; write it with: cloudedge image lock DIR" >&2
    exit 1
  fi
  [ -d "$verified" ] || "$venv/bin/pip" download --quiet --disable-pip-version-check --no-cache-dir --no-deps \
    --no-index --find-links "$wheelhouse" --require-hashes --requirement "$wheelhouse/requirements.lock" --dest "$verified"
  set -- --no-index --find-links "$verified" "$@"
elif [ -n "$constraints" ]; then
  set -- --constraint "$constraints" "$@"
fi
exec "$venv/bin/pip" install --no-cache-dir --no-compile --disable-pip-version-check "$@"
