# What the measurements share, for `source`: one server of a binary in a new directory, requests to it, loads, rows of the table.
# Who sources it sets `here` (this folder), and may add to what ends with it by a function named `also_at_end`.
binary=${KELSON_BIN:-$here/../target/release/kelson}
kubectl=${KUBECTL:-$(command -v "$here/../.cache/bin/kubectl" || command -v kubectl || true)}
scratch=$(mktemp -d)
pid=
at_end() {
  stop || true
  if declare -F also_at_end >/dev/null; then also_at_end || true; fi
  rm -rf "$scratch"
}
trap at_end EXIT
# Scripts of wrk read what they share from here.
export LUA_PATH="$here/?.lua;;"

token=$(head -c 24 /dev/urandom | base64 | tr -d '/+=')
port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
url=https://127.0.0.1:$port

now_ms() { date +%s%3N; }
row() { printf '| %-44s | %-24s |\n' "$1" "$2"; }

# Starts a control plane without a node on $port; what follows are more flags of it. `took` is the time until it was ready, in ms.
start() {
  local begun
  echo "$token,bench,bench,\"system:masters\"" >"$scratch/tokens"
  begun=$(now_ms)
  "$binary" server --disable-agent --data-dir "$scratch/data" --bind-address 127.0.0.1 --secure-port "$port" \
    --token-auth-file "$scratch/tokens" --log-level warn "$@" >"$scratch/log" 2>&1 &
  pid=$!
  until curl -sk -o /dev/null --fail "$url/readyz"; do
    kill -0 "$pid" || { cat "$scratch/log" >&2; exit 1; }
    sleep 0.005
  done
  took=$(($(now_ms) - begun))
}

# Ends the server, if there is one. Its directory stays.
stop() {
  [ -n "$pid" ] || return 0
  kill "$pid" 2>/dev/null || true
  wait "$pid" || true
  pid=
}

# Makes a namespace in which pods may be created at once.
namespace() { # NAME
  api "$url/api/v1/namespaces" "$token" -d '{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"'"$1"'"}}'
  until api "$url/api/v1/namespaces/$1/serviceaccounts/default" "$token"; do sleep 0.1; done
}

# Of the server: resident memory, and ticks of processor time so far.
resident_mb() { awk '/VmRSS/ {printf "%.0f", $2 / 1024}' "/proc/$pid/status"; }
ticks() { awk '{print $14 + $15}' "/proc/$pid/stat"; }

api() { curl -sk --fail -o /dev/null -H "Authorization: Bearer $2" -H 'Content-Type: application/json' "${@:3}" "$1"; }

# One load of wrk in the namespace `bench`; what it prints goes to $scratch/wrk, and rejected requests are reported. `spent` is what the
# server used of processors meanwhile, in ticks.
load() { # URL TOKEN CONNECTIONS SCRIPT
  local begun
  begun=$(ticks)
  TOKEN=$2 NS=bench wrk -t2 -c"$3" -d"${each}s" --timeout 30s -s "$here/$4" "$1" >"$scratch/wrk"
  spent=$(($(ticks) - begun))
  grep refused "$scratch/wrk" >&2 || true
}
# Microseconds of a processor that the server used for each request: unlike the rate, what loads the machine beside it, wrk first
# of all, hardly changes it.
cost() {
  awk -v ticks="$spent" -v hz="$(getconf CLK_TCK)" '/requests in/ {printf "%.0f\n", ticks / hz * 1000000 / $1}' "$scratch/wrk"
}
rate() { awk '/Requests\/sec/ {print $2}' "$scratch/wrk"; }
# Figures of wrk are in KB, MB or GB, as they come.
megabytes() { awk '/Transfer\/sec/ {print $2}' "$scratch/wrk"; }
