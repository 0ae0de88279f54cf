//! Every address of a service is an IPAddress object, by which people see who has it, and ranges know that they are needed.
//! Upstream's API server makes them itself (KEP-1880), so this runs only beside Kelson's, which keeps the addresses in use in
//! memory and by the Services alone.
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use kelson_client::{Change, Client, DeleteOptions, WorkQueue};
use kelson_meta::ObjectKey;
use parking_lot::Mutex;
use serde_json::json;

use crate::shared::context::{Context, SyncError, WORKERS};
use crate::shared::informers::SharedInformer;
use crate::views::{IP_ALLOCATOR, IP_FAMILY, IP_MANAGED_BY, IpAddressView};

type AddressOwners = Mutex<HashMap<IpAddr, ObjectKey>>;

struct ServiceAddressController {
    client: Client,
    owners: Arc<AddressOwners>,
    addresses: SharedInformer<IpAddressView>,
}

/// Starts the controller.
pub fn start(ctx: &Arc<Context>) {
    let queue: WorkQueue<IpAddr> = WorkQueue::default();
    let owners: Arc<AddressOwners> = Arc::default();
    let (q, known) = (queue.clone(), Arc::clone(&owners));
    ctx.informers.services.on_change(move |change| {
        let (old, new) = match change {
            Change::Added(new) => (None, Some(new)),
            Change::Updated { old, new } => (Some(old), Some(new)),
            Change::Deleted(old) => (Some(old), None),
        };
        let mut owners = known.lock();
        for ip in old.into_iter().flat_map(|s| s.addresses()) {
            // Another service may have it by now.
            if old.is_some_and(|s| owners.get(&ip) == Some(&s.metadata.key())) {
                owners.remove(&ip);
            }
            q.add(ip);
        }
        for (ip, service) in new.into_iter().flat_map(|s| s.addresses().map(move |ip| (ip, s))) {
            owners.insert(ip, service.metadata.key());
            q.add(ip);
        }
    });
    let me = Arc::new(ServiceAddressController {
        client: ctx.client(),
        owners,
        addresses: ctx.informers.ip_addresses.reader(),
    });
    let q = queue.clone();
    me.addresses.on_change(move |change| {
        if let Some(ip) = change.object().of_a_service() {
            q.add(ip);
        }
    });
    ctx.run_queue(&queue, WORKERS, move |ip| {
        let me = Arc::clone(&me);
        async move { me.sync(ip).await }
    });
}

impl ServiceAddressController {
    async fn sync(&self, ip: IpAddr) -> Result<(), SyncError> {
        let name = ip.to_string();
        let owner = self.owners.lock().get(&ip).cloned();
        if let Some(there) = self.addresses.get(&ObjectKey::new("", &name)) {
            let parent = &there.spec.parent_ref;
            let right = owner.as_ref().is_some_and(|o| o.namespace == parent.namespace && o.name == parent.name);
            // One that somebody made by hand is theirs.
            if right || there.of_a_service().is_none() {
                return Ok(());
            }
            // What it says cannot be changed; when it is gone, this is asked again.
            let options = DeleteOptions::default().with_uid(&there.metadata.uid);
            return match self.client.delete::<IpAddressView>("", &name, &options).await {
                Err(e) if !e.is_not_found() => Err(e.into()),
                _ => Ok(()),
            };
        }
        let Some(owner) = owner else { return Ok(()) };
        let family = if ip.is_ipv4() { "IPv4" } else { "IPv6" };
        let body = json!({"apiVersion": "networking.k8s.io/v1", "kind": "IPAddress",
            "metadata": {"name": name, "labels": {IP_MANAGED_BY: IP_ALLOCATOR, IP_FAMILY: family}},
            "spec": {"parentRef": {"group": "", "resource": "services", "namespace": owner.namespace, "name": owner.name}}});
        match self.client.create::<IpAddressView>("", &body).await {
            Err(e) if !e.is_already_exists() => Err(e.into()),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Config;
    use crate::testing::run;
    use kelson_simulation::Api;
    use serde_json::Value;

    const ADDRESSES: &str = "networking.k8s.io/v1/ipaddresses";

    async fn shown(api: &Api) -> Vec<(String, String)> {
        api.settle().await;
        let text = |v: &Value| v.as_str().unwrap_or_default().to_owned();
        let of = |a: &Value| (text(&a["metadata"]["name"]), text(&a["spec"]["parentRef"]["name"]));
        let all = api.list(ADDRESSES).await;
        all.iter().map(of).filter(|(_, parent)| parent != "kubernetes").collect()
    }

    async fn allow(api: &Api) {
        let rules =
            json!([{"apiGroups": ["networking.k8s.io"], "resources": ["ipaddresses"], "verbs": ["create", "delete"]}]);
        let group = "rbac.authorization.k8s.io";
        api.create(&format!("{group}/v1/clusterroles"), json!({"metadata": {"name": "addresses"}, "rules": rules}))
            .await;
        let subject = json!({"kind": "ServiceAccount", "namespace": "kube-system", "name": "service-cidrs-controller"});
        let role = json!({"apiGroup": group, "kind": "ClusterRole", "name": "addresses"});
        let binding = json!({"metadata": {"name": "addresses"}, "roleRef": role, "subjects": [subject]});
        api.create(&format!("{group}/v1/clusterrolebindings"), binding).await;
    }

    #[tokio::test(start_paused = true)]
    async fn addresses_follow_services() {
        let api = Api::start().await;
        api.namespace("n").await;
        allow(&api).await;
        let _running = run(&api, &["service-address-controller"], Config::default()).await;
        let service = |name: &str, spec: Value| json!({"metadata": {"name": name, "namespace": "n"}, "spec": spec});
        let ports = json!([{"port": 80}]);
        let s = api.create("v1/services", service("s", json!({"ports": ports}))).await;
        api.create("v1/services", service("headless", json!({"ports": ports, "clusterIP": "None"}))).await;
        let ip = s["spec"]["clusterIP"].as_str().unwrap().to_owned();
        assert_eq!(shown(&api).await, [(ip.clone(), "s".to_owned())]);
        let object = api.get(ADDRESSES, "", &ip).await.unwrap();
        assert_eq!(object["metadata"]["labels"]["ipaddress.kubernetes.io/ip-family"], "IPv4");
        api.remove(ADDRESSES, "", &ip).await;
        assert_eq!(shown(&api).await.len(), 1, "made again");
        let parent = json!({"resource": "things", "name": "mine"});
        api.create(ADDRESSES, json!({"metadata": {"name": "192.0.2.1"}, "spec": {"parentRef": parent}})).await;
        api.remove("v1/services", "n", "s").await;
        assert_eq!(shown(&api).await, [("192.0.2.1".to_owned(), "mine".to_owned())], "what is somebody's stays");
        api.create("v1/services", service("t", json!({"ports": ports, "clusterIP": ip}))).await;
        assert!(shown(&api).await.contains(&(ip, "t".to_owned())));
    }
}
