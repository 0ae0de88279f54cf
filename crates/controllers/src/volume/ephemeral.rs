//! The claims of generic ephemeral volumes: each is created from the template in the pod, is owned by the pod, and is
//! deleted with it. Upstream `pkg/controller/volume/ephemeral`.
use std::sync::Arc;

use kelson_client::{Change, Client, EventRecorder, EventType, Object as _, ObjectRef, WorkQueue};
use kelson_meta::ObjectKey;
use serde_json::{Value, json};

use crate::shared::context::{Context, SyncError, WORKERS, get_value};
use crate::shared::informers::SharedInformer;
use crate::shared::ownership::controller_ref;
use crate::views::{ClaimView, PodView};

/// The source of this controller's events.
const COMPONENT: &str = "ephemeral_volume";

struct EphemeralVolumeController {
    client: Client,
    recorder: EventRecorder,
    pods: SharedInformer<PodView>,
    claims: SharedInformer<ClaimView>,
}

/// Starts the controller.
pub fn start(ctx: &Arc<Context>) {
    let client = ctx.client();
    let queue: WorkQueue<ObjectKey> = WorkQueue::default();
    let me = Arc::new(EphemeralVolumeController {
        recorder: ctx.recorder(&client, COMPONENT),
        client,
        pods: ctx.informers.pods.reader(),
        claims: ctx.informers.claims.reader(),
    });
    let q = queue.clone();
    me.pods.on_change(move |change| {
        let pod = change.object();
        if !matches!(change, Change::Deleted(_)) && !pod.metadata.is_deleting() && has_own_claims(pod) {
            q.add(pod.metadata.key());
        }
    });
    let q = queue.clone();
    me.claims.on_change(move |change| {
        if let (Change::Deleted(claim), Some(owner)) = (change, change.object().metadata.controller())
            && owner.kind == PodView::TYPE.kind
        {
            q.add(ObjectKey::new(&claim.metadata.namespace, &owner.name));
        }
    });
    ctx.run_queue_of(me.pods.clone(), &queue, WORKERS, move |key| {
        let me = Arc::clone(&me);
        async move { me.sync(&key).await }
    });
}

fn has_own_claims(pod: &PodView) -> bool {
    pod.spec.claims.iter().any(|c| c.claim.is_none())
}

impl EphemeralVolumeController {
    async fn sync(&self, key: &ObjectKey) -> Result<(), SyncError> {
        let Some(pod) = self.pods.get(key).filter(|p| !p.metadata.is_deleting()) else { return Ok(()) };
        for volume in pod.spec.claims.iter().filter(|c| c.claim.is_none()) {
            let name = volume.claim_name(&pod.metadata.name);
            if let Err(e) = self.ensure(&pod, &volume.volume, &name).await {
                let text = format!("ephemeral volume {}: {e}", volume.volume);
                self.recorder.event(&ObjectRef::of(&*pod), EventType::Warning, "FailedBinding", text);
                return Err(e);
            }
        }
        Ok(())
    }

    async fn ensure(&self, pod: &PodView, volume: &str, name: &str) -> Result<(), SyncError> {
        let (m, namespace) = (&pod.metadata, pod.metadata.namespace.as_str());
        if let Some(claim) = self.claims.get(&ObjectKey::new(namespace, name)) {
            let its = claim.metadata.controller().is_some_and(|o| o.uid == m.uid);
            let (n, p) = (namespace, &m.name);
            let why = || format!("PVC {n}/{name} was not created for pod {n}/{p} (pod is not owner)");
            return if its { Ok(()) } else { Err(SyncError::Other(why())) };
        }
        let whole = get_value::<PodView>(&self.client, namespace, &m.name).await?;
        let Some(template) = template(&whole, volume).filter(|_| whole["metadata"]["uid"] == m.uid) else {
            return Ok(());
        };
        let claim = json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim",
            "metadata": {"name": name, "namespace": namespace, "ownerReferences": [controller_ref(pod)],
                "annotations": template["metadata"]["annotations"], "labels": template["metadata"]["labels"]},
            "spec": template["spec"]});
        match self.client.create::<ClaimView>(namespace, &claim).await {
            Ok(_) => Ok(()),
            // The claim was created concurrently, perhaps by an earlier run. Its watch event shows the owner.
            Err(e) if e.is_already_exists() => Ok(()),
            Err(e) => Err(SyncError::Other(format!("create PVC {name}: {e}"))),
        }
    }
}

fn template<'a>(pod: &'a Value, volume: &str) -> Option<&'a Value> {
    let all = pod["spec"]["volumes"].as_array()?;
    all.iter().find(|v| v["name"] == volume)?.get("ephemeral")?.get("volumeClaimTemplate")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use crate::Config;
    use crate::testing::run;
    use kelson_simulation::Api;

    const CLAIMS: &str = "v1/persistentvolumeclaims";

    fn pod(name: &str) -> serde_json::Value {
        let template = json!({"metadata": {"labels": {"a": "b"}}, "spec": {"accessModes": ["ReadWriteOnce"],
            "storageClassName": "fast", "resources": {"requests": {"storage": "1Gi"}}}});
        json!({"metadata": {"name": name, "namespace": "n"}, "spec": {"containers": [{"name": "c", "image": "c"}],
            "volumes": [{"name": "v", "ephemeral": {"volumeClaimTemplate": template}}]}})
    }

    #[tokio::test(start_paused = true)]
    async fn a_pods_own_claim_is_made_and_made_again() {
        let api = Api::start().await;
        api.namespace("n").await;
        let _running = run(&api, &["ephemeral-volume-controller"], Config::default()).await;
        let pod = api.create("v1/pods", pod("p")).await;
        api.settle().await;
        let claim = api.get(CLAIMS, "n", "p-v").await.expect("the claim");
        let owner = &claim["metadata"]["ownerReferences"][0];
        assert_eq!((&owner["uid"], &owner["controller"]), (&pod["metadata"]["uid"], &json!(true)));
        assert_eq!(
            (&claim["metadata"]["labels"]["a"], &claim["spec"]["storageClassName"]),
            (&json!("b"), &json!("fast"))
        );
        api.change(CLAIMS, "n", "p-v", |v| v["metadata"]["finalizers"] = json!([])).await;
        api.remove(CLAIMS, "n", "p-v").await;
        api.settle().await;
        let again = api.get(CLAIMS, "n", "p-v").await.expect("the claim again");
        assert_ne!(again["metadata"]["uid"], claim["metadata"]["uid"]);
    }

    #[tokio::test(start_paused = true)]
    async fn anothers_claim_is_not_taken() {
        let api = Api::start().await;
        api.namespace("n").await;
        let spec = json!({"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}});
        api.create(CLAIMS, json!({"metadata": {"name": "p-v", "namespace": "n"}, "spec": spec})).await;
        let _running = run(&api, &["ephemeral-volume-controller"], Config::default()).await;
        api.create("v1/pods", pod("p")).await;
        let said = |all: Vec<String>| all.into_iter().find(|e| e.contains("FailedBinding"));
        let text = api.until("the event", async |api| said(api.events().await)).await;
        let want = "ephemeral volume v: PVC n/p-v was not created for pod n/p (pod is not owner)";
        assert!(text.contains(want), "{text}");
    }
}
