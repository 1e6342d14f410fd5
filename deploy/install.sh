#!/bin/sh
# Install or upgrade job-supervisor on Debian 12, Ubuntu 24.04 or newer. Run it again whenever you like: what is
# as it should be is left alone. docs/deploying/install.md says what it makes, and how to do it by hand.
set -eu

usage() {
    cat <<'END'
usage: install.sh [--source SOURCE] [--extras NAMES] [--folder FOLDER] [--user USER] [--no-start]
       install.sh --rollback [--folder FOLDER] [--user USER]

Installs job-supervisor for systemd, or upgrades it: a copy of the database is made first, running jobs may finish,
and the version before is kept. If only supervisor.toml or handlers have changed, the service reloads them. A run that
finds everything in place changes nothing, and says so.

  --source SOURCE  a checkout, a wheel, or an address for git (git+https://…, git+ssh://…, git+file://…, with
                   @BRANCH or @TAG if you like); default: the checkout that this script lies in
  --extras NAMES   extras of the package, like admin or admin,ml; default: admin
  --folder FOLDER  configuration, handlers, database and programs; default: /srv/app
  --user USER      whose processes they are; made if need be; default: app
  --no-start       install the service, and neither enable nor start it
  --rollback       go back to the version before, with the database as it is

Packages that your handlers need belong into FOLDER/requirements.txt: each version is installed into an environment
of its own, with them.
END
}

say() { printf '%s\n' "$*"; }
fail() { printf 'error: %s\n' "$*" >&2; exit 1; }
changed() { changes=$((changes + 1)); say "$*"; }

changes=0
source='' extras=admin folder=/srv/app user=app start=yes rollback=no
here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
unit=/etc/systemd/system/job-supervisor.service

while [ $# -gt 0 ]; do
    case $1 in
        --source | --extras | --folder | --user)
            [ $# -ge 2 ] || { usage >&2; exit 2; }
            case $1 in
                --source) source=$2 ;;
                --extras) extras=$2 ;;
                --folder) folder=$2 ;;
                --user) user=$2 ;;
            esac
            shift
            ;;
        --no-start) start=no ;;
        --rollback) rollback=yes ;;
        -h | --help) usage; exit 0 ;;
        *) usage >&2; exit 2 ;;
    esac
    shift
done

case $folder in
    /home/* | /root | /root/*) fail "$folder: the unit hides /home and /root from the service; choose another folder" ;;
    *[!A-Za-z0-9/._-]*) fail "$folder: use letters, digits and / . _ - alone" ;;
    /?*) ;;
    *) fail "$folder: the folder must be an absolute path" ;;
esac
case $user in *[!a-z0-9_-]* | '' | root) fail "$user: no name for the user of a service" ;; esac
[ "$(id -u)" = 0 ] || fail 'run this as root'

venv=$folder/venv            # a link to the version in use
versions=$folder/versions    # an environment each
data=$folder/data
config=$folder/supervisor.toml
loaded=$versions/.loaded     # own_code, as the running service has it

# Each as the service's user, in its folder.
as_user() { (cd "$folder" && umask 027 && exec runuser -u "$user" -- "$@"); }
systemd_runs() { [ -d /run/systemd/system ]; }
in_use() { if [ -L "$venv" ]; then readlink -f "$venv"; fi; }

packages() {
    wanted=''
    python3 -c 'import ensurepip, venv' 2>/dev/null || wanted='python3 python3-venv'
    case $source in git+*) command -v git >/dev/null || wanted="$wanted git" ;; esac
    if [ -n "$wanted" ]; then
        command -v apt-get >/dev/null || fail "install these first: $wanted"
        # shellcheck disable=SC2086 # names, one a word
        { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -qq --yes $wanted; } >/dev/null
        changed "installed packages: $wanted"
    fi
    python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' || fail 'Python 3.11 or newer is needed'
}

account() {
    getent passwd "$user" >/dev/null && return
    useradd --system --user-group --home-dir /var/lib/job-supervisor --no-create-home --shell /usr/sbin/nologin "$user"
    changed "made the user $user"
}

# make_folder PATH OWNER MODE; an existing one keeps what somebody has given it.
make_folder() {
    [ -d "$1" ] && return
    install -d -o "$2" -g "$(id -gn "$2")" -m "$3" "$1"
    changed "made $1"
}

folders() {
    make_folder "$folder" root 0755
    make_folder "$versions" root 0755
    make_folder "$data" "$user" 0750
    make_folder /etc/job-supervisor root 0755
}

# What would be installed, as a line that is another when anything is.
identity() {
    python=$(python3 -c 'import sys; print(sys.version.split()[0])')
    case $source in
        git+*) what=$(git_commit) ;;
        *.whl) what=$(sha256sum <"$source") ;;
        *) what=$(cd "$source" && find pyproject.toml supervisor handlers -type f ! -name '*.pyc' -print0 |
            LC_ALL=C sort -z | xargs -0 sha256sum | sha256sum) ;;
    esac
    needs=$({ cat "$folder/requirements.txt" 2>/dev/null || :; } | sha256sum)
    printf '%s %s %s %s\n' "${what%% *}" "$extras" "${needs%% *}" "$python"
}

git_commit() {
    address=${source#git+}
    ref=HEAD
    case ${address##*/} in *@*) ref=${address##*@} address=${address%@*} ;; esac
    commit=$(git ls-remote "$address" "$ref" | head -n 1 | cut -f 1)
    # A commit's own name is no name of the other side's.
    printf '%s\n' "${commit:-$ref}"
}

# Leaves the new environment's path in $new, or nothing if the one in use is right.
build() {
    new=''
    wanted=$(identity)
    current=$(in_use)
    [ -n "$current" ] && [ "$(cat "$current/.source" 2>/dev/null)" = "$wanted" ] && return
    new=$versions/$(date -u +%Y%m%d-%H%M%S)
    [ ! -e "$new" ] || new=$new-$$
    say "installing into $new …"
    if ! install_into "$new"; then
        rm -rf "$new"
        fail 'the installation failed, see above; nothing was changed'
    fi
    printf '%s\n' "$wanted" >"$new/.source"
}

install_into() {
    # shellcheck disable=SC2015 # the last one's failure is the whole's
    python3 -m venv "$1" && {
        [ ! -f "$folder/requirements.txt" ] || pip_into "$1" --requirement "$folder/requirements.txt"
    } && case $source in
        git+*) pip_into "$1" "job-supervisor[$extras] @ $source" ;;
        *) pip_into "$1" "${source}[$extras]" ;;
    esac
}

pip_into() { (to=$1 && shift && exec "$to/bin/pip" install --quiet --disable-pip-version-check --no-input "$@"); }

starter() {
    [ -e "$config" ] && return
    [ ! -e "$folder/jobs.py" ] || fail "$folder/jobs.py is there without a supervisor.toml; write one beside it"
    "$1/bin/supervisor" init "$folder" >/dev/null
    sed -i 's|^database = .*|database = "sqlite:///./data/app.db"|' "$config"
    chown "root:$(id -gn "$user")" "$config"
    chmod 0640 "$config"   # options of handlers may be secret
    chmod 0644 "$folder/jobs.py"
    changed "wrote $config and jobs.py, a starter"
}

# The handlers must be importable before anything is switched.
try() {
    as_user "$1/bin/supervisor" check --config "$config" >/dev/null && return
    [ "$1" = "$(in_use)" ] || rm -rf "$1"
    fail "the configuration is wrong for this version, see above; nothing was changed"
}

database() { as_user "$1/bin/supervisor" migrate --config "$config" >/dev/null; }

# A copy made by the version in use, which understands its schema.
copy_database() {
    old=$(in_use)
    [ -n "$old" ] || return 0
    as_user "$old/bin/supervisor" status --config "$config" >/dev/null 2>&1 || return 0
    copy=$data/before-upgrade-$(date -u +%Y%m%d-%H%M%S).db
    as_user "$old/bin/supervisor" backup "$copy" --config "$config" >/dev/null || fail 'there is no copy, so no upgrade'
    changed "copied the database to $copy"
}

# switch ENVIRONMENT: in one step, so that no start meets half of it.
switch() {
    ln -sfn "$1" "$venv.new"
    mv -T "$venv.new" "$venv"
}

tidy() {
    keep=$(in_use)
    for path in "$versions"/*; do
        [ "$path" = "$keep" ] || [ "$path" = "${1:-}" ] || rm -rf "$path"
    done
}

service() {
    restart=${1:-no}
    text=$(sed -e "s|/srv/app|$folder|g" -e "s|^User=.*|User=$user|" -e "s|^Group=.*|Group=$(id -gn "$user")|" \
        "$here/job-supervisor.service")
    if [ ! -f "$unit" ] || [ "$text" != "$(cat "$unit")" ]; then
        printf '%s\n' "$text" >"$unit.new"
        chmod 0644 "$unit.new"
        mv "$unit.new" "$unit"
        changed "wrote $unit"
        restart=yes
        if systemd_runs; then systemctl daemon-reload; fi
    fi
    if ! systemd_runs; then
        [ "$changes" = 0 ] || say 'systemd does not run here: the service is neither enabled nor started'
    elif [ "$start" = yes ]; then
        running "$restart"
    fi
}

# What the service reads and imports from its folder, as a line that is another when anything of it is.
own_code() {
    (cd "$folder" && find . \( -path ./venv -o -path ./versions -o -path ./data -o -name '.?*' \) -prune -o \
        -type f \( -name '*.py' -o -path ./supervisor.toml \) -print0 | LC_ALL=C sort -z | xargs -0 sha256sum | sha256sum)
}

reload() {
    say 'configuration or handlers have changed, reloading the service …'
    for command in check 'reload --wait'; do
        # shellcheck disable=SC2086 # a command and its option
        as_user "$venv/bin/supervisor" $command --config "$config" ||
            fail 'they cannot be loaded, see above; the service goes on with those that it has'
    done
    changed 'reloaded the service'
}

running() {
    code=$(own_code)
    if ! systemctl --quiet is-enabled job-supervisor 2>/dev/null; then
        systemctl --quiet enable job-supervisor
        changed 'enabled the service'
    fi
    if ! systemctl --quiet is-active job-supervisor; then
        systemctl start job-supervisor
        changed 'started the service'
    elif [ "$1" = yes ]; then
        say 'restarting the service: running jobs may finish …'
        systemctl restart job-supervisor
        changed 'restarted the service'
    elif [ "$code" != "$(cat "$loaded" 2>/dev/null)" ]; then
        reload
    fi
    [ "$code" = "$(cat "$loaded" 2>/dev/null)" ] || printf '%s\n' "$code" >"$loaded"
}

roll_back() {
    current=$(in_use)
    [ -n "$current" ] || fail "$venv: there is no version in use"
    before=''
    for path in "$versions"/*; do [ "$path" = "$current" ] || before=$path; done
    [ -x "$before/bin/supervisor" ] || fail "$versions: there is no version before"
    as_user "$before/bin/supervisor" status --config "$config" >/dev/null ||
        fail 'that version cannot use the database as it is now; nothing was changed'
    as_user "$before/bin/supervisor" check --config "$config" >/dev/null ||
        fail 'that version cannot use the configuration as it is now; nothing was changed'
    switch "$before"
    changed "went back to $before; running this script again goes forward"
    service yes
}

[ ! -e "$venv" ] || [ -L "$venv" ] ||
    fail "$venv was made by hand; move it away, and list what is in it beside job-supervisor in $folder/requirements.txt"

if [ "$rollback" = yes ]; then
    roll_back
    exit 0
fi

source=${source:-$(dirname -- "$here")}
case $source in
    git+*) ;;
    *)
        [ -f "$source" ] || [ -f "$source/pyproject.toml" ] || fail "$source: neither a wheel nor a checkout"
        parent=$(CDPATH='' cd -- "$(dirname -- "$source")" && pwd)
        source=${parent%/}/$(basename -- "$source")   # below / there is no second /
        ;;
esac

packages
account
folders
build
starter "${new:-$venv}"
if [ -n "$new" ]; then
    try "$new"
    before=$(in_use)
    copy_database
    switch "$new"
    tidy "$before"
    changed "installed $("$venv/bin/supervisor" --version)"
    database "$venv"
    service yes
else
    service no
fi
if [ "$changes" = 0 ]; then
    say 'everything is in place: nothing was changed'
else
    say "$changes changed; \`runuser -u $user -- $venv/bin/supervisor doctor --config $config\` looks at the rest"
fi
