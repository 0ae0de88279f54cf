//go:build tools

// Package tools names the programs that the tests build from this module, so that go.mod holds their versions.
package tools

import _ "helm.sh/helm/v4/cmd/helm"
