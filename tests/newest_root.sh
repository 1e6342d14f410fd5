#!/usr/bin/env bash
# A Debian with Python 3.14 and 3.15 in a folder of its own, for `make newest`.
#
#   newest_root.sh FOLDER             makes it, if it is not there: root, debootstrap, mirrors, some minutes
#   newest_root.sh FOLDER COMMAND...  runs a command in it, in the current folder, as root
#
# What is mounted for the command is seen by it alone, and ends with it.
set -euo pipefail
folder=$1 && shift

if [ $# = 0 ]; then
	[ ! -x "$folder/usr/bin/python3.15" ] || exit 0
	mirror=$(awk '/^URIs:/ {print $2; exit} /^deb / {print $2; exit}' /etc/apt/sources.list.d/*.sources \
		/etc/apt/sources.list 2>/dev/null)
	# The script of sid, because debootstrap may be older than the release.
	exec debootstrap --variant=minbase \
		--include=python3.14-venv,python3.15-venv,python3.15-dev,ca-certificates,curl,gcc,git,libc6-dev,make,procps,python3 \
		forky "$folder" "$mirror" /usr/share/debootstrap/scripts/sid
fi

if [ "${INSIDE_NAMESPACE:-}" != 1 ]; then
	exec env INSIDE_NAMESPACE=1 unshare --mount --propagation private "$0" "$folder" "$@"
fi
mkdir -p "$folder/machine"
mount --rbind "$folder" "$folder"
for shared in /proc /sys /dev "$PWD"; do
	mkdir -p "$folder$shared"
	mount --rbind "$shared" "$folder$shared"
done
# The network, pip and the certificates are this machine's.
for file in /etc/resolv.conf /etc/hosts /etc/pip.conf "${PIP_CERT:-}"; do
	[ ! -f "$file" ] || { mkdir -p "$folder$(dirname "$file")" && cp "$file" "$folder$file"; }
done
# The root of the namespace, and not only of the process: tests go to mount namespaces and come back.
here=$PWD && cd "$folder" && pivot_root . machine
# shellcheck disable=SC2016 # that shell expands it
exec env -u INSIDE_NAMESPACE PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root \
	chroot . sh -c 'cd "$0" && exec "$@"' "$here" "$@"
