//! Bootstrap: the objects that every cluster has from the start, created through the request path with the server's own identity:
//! namespaces, default roles and bindings, priority classes, and the CA bundles by which extension API servers trust this one. The
//! `kubernetes` service and the IPAddress objects of services are maintained from then on.
pub mod addresses;
pub mod client;
pub mod kubernetes;
pub mod node_ports;
pub mod own;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures::future;
use http::Method;
use kelson_auth::authorize::policy::{self, Reconciled};
use kelson_meta::Status;
use kelson_meta::url::encode;
use kelson_tasks::OnPanic;
use serde_json::{Value, json};

use crate::aggregate::local;
use crate::aggregate::registry::{GROUP, PLURAL};
use crate::catalog::record::parse;
use crate::config::StartError;
use crate::shared::Server;
use crate::shared::start_steps::StartStep;
use client::{SelfClient, collection, is_served};

/// Interval of checks that the namespaces exist.
const NAMESPACES_EVERY: Duration = Duration::from_secs(60);
/// Delay between two attempts to create what could not be created at the start.
const AGAIN_AFTER: Duration = Duration::from_secs(5);
/// Namespaces every cluster has.
pub const NAMESPACES: [&str; 4] = ["kube-system", "kube-public", "kube-node-lease", "default"];

/// Creates the missing objects.
///
/// # Errors
/// [`StartError::Bootstrap`].
pub async fn run(server: &Arc<Server>) -> Result<(), StartError> {
    let own = SelfClient::new(server);
    let (client_ca, front_proxy_ca) = (&server.config.client_ca_pem, &server.config.request_header_ca_pem);
    let trust = step(server, StartStep::ClusterAuthenticationInfo, publish_cas(&own, client_ca, front_proxy_ca));
    let service = step(server, StartStep::BootstrapController, kubernetes::begin(server, &own));
    if server.config.prepared {
        server.health.steps.finish(&[
            StartStep::SystemNamespaces,
            StartStep::ServiceCidr,
            StartStep::BootstrapRoles,
            StartStep::PriorityClasses,
            StartStep::AutoregisterCompletion,
        ]);
        return future::try_join(trust, service).await.map(drop);
    }
    // Concurrently, so that the store commits them in few batches; namespaces before the objects in them.
    step(server, StartStep::SystemNamespaces, namespaces(&own)).await?;
    // On the heap, because together they exceed the stack of a test's thread.
    future::try_join(
        future::try_join5(
            Box::pin(step(server, StartStep::ServiceCidr, service_cidr(server, &own))),
            Box::pin(step(server, StartStep::BootstrapRoles, roles(&own))),
            Box::pin(step(server, StartStep::PriorityClasses, priority_classes(&own))),
            Box::pin(trust),
            Box::pin(service),
        ),
        Box::pin(step(server, StartStep::AutoregisterCompletion, api_services(&own))),
    )
    .await?;
    Ok(())
}

/// Does the work of a step of the start, and marks the step as finished if it succeeds.
async fn step(
    server: &Server,
    step: StartStep,
    work: impl Future<Output = Result<(), StartError>>,
) -> Result<(), StartError> {
    work.await?;
    server.health.steps.finish(&[step]);
    Ok(())
}

/// Makes what is missing. While a key service is not available, the server starts without what cannot be read or made, and tries again.
///
/// # Errors
/// [`StartError::Bootstrap`], while every resource can be read and written.
pub async fn run_or_keep_trying(server: &Arc<Server>) -> Result<(), StartError> {
    let Err(error) = run(server).await else { return Ok(()) };
    if !lacks_keys(server) {
        return Err(match (error, server.store.health().not_ready()) {
            (StartError::Bootstrap(what), Some(why)) => StartError::Bootstrap(format!("{what}: {why}")),
            (error, _) => error,
        });
    }
    tracing::error!(%error, "objects that every cluster has are not made; the server starts and tries again");
    let server = Arc::clone(server);
    server.tasks.clone().spawn("api-bootstrap", OnPanic::Contain, async move {
        loop {
            tokio::time::sleep(AGAIN_AFTER).await;
            match run(&server).await {
                Ok(()) => return tracing::info!("objects that every cluster has are made"),
                Err(error) if !lacks_keys(&server) => {
                    tracing::error!(%error, "objects that every cluster has are not made");
                }
                Err(error) => tracing::debug!(%error, "objects that every cluster has cannot be made yet"),
            }
        }
    });
    Ok(())
}

/// Whether objects cannot be decrypted or encrypted now.
fn lacks_keys(server: &Server) -> bool {
    let ill = |(_, check): &(&'static str, crate::config::ExtraCheck)| check().is_err();
    !server.store.all_locked().is_empty() || server.config.checks.iter().any(ill)
}

async fn namespaces(own: &SelfClient) -> Result<(), StartError> {
    let each = NAMESPACES.map(|name| {
        let object = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
        own.ensure("/api/v1/namespaces", name, object)
    });
    future::try_join_all(each).await.map(drop)
}

/// Creates these namespaces again if they are deleted, until the server stops (upstream: the controller `system-namespaces`).
pub async fn follow_namespaces(server: Arc<Server>) {
    let own = SelfClient::new(&server);
    loop {
        tokio::time::sleep(NAMESPACES_EVERY).await;
        if server.health.is_stopping() {
            return;
        }
        if let Err(why) = namespaces(&own).await {
            tracing::warn!(%why, "failed to create a system namespace; retrying");
        }
    }
}

async fn roles(own: &SelfClient) -> Result<(), StartError> {
    if !is_served(&own.server, "rbac.authorization.k8s.io", "v1") {
        return Ok(());
    }
    let mut wanted = policy::bootstrap_objects(|gate| own.server.config.feature_gates.enabled(gate));
    if own.server.usage.is_some() {
        wanted.push(policy::metrics_reader());
    }
    future::try_join_all(wanted.into_iter().map(|wanted| role(own, wanted))).await?;
    Ok(())
}

async fn role(own: &SelfClient, wanted: Value) -> Result<(), StartError> {
    let name = wanted["metadata"]["name"].as_str().unwrap_or("").to_owned();
    let Some(path) = collection(&wanted) else { return Ok(()) };
    let fault = |status: Status| StartError::Bootstrap(format!("{path}/{name}: {status}"));
    let object_path = format!("{path}/{}", encode(&name));
    let stored = own.stored(&wanted).await;
    match policy::reconcile(&wanted, stored.as_ref()) {
        Reconciled::Keep => {}
        Reconciled::Create(object) => own.create(&path, &object).await.map_err(fault)?,
        Reconciled::Update(object) => drop(own.call(Method::PUT, &object_path, &object).await.map_err(fault)?),
        Reconciled::Recreate(object) => {
            own.call(Method::DELETE, &object_path, &Value::Null).await.map_err(fault)?;
            own.create(&path, &object).await.map_err(fault)?;
        }
    }
    Ok(())
}

async fn priority_classes(own: &SelfClient) -> Result<(), StartError> {
    if !is_served(&own.server, "scheduling.k8s.io", "v1") {
        return Ok(());
    }
    let classes = kelson_admission::system_priority_classes();
    let each = classes.into_iter().map(|class| async move {
        let name = class["metadata"]["name"].as_str().unwrap_or("").to_owned();
        own.ensure("/apis/scheduling.k8s.io/v1/priorityclasses", &name, class).await
    });
    future::try_join_all(each).await?;
    Ok(())
}

/// Creates the APIServices of built-in group versions, and deletes those that are no longer served.
async fn api_services(own: &SelfClient) -> Result<(), StartError> {
    if !is_served(&own.server, GROUP, "v1") {
        return Ok(());
    }
    let name_of = |service: &Value| service["metadata"]["name"].as_str().unwrap_or("").to_owned();
    let served: Vec<Value> = local::builtin_services(|group, version| is_served(&own.server, group, version)).collect();
    let names: BTreeSet<String> = served.iter().map(name_of).collect();
    let stored = own.server.store.list(kelson_store::Resource::new(GROUP, PLURAL), None, None, None);
    for record in stored.iter().filter(|record| !names.contains(record.key().name.as_ref())) {
        if parse(record)["metadata"]["labels"][local::MANAGED] == local::ON_START {
            let path = format!("{}/{}", local::PATH, record.key().name);
            let fault = |status: Status| StartError::Bootstrap(format!("{path}: {status}"));
            own.call(Method::DELETE, &path, &Value::Null).await.map_err(fault)?;
        }
    }
    let each =
        served.into_iter().map(|service| async move { own.ensure(local::PATH, &name_of(&service), service).await });
    future::try_join_all(each).await?;
    Ok(())
}

/// Publishes the CA bundles by which extension API servers trust client certificates and this server's front proxy.
///
/// # Errors
/// [`StartError::Bootstrap`].
pub async fn publish_cas(own: &SelfClient, client_ca: &str, request_header_ca: &str) -> Result<(), StartError> {
    let map = authentication(&own.server, client_ca, request_header_ca);
    own.put("/api/v1/namespaces/kube-system/configmaps", map).await
}

fn authentication(server: &Server, client_ca: &str, request_header_ca: &str) -> Value {
    let mut data = json!({});
    if !client_ca.is_empty() {
        data["client-ca-file"] = client_ca.into();
    }
    if !request_header_ca.is_empty() {
        data["requestheader-client-ca-file"] = request_header_ca.into();
        let headers = &server.config.request_headers;
        for (key, list) in [
            ("allowed-names", &headers.allowed_names),
            ("username-headers", &headers.username_headers),
            ("uid-headers", &headers.uid_headers),
            ("group-headers", &headers.group_headers),
            ("extra-headers-prefix", &headers.extra_prefixes),
        ] {
            data[format!("requestheader-{key}")] = json!(list).to_string().into();
        }
    }
    json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "extension-apiserver-authentication", "namespace": "kube-system"},
        "data": data,
    })
}

/// Creates the ServiceCIDR object of the configured ranges (KEP-1880) and sets it ready, unless it exists with other ranges.
async fn service_cidr(server: &Server, own: &SelfClient) -> Result<(), StartError> {
    const PATH: &str = "/apis/networking.k8s.io/v1/servicecidrs";
    const NAME: &str = "kubernetes";
    if server.config.service_cidrs.is_empty() || !is_served(server, "networking.k8s.io", "v1") {
        return Ok(());
    }
    let cidrs: Value = server.config.service_cidrs.iter().map(ToString::to_string).collect();
    let object = json!({"apiVersion": "networking.k8s.io/v1", "kind": "ServiceCIDR", "metadata": {"name": NAME},
        "spec": {"cidrs": cidrs}});
    own.ensure(PATH, NAME, object).await?;
    let fault = |status: Status| StartError::Bootstrap(format!("{PATH}/{NAME}: {status}"));
    let path = format!("{PATH}/{NAME}");
    let mut stored = own.call(Method::GET, &path, &Value::Null).await.map_err(fault)?;
    let is_set = stored["status"]["conditions"].as_array().is_some_and(|c| c.iter().any(|c| c["type"] == "Ready"));
    if is_set || stored["spec"]["cidrs"] != cidrs || !stored["metadata"]["deletionTimestamp"].is_null() {
        return Ok(());
    }
    let now = kelson_meta::format_seconds(server.clock.now());
    stored["status"]["conditions"] = json!([{"type": "Ready", "status": "True", "reason": "",
        "message": "Kubernetes default Service CIDR is ready", "lastTransitionTime": now}]);
    match own.call(Method::PUT, &format!("{path}/status"), &stored).await {
        // Another server on the same storage sets the same condition.
        Err(status) if status.code == 409 => Ok(()),
        done => done.map(drop).map_err(fault),
    }
}
