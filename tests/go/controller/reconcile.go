// The role of this file: the reconciler, which makes a config map for each bouquet, and how the manager is told of it.
package main

import (
	"context"
	"fmt"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
)

const finalizer = "example.com/compost"

type reconciler struct {
	client.Client
	events events.EventRecorder
}

func setup(ctx context.Context, manager ctrl.Manager) error {
	index := func(object client.Object) []string { return []string{object.(*Bouquet).Spec.Flower} }
	if err := manager.GetFieldIndexer().IndexField(ctx, &Bouquet{}, "spec.flower", index); err != nil {
		return err
	}
	r := &reconciler{Client: manager.GetClient(), events: manager.GetEventRecorder("florist")}
	return ctrl.NewControllerManagedBy(manager).For(&Bouquet{}).Owns(&corev1.ConfigMap{}).Complete(r)
}

// Reconcile brings one bouquet's config map and status to what its spec says.
func (r *reconciler) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	var bouquet Bouquet
	if err := r.Get(ctx, request.NamespacedName, &bouquet); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if !bouquet.DeletionTimestamp.IsZero() {
		return ctrl.Result{}, r.finalize(ctx, &bouquet)
	}
	if controllerutil.AddFinalizer(&bouquet, finalizer) {
		// The update brings the next call.
		return ctrl.Result{}, r.Update(ctx, &bouquet)
	}
	vase := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: bouquet.Name, Namespace: bouquet.Namespace}}
	done, err := controllerutil.CreateOrUpdate(ctx, r.Client, vase, func() error {
		vase.Data = map[string]string{"flower": bouquet.Spec.Flower, "count": fmt.Sprint(bouquet.Spec.Count)}
		return controllerutil.SetControllerReference(&bouquet, vase, r.Scheme())
	})
	if err != nil {
		return ctrl.Result{}, err
	}
	if done == controllerutil.OperationResultCreated {
		r.events.Eventf(&bouquet, vase, corev1.EventTypeNormal, "Arranged", "Arrange", "%d in a vase", bouquet.Spec.Count)
	}
	want := BouquetStatus{Made: bouquet.Spec.Count, ObservedGeneration: bouquet.Generation}
	if bouquet.Status == want {
		return ctrl.Result{}, nil
	}
	bouquet.Status = want
	return ctrl.Result{}, r.Status().Update(ctx, &bouquet)
}

// finalize writes down that the bouquet went, and lets it go.
func (r *reconciler) finalize(ctx context.Context, bouquet *Bouquet) error {
	compost := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "compost-" + bouquet.Name, Namespace: bouquet.Namespace}}
	if err := r.Create(ctx, compost); err != nil && !apierrors.IsAlreadyExists(err) {
		return err
	}
	before := bouquet.DeepCopyObject().(*Bouquet)
	if !controllerutil.RemoveFinalizer(bouquet, finalizer) {
		return nil
	}
	return client.IgnoreNotFound(r.Patch(ctx, bouquet, client.MergeFrom(before)))
}

// told: the event that the reconciler recorded is there.
func told(ctx context.Context, c client.Client) error {
	var found eventsv1.EventList
	if err := c.List(ctx, &found, client.InNamespace(namespace)); err != nil {
		return err
	}
	for _, event := range found.Items {
		if event.Reason == "Arranged" && event.Regarding.Kind == "Bouquet" && event.Regarding.Name == "rose" {
			return nil
		}
	}
	return fmt.Errorf("%d others", len(found.Items))
}

func leaseHolder(ctx context.Context, c client.Client) (string, error) {
	var lease coordinationv1.Lease
	if err := c.Get(ctx, key("bouquets.example.com"), &lease); err != nil {
		return "", err
	}
	if lease.Spec.HolderIdentity == nil {
		return "", nil
	}
	return *lease.Spec.HolderIdentity, nil
}
