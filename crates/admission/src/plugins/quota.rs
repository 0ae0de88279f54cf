//! ResourceQuota: charges what a write adds to the quotas of its namespace before it is stored, and rejects it if it
//! exceeds one. A charge updates the quota's status with its resourceVersion: of two writers that need the last unit,
//! one gets a conflict and evaluates again. The quota controller releases what deletes give back.
use std::collections::HashSet;
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use kelson_auth::Objects;
use kelson_codec::strict::{Fields, Shape};
use kelson_meta::tree::{items, text};
use kelson_meta::{Clock, Status, SystemClock};
use kelson_quota::{
    Change, Charge, Evaluator, ExtendedResources, Limited, Operation as Write, PodLevel, Quota, Refusal, check,
};
use serde_json::Value;
use tokio::sync::Mutex;

use crate::configuration::Part;
use crate::dependencies::QuotaCharges;
use crate::plugin::AsyncPlugin;
use crate::{Attributes, Dependencies, Notes, Operation, Operations, Plugin};

/// The maximum wait for the turn of a write and its charges (upstream's).
const TIMEOUT: Duration = Duration::from_secs(10);
/// The maximum number of times a write is evaluated again because the quota was changed in between.
const RETRIES_MAX: usize = 16;
/// The number of locks that serialize writers of one namespace, so that they do not run into conflicts.
const TURNS: usize = 64;

const PART: Part = Part { group: "apiserver.config.k8s.io", versions: &["v1"], kinds: &["ResourceQuotaConfiguration"] };
/// The kind's name before it was moved.
const OLD: Part =
    Part { group: "resourcequota.admission.k8s.io", versions: &["v1beta1", "v1alpha1"], kinds: &["Configuration"] };
const FIELDS: Fields = &[(
    "limitedResources",
    Shape::List(&Shape::Object(&[
        ("apiGroup", Shape::Text),
        ("resource", Shape::Text),
        ("matchContains", Shape::List(&Shape::Text)),
        (
            "matchScopes",
            Shape::List(&Shape::Object(&[
                ("scopeName", Shape::Text),
                ("operator", Shape::Text),
                ("values", Shape::List(&Shape::Text)),
            ])),
        ),
    ])),
)];

/// The plugin; see the module.
pub struct ResourceQuota {
    objects: Arc<dyn Objects>,
    charges: Arc<dyn QuotaCharges>,
    limited: Vec<Limited>,
    /// Whether the feature PodLevelResources is enabled.
    pod_level: PodLevel,
    /// Whether the feature DRAExtendedResource is enabled, so that device claims also count by the names of extended
    /// resources.
    extended: bool,
    turns: [Mutex<()>; TURNS],
}

impl ResourceQuota {
    /// Creates the plugin, which reads quotas through the dependencies; the configuration may name resources that are
    /// limited by default.
    ///
    /// # Errors
    /// The configuration is invalid.
    pub fn new(d: &Dependencies, configuration: &Value) -> Result<Self, String> {
        let is_old = text(&configuration["apiVersion"]).starts_with(OLD.group);
        let part = if is_old { OLD } else { PART };
        part.check(configuration, FIELDS)?;
        let limited = items(&configuration["limitedResources"]);
        if let Some(i) = limited.iter().position(|entry| text(&entry["resource"]).is_empty()) {
            return Err(format!("limitedResources[{i}].resource: Required value"));
        }
        Ok(Self {
            objects: Arc::clone(&d.objects),
            charges: Arc::clone(&d.quotas),
            limited: limited.iter().map(Limited::read).collect(),
            pod_level: PodLevel::of(d.gates.enabled("PodLevelResources")),
            extended: d.gates.enabled("DRAExtendedResource"),
            turns: [const { Mutex::const_new(()) }; TURNS],
        })
    }

    fn turn(&self, namespace: &str) -> &Mutex<()> {
        let hash = BuildHasherDefault::<DefaultHasher>::default().hash_one(namespace);
        &self.turns[usize::try_from(hash % TURNS as u64).unwrap_or(0)]
    }

    /// Returns how the object is counted, if this write may change that.
    fn evaluator(&self, a: &Attributes<'_>) -> Option<Evaluator> {
        let write = match a.operation {
            Operation::Create => Write::Create,
            Operation::Update => Write::Update,
            Operation::Delete | Operation::Connect => return None,
        };
        if a.namespace.is_empty() || a.is("", "namespaces") {
            return None;
        }
        let evaluator = Evaluator::of(&a.resource.group, &a.resource.resource, self.pod_level)?;
        evaluator.handles(write, a.subresource, a.new_object(), a.stored()).then_some(evaluator)
    }

    /// Returns the extended resources of a device claim.
    fn extended_resources(&self, a: &Attributes<'_>) -> ExtendedResources {
        let trees = |resource, namespace| self.objects.trees("resource.k8s.io", resource, namespace);
        let classes = trees("deviceclasses", "");
        let claims = trees("resourceclaims", a.namespace);
        let pod = |name: &str| self.objects.tree("", "pods", a.namespace, name).map(|pod| Value::clone(&pod));
        ExtendedResources::of_classes(classes.iter().map(AsRef::as_ref), self.pod_level)
            .with_claims(claims.iter().map(AsRef::as_ref).chain([a.new_object()]), pod)
    }

    fn judge(&self, a: &Attributes<'_>, evaluator: &Evaluator, quotas: &[Quota]) -> Result<Vec<Charge>, Status> {
        let change = Change {
            evaluator,
            resource: (&a.resource.group, &a.resource.resource),
            subresource: a.subresource,
            new: a.new_object(),
            old: a.stored(),
            now: SystemClock.now(),
        };
        check(&change, quotas, &self.limited).map_err(|refusal| match refusal {
            Refusal::Forbidden(why) => a.forbidden(&why),
            Refusal::Internal(why) => Status::internal(why),
        })
    }

    async fn charge(&self, a: &Attributes<'_>, evaluator: &Evaluator) -> Result<(), Status> {
        let _turn = self.turn(a.namespace).lock().await;
        // Quotas that are already charged are not evaluated again.
        let mut charged: HashSet<String> = HashSet::new();
        for _ in 0..=RETRIES_MAX {
            let mut stored = self.objects.trees("", "resourcequotas", a.namespace);
            stored.retain(|q| !charged.contains(text(&q["metadata"]["name"])));
            let quotas: Vec<Quota> = stored.iter().map(|q| Quota::read(q)).collect();
            let charges = self.judge(a, evaluator, &quotas)?;
            if a.dry_run {
                return Ok(());
            }
            let mut all = true;
            for Charge { quota, used } in charges {
                let (name, seen) = (&quotas[quota].name, text(&stored[quota]["metadata"]["resourceVersion"]));
                if self.charges.charge(a.namespace, name, seen, &used.to_value()).await? {
                    charged.insert(name.clone());
                } else {
                    all = false;
                }
            }
            if all {
                return Ok(());
            }
        }
        let gr = kelson_meta::GroupResource::new("", "resourcequotas");
        Err(Status::conflict(&gr, a.namespace, Status::MODIFIED))
    }
}

impl Plugin for ResourceQuota {
    fn name(&self) -> &'static str {
        "ResourceQuota"
    }
    fn handles(&self, operation: Operation) -> bool {
        Operations::WRITE.contains(operation)
    }
    fn as_async(&self, a: &Attributes<'_>) -> Option<&dyn AsyncPlugin> {
        self.evaluator(a)?;
        // Most namespaces have no quota, and nothing to wait for.
        let judged = !self.limited.is_empty() || !self.objects.trees("", "resourcequotas", a.namespace).is_empty();
        judged.then_some(self)
    }
}

#[async_trait]
impl AsyncPlugin for ResourceQuota {
    async fn validate(&self, a: &Attributes<'_>, _: &mut Notes) -> Result<(), Status> {
        let Some(mut evaluator) = self.evaluator(a) else { return Ok(()) };
        if let Evaluator::DeviceClaims(extended) = &mut evaluator
            && self.extended
        {
            *extended = Arc::new(self.extended_resources(a));
        }
        match tokio::time::timeout(TIMEOUT, self.charge(a, &evaluator)).await {
            Ok(judged) => judged,
            Err(_) => Err(Status::internal("resource quota evaluation timed out")),
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::future::join_all;
    use kelson_auth::UserInfo;
    use kelson_meta::{Gvk, Gvr};
    use serde_json::json;

    use super::*;
    use crate::testing::{dependencies_of, world};

    fn quota(hard: Value, used: Value) -> Value {
        json!({"metadata": {"name": "q", "namespace": "n", "resourceVersion": "1"}, "spec": {"hard": hard},
            "status": {"hard": hard, "used": used}})
    }

    async fn create(plugin: &ResourceQuota, resource: &Gvr, object: Value, dry_run: bool) -> Result<(), String> {
        let (kind, user) = (Gvk::new("", "v1", "X"), UserInfo::new("u", Vec::<String>::new()));
        let a = Attributes {
            operation: Operation::Create,
            kind: &kind,
            resource,
            subresource: "",
            namespace: "n",
            name: "x",
            object: Some(object),
            managed_fields: None,
            old_object: None,
            user: &user,
            dry_run,
            explained: false,
            options: Default::default(),
            rounds: Default::default(),
            deadline: None,
        };
        match plugin.as_async(&a) {
            Some(waiting) => waiting.validate(&a, &mut Notes::default()).await.map_err(|s| s.message),
            None => Ok(()),
        }
    }

    #[tokio::test]
    async fn sixty_four_writers_never_pass_a_quota() {
        for limit in [1, 10, 63] {
            let stored = quota(
                json!({"count/widgets.example.com": limit.to_string()}),
                json!({"count/widgets.example.com": "0"}),
            );
            let world = world(&[("resourcequotas/n/q", stored)]);
            let plugin = ResourceQuota::new(&dependencies_of(Arc::clone(&world)), &Value::Null).unwrap();
            let widgets = Gvr::new("example.com", "v1", "widgets");
            let all = join_all((0..64).map(|_| create(&plugin, &widgets, json!({}), false))).await;
            assert_eq!(all.iter().filter(|r| r.is_ok()).count(), limit);
            let used = world.0.lock()["resourcequotas/n/q"]["status"]["used"].clone();
            assert_eq!(used, json!({"count/widgets.example.com": limit.to_string()}));
            let refusal = all.into_iter().find_map(Result::err).unwrap();
            assert_eq!(
                refusal,
                format!(
                    "widgets.example.com \"x\" is forbidden: exceeded quota: q, requested: count/widgets.example.com=1, \
                     used: count/widgets.example.com={limit}, limited: count/widgets.example.com={limit}"
                )
            );
        }
    }

    /// Rounds of the test below; each begins where the one before ended.
    const ROUNDS: usize = 1000;

    #[tokio::test]
    async fn round_after_round_writers_never_pass_a_quota_while_others_write_to_it() {
        let stored = quota(json!({"count/widgets.example.com": "40"}), json!({"count/widgets.example.com": "0"}));
        let world = world(&[("resourcequotas/n/q", stored)]);
        let plugin = ResourceQuota::new(&dependencies_of(Arc::clone(&world)), &Value::Null).unwrap();
        let widgets = Gvr::new("example.com", "v1", "widgets");
        let used = || {
            let all = world.0.lock();
            all["resourcequotas/n/q"]["status"]["used"]["count/widgets.example.com"]
                .as_str()
                .unwrap()
                .parse::<usize>()
                .unwrap()
        };
        let mut held = 0;
        for round in 0..ROUNDS {
            let writers = async { join_all((0..64).map(|_| create(&plugin, &widgets, json!({}), false))).await };
            // Meanwhile the controller counts the existing objects, and so takes back charges it cannot know of: its
            // write must succeed or fail as a whole, and the writers must see it.
            let controller = async {
                for _ in 0..round % 5 {
                    tokio::task::yield_now().await;
                    let mut all = world.0.lock();
                    let quota = all.get_mut("resourcequotas/n/q").unwrap();
                    let next = quota["metadata"]["resourceVersion"].as_str().unwrap().parse::<u64>().unwrap() + 1;
                    quota["metadata"]["resourceVersion"] = next.to_string().into();
                }
            };
            let (outcomes, ()) = tokio::join!(writers, controller);
            held += outcomes.iter().filter(|o| o.is_ok()).count();
            assert!(held <= 40, "round {round}: {held} are held");
            assert_eq!(used(), held, "round {round}: exact after the dust has settled");
            // Some objects are deleted, and the controller counts again.
            held -= (round * 7) % (held + 1);
            let mut all = world.0.lock();
            let quota = all.get_mut("resourcequotas/n/q").unwrap();
            quota["metadata"]["resourceVersion"] = (1_000_000 * (round + 1)).to_string().into();
            quota["status"]["used"] = json!({"count/widgets.example.com": held.to_string()});
        }
    }

    #[tokio::test]
    async fn resources_of_whole_pods_are_behind_their_gate() {
        let off = "PodLevelResources=false,InPlacePodLevelResourcesVerticalScaling=false";
        for (gates, want) in [("", Ok(())), (off, Err("failed quota: q: must specify cpu for: a"))] {
            let d = crate::testing::gated(
                &[("resourcequotas/n/q", quota(json!({"cpu": "2"}), json!({"cpu": "0"})))],
                gates,
            );
            let plugin = ResourceQuota::new(&d, &Value::Null).unwrap();
            let pod = json!({"spec": {"containers": [{"name": "a"}], "resources": {"requests": {"cpu": "1"}}}});
            let reported = create(&plugin, &Gvr::new("", "v1", "pods"), pod, true).await;
            match want {
                Ok(()) => assert_eq!(reported, Ok(())),
                Err(want) => assert!(reported.as_ref().is_err_and(|e| e.ends_with(want)), "{reported:?}"),
            }
        }
    }

    #[tokio::test]
    async fn a_dry_run_is_checked_and_not_charged() {
        let world = world(&[("resourcequotas/n/q", quota(json!({"configmaps": "1"}), json!({"configmaps": "0"})))]);
        let plugin = ResourceQuota::new(&dependencies_of(Arc::clone(&world)), &Value::Null).unwrap();
        let maps = Gvr::new("", "v1", "configmaps");
        for _ in 0..3 {
            create(&plugin, &maps, json!({}), true).await.unwrap();
        }
        create(&plugin, &maps, json!({}), false).await.unwrap();
        assert!(create(&plugin, &maps, json!({}), true).await.unwrap_err().contains("exceeded quota: q"));
        create(&plugin, &Gvr::new("", "v1", "secrets"), json!({}), false).await.unwrap();
        create(&plugin, &Gvr::new("", "v1", "events"), json!({}), false).await.unwrap();
    }

    #[test]
    fn configurations() {
        let d = dependencies_of(world(&[]));
        assert!(ResourceQuota::new(&d, &json!({"kind": "Other"})).is_err());
        let limited = json!({"kind": "ResourceQuotaConfiguration", "limitedResources": [{"resource": "pods", "matchContains": ["cpu"]}]});
        assert_eq!(ResourceQuota::new(&d, &limited).unwrap().limited.len(), 1);
    }
}
