#!/bin/sh
# Installs Kelson as a service: the program, a unit of systemd or OpenRC, an environment file, and scripts that take it away again.
# Nothing is downloaded: the files are those beside this script, or in KELSON_INSTALL_FROM.
#   sh install.sh                                    a server with a node
#   sh install.sh server --disable-agent             a control plane alone; words after `server` are its flags
#   KELSON_URL=https://192.0.2.10:6443 KELSON_TOKEN=abcdef.0123456789abcdef sh install.sh       a node of that server's cluster
# Run it again to change flags or to install another version; what it has installed before is replaced, and nothing else is.
#
# Variables; `true` switches on. Where k3s' installer has the same one, INSTALL_K3S_… and K3S_… are read too.
#   KELSON_URL, KELSON_TOKEN              the server to join, and the token; with KELSON_URL this machine becomes a node
#   KELSON_LOG                            log level
#   KELSON_CONFIG_FILE                    configuration file [/etc/kelson/config.yaml]
#   KELSON_INSTALL_EXEC                   the command and its flags, before those of this command line
#   KELSON_INSTALL_FROM                   directory or .tar.gz with the release [the directory of this script]
#   KELSON_INSTALL_BIN_DIR                where the program goes [/usr/local/bin]
#   KELSON_INSTALL_BIN_DIR_READ_ONLY      leave that directory alone: the program is there already
#   KELSON_INSTALL_SYSTEMD_DIR            where units go [/etc/systemd/system]
#   KELSON_INSTALL_SERVICE                systemd, openrc or none [what the machine has]
#   KELSON_INSTALL_TYPE                   Type= of the unit, notify or exec [notify]
#   KELSON_INSTALL_SKIP_ENABLE            do not start the service at boot
#   KELSON_INSTALL_SKIP_START             do not start it now
#   KELSON_INSTALL_FORCE_RESTART          restart it also where nothing has changed
#   KELSON_INSTALL_SKIP_CHECK             do not run `kelson check`
#   DESTDIR                               install below this directory and start nothing, for packagers
set -eu

say() { printf '%s\n' "kelson: $*"; }
die() {
  printf '%s\n' "kelson: $*" >&2
  exit 1
}
is_true() { [ "$1" = true ] || [ "$1" = 1 ]; }

# --- What k3s' installer is asked for by others' automation: taken over, or refused by name.

# The variables of k3s that are set, one a line.
k3s_variables() { env | sed -n -e 's/^\(INSTALL_K3S_[A-Z0-9_]*\)=..*/\1/p' -e 's/^\(K3S_[A-Z0-9_]*\)=..*/\1/p' | sort; }

take() { # OURS THEIRS: the value of THEIRS unless OURS is set
  eval "[ -n \"\${$1:-}\" ] || $1=\${$2}"
}

k3s() {
  for variable in $(k3s_variables); do
    case $variable in
      INSTALL_K3S_EXEC | INSTALL_K3S_BIN_DIR | INSTALL_K3S_BIN_DIR_READ_ONLY | INSTALL_K3S_SYSTEMD_DIR | INSTALL_K3S_TYPE | \
        INSTALL_K3S_SKIP_ENABLE | INSTALL_K3S_SKIP_START | INSTALL_K3S_FORCE_RESTART)
        take "KELSON_INSTALL_${variable#INSTALL_K3S_}" "$variable" ;;
      INSTALL_K3S_SKIP_DOWNLOAD | INSTALL_K3S_SKIP_SELINUX_RPM | INSTALL_K3S_SELINUX_WARN) ;; # it is never otherwise
      INSTALL_K3S_SYMLINK)
        [ "$INSTALL_K3S_SYMLINK" = skip ] ||
          die "INSTALL_K3S_SYMLINK: no kubectl, crictl or ctr comes with Kelson; install the distribution's, and set it to skip" ;;
      INSTALL_K3S_VERSION | INSTALL_K3S_COMMIT | INSTALL_K3S_CHANNEL | INSTALL_K3S_CHANNEL_URL | INSTALL_K3S_PR | INSTALL_K3S_ARTIFACT_URL)
        die "$variable names a release of k3s to download: unpack a release of Kelson and name it by KELSON_INSTALL_FROM" ;;
      INSTALL_K3S_NAME)
        die "INSTALL_K3S_NAME: the service is called kelson-server or kelson-agent; run a second one by a unit of yours with its own --data-dir" ;;
      K3S_URL) take KELSON_URL K3S_URL ;;
      K3S_TOKEN) take KELSON_TOKEN K3S_TOKEN ;;
      K3S_TOKEN_FILE)
        [ -r "$K3S_TOKEN_FILE" ] || die "K3S_TOKEN_FILE: cannot read $K3S_TOKEN_FILE"
        [ -n "${KELSON_TOKEN:-}" ] || KELSON_TOKEN=$(cat "$K3S_TOKEN_FILE") ;;
      K3S_NODE_NAME) k3s_flags="$k3s_flags --node-name $K3S_NODE_NAME" ;;
      K3S_DATA_DIR) k3s_flags="$k3s_flags --data-dir $K3S_DATA_DIR" ;;
      K3S_KUBECONFIG_OUTPUT) k3s_server_flags="$k3s_server_flags --kubeconfig-out $K3S_KUBECONFIG_OUTPUT" ;;
      K3S_DEBUG) ! is_true "$K3S_DEBUG" || KELSON_LOG=${KELSON_LOG:-debug} ;;
      K3S_AGENT_TOKEN | K3S_CLUSTER_SECRET)
        die "$variable: Kelson's nodes join by tokens that the server makes: kelson token create --print-join-command, then KELSON_TOKEN" ;;
      K3S_KUBECONFIG_MODE)
        die "K3S_KUBECONFIG_MODE: the kubeconfig is its owner's alone; copy it for other users, or write a second one by K3S_KUBECONFIG_OUTPUT" ;;
      K3S_DATASTORE_ENDPOINT | K3S_DATASTORE_CAFILE | K3S_DATASTORE_CERTFILE | K3S_DATASTORE_KEYFILE)
        die "$variable: for an etcd of your own, give the flags --etcd-servers, --etcd-cafile, --etcd-certfile and --etcd-keyfile" ;;
      K3S_CONFIG_FILE)
        die "K3S_CONFIG_FILE names a file of k3s: Kelson's is /etc/kelson/config.yaml, or the one that KELSON_CONFIG_FILE names" ;;
      *) die "$variable has no counterpart in Kelson: unset it; the head of this script lists the variables there are" ;;
    esac
  done
}

# --- What is installed.

# Splits flags into words as a shell would, without running anything that they say.
plain() { # VARIABLE TEXT
  case $2 in
    *[\`\$\;\&\|\<\>\(\)\\]* | *"
"*) die "$1: a character that a shell would act on: $2" ;;
  esac
}

# Words as one line that systemd and a shell split the same way.
joined() {
  line=
  for word; do
    case $word in
      *\'* | *\"* | *[\`\$\\]* | *"
"*) die "a flag with a quote, a backslash, a dollar sign or a line break cannot be put into $env_file: $word" ;;
      *[!a-zA-Z0-9_./:=,@%+-]* | '') line="$line \"$word\"" ;;
      *) line="$line $word" ;;
    esac
  done
  printf '%s' "${line# }"
}

# Which command, and its flags: KELSON_INSTALL_EXEC first, then this command line.
command_line() {
  exec=${KELSON_INSTALL_EXEC:-}
  plain KELSON_INSTALL_EXEC "$exec"
  words=$(joined "$@") || exit 1
  eval "set -- $exec $words"
  case ${1:-} in
    server | agent) role=$1 && shift ;;
    '' | -*) if [ -n "${KELSON_URL:-}" ]; then role=agent; else role=server; fi ;;
    *) die "the first word must be server or agent, or a flag: $1" ;;
  esac
  has_settings=false
  [ -z "$exec$words$k3s_flags$k3s_server_flags" ] || has_settings=true
  more=$k3s_flags
  [ "$role" = agent ] || more="$more$k3s_server_flags"
  plain "a variable of k3s" "$more"
  eval "set -- \"\$@\" $more"
  args=$(joined "$@") || exit 1
}

check_role() {
  if [ "$role" = server ]; then
    [ -z "${KELSON_URL:-}" ] || die "KELSON_URL is for nodes here: a server joins with the flags --server and --token, which follow the word server"
    [ -z "${KELSON_TOKEN:-}" ] ||
      die "KELSON_TOKEN is for nodes; a server makes tokens when it runs: kelson token create --print-join-command"
    return 0
  fi
  case ${KELSON_TOKEN:-} in
    '' | ??????.????????????????) ;;
    *) die "KELSON_TOKEN is no token of Kelson (abcdef.0123456789abcdef): make one on the server, kelson token create --print-join-command" ;;
  esac
  if [ ! -f "$root$env_file" ] && [ ! -f "$root${KELSON_CONFIG_FILE:-$config_file}" ]; then
    case " $args" in *" --server"*) ;; *) [ -n "${KELSON_URL:-}" ] || die "an agent needs KELSON_URL, its server's https://HOST:6443" ;; esac
    case " $args" in *" --token"*) ;; *) [ -n "${KELSON_TOKEN:-}" ] || die "an agent needs KELSON_TOKEN, a token of the server" ;; esac
  fi
}

# Where the release is: sets `from`.
find_release() {
  from=${KELSON_INSTALL_FROM:-$(cd "$(dirname "$0")" && pwd)}
  case $from in
    *.tar.gz | *.tgz)
      [ -r "$from" ] || die "KELSON_INSTALL_FROM: cannot read $from"
      unpacked=$(mktemp -d)
      trap 'rm -rf "$unpacked"' EXIT
      tar -xzf "$from" -C "$unpacked"
      set -- "$unpacked"/*
      from=$1 ;;
  esac
  [ -f "$from/packaging/systemd/kelson-$role.service" ] ||
    die "$from is not a release: it has no packaging/systemd/kelson-$role.service; KELSON_INSTALL_FROM names one"
  is_true "$read_only" || [ -x "$from/kelson" ] || die "$from has no program kelson"
  if [ -f "$from/SHA256SUMS" ] && command -v sha256sum >/dev/null; then
    (cd "$from" && sha256sum -c SHA256SUMS >/dev/null 2>&1) || die "$from is damaged: its files are not those of SHA256SUMS"
  fi
}

service_manager() {
  if [ -n "${KELSON_INSTALL_SERVICE:-}" ]; then echo "$KELSON_INSTALL_SERVICE"
  elif [ -d /run/systemd/system ]; then echo systemd
  elif [ -x /sbin/openrc-run ]; then echo openrc
  else echo none; fi
}

# --- Files. `list` names those of this script; only they are replaced and removed.

is_ours() { [ -f "$root$list" ] && grep -qxF "$1" "$root$list"; }

# Puts what a function prints at a path.
put() { # MODE PATH FUNCTION
  new=$(mktemp)
  "$3" >"$new"
  put_file "$1" "$new" "$2"
  rm -f "$new"
}

# Puts a file at a path; sets `changed` where that makes a difference.
put_file() { # MODE FILE PATH
  [ ! -e "$root$3" ] && [ ! -L "$root$3" ] || is_ours "$3" || die "$root$3 exists and was not installed by this script: move it away first"
  make_dir "$(dirname "$3")"
  if ! cmp -s "$2" "$root$3"; then
    # Beside it and then in its place: a program that runs is not written to.
    cp "$2" "$root$3.new.$$"
    chmod "$1" "$root$3.new.$$"
    mv -f "$root$3.new.$$" "$root$3"
    changed=true
  fi
  note "$3"
}

note() { is_ours "$1" || printf '%s\n' "$1" >>"$root$list"; }

# Directories that were not there are noted too, with a slash: they go when they are empty.
make_dir() {
  [ ! -d "$root$1" ] || return 0
  make_dir "$(dirname "$1")"
  mkdir "$root$1"
  [ ! -f "$root$list" ] || note "$1/"
}

check_free() { # PATH...: before anything is changed
  for path; do
    [ ! -e "$root$path" ] || is_ours "$path" || die "$root$path exists and was not installed by this script: move it away first"
  done
}

# Sets keys of the environment file; other lines stay as they are. A file that the user wrote is used and never changed.
environment() {
  file=$(mktemp)
  if [ -f "$root$env_file" ] && ! is_ours "$env_file"; then
    [ "$has_settings$(settings)" = false ] || die "$root$env_file was not written by this script: set KELSON_ARGS and the rest there, or move it away"
    return 0
  fi
  if [ -f "$root$env_file" ]; then
    cat "$root$env_file" >"$file"
  else
    echo "# Read by the service kelson-$role. KELSON_ARGS are the flags of \`kelson $role\`; install.sh changes the keys that it is given." >"$file"
  fi
  if [ "$has_settings" = true ] || ! grep -q '^KELSON_ARGS=' "$file"; then set_key KELSON_ARGS "$args"; fi
  for key in $(settings) HTTP_PROXY HTTPS_PROXY NO_PROXY http_proxy https_proxy no_proxy; do
    eval "value=\${$key:-}"
    [ -z "$value" ] || set_key "$key" "$value"
  done
  put_file 600 "$file" "$env_file"
  rm -f "$file"
}

# Variables of Kelson that are set.
settings() {
  for key in KELSON_URL KELSON_TOKEN KELSON_LOG KELSON_CONFIG_FILE; do
    eval "[ -z \"\${$key:-}\" ] || printf ' %s' $key"
  done
}

set_key() { # KEY VALUE
  case $2 in *\'* | *"
"*) die "$1: a quote or a line break cannot be put into $env_file" ;; esac
  grep -v "^$1=" "$file" >"$file.rest" || true
  mv "$file.rest" "$file"
  printf "%s='%s'\n" "$1" "$2" >>"$file"
}

# The data directory that the configuration files name, and the flags, which go before them.
data_dir() {
  # shellcheck disable=SC1090
  flags=$(. "$root$env_file" && printf '%s' "${KELSON_ARGS:-}")
  # shellcheck disable=SC1090
  config=$(. "$root$env_file" && printf '%s' "${KELSON_CONFIG_FILE:-$config_file}")
  dir=/var/lib/kelson
  for file in "$root$config" "$root$config.d"/*; do
    [ ! -f "$file" ] || line=$(sed -n "s/^data-dir:[ ]*[\"']\{0,1\}\([^\"' #]*\).*/\1/p" "$file")
    dir=${line:-$dir}
    line=
  done
  eval "set -- $flags"
  while [ $# -gt 0 ]; do
    case $1 in
      --data-dir=*) dir=${1#*=} ;;
      --data-dir) dir=${2:-$dir} ;;
    esac
    shift
  done
  case $dir in /*) echo "$dir" ;; *) die "--data-dir $dir: a service needs a whole path" ;; esac
}

# Lines that both scripts begin with.
script_head() {
  cat <<END
#!/bin/sh
# Written by Kelson's install.sh.
set -u
[ "\$(id -u)" -eq 0 ] || { echo "\$0 must run as root" >&2; exit 1; }
program='$bin_dir/kelson'
service=kelson-$role
manager=$manager
data_dir='$data'
list='$list'
END
  cat <<'END'
stop() {
  case $manager in
    systemd) systemctl stop "$service.service" ;;
    openrc) rc-service --ifstarted "$service" stop ;;
  esac
}
END
}

killall_script() {
  script_head
  cat <<'END'
# Stops the service and every container of its node, and removes their network. Objects, images and volumes stay.
stop
[ ! -d "$data_dir" ] || exec "$program" cleanup --data-dir "$data_dir"
END
}

uninstall_script() {
  script_head
  cat <<'END'
# Removes the service, its containers, its data directory, and every file that install.sh made; no other file.
stop
case $manager in
  systemd) systemctl disable "$service.service" ;;
  openrc) rc-update -q delete "$service" ;;
esac
if [ -d "$data_dir" ] && ! "$program" cleanup --data-dir "$data_dir" --delete-data; then
  echo "$data_dir was not cleaned up: see above, and run this script again" >&2
  exit 1
fi
END
  if [ "$manager" = openrc ]; then echo "rm -f '/var/log/kelson-$role.log'"; fi
  cat <<'END'
# What kelson upgrade keeps beside the program.
rm -f "$program.new" "$program.previous" "$program.upgrade" "$program.upgrade.new" "$program.keep"
# The list goes last: a run that was interrupted is repeated.
grep -v '/$' "$list" | while read -r path; do [ "$path" = "$list" ] || rm -f "$path"; done
directories=$(grep '/$' "$list" | sort -r)
rm -f "$list"
for path in $directories; do
  rmdir "$path" 2>/dev/null || [ ! -d "$path" ] || echo "$path stays: it has files that install.sh did not make"
done
[ "$manager" != systemd ] || systemctl daemon-reload
END
}

# The unit with this machine's directories.
unit() {
  sed -e "s#/usr/local/bin/kelson#$bin_dir/kelson#" -e "s#^Type=.*#Type=$type#" "$from/packaging/systemd/kelson-$role.service" |
    if [ "$type" = notify ]; then cat; else grep -v '^WatchdogSec='; fi
}

openrc() { sed "s#/usr/local/bin/kelson#$bin_dir/kelson#" "$from/packaging/openrc/kelson-$role"; }

files() {
  is_true "$read_only" || put_file 755 "$from/kelson" "$bin_dir/kelson"
  environment
  data=$(data_dir) || exit 1
  case $manager in
    systemd) put 644 "$unit_path" unit ;;
    openrc) put 755 "$unit_path" openrc ;;
  esac
  offline
  put 755 "$bin_dir/kelson-killall.sh" killall_script
  put 755 "$bin_dir/kelson-uninstall.sh" uninstall_script
  for page in "$from"/man/*; do
    [ ! -f "$page" ] || put_file 644 "$page" "/usr/local/share/man/man1/${page##*/}"
  done
  completion kelson.bash /usr/share/bash-completion/completions/kelson
  completion _kelson /usr/share/zsh/vendor-completions/_kelson
  completion kelson.fish /usr/share/fish/vendor_completions.d/kelson.fish
}

# What the archive for machines without a network has beside the program: images, which the node loads at its start, and a container
# runtime, which is installed where the machine has none.
offline() {
  for image in "$from"/images/*; do
    [ -f "$image" ] || continue
    # Keys will be in the data directory.
    [ -d "$root$data" ] || { make_dir "$data" && chmod 700 "$root$data"; }
    put_file 644 "$image" "$data/images/${image##*/}"
  done
  for program in "$from"/runtime/*; do
    [ -f "$program" ] || continue
    command=${program##*/}
    is_ours "$bin_dir/$command" || [ -n "$root" ] || ! command -v "$command" >/dev/null || continue
    put_file 755 "$program" "$bin_dir/$command"
  done
}

# Only where the shell's directory is there.
completion() { # NAME PATH
  [ ! -f "$from/completions/$1" ] || [ ! -d "$root$(dirname "$2")" ] || put_file 644 "$from/completions/$1" "$2"
}

start() {
  [ -z "$root" ] || return 0
  case $manager in
    systemd)
      systemctl daemon-reload
      is_true "${KELSON_INSTALL_SKIP_ENABLE:-}" || systemctl -q enable "kelson-$role.service" ;;
    openrc) is_true "${KELSON_INSTALL_SKIP_ENABLE:-}" || rc-update -q add "kelson-$role" default ;;
    none) say "no service manager: run $bin_dir/kelson $role with the flags and variables of $env_file" && return 0 ;;
  esac
  if is_true "${KELSON_INSTALL_SKIP_START:-}"; then return 0; fi
  case $manager in
    systemd)
      if ! systemctl -q is-active "kelson-$role.service"; then
        say "starting kelson-$role"
        systemctl start "kelson-$role.service"
      elif [ "$changed" = true ] || is_true "${KELSON_INSTALL_FORCE_RESTART:-}"; then
        say "restarting kelson-$role; pods continue"
        systemctl restart "kelson-$role.service"
      fi ;;
    openrc)
      if [ "$changed" = true ] || is_true "${KELSON_INSTALL_FORCE_RESTART:-}"; then
        say "starting kelson-$role; pods continue"
        rc-service "kelson-$role" restart
      else
        rc-service --ifstopped "kelson-$role" start
      fi ;;
  esac
}

# The program reads its flags before the service does: a wrong one stops the installation, not every start.
check_flags() {
  program=$from/kelson
  ! is_true "$read_only" || program=$root$bin_dir/kelson
  [ -x "$program" ] || die "$program is not there: KELSON_INSTALL_BIN_DIR_READ_ONLY needs it"
  [ -n "$args" ] || return 0
  eval "set -- $args"
  "$program" "$role" "$@" --help >/dev/null || die "kelson $role does not take these flags: $args"
}

# The machine, before the service starts: findings are shown, and do not stop the installation.
check_machine() {
  [ -z "$root" ] && ! is_true "${KELSON_INSTALL_SKIP_CHECK:-}" || return 0
  eval "set -- $args"
  only=$role
  for word; do [ "$word" != --disable-agent ] || only=control-plane; done
  "$bin_dir/kelson" check --quiet --role "$only" --data-dir "$data" ||
    say "what kelson check found above should be put right; the service is installed nevertheless"
}

main() {
  root=${DESTDIR:-}
  root=${root%/}
  k3s_flags=
  k3s_server_flags=
  env_file=/etc/kelson/kelson.env
  config_file=/etc/kelson/config.yaml
  line=
  list=/usr/local/share/kelson/installed
  changed=false
  k3s
  bin_dir=${KELSON_INSTALL_BIN_DIR:-/usr/local/bin}
  read_only=${KELSON_INSTALL_BIN_DIR_READ_ONLY:-}
  type=${KELSON_INSTALL_TYPE:-notify}
  case $type in notify | exec) ;; *) die "KELSON_INSTALL_TYPE must be notify or exec, not $type" ;; esac
  case $bin_dir in *[!a-zA-Z0-9_./+-]*) die "KELSON_INSTALL_BIN_DIR: $bin_dir" ;; /*) ;; *) die "KELSON_INSTALL_BIN_DIR must begin with /" ;; esac
  command_line "$@"
  [ -n "$root" ] || [ "$(id -u)" -eq 0 ] || die "must run as root"
  check_role
  find_release
  check_flags
  manager=$(service_manager)
  case $manager in
    systemd) unit_path=${KELSON_INSTALL_SYSTEMD_DIR:-/etc/systemd/system}/kelson-$role.service ;;
    openrc) unit_path=/etc/init.d/kelson-$role ;;
    none) unit_path= ;;
    *) die "KELSON_INSTALL_SERVICE must be systemd, openrc or none, not $manager" ;;
  esac
  other=agent
  [ "$role" = server ] || other=server
  for path in "/etc/systemd/system/kelson-$other.service" "/etc/init.d/kelson-$other"; do
    ! is_ours "$path" || die "kelson-$other is installed here: run $bin_dir/kelson-uninstall.sh first"
  done
  is_true "$read_only" || check_free "$bin_dir/kelson"
  check_free "$bin_dir/kelson-killall.sh" "$bin_dir/kelson-uninstall.sh"
  [ -z "$unit_path" ] || check_free "$unit_path"
  mkdir -p "$root/"
  first_dirs
  files
  check_machine
  start
  say "kelson-$role is installed; $bin_dir/kelson-uninstall.sh removes it"
  if [ "$role" = server ] && [ -z "$root" ]; then
    say "in half a minute: export KUBECONFIG=$data/admin.kubeconfig; kubectl get nodes"
  fi
}

# The list itself, and the directories above it, which cannot be noted before it is there.
first_dirs() {
  [ ! -f "$root$list" ] || return 0
  made=
  dir=$(dirname "$list")
  while [ ! -d "$root$dir" ]; do
    made="$made $dir/"
    dir=$(dirname "$dir")
  done
  mkdir -p "$root$(dirname "$list")"
  printf '%s\n' "$list" >"$root$list"
  for dir in $made; do note "$dir"; done
}

main "$@"
