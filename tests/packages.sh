#!/bin/sh
# Installs what a few tests drive and Python's registry does not have: a browser, a terminal, proxies, systemd's
# checks. On Debian and Ubuntu, as root. Without them those tests are skipped, and each says what it misses.
set -eu

missing=""
need() { # command, package
    command -v "$1" >/dev/null 2>&1 || missing="$missing $2"
}
need chromium chromium
need curl curl
need logrotate logrotate
need php "php-cli php-sqlite3"
need shellcheck shellcheck
need sqlite3 sqlite3
need systemd-analyze systemd
need tmux tmux
if [ ! -d /run/systemd/system ]; then # elsewhere their packages start a server each, which nobody asked for
    need caddy caddy
    need nginx nginx-light
    need pgbouncer pgbouncer
    need promtool prometheus
fi

[ -n "$missing" ] || exit 0
if ! command -v apt-get >/dev/null 2>&1 || [ "$(id -u)" -ne 0 ]; then
    echo "tests: missing:$missing; install these to run every test" >&2
    exit 0
fi
export DEBIAN_FRONTEND=noninteractive
install() { apt-get install --yes --quiet=2 --no-install-recommends "$@" >/dev/null 2>&1; }
# shellcheck disable=SC2086 # a list of packages
install $missing && exit 0
apt-get update --quiet=2 || true
for package in $missing; do # one that this release lacks keeps no other away
    install "$package" || echo "tests: $package cannot be installed; the tests that need it are skipped" >&2
done
