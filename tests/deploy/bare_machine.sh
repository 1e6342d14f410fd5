#!/usr/bin/env bash
# deploy/install.sh on a bare Debian, made with debootstrap in a folder of its own: installs, runs again without a
# change, upgrades with a job running, goes back. Prints what it found; ends with 1 at the first thing that is wrong.
#
# Needs root, debootstrap, and the mirrors that apt and pip of this machine are configured for; takes a few minutes.
# Everything happens in a mount namespace of its own and below one temporary folder. BASE=FOLDER starts from a copy
# of a root made before, KEEP=1 leaves the root behind.
set -euo pipefail
checkout=$(cd "$(dirname "$0")/../.." && pwd)

if [ "${1:-}" != inside ]; then
    [ "$(id -u)" = 0 ] || { echo 'run this as root: it makes a root file system'; exit 2; }
    [ -n "${BASE:-}" ] || command -v debootstrap >/dev/null || { echo 'install debootstrap first'; exit 2; }
    root=$(mktemp -d "${TMPDIR:-/tmp}/bare-machine.XXXXXX")
    chmod 0755 "$root" # it becomes a /
    # The namespace, and with it what is mounted below the root, ends with the last process in it.
    trap '[ -n "${KEEP:-}" ] || rm -rf --one-file-system "$root"' EXIT
    unshare --mount --pid --fork --kill-child "$0" inside "$root"
    exit
fi

root=$2
case $root in */bare-machine.??????) ;; *) exit 2 ;; esac
wrong() { echo "WRONG: $*"; tail -n 20 "$root/out" 2>/dev/null || :; exit 1; }
found() { echo "ok: $*"; }
in_root() { "${enter[@]}" "$@"; }
as_app() { in_root runuser -u app -- sh -c "cd /srv/app && exec venv/bin/supervisor $*"; }
install() { in_root sh /opt/job-supervisor/deploy/install.sh "$@" >"$root/out" 2>&1; }
says() { grep --quiet --fixed-strings -- "$1" "$root/out" || wrong "install.sh does not say: $1"; }
# Everything that may matter of every file: times and contents too.
state() { in_root find /etc /srv /usr /var/lib /opt -xdev -not -name '*.pyc' -not -name '__pycache__' \
    -printf '%p %y %m %u %g %s %T@ %l\n' | LC_ALL=C sort; }
until_true() {
    for _ in $(seq 200); do if "$@" >/dev/null 2>&1; then return; fi; sleep 0.1; done
    wrong "not within 20 s: $*"
}

if [ -n "${BASE:-}" ]; then
    cp -a "$BASE/." "$root"
else
    mirror=$(awk '/^URIs:/ {print $2; exit} /^deb / {print $2; exit}' /etc/apt/sources.list.d/*.sources \
        /etc/apt/sources.list 2>/dev/null)
    debootstrap --variant=minbase --include=ca-certificates bookworm "$root" "$mirror" >"$root.log" 2>&1 ||
        { tail -n 5 "$root.log"; exit 1; }
    rm "$root.log"
fi
mount -t proc proc "$root/proc"

# pip's and apt's configuration is this machine's, and so are the certificates that it trusts.
pip=()
index=$(python3 -m pip config get global.index-url 2>/dev/null || :)
[ -z "${PIP_INDEX_URL:-$index}" ] || pip+=("PIP_INDEX_URL=${PIP_INDEX_URL:-$index}")
if [ -f "${PIP_CERT:-}" ]; then
    mkdir -p "$root$(dirname "$PIP_CERT")"
    cp "$PIP_CERT" "$root$PIP_CERT"
    pip+=("PIP_CERT=$PIP_CERT" "SSL_CERT_FILE=$PIP_CERT")
fi
enter=(chroot "$root" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 "${pip[@]}")
cp /etc/resolv.conf "$root/etc/resolv.conf" 2>/dev/null || :
mkdir -p "$root/opt/job-supervisor"
git -C "$checkout" ls-files -z --cached --others --exclude-standard | (cd "$checkout" && xargs -0 tar -cf - --ignore-failed-read) |
    tar -xf - -C "$root/opt/job-supervisor"

install --help || wrong '--help fails'
if install --bogus; then wrong 'an unknown option is taken'; fi
found '--help and wrong options'

install || wrong 'the first run fails'
says 'made the user app'
says 'wrote /etc/systemd/system/job-supervisor.service'
says 'systemd does not run here'
as_app doctor --json >"$root/doctor" || wrong "the doctor finds: $(cat "$root/doctor")"
grep --quiet '"ok": true' "$root/doctor"
[ "$(in_root stat -c '%a %U' /srv/app/data/app.db)" = '600 app' ] || wrong 'the database does not belong to the user'
found "installed: $(as_app --version)"

before=$(state)
install || wrong 'the second run fails'
says 'everything is in place: nothing was changed'
after=$(state)
[ "$before" = "$after" ] || wrong "the second run changed: $(diff <(echo "$before") <(echo "$after") | head -n 10)"
found 'the second run changes nothing'

cat >"$root/srv/app/jobs.py" <<'END'
import os, time

def greet(payload, ctx):
    while not os.path.exists("/srv/app/data/gate"):
        time.sleep(0.01)
    return {"greeting": "Hello"}
END
# Each of these replaces itself by the next, so that the job of this shell is the supervisor.
start() {
    "${enter[@]}" setpriv --reuid app --regid app --init-groups sh -c 'cd /srv/app && exec venv/bin/supervisor run' \
        >>"$root/log" 2>&1 &
    supervisor=$!
}
stop() {
    kill -TERM "$supervisor"
    wait "$supervisor" || wrong 'the supervisor did not end well'
}
status_of() { as_app jobs show "$1" --json | sed -n 's/^  "status": "\(.*\)",/\1/p'; }
is() { [ "$(status_of "$1")" = "$2" ]; }
start
job=$(as_app enqueue greet)
until_true is "$job" running
old=$(readlink "$root/srv/app/venv")
sed -i 's/^version = ".*"/version = "99.0"/' "$root/opt/job-supervisor/pyproject.toml"
sed -i 's/__version__ = ".*"/__version__ = "99.0"/' "$root/opt/job-supervisor/supervisor/__init__.py"
install || wrong 'the upgrade fails'
says 'copied the database to'
says 'installed job-supervisor 99.0'
is "$job" running || wrong 'the upgrade disturbed a running job'
[ -x "$root$old/bin/supervisor" ] || wrong 'the version before is gone'
found 'upgraded beside a running job, after a copy of the database'

kill -TERM "$supervisor"
sleep 0.5
is "$job" running || wrong 'a stop does not wait for the running job'
touch "$root/srv/app/data/gate"
wait "$supervisor" || wrong 'the supervisor did not end well'
is "$job" 'done' || wrong "the job that ran through the upgrade is $(status_of "$job")"
start
again=$(as_app enqueue greet)
until_true is "$again" 'done'
[ "$(as_app --version)" = 'job-supervisor 99.0' ]
found 'the old version let its job finish, the new one works'

install --rollback || wrong 'going back fails'
[ "$(readlink "$root/srv/app/venv")" = "$old" ] || wrong 'another version is in use'
stop
start
again=$(as_app enqueue greet)
until_true is "$again" 'done'
stop
found "went back: $(as_app --version)"

# As if systemd ran: a stand-in that notes what it is asked for.
mkdir -p "$root/run/systemd/system"
cat >"$root/usr/bin/systemctl" <<'END'
#!/bin/sh
echo "$*" >>/systemctl.log
for word; do case $word in
    is-enabled) exec test -e /enabled ;;
    is-active) exec test -e /started ;;
    enable) touch /enabled ;;
    start) touch /started ;;
esac; done
END
chmod 0755 "$root/usr/bin/systemctl"
install || wrong 'a run with systemd fails'
says 'enabled the service'
says 'started the service'
before=$(state)
install || wrong 'another run with systemd fails'
says 'everything is in place: nothing was changed'
[ "$before" = "$(state)" ] || wrong 'another run with systemd changes something'
echo '# changed' >>"$root/etc/systemd/system/job-supervisor.service"
install || wrong 'a run with another unit fails'
says 'restarted the service'
[ "$(grep --count -x restart\ job-supervisor "$root/systemctl.log")" = 1 ] || wrong 'not restarted once'
found 'enables, starts and restarts the service where systemd runs'

printf '[pools.broken]\nhandler = "nowhere:handle"\n' >>"$root/srv/app/supervisor.toml"
sed -i 's/__version__ = ".*"/__version__ = "100.0"/' "$root/opt/job-supervisor/supervisor/__init__.py"
before=$(readlink "$root/srv/app/venv")
if install; then wrong 'an upgrade with a wrong configuration is taken'; fi
says 'nothing was changed'
[ "$(readlink "$root/srv/app/venv")" = "$before" ] || wrong 'it has switched all the same'
[ "$(find "$root/srv/app/versions" -mindepth 1 -maxdepth 1 -type d | wc -l)" = 2 ] || wrong 'the refused version was left'
found 'a configuration that the new version refuses keeps the old one'
