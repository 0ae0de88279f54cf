package kelsontest_test

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"runtime"
	"strings"
	"testing"

	"kelson.dev/kelsontest"
)

// admin is an HTTP client with the certificate that stands in the kubeconfig.
func admin(t *testing.T, c *kelsontest.Cluster) *http.Client {
	t.Helper()
	field := func(name string) []byte {
		found := regexp.MustCompile(name + `: "?([A-Za-z0-9+/=]+)`).FindStringSubmatch(c.Kubeconfig)
		if found == nil {
			t.Fatalf("no %s in %s", name, c.Kubeconfig)
		}
		text, err := base64.StdEncoding.DecodeString(found[1])
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	pair, err := tls.X509KeyPair(field("client-certificate-data"), field("client-key-data"))
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM([]byte(c.CertificateAuthority))
	return &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{pair}}}}
}

func send(t *testing.T, c *kelsontest.Cluster, method, path, body string) (int, string) {
	t.Helper()
	request, err := http.NewRequest(method, c.Server+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Content-Type", "application/json")
	client := admin(t, c)
	defer client.CloseIdleConnections()
	answer, err := client.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	text, _ := io.ReadAll(answer.Body)
	return answer.StatusCode, string(text)
}

const maps = "/api/v1/namespaces/default/configmaps"

func TestAForkBeginsLikeItsOriginal(t *testing.T) {
	prepared := kelsontest.New(t, kelsontest.Options{})
	if code, text := send(t, prepared, "POST", maps, `{"metadata":{"name":"prepared"}}`); code != 201 {
		t.Fatal(code, text)
	}
	for i := range 3 {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			t.Parallel()
			mine := prepared.Fork(t)
			if code, text := send(t, mine, "GET", maps+"/prepared", ""); code != 200 {
				t.Fatal(code, text)
			}
			if code, text := send(t, mine, "POST", maps, `{"metadata":{"name":"mine"}}`); code != 201 {
				t.Fatal(code, text)
			}
		})
	}
	t.Cleanup(func() {
		if code, _ := send(t, prepared, "GET", maps+"/mine", ""); code != 404 {
			t.Errorf("a fork wrote into its original: %d", code)
		}
	})
}

func TestWhatIsRefusedIsSaid(t *testing.T) {
	_, err := kelsontest.Start(kelsontest.Options{Controllers: []string{"nonsense"}})
	if err == nil || !strings.Contains(err.Error(), "nonsense") {
		t.Fatal(err)
	}
}

func TestTheServerOutlivesGarbageCollections(t *testing.T) {
	for range 20 {
		runtime.GC()
		kelsontest.New(t, kelsontest.Options{})
	}
}
