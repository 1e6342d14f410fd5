#!/bin/sh
# Installs what a few tests drive and Python's registry does not have: a browser, a terminal, systemd's checks.
# On Debian and Ubuntu, as root. Without them those tests are skipped, and each says what it misses.
set -eu

missing=""
need() { # command, package
    command -v "$1" >/dev/null 2>&1 || missing="$missing $2"
}
need chromium chromium
need curl curl
need nginx nginx-light
need systemd-analyze systemd
need tmux tmux

[ -n "$missing" ] || exit 0
if ! command -v apt-get >/dev/null 2>&1 || [ "$(id -u)" -ne 0 ]; then
    echo "tests: missing:$missing; install these to run every test" >&2
    exit 0
fi
export DEBIAN_FRONTEND=noninteractive
# shellcheck disable=SC2086 # a list of packages
install() { apt-get install --yes --quiet=2 --no-install-recommends $missing >/dev/null; }
if ! install 2>/dev/null && ! { apt-get update --quiet=2 && install; }; then
    echo "tests:$missing could not be installed; the tests that need them are skipped" >&2
fi
