// Each test has its cluster: an API server with the controllers that the test names. A prepared cluster is copied in milliseconds.
package namespaces_test

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"kelson.dev/kelsontest"
)

func client(t *testing.T, cluster *kelsontest.Cluster) *kubernetes.Clientset {
	t.Helper()
	config, err := clientcmd.RESTConfigFromKubeConfig([]byte(cluster.Kubeconfig))
	if err != nil {
		t.Fatal(err)
	}
	return kubernetes.NewForConfigOrDie(config)
}

func TestADeletedNamespaceDisappears(t *testing.T) {
	t.Parallel()
	namespaces := client(t, kelsontest.New(t, kelsontest.Options{Controllers: []string{"namespace"}})).CoreV1().Namespaces()
	made := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "demo"}}
	if _, err := namespaces.Create(t.Context(), made, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := namespaces.Delete(t.Context(), "demo", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	deadline := time.Now().Add(30 * time.Second)
	for {
		_, err := namespaces.Get(t.Context(), "demo", metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("the namespace is there after 30 seconds: %v", err)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func TestACopyHasWhatWasPrepared(t *testing.T) {
	t.Parallel()
	prepared := kelsontest.New(t, kelsontest.Options{})
	settings := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "settings"}, Data: map[string]string{"colour": "blue"}}
	if _, err := client(t, prepared).CoreV1().ConfigMaps("default").Create(t.Context(), settings, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	copied := client(t, prepared.Fork(t)).CoreV1().ConfigMaps("default")
	found, err := copied.Get(t.Context(), "settings", metav1.GetOptions{})
	if err != nil || found.Data["colour"] != "blue" {
		t.Fatalf("%v, %v", found, err)
	}
}
