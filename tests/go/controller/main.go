// The role of this program: a controller as people write them with controller-runtime, and its user, in one process. It runs a
// manager (cache, watches, index, work queue, leader election, events) for a kind of its own, whose definition it creates, and
// then does to objects of that kind what a user does. It prints "done" when everything came as it must.
package main

import (
	"context"
	"fmt"
	"os"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
)

// How long one thing may take that happens without further help; a loaded machine is slow.
const patience = 60 * time.Second

const namespace = "controller-runtime"

func main() {
	ctrl.SetLogger(zap.New(zap.WriteTo(os.Stderr)))
	ctx, cancel := context.WithTimeout(ctrl.SetupSignalHandler(), 5*time.Minute)
	defer cancel()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "failed:", err)
		os.Exit(1)
	}
	fmt.Println("done")
}

func run(ctx context.Context) error {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, apiextensionsv1.AddToScheme, addToScheme} {
		if err := add(scheme); err != nil {
			return err
		}
	}
	config, err := ctrl.GetConfig()
	if err != nil {
		return err
	}
	direct, err := client.New(config, client.Options{Scheme: scheme})
	if err != nil {
		return err
	}
	if err := prepare(ctx, direct); err != nil {
		return fmt.Errorf("prepare: %w", err)
	}
	manager, err := ctrl.NewManager(config, ctrl.Options{
		Scheme:                        scheme,
		Metrics:                       metricsserver.Options{BindAddress: "0"},
		LeaderElection:                true,
		LeaderElectionID:              "bouquets.example.com",
		LeaderElectionNamespace:       namespace,
		LeaderElectionReleaseOnCancel: true,
	})
	if err != nil {
		return err
	}
	if err := setup(ctx, manager); err != nil {
		return err
	}
	managed, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- manager.Start(managed) }()
	if err := scenario(ctx, manager.GetClient(), direct); err != nil {
		stop()
		<-ended
		return err
	}
	stop()
	if err := <-ended; err != nil {
		return fmt.Errorf("manager: %w", err)
	}
	return released(ctx, direct)
}

// prepare makes the namespace and the definition, and waits until the kind is served.
func prepare(ctx context.Context, c client.Client) error {
	if err := c.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}); err != nil {
		return err
	}
	if err := c.Create(ctx, definition()); err != nil {
		return err
	}
	return eventually(ctx, "established", func() error {
		var made apiextensionsv1.CustomResourceDefinition
		if err := c.Get(ctx, client.ObjectKey{Name: "bouquets.example.com"}, &made); err != nil {
			return err
		}
		for _, condition := range made.Status.Conditions {
			if condition.Type == apiextensionsv1.Established && condition.Status == apiextensionsv1.ConditionTrue {
				return nil
			}
		}
		return fmt.Errorf("conditions: %v", made.Status.Conditions)
	})
}

// scenario is what a user does; cached reads from the manager's cache, direct asks the server.
func scenario(ctx context.Context, cached, direct client.Client) error {
	rose := &Bouquet{ObjectMeta: metav1.ObjectMeta{Name: "rose", Namespace: namespace}, Spec: BouquetSpec{Flower: "rose", Count: 3}}
	if err := direct.Create(ctx, rose); err != nil {
		return err
	}
	if rose.Spec.Wrap != "paper" {
		return fmt.Errorf("the schema's default: %q", rose.Spec.Wrap)
	}
	if err := eventually(ctx, "made", func() error { return made(ctx, direct, "rose", 3) }); err != nil {
		return err
	}
	wrong := &Bouquet{ObjectMeta: metav1.ObjectMeta{Name: "none", Namespace: namespace}, Spec: BouquetSpec{Flower: "rose"}}
	if err := direct.Create(ctx, wrong); !apierrors.IsInvalid(err) {
		return fmt.Errorf("a bouquet of none: %w", err)
	}
	if err := conflicts(ctx, direct); err != nil {
		return err
	}
	if err := patches(ctx, direct); err != nil {
		return err
	}
	if err := applies(ctx, direct); err != nil {
		return err
	}
	// What the controller owns comes back when it goes.
	vase := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "rose", Namespace: namespace}}
	if err := direct.Delete(ctx, vase); err != nil {
		return err
	}
	if err := eventually(ctx, "made again", func() error { return made(ctx, direct, "rose", 7) }); err != nil {
		return err
	}
	if err := eventually(ctx, "found by an index of the cache", func() error {
		var found BouquetList
		if err := cached.List(ctx, &found, client.InNamespace(namespace), client.MatchingFields{"spec.flower": "rose"}); err != nil {
			return err
		}
		if len(found.Items) != 1 || found.Items[0].Name != "rose" {
			return fmt.Errorf("%d found", len(found.Items))
		}
		return nil
	}); err != nil {
		return err
	}
	if err := eventually(ctx, "told by an event", func() error { return told(ctx, direct) }); err != nil {
		return err
	}
	return deleted(ctx, direct)
}

// conflicts: an update of an old version is refused, as client-go's retries expect.
func conflicts(ctx context.Context, c client.Client) error {
	var old Bouquet
	if err := c.Get(ctx, key("rose"), &old); err != nil {
		return err
	}
	newer := old.DeepCopyObject().(*Bouquet)
	newer.Spec.Count = 4
	if err := c.Update(ctx, newer); err != nil {
		return err
	}
	old.Spec.Count = 5
	if err := c.Update(ctx, &old); !apierrors.IsConflict(err) {
		return fmt.Errorf("an update of an old version: %w", err)
	}
	return eventually(ctx, "updated", func() error { return made(ctx, c, "rose", 4) })
}

func patches(ctx context.Context, c client.Client) error {
	var rose Bouquet
	if err := c.Get(ctx, key("rose"), &rose); err != nil {
		return err
	}
	before := rose.DeepCopyObject().(*Bouquet)
	rose.Spec.Count = 6
	rose.Labels = map[string]string{"shop": "one"}
	if err := c.Patch(ctx, &rose, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})); err != nil {
		return err
	}
	return eventually(ctx, "patched", func() error { return made(ctx, c, "rose", 6) })
}

func applies(ctx context.Context, c client.Client) error {
	apply := func(owner string, count int64, options ...client.ApplyOption) error {
		configuration := bouquetConfiguration("rose", map[string]any{"count": count, "flower": "rose"})
		return c.Apply(ctx, configuration, append(options, client.FieldOwner(owner))...)
	}
	if err := apply("gardener", 7); !apierrors.IsConflict(err) {
		return fmt.Errorf("apply over another's field: %w", err)
	}
	if err := apply("gardener", 7, client.ForceOwnership); err != nil {
		return err
	}
	return eventually(ctx, "applied", func() error { return made(ctx, c, "rose", 7) })
}

// deleted: the finalizer of the controller holds the object until the clean-up is written down.
func deleted(ctx context.Context, c client.Client) error {
	rose := &Bouquet{ObjectMeta: metav1.ObjectMeta{Name: "rose", Namespace: namespace}}
	if err := c.Delete(ctx, rose, client.PropagationPolicy(metav1.DeletePropagationBackground)); err != nil {
		return err
	}
	if err := eventually(ctx, "gone", func() error {
		err := c.Get(ctx, key("rose"), &Bouquet{})
		if !apierrors.IsNotFound(err) {
			return fmt.Errorf("still there: %v", err)
		}
		return nil
	}); err != nil {
		return err
	}
	var compost corev1.ConfigMap
	if err := c.Get(ctx, key("compost-rose"), &compost); err != nil {
		return fmt.Errorf("what the finalizer leaves: %w", err)
	}
	return nil
}

// made: the owned object says what the bouquet says, and the status says so.
func made(ctx context.Context, c client.Client, name string, count int32) error {
	var vase corev1.ConfigMap
	if err := c.Get(ctx, key(name), &vase); err != nil {
		return err
	}
	if want := fmt.Sprint(count); vase.Data["count"] != want {
		return fmt.Errorf("the vase has %s, not %s", vase.Data["count"], want)
	}
	if owner := metav1.GetControllerOf(&vase); owner == nil || owner.Kind != "Bouquet" || owner.Name != name {
		return fmt.Errorf("owner: %v", owner)
	}
	var bouquet Bouquet
	if err := c.Get(ctx, key(name), &bouquet); err != nil {
		return err
	}
	if bouquet.Status.Made != count || bouquet.Status.ObservedGeneration != bouquet.Generation {
		return fmt.Errorf("status: %+v at generation %d", bouquet.Status, bouquet.Generation)
	}
	if !controllerutil.ContainsFinalizer(&bouquet, finalizer) {
		return fmt.Errorf("finalizers: %v", bouquet.Finalizers)
	}
	return nil
}

// released: a manager that ends gives its lease up.
func released(ctx context.Context, c client.Client) error {
	return eventually(ctx, "released", func() error {
		holder, err := leaseHolder(ctx, c)
		if err != nil {
			return err
		}
		if holder != "" {
			return fmt.Errorf("held by %s", holder)
		}
		return nil
	})
}

func key(name string) client.ObjectKey {
	return client.ObjectKey{Namespace: namespace, Name: name}
}

// eventually asks again until there is no error.
func eventually(ctx context.Context, what string, check func() error) error {
	var last error
	err := wait.PollUntilContextTimeout(ctx, 50*time.Millisecond, patience, true, func(context.Context) (bool, error) {
		last = check()
		return last == nil, nil
	})
	if err != nil {
		return fmt.Errorf("%s: %w (%v)", what, err, last)
	}
	return nil
}
