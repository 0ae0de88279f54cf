//! Publishes the ConfigMap `kube-root-ca.crt` with the bundle that verifies the API server in every namespace. Upstream
//! `pkg/controller/certificates/rootcacertpublisher`.
use std::sync::Arc;

use kelson_client::WorkQueue;
use kelson_meta::ObjectKey;
use serde_json::json;

use crate::shared::context::{Context, SyncError, WORKERS};
use crate::views::ConfigMapView;

const CONFIG_MAP: &str = "kube-root-ca.crt";
const DESCRIPTION: &str = "kubernetes.io/description";
const DESCRIPTION_TEXT: &str = "The CA bundle that verifies the API server's certificate at its addresses inside the cluster, such as the service kubernetes.default.svc. It is not valid for any other purpose.";

/// Starts the publisher, unless there is no bundle.
pub fn start(ctx: &Arc<Context>) {
    if ctx.config.authorities.borrow().root_ca.is_empty() {
        return;
    }
    let client = ctx.client();
    let queue: WorkQueue<ObjectKey> = WorkQueue::default();
    let (namespaces, maps) = (ctx.informers.namespaces.reader(), ctx.informers.root_cas.reader());
    let q = queue.clone();
    namespaces.on_change(move |change| q.add(ObjectKey::new("", &change.object().metadata.name)));
    let q = queue.clone();
    maps.on_change(move |change| {
        let m = &change.object().metadata;
        if m.name == CONFIG_MAP {
            q.add(ObjectKey::new("", &m.namespace));
        }
    });
    let (q, all) = (queue.clone(), namespaces.clone());
    ctx.on_new_authorities(move || all.list().iter().for_each(|n| q.add(n.metadata.key())));
    let config = Arc::clone(&ctx.config);
    ctx.run_queue_of(namespaces.clone(), &queue, WORKERS, move |key| {
        let (client, namespaces, maps, config) = (client.clone(), namespaces.clone(), maps.clone(), Arc::clone(&config));
        async move {
            let active = namespaces.get(&key).is_some_and(|n| n.status.phase != "Terminating" && !n.metadata.is_deleting());
            if !active {
                return Ok(());
            }
            let ns = &key.name;
            let data = json!({"ca.crt": config.authorities.borrow().root_ca});
            let result = match maps.get(&ObjectKey::new(ns, CONFIG_MAP)) {
                None => {
                    let body = json!({"apiVersion": "v1", "kind": "ConfigMap", "data": data,
                        "metadata": {"name": CONFIG_MAP, "namespace": ns, "annotations": {DESCRIPTION: DESCRIPTION_TEXT}}});
                    client.create::<ConfigMapView>(ns, &body).await
                }
                Some(m) if json!(m.data) == data && m.metadata.annotations.contains_key(DESCRIPTION) => return Ok(()),
                Some(m) => {
                    // The controller's role may not get config maps, so the update is built from the watched object.
                    // Other fields are not kept.
                    let mut meta = m.metadata.clone();
                    meta.annotations.insert(DESCRIPTION.into(), DESCRIPTION_TEXT.into());
                    let body = json!({"apiVersion": "v1", "kind": "ConfigMap", "data": data, "metadata": {
                        "name": meta.name, "namespace": meta.namespace, "uid": meta.uid,
                        "resourceVersion": meta.resource_version, "labels": meta.labels,
                        "annotations": meta.annotations, "ownerReferences": meta.owner_references,
                        "finalizers": meta.finalizers}});
                    client.update::<ConfigMapView>(ns, CONFIG_MAP, "", &body).await
                }
            };
            match result {
                Err(e) if e.is_already_exists() || e.is_namespace_terminating() => Ok(()),
                Err(e) => Err(SyncError::from(e)),
                Ok(_) => Ok(()),
            }
        }
    });
}
