#!/bin/bash
# Debian package openrc 0.45.2-2+deb12u1 (supervise-daemon), as root: it wants a /run, which it gets in a mount namespace.
# What one would guess: the stop of a supervised service without `retry` sends SIGTERM and succeeds when the process has ended, or fails
# when it has not, as the stop of a service under systemd does.
# What happens: the stop succeeds after some seconds while the process is still ending, and the supervisor is gone. The service counts as
# stopped, and its next start runs a second process beside the first one. With `--retry TERM/30/KILL/5` the stop waits for the end.
# Who is hit: services with supervisor=supervise-daemon that need more than five seconds to end, such as anything that closes a database or
# waits for requests: a restart meets the first process, its ports and its locks.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
chmod 755 "$dir"
cd "$dir"
version=0.45.2-2+deb12u1
apt-get download -qq "openrc=$version" "librc1=$version" "libeinfo1=$version" 2>/dev/null >&2
for package in *.deb; do dpkg-deb -x "$package" openrc; done
# The supervisor starts it in /.
cat > service <<'SERVICE'
#!/bin/bash
trap 'sleep 12; exit 0' TERM
echo $$ > "$(dirname "$0")/pid"
while :; do sleep 0.2; done
SERVICE
chmod 755 service
cat > try <<'TRY'
mount -t tmpfs none /run
mkdir -p /run/openrc/options /run/openrc/daemons
export LD_LIBRARY_PATH=$PWD/openrc/lib/$(uname -m)-linux-gnu RC_SVCNAME=service
for retry in "" "--retry TERM/30/KILL/5"; do
  rm -f pid
  openrc/sbin/supervise-daemon service --start --pidfile "$PWD/supervisor" $retry -- "$PWD/service"
  until [ -s pid ]; do sleep 0.1; done
  stopped=succeeded
  openrc/sbin/supervise-daemon service --stop --pidfile "$PWD/supervisor" $retry || stopped=failed
  runs=ended
  ! kill -0 "$(cat pid)" 2>/dev/null || runs=runs
  echo "stop ${retry:-without retry}: $stopped, the process $runs"
  while kill -0 "$(cat pid)" 2>/dev/null; do sleep 0.2; done
done
TRY
unshare -m bash try | tee output
diff - output <<'EXPECTED'
stop without retry: succeeded, the process runs
stop --retry TERM/30/KILL/5: succeeded, the process ended
EXPECTED
