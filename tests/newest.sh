#!/usr/bin/env bash
# The newest Python of this machine that is newer than the one given, and that we support: pyenv's, or one on PATH.
# Prints its path; nothing where there is none.
set -euo pipefail
usual=$("$1" -c 'import sys; print(sys.version_info[1])')
for minor in 13 12; do
	[ "$minor" -gt "$usual" ] || exit 0
	for found in "${PYENV_ROOT:-$HOME/.pyenv}/versions/3.$minor".*/bin/"python3.$minor" "$(command -v "python3.$minor" || true)"; do
		# A shim of pyenv's that leads nowhere is no Python.
		if [ -x "$found" ] && "$found" -c 'import sqlite3, ssl' 2>/dev/null; then
			echo "$found"
			exit 0
		fi
	done
done
