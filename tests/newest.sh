#!/usr/bin/env bash
# The Pythons that are newer than the one given, and that we support, the newest first: those of the Debian in $FORKY
# (see newest_root.sh), and this machine's newest other one, pyenv's or on PATH. Prints a line for each: its path, and
# for one in $FORKY that folder.
set -euo pipefail
usual=$("$1" -c 'import sys; print(sys.version_info[1])')
for minor in 15 14 13 12; do
	[ "$minor" -gt "$usual" ] || exit 0
	if [ -n "${FORKY:-}" ] && [ -x "$FORKY/usr/bin/python3.$minor" ]; then
		echo "/usr/bin/python3.$minor $FORKY"
		continue
	fi
	for found in "${PYENV_ROOT:-$HOME/.pyenv}/versions/3.$minor".*/bin/"python3.$minor" "$(command -v "python3.$minor" || true)"; do
		# A shim of pyenv's that leads nowhere is no Python.
		if [ -x "$found" ] && "$found" -c 'import sqlite3, ssl' 2>/dev/null; then
			echo "$found"
			exit 0
		fi
	done
done
