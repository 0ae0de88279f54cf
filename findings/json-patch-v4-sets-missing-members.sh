#!/bin/bash
# Go package gopkg.in/evanphx/json-patch.v4, version 4.13.0 (what Kubernetes' API server links), beside its successor
# github.com/evanphx/json-patch/v5, version 5.9.11.
# What one would guess: both refuse a `replace` of a member that is missing, as RFC 6902 demands ("The target location MUST exist").
# What happens: version 4 sets the member, as long as the object around it is there; `copy` of a missing member puts null; `test` of
# null holds for a missing member, but not below a missing object. Version 5 refuses all of that but the `test` of null.
# Who is hit: patches and webhooks that were written against the one fail with the other.
set -euo pipefail
dir=$(mktemp -d)
trap 'chmod -R u+w "$dir"; rm -rf "$dir"' EXIT
cd "$dir"
export GOPATH=$dir/go GOFLAGS=-modcacherw GOCACHE=$dir/cache
cat > go.mod <<'MOD'
module finding

go 1.21

require (
	github.com/evanphx/json-patch/v5 v5.9.11
	gopkg.in/evanphx/json-patch.v4 v4.13.0
)
MOD
cat > main.go <<'GO'
package main

import (
	"fmt"

	v5 "github.com/evanphx/json-patch/v5"
	v4 "gopkg.in/evanphx/json-patch.v4"
)

func main() {
	doc := []byte(`{"metadata":{"name":"a"}}`)
	for _, patch := range []string{
		`[{"op":"replace","path":"/metadata/labels","value":{"a":"b"}}]`,
		`[{"op":"replace","path":"/spec/labels","value":{"a":"b"}}]`,
		`[{"op":"copy","from":"/metadata/labels","path":"/copied"}]`,
		`[{"op":"test","path":"/metadata/labels","value":null}]`,
		`[{"op":"test","path":"/spec/labels","value":null}]`,
	} {
		show := func(out []byte, err error) string {
			if err != nil {
				return "refused"
			}
			return string(out)
		}
		p4, err4 := v4.DecodePatch([]byte(patch))
		p5, err5 := v5.DecodePatch([]byte(patch))
		if err4 != nil || err5 != nil {
			panic(fmt.Sprint(err4, err5))
		}
		fmt.Printf("%s\n  v4: %s\n  v5: %s\n", patch, show(p4.Apply(doc)), show(p5.Apply(doc)))
	}
}
GO
go mod tidy >/dev/null 2>&1
go run . > seen
cat seen
cat > expected <<'SEEN'
[{"op":"replace","path":"/metadata/labels","value":{"a":"b"}}]
  v4: {"metadata":{"labels":{"a":"b"},"name":"a"}}
  v5: refused
[{"op":"replace","path":"/spec/labels","value":{"a":"b"}}]
  v4: refused
  v5: refused
[{"op":"copy","from":"/metadata/labels","path":"/copied"}]
  v4: {"copied":null,"metadata":{"name":"a"}}
  v5: refused
[{"op":"test","path":"/metadata/labels","value":null}]
  v4: {"metadata":{"name":"a"}}
  v5: {"metadata":{"name":"a"}}
[{"op":"test","path":"/spec/labels","value":null}]
  v4: refused
  v5: refused
SEEN
diff expected seen && echo "as expected"
