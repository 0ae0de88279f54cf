//! A typical controller with `kube`, and its user, in one process: a derived kind, whose definition it applies, the
//! runtime's controller with finalizer and events, a watcher with a store, patches of all types. Prints `done` when
//! everything worked.
mod florist;
mod kind;

use std::future::Future;
use std::time::Duration;

use anyhow::{Context as _, anyhow, ensure};
use futures::StreamExt as _;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::runtime::wait::{await_condition, conditions};
use kube::runtime::{WatchStreamExt as _, reflector, watcher};
use kube::{Api, Client, CustomResourceExt as _, ResourceExt};
use serde_json::json;

use crate::kind::{Bunch, BunchSpec};

/// The maximum wait for something that happens by itself on a loaded machine.
const PATIENCE: Duration = Duration::from_secs(60);
const NAMESPACE: &str = "kube-runtime";
const DEFINITION: &str = "bunches.kube.example.com";

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    let client = Client::try_default().await?;
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let namespace = serde_json::from_value(json!({"metadata": {"name": NAMESPACE}}))?;
    namespaces.create(&PostParams::default(), &namespace).await?;
    defined(&client).await?;
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let florist = tokio::spawn(florist::run(client.clone(), NAMESPACE, async { drop(stopped.await) }));
    scenario(&client).await?;
    drop(stop);
    tokio::time::timeout(PATIENCE, florist).await.context("the controller does not end")??;
    Api::<CustomResourceDefinition>::all(client).delete(DEFINITION, &DeleteParams::default()).await?;
    namespaces.delete(NAMESPACE, &DeleteParams::default()).await?;
    println!("done");
    Ok(())
}

/// Applies the derived definition and waits until its kind is served.
async fn defined(client: &Client) -> anyhow::Result<()> {
    let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
    let params = PatchParams::apply("florist").force();
    definitions.patch(DEFINITION, &params, &Patch::Apply(Bunch::crd())).await?;
    let established = await_condition(definitions, DEFINITION, conditions::is_crd_established());
    tokio::time::timeout(PATIENCE, established).await.context("not established")??;
    let bunches: Api<Bunch> = Api::namespaced(client.clone(), NAMESPACE);
    eventually("served", || async { Ok(drop(bunches.list(&ListParams::default()).await?)) }).await
}

async fn scenario(client: &Client) -> anyhow::Result<()> {
    let bunches: Api<Bunch> = Api::namespaced(client.clone(), NAMESPACE);
    let vases: Api<ConfigMap> = Api::namespaced(client.clone(), NAMESPACE);
    let store = watched(&bunches);
    let tulips = Bunch::new("tulips", BunchSpec { flower: "tulip".into(), count: 2, wrap: None });
    let made = bunches.create(&PostParams::default(), &tulips).await?;
    ensure!(made.spec.wrap.as_deref() == Some("paper"), "the schema's default: {:?}", made.spec.wrap);
    eventually("made", || is_made(&bunches, &vases, 2)).await?;
    refused(&bunches).await?;

    let merge = json!({"spec": {"count": 3}, "metadata": {"labels": {"shop": "one"}}});
    bunches.patch("tulips", &PatchParams::default(), &Patch::Merge(merge)).await?;
    eventually("merged", || is_made(&bunches, &vases, 3)).await?;
    applied(&bunches, &vases).await?;
    eventually("seen in the store of a watcher", || async {
        let all = store.state();
        ensure!(all.len() == 1 && all[0].spec.count == 5 && all[0].labels()["shop"] == "one", "{all:?}");
        Ok(())
    })
    .await?;
    paged(&vases).await?;

    // An object that the controller owns is recreated when it is deleted.
    vases.delete("tulips", &DeleteParams::default()).await?;
    eventually("made again", || is_made(&bunches, &vases, 5)).await?;
    let events: Api<Event> = Api::namespaced(client.clone(), NAMESPACE);
    eventually("told by an event", || async {
        let all = events.list(&ListParams::default()).await?;
        let reported =
            |e: &Event| e.reason.as_deref() == Some("Arranged") && e.regarding.as_ref().is_some_and(of_tulips);
        ensure!(all.iter().any(reported), "{} others", all.items.len());
        Ok(())
    })
    .await?;

    let uid = bunches.get("tulips").await?.uid().context("uid")?;
    bunches.delete("tulips", &DeleteParams::foreground()).await?;
    let gone = await_condition(bunches.clone(), "tulips", conditions::is_deleted(&uid));
    tokio::time::timeout(PATIENCE, gone).await.context("still there")??;
    vases.get("compost-tulips").await.context("what the finalizer leaves")?;
    eventually("gone from the store", || async {
        ensure!(store.is_empty(), "{:?}", store.state());
        Ok(())
    })
    .await
}

fn of_tulips(object: &k8s_openapi::api::core::v1::ObjectReference) -> bool {
    object.kind.as_deref() == Some("Bunch") && object.name.as_deref() == Some("tulips")
}

/// A store that a watcher keeps, with a streaming list.
fn watched(bunches: &Api<Bunch>) -> reflector::Store<Bunch> {
    let (store, writer) = reflector::store();
    let config = watcher::Config::default().streaming_lists();
    let stream = watcher(bunches.clone(), config).default_backoff().reflect(writer).applied_objects();
    tokio::spawn(stream.for_each(|seen| async {
        if let Err(error) = seen {
            eprintln!("the watcher goes on after: {error}");
        }
    }));
    store
}

/// The derived schema rejects a bunch of zero, and an update with an old version is a conflict.
async fn refused(bunches: &Api<Bunch>) -> anyhow::Result<()> {
    let none = Bunch::new("none", BunchSpec { flower: "tulip".into(), count: 0, wrap: None });
    let Err(kube::Error::Api(status)) = bunches.create(&PostParams::default(), &none).await else {
        return Err(anyhow!("a bunch of none was taken"));
    };
    ensure!(status.code == 422 && status.message.contains("spec.count"), "{status:?}");
    let old = bunches.get("tulips").await?;
    let mut newer = old.clone();
    newer.labels_mut().insert("a".into(), "b".into());
    bunches.replace("tulips", &PostParams::default(), &newer).await?;
    let Err(kube::Error::Api(status)) = bunches.replace("tulips", &PostParams::default(), &old).await else {
        return Err(anyhow!("an old version was taken"));
    };
    ensure!(status.code == 409 && status.reason == "Conflict", "{status:?}");
    Ok(())
}

/// Server-side apply: a conflict with the manager that set the field before, and the field with force.
async fn applied(bunches: &Api<Bunch>, vases: &Api<ConfigMap>) -> anyhow::Result<()> {
    let document =
        json!({"apiVersion": "kube.example.com/v1", "kind": "Bunch", "spec": {"flower": "tulip", "count": 5}});
    let apply = Patch::Apply(&document);
    let Err(kube::Error::Api(status)) = bunches.patch("tulips", &PatchParams::apply("gardener"), &apply).await else {
        return Err(anyhow!("applied over another's field"));
    };
    ensure!(status.code == 409 && status.message.contains(".spec.count"), "{status:?}");
    let after = bunches.patch("tulips", &PatchParams::apply("gardener").force(), &apply).await?;
    let owners = after.managed_fields();
    ensure!(owners.iter().any(|m| m.manager.as_deref() == Some("gardener")), "{owners:?}");
    eventually("applied", || is_made(bunches, vases, 5)).await
}

/// A paginated list contains everything once.
async fn paged(vases: &Api<ConfigMap>) -> anyhow::Result<()> {
    for i in 0..5 {
        let page =
            serde_json::from_value(json!({"metadata": {"name": format!("page-{i}"), "labels": {"page": "yes"}}}))?;
        vases.create(&PostParams::default(), &page).await?;
    }
    let mut names = Vec::new();
    let mut params = ListParams::default().labels("page=yes").limit(2);
    loop {
        let page = vases.list(&params).await?;
        names.extend(page.iter().map(ResourceExt::name_any));
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => params = params.continue_token(&token),
            None => break,
        }
    }
    ensure!(names == ["page-0", "page-1", "page-2", "page-3", "page-4"], "{names:?}");
    let metadata = vases.list_metadata(&ListParams::default().labels("page=yes")).await?;
    ensure!(metadata.items.len() == 5, "metadata alone: {}", metadata.items.len());
    Ok(())
}

/// The owned object matches the bunch, and the status does too.
async fn is_made(bunches: &Api<Bunch>, vases: &Api<ConfigMap>, count: i32) -> anyhow::Result<()> {
    let vase = vases.get("tulips").await?;
    let held = vase.data.as_ref().and_then(|data| data.get("count"));
    ensure!(held == Some(&count.to_string()), "the vase has {held:?}, not {count}");
    ensure!(vase.owner_references().iter().any(|o| o.kind == "Bunch" && o.controller == Some(true)), "no owner");
    let bunch = bunches.get_status("tulips").await?;
    let made = bunch.status.as_ref().map(|s| s.made);
    ensure!(made == Some(count), "status: {:?}", bunch.status);
    ensure!(bunch.finalizers() == [florist::FINALIZER], "{:?}", bunch.finalizers());
    Ok(())
}

/// Retries until there is no error.
async fn eventually<F: Future<Output = anyhow::Result<()>>>(what: &str, check: impl Fn() -> F) -> anyhow::Result<()> {
    let begun = std::time::Instant::now();
    loop {
        match check().await {
            Ok(()) => return Ok(()),
            Err(error) if begun.elapsed() > PATIENCE => return Err(error.context(what.to_owned())),
            Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    }
}
