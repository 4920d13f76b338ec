#!/usr/bin/env bash
# Installs, uses and removes the Debian package in a bare Debian that debootstrap makes.
# Runs in mount and PID namespaces of its own, which `cargo xtask dist --check` makes.
# usage: check.sh MIRROR RELEASE PACKAGE
set -euo pipefail
mirror=$1 release=$2 package=$3

chroot=$(mktemp -d /tmp/slackline-dist.XXXXXX)
trap 'umount -R "$chroot/proc" "$chroot/sys" "$chroot/dev" 2>/dev/null || true; rm -rf "$chroot"' EXIT
mount --make-rprivate /

say() { printf -- '-- %s\n' "$*"; }
inside() { chroot "$chroot" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8 \
    DEBIAN_FRONTEND=noninteractive "$@"; }
fail() { echo "FAILED: $*"; exit 1; }

say "a bare $release"
debootstrap --variant=minbase --include=man-db,bash-completion "$release" "$chroot" "$mirror" >"$chroot.log" 2>&1 ||
    { tail -20 "$chroot.log"; rm -f "$chroot.log"; exit 1; }
rm -f "$chroot.log"
# Minimal images leave man pages out; this one keeps them.
rm -f "$chroot"/etc/dpkg/dpkg.cfg.d/*
mount -t proc proc "$chroot/proc"
mount --rbind /sys "$chroot/sys"
mount --rbind /dev "$chroot/dev"
cp "$package" "$chroot/var/tmp/slackline.deb"
files() { (cd "$chroot" && find . -xdev \( -path ./proc -o -path ./sys -o -path ./dev \) -prune -o -print |
    grep -v -e '^./var/log/' -e '^./var/cache/' -e '^./var/lib/dpkg/' -e '^./var/lib/apt/' -e '^./tmp/' | sort); }
files >"$chroot.before"

say "install"
inside apt-get install -y -qq --no-install-recommends /var/tmp/slackline.deb >/dev/null
version=$(inside slackline --version)
echo "$version"
commit=$(git rev-parse --short=10 HEAD 2>/dev/null) || commit=
[[ $version == *"($commit)"* || -z $commit ]] || fail "--version does not name the commit $commit"
help=$(inside slackline --help)
[[ $help == *throttle* ]] || fail "slackline --help does not name throttle"
page=$(inside man -P cat slackline-tune)
[[ $page == *slackline-tune* ]] || fail "man slackline-tune shows no page"
listed=$(inside dpkg -L slackline)
for file in bash-completion/completions/slackline zsh/vendor-completions/_slackline fish/vendor_completions.d/slackline.fish; do
    [[ $listed == *"/usr/share/$file"* ]] || fail "no completions in /usr/share/$file"
done
candidates=$(inside bash -c '. /usr/share/bash-completion/bash_completion
    _load_comp slackline 2>/dev/null || . /usr/share/bash-completion/completions/slackline
    COMP_WORDS=(slackline th) COMP_CWORD=1; _slackline slackline th slackline; echo "${COMPREPLY[@]}"')
echo "slackline th<TAB>: $candidates"
[[ $candidates == *throttle* ]] || fail "bash completes no command"

say "a specification is checked"
inside slackline check /usr/share/doc/slackline/examples/nginx-workers/experiment.toml || [ $? -le 3 ]
say "serve starts without systemd, answers, and ends"
inside slackline serve --listen 127.0.0.1:8199 >"$chroot.serve" 2>&1 &
server=$!
for _ in $(seq 100); do
    answer=$(inside bash -c 'exec 3<>/dev/tcp/127.0.0.1/8199 && printf "GET /healthz HTTP/1.0\r\nHost: 127.0.0.1:8199\r\n\r\n" >&3 && head -1 <&3' 2>/dev/null) && break
    sleep 0.1
done
echo "/healthz: ${answer:-no answer}"
[[ ${answer:-} == *200* ]] || { cat "$chroot.serve"; fail "serve does not answer"; }
inside slackline experiments ls
inside bash -c 'read -r pid _ < <(grep -l "^Name:.slackline$" /proc/[0-9]*/status | grep -o "[0-9]*"); kill "$pid"'
wait "$server" || true
rm -f "$chroot.serve"

say "remove"
inside apt-get purge -y -qq slackline >/dev/null
files >"$chroot.after"
leftovers=$(comm -13 "$chroot.before" "$chroot.after")
rm -f "$chroot.before" "$chroot.after"
[ -z "$leftovers" ] || { echo "$leftovers"; fail "these files were left behind"; }
say "installed, used and removed; nothing was left behind"
