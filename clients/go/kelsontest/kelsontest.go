// Package kelsontest gives each test a Kubernetes cluster of its own, in milliseconds: `kelson test-server` is started once for the
// test binary, and every cluster is one call to it.
//
//	func TestReconcile(t *testing.T) {
//		cluster := kelsontest.New(t, kelsontest.Options{Controllers: []string{"garbagecollector"}})
//		config, err := clientcmd.RESTConfigFromKubeConfig([]byte(cluster.Kubeconfig))
//		…
//	}
//
// What all tests need is made once, in a cluster that the others begin like: [Start] it in TestMain, and [Fork] it in each test.
// The binary is named by KELSON, else `kelson` in PATH. The server ends with the test binary, however that ends.
package kelsontest

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
)

// Options say what a cluster is like; the zero value is an API server and nothing else.
type Options struct {
	// Controllers that run, by upstream's names; "*" stands for all that upstream runs by default.
	Controllers []string `json:"controllers,omitempty"`
	// Scheduler says whether pods are scheduled.
	Scheduler bool `json:"scheduler,omitempty"`
	// Nodes without containers, on which pods seem to run.
	Nodes Nodes `json:"nodes,omitempty"`
}

// Nodes are hollow.
type Nodes struct {
	Count  int               `json:"count,omitempty"`
	Labels map[string]string `json:"labels,omitempty"`
}

// A Cluster of its own: store, revisions, authorities and address are nobody else's.
type Cluster struct {
	Name                 string `json:"name"`
	Server               string `json:"server"`
	CertificateAuthority string `json:"certificateAuthority"`
	// Kubeconfig is the administrator's.
	Kubeconfig string `json:"kubeconfig"`
}

// New gives a test a new cluster, which ends with the test.
func New(t testing.TB, options Options) *Cluster {
	t.Helper()
	return own(t)(Start(options))
}

// Fork gives a test a cluster that begins as c is now, which ends with the test.
func (c *Cluster) Fork(t testing.TB) *Cluster {
	t.Helper()
	return own(t)(create(map[string]any{"from": c.Name}))
}

// Start makes a new cluster, which lives until Stop or the end of the test binary.
func Start(options Options) (*Cluster, error) {
	return create(map[string]any{"options": options})
}

// Stop ends the cluster.
func (c *Cluster) Stop() error {
	return call(http.MethodDelete, "/clusters/"+c.Name, nil, nil)
}

func own(t testing.TB) func(*Cluster, error) *Cluster {
	return func(c *Cluster, err error) *Cluster {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := c.Stop(); err != nil {
				t.Error(err)
			}
		})
		return c
	}
}

func create(body map[string]any) (*Cluster, error) {
	c := &Cluster{}
	return c, call(http.MethodPost, "/clusters", body, c)
}

// started keeps the command reachable. Its end of the server's standard input would otherwise be closed by the garbage collector, and
// the server would end in the middle of the tests.
var started *exec.Cmd

// server starts `kelson test-server` at the first call and gives its address. The server's standard input stays open as long as this
// process lives, and no longer.
var server = sync.OnceValues(func() (string, error) {
	name := os.Getenv("KELSON")
	if name == "" {
		name = "kelson"
	}
	command := exec.Command(name, "test-server", "--until-stdin-closes", "--log-level=warn")
	command.Stderr = os.Stderr
	if _, err := command.StdinPipe(); err != nil {
		return "", err
	}
	out, err := command.StdoutPipe()
	if err != nil {
		return "", err
	}
	if err := command.Start(); err != nil {
		return "", fmt.Errorf("kelsontest: %w", err)
	}
	started = command
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		return "", fmt.Errorf("kelsontest: %s test-server did not say where it listens: %w", name, err)
	}
	return strings.TrimSpace(line), nil
})

func call(method, path string, body, into any) error {
	address, err := server()
	if err != nil {
		return err
	}
	var sent bytes.Buffer
	if body != nil {
		if err := json.NewEncoder(&sent).Encode(body); err != nil {
			return err
		}
	}
	request, err := http.NewRequest(method, address+path, &sent)
	if err != nil {
		return err
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		return err
	}
	if answer.StatusCode >= 300 {
		return fmt.Errorf("kelsontest: %s %s: %s: %s", method, path, answer.Status, text)
	}
	if into == nil {
		return nil
	}
	return json.Unmarshal(text, into)
}
