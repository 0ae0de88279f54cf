package mirror_test

import (
	"context"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"example.com/mirror"
)

// The environment is an etcd and a kube-apiserver, which KUBEBUILDER_ASSETS has.
func TestACopyFollowsItsOriginal(t *testing.T) {
	environment := &envtest.Environment{}
	config, err := environment.Start()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := environment.Stop(); err != nil {
			t.Error(err)
		}
	})
	manager, err := ctrl.NewManager(config, ctrl.Options{Metrics: server.Options{BindAddress: "0"}})
	if err != nil {
		t.Fatal(err)
	}
	if err := (&mirror.Reconciler{Client: manager.GetClient()}).SetupWithManager(manager); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- manager.Start(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	api, err := client.New(config, client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"one", "two"} {
		if err := api.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}); err != nil {
			t.Fatal(err)
		}
	}
	original := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: "settings", Namespace: "one", Annotations: map[string]string{mirror.Annotation: "two"}},
		Data:       map[string]string{"colour": "blue"},
	}
	if err := api.Create(t.Context(), original); err != nil {
		t.Fatal(err)
	}
	eventually(t, api, "blue")
	original.Data["colour"] = "green"
	if err := api.Update(t.Context(), original); err != nil {
		t.Fatal(err)
	}
	eventually(t, api, "green")
}

// eventually waits until the copy has this colour.
func eventually(t *testing.T, api client.Client, colour string) {
	t.Helper()
	deadline := time.Now().Add(30 * time.Second)
	for {
		var copied corev1.ConfigMap
		err := api.Get(t.Context(), client.ObjectKey{Namespace: "two", Name: "settings"}, &copied)
		if err == nil && copied.Data["colour"] == colour {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("the copy is not %s within 30 seconds: %v, %v", colour, copied.Data, err)
		}
		time.Sleep(20 * time.Millisecond)
	}
}
