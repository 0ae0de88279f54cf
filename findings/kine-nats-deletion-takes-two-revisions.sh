#!/bin/bash
# Go module github.com/k3s-io/kine, version 0.17.5, with its NATS backend (build tag `nats`, embedded server).
# What one would guess: as in etcd, a deletion is one revision with one event, and a watch that asks for progress hears that it has
# reached the revision of the last answer.
# What happens: a deletion takes two revisions (the tombstone, and its removal from the bucket). The second one has no event, so the
# watch is never at the current revision, and requests for progress are not answered until the next write. On SQLite the same
# requests are answered at once.
# Who is hit: a client that waits until its watch has reached the revision of a read (a consistent list from a watch cache) waits for
# another client's write after each deletion.
set -euo pipefail
dir=$(mktemp -d)
trap 'chmod -R u+w "$dir"; rm -rf "$dir"' EXIT
cd "$dir"
export GOFLAGS="-modcacherw -mod=mod" CGO_ENABLED=1
cat > go.mod <<'MOD'
module finding

go 1.26

require (
	github.com/k3s-io/kine v0.17.5
	go.etcd.io/etcd/client/v3 v3.7.3
)
MOD
cat > main.go <<'GO'
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/k3s-io/kine/pkg/endpoint"
	"github.com/sirupsen/logrus"
	client "go.etcd.io/etcd/client/v3"
)

func must(err error) {
	if err != nil {
		panic(err)
	}
}

// reached says whether the watch hears that it is at this revision when it asks for progress for some seconds.
func reached(ctx context.Context, c *client.Client, w client.WatchChan, revision int64) bool {
	for i := 0; i < 30; i++ {
		must(c.RequestProgress(ctx))
		select {
		case r := <-w:
			if r.Header.Revision >= revision {
				return true
			}
		case <-time.After(100 * time.Millisecond):
		}
	}
	return false
}

func main() {
	logrus.SetOutput(io.Discard)
	dir := os.Args[1]
	for _, backend := range []string{
		"sqlite://" + dir + "/db?_journal=WAL&cache=shared&_busy_timeout=30000&_txlock=immediate",
		"nats://?embedServer=true&dontListen&dataDir=" + dir + "/nats",
	} {
		name := map[byte]string{'s': "sqlite", 'n': "nats"}[backend[0]]
		ctx := context.Background()
		config := endpoint.Config{Listener: "unix://" + dir + "/" + name + ".sock", Endpoint: backend, NotifyInterval: time.Hour, EmulatedETCDVersion: "3.6.11",
			CompactTimeout: 5 * time.Second, CompactMinRetain: 1000, CompactBatchSize: 1000, PollBatchSize: 500, PollInterval: time.Second}
		served, err := endpoint.Listen(ctx, config)
		must(err)
		c, err := client.New(client.Config{Endpoints: served.Endpoints, DialTimeout: 10 * time.Second})
		must(err)
		w := c.Watch(client.WithRequireLeader(ctx), "/r/", client.WithPrefix(), client.WithProgressNotify(), client.WithCreatedNotify())
		<-w
		create := func(key string) int64 {
			r, err := c.Txn(ctx).If(client.Compare(client.ModRevision(key), "=", 0)).Then(client.OpPut(key, "v")).Commit()
			must(err)
			return r.Header.Revision
		}
		current := func() int64 {
			r, err := c.Get(ctx, "/r/none")
			must(err)
			return r.Header.Revision
		}
		made := create("/r/a")
		r, err := c.Txn(ctx).If(client.Compare(client.ModRevision("/r/a"), "=", made)).Then(client.OpDelete("/r/a")).Else(client.OpGet("/r/a")).Commit()
		must(err)
		now := current()
		fmt.Printf("%s: revisions of a deletion: %d\n", name, now-made)
		fmt.Printf("%s: progress after it: %v\n", name, reached(ctx, c, w, now))
		next := create("/r/b")
		fmt.Printf("%s: progress after the next write: %v\n", name, reached(ctx, c, w, next))
		_ = r
	}
}
GO
go mod tidy >/dev/null 2>&1
go run -tags nats . "$dir" > seen
cat seen
cat > expected <<'SEEN'
sqlite: revisions of a deletion: 1
sqlite: progress after it: true
sqlite: progress after the next write: true
nats: revisions of a deletion: 2
nats: progress after it: false
nats: progress after the next write: true
SEEN
diff expected seen && echo "as expected"
