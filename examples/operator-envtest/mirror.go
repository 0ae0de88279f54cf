// Package mirror has a small controller: a ConfigMap with the annotation example.com/mirror-to is copied into the namespace that it names.
package mirror

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
)

// Annotation names the namespace of the copy.
const Annotation = "example.com/mirror-to"

// Reconciler copies ConfigMaps.
type Reconciler struct {
	client.Client
}

// Reconcile makes the copy of one ConfigMap what its original is.
func (r *Reconciler) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	var original corev1.ConfigMap
	if err := r.Get(ctx, request.NamespacedName, &original); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	namespace := original.Annotations[Annotation]
	if namespace == "" || namespace == original.Namespace {
		return ctrl.Result{}, nil
	}
	copied := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: original.Name, Namespace: namespace}}
	_, err := controllerutil.CreateOrUpdate(ctx, r.Client, copied, func() error {
		copied.Data = original.Data
		return nil
	})
	return ctrl.Result{}, err
}

// SetupWithManager registers the controller.
func (r *Reconciler) SetupWithManager(manager ctrl.Manager) error {
	return ctrl.NewControllerManagedBy(manager).For(&corev1.ConfigMap{}).Complete(r)
}
