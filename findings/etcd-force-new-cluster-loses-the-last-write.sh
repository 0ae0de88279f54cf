#!/bin/bash
# Go module go.etcd.io/etcd/server/v3, version 3.7.3: one member, whose process is killed.
# What one would guess: a write that was acknowledged is synced to disk, so both starts have it: the plain one, and `--force-new-cluster`,
# which only replaces the list of members.
# What happens: the plain start has every write; `--force-new-cluster` has all but the last one, on a copy of the same directory, and the
# revision is one lower. The entry is in the log, but etcd syncs the index up to which entries are committed only with the next entry,
# and this start discards what is after that index ("discarding uncommitted WAL entries").
# Who is hit: the last step of disaster recovery, after a power cut or with a copy of a member that ran. A clean stop loses nothing.
set -euo pipefail
dir=$(mktemp -d)
pid=
trap 'if [ -n "$pid" ]; then kill -9 "$pid" 2>/dev/null || true; fi; chmod -R u+w "$dir"; rm -rf "$dir"' EXIT
cd "$dir"
export GOFLAGS="-modcacherw -mod=mod"
cat > go.mod <<'MOD'
module finding

go 1.26

require go.etcd.io/etcd/server/v3 v3.7.3
MOD
go build -o etcd go.etcd.io/etcd/server/v3 2>/dev/null
read -r client peer < <(python3 -c '
import socket
sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
print(*(s.getsockname()[1] for s in sockets))')
url=http://127.0.0.1:$client

start() { # DIRECTORY [FLAG]
	./etcd --name a --data-dir "$1" --listen-client-urls "$url" --advertise-client-urls "$url" \
		--listen-peer-urls "http://127.0.0.1:$peer" --initial-advertise-peer-urls "http://127.0.0.1:$peer" \
		--initial-cluster "a=http://127.0.0.1:$peer" ${2:+"$2"} > "$1.log" 2>&1 &
	pid=$!
	curl -sf --retry 60 --retry-delay 1 --retry-all-errors "$url/health" > /dev/null
}

stop() { # SIGNAL
	kill "-$1" "$pid"
	wait "$pid" 2>/dev/null || true
	pid=
}

put() { curl -sf "$url/v3/kv/put" -d "{\"key\": \"$(printf %s "$1" | base64)\", \"value\": \"dg==\"}" > /dev/null; }

keys() {
	curl -sf "$url/v3/kv/range" -d '{"key": "AA==", "range_end": "AA==", "keys_only": true}' | python3 -c '
import base64, json, sys
found = json.load(sys.stdin)
keys = sorted(base64.b64decode(pair["key"]).decode() for pair in found["kvs"])
revision = found["header"]["revision"]
print(*keys, f"at revision {revision}")'
}

for signal in KILL TERM; do
	start "$signal"
	for key in a b c; do put "$key"; done
	stop "$signal"
	cp -a "$signal" "$signal-forced"
	start "$signal"
	echo "$signal, plain start: $(keys)"
	stop TERM
	start "$signal-forced" --force-new-cluster
	echo "$signal, --force-new-cluster: $(keys)"
	stop TERM
done > seen
cat seen
cat > expected <<'SEEN'
KILL, plain start: a b c at revision 4
KILL, --force-new-cluster: a b at revision 3
TERM, plain start: a b c at revision 4
TERM, --force-new-cluster: a b c at revision 4
SEEN
diff expected seen && echo "as expected"
