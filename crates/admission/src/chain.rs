//! The chain of enabled plugins: they run in order, and the first rejection ends the request.
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use kelson_meta::Status;
use kelson_metrics::Histogram;

use serde_json::Value;

use crate::explain::{self, Changed};
use crate::metrics::Pass;
use crate::plugin::Passes;
use crate::{Attributes, Metrics, Notes, Operation, Plugin};

/// The maximum wait for a plugin to become ready, before the request fails.
pub const READY_WAIT: Duration = Duration::from_secs(10);
const READY_POLL: Duration = Duration::from_millis(100);

/// An enabled plugin with its metrics.
struct Link {
    plugin: Arc<dyn Plugin>,
    passes: Passes,
    /// Histograms by pass and operation, for requests that it did not reject; created when first needed.
    times: [[OnceLock<Histogram>; 4]; 2],
}

/// The enabled admission plugins in their order.
///
/// The API server runs [`Chain::admit`] on a decoded object, applies defaults and validates it, and then runs
/// [`Chain::validate`] before the object is stored. The first rejection ends the request. A clone is cheap; all clones
/// share the plugins and their metrics.
#[derive(Clone)]
pub struct Chain {
    links: Arc<[Link]>,
    metrics: Arc<Metrics>,
    steps: Arc<[[OnceLock<Histogram>; 4]; 2]>,
}

impl Chain {
    /// Creates a chain of plugins in this order, each with the passes it runs in.
    pub fn new(plugins: Vec<(Arc<dyn Plugin>, Passes)>, metrics: Arc<Metrics>) -> Self {
        let link = |(plugin, passes)| Link { plugin, passes, times: Default::default() };
        Self { links: plugins.into_iter().map(link).collect(), metrics, steps: Arc::default() }
    }
    /// Returns the plugins' names in order.
    pub fn names(&self) -> Vec<&'static str> {
        self.links.iter().map(|l| l.plugin.name()).collect()
    }
    /// Makes every plugin read its configuration files again.
    pub async fn reload(&self) {
        for reload in self.links.iter().filter_map(|l| l.plugin.reload()) {
            reload.await;
        }
    }
    /// Reports whether any plugin handles `operation`, so that a caller can skip decoding an object.
    pub fn handles(&self, operation: Operation) -> bool {
        self.links.iter().any(|l| l.plugin.handles(operation))
    }
    /// Runs the mutating pass. The caller applies defaults after it, validates, and then calls [`Chain::validate`]. If
    /// a webhook or a policy changed the object, a second round follows.
    pub async fn admit(&self, attributes: &mut Attributes<'_>, notes: &mut Notes) -> Result<(), Status> {
        let begun = Instant::now();
        let mut outcome = self.round(attributes, notes).await;
        if outcome.is_ok() && attributes.rounds.again {
            attributes.rounds.second = true;
            outcome = self.round(attributes, notes).await;
        }
        self.step(Pass::Admit, attributes.operation, begun, outcome)
    }

    async fn round(&self, attributes: &mut Attributes<'_>, notes: &mut Notes) -> Result<(), Status> {
        let operation = attributes.operation;
        let mut before = attributes.explained.then(|| attributes.object.clone());
        // The end of one plugin is the start of the next: reading the clock is much of the cost of most plugins.
        let mut begun = Instant::now();
        for link in self.links.iter().filter(|l| l.passes.has(Pass::Admit) && l.plugin.handles(operation)) {
            let plugin = link.plugin.as_ref();
            if !plugin.ready() {
                wait_ready(plugin, attributes).await?;
                begun = Instant::now();
            }
            let admitted = match plugin.as_async(attributes) {
                Some(waiting) => {
                    // It may send the object elsewhere.
                    attributes.make_whole();
                    waiting.admit(attributes, notes).await
                }
                None => plugin.admit(attributes, notes),
            };
            begun = link.count(&self.metrics, Pass::Admit, operation, begun, admitted.is_err());
            admitted.inspect_err(|_| notes.refused_by = Some(plugin.name()))?;
            let actors = std::mem::take(&mut notes.actors);
            if let Some(before) = before.as_mut().filter(|before| **before != attributes.object) {
                let (was, is) = (before.as_ref().unwrap_or(&Value::Null), attributes.new_object());
                let fields = explain::fields(was, is);
                before.clone_from(&attributes.object);
                notes.changes.push(Changed { plugin: plugin.name(), actors, fields });
                begun = Instant::now();
            }
        }
        Ok(())
    }

    /// Runs the validating pass.
    pub async fn validate(&self, attributes: &Attributes<'_>, notes: &mut Notes) -> Result<(), Status> {
        let begun = Instant::now();
        let outcome = self.judge(attributes, notes).await;
        self.step(Pass::Validate, attributes.operation, begun, outcome)
    }

    async fn judge(&self, attributes: &Attributes<'_>, notes: &mut Notes) -> Result<(), Status> {
        let operation = attributes.operation;
        let mut begun = Instant::now();
        for link in self.links.iter().filter(|l| l.passes.has(Pass::Validate) && l.plugin.handles(operation)) {
            let plugin = link.plugin.as_ref();
            if !plugin.ready() {
                wait_ready(plugin, attributes).await?;
                begun = Instant::now();
            }
            let admitted = match plugin.as_async(attributes) {
                Some(waiting) => waiting.validate(attributes, notes).await,
                None => plugin.validate(attributes, notes),
            };
            begun = link.count(&self.metrics, Pass::Validate, operation, begun, admitted.is_err());
            admitted.inspect_err(|_| notes.refused_by = Some(plugin.name()))?;
        }
        Ok(())
    }

    fn step<T>(
        &self,
        pass: Pass,
        operation: Operation,
        begun: Instant,
        outcome: Result<T, Status>,
    ) -> Result<T, Status> {
        let took = begun.elapsed().as_secs_f64();
        if outcome.is_err() {
            self.metrics.step(pass, operation, true).observe(took);
        } else {
            let step =
                self.steps[pass as usize][place(operation)].get_or_init(|| self.metrics.step(pass, operation, false));
            step.observe(took);
        }
        outcome
    }
}

/// Returns the index of an operation in tables.
const fn place(operation: Operation) -> usize {
    match operation {
        Operation::Create => 0,
        Operation::Update => 1,
        Operation::Delete => 2,
        Operation::Connect => 3,
    }
}

impl Link {
    /// Records the time of the plugin since `begun`, and returns the time at which it ended.
    fn count(&self, metrics: &Metrics, pass: Pass, operation: Operation, begun: Instant, rejected: bool) -> Instant {
        let ended = Instant::now();
        let took = ended.duration_since(begun).as_secs_f64();
        let name = self.plugin.name();
        if rejected {
            metrics.plugin(name, pass, operation, true).observe(took);
        } else {
            let times = &self.times[pass as usize][place(operation)];
            times.get_or_init(|| metrics.plugin(name, pass, operation, false)).observe(took);
        }
        ended
    }
}

async fn wait_ready(plugin: &dyn Plugin, attributes: &Attributes<'_>) -> Result<(), Status> {
    let ready = async {
        while !plugin.ready() {
            tokio::time::sleep(READY_POLL).await;
        }
    };
    match tokio::time::timeout(READY_WAIT, ready).await {
        Ok(()) => Ok(()),
        Err(_) if plugin.ready() => Ok(()),
        Err(_) => Err(attributes.forbidden("not yet ready to handle request")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plugins::always::{AlwaysAdmit, AlwaysDeny};
    use crate::plugins::tolerations::TaintNodesByCondition;
    use kelson_auth::UserInfo;
    use kelson_meta::{Gvk, Gvr};
    use serde_json::json;
    use std::sync::atomic::{AtomicBool, Ordering};

    struct Late(AtomicBool);
    impl Plugin for Late {
        fn name(&self) -> &'static str {
            "Late"
        }
        fn handles(&self, op: Operation) -> bool {
            op == Operation::Create
        }
        fn ready(&self) -> bool {
            self.0.load(Ordering::Relaxed)
        }
    }

    fn chain(plugins: Vec<Arc<dyn Plugin>>) -> Chain {
        let metrics = Arc::new(Metrics::new(&kelson_metrics::Registry::new()));
        Chain::new(plugins.into_iter().map(|p| (p, Passes::Both)).collect(), metrics)
    }

    async fn admit(plugins: Vec<Arc<dyn Plugin>>, operation: Operation) -> (Result<(), Status>, Notes) {
        let (kind, resource, user) = (Gvk::new("", "v1", "Node"), Gvr::new("", "v1", "nodes"), UserInfo::default());
        let mut attributes = Attributes {
            operation,
            kind: &kind,
            resource: &resource,
            subresource: "",
            namespace: "",
            name: "n",
            object: Some(json!({})),
            managed_fields: None,
            old_object: None,
            user: &user,
            dry_run: true,
            explained: true,
            options: Default::default(),
            rounds: Default::default(),
            deadline: None,
        };
        let mut notes = Notes::default();
        (chain(plugins).admit(&mut attributes, &mut notes).await, notes)
    }

    #[tokio::test(start_paused = true)]
    async fn waits_ten_seconds_for_readiness() {
        let begin = tokio::time::Instant::now();
        let late = Arc::new(Late(AtomicBool::new(false)));
        let (refused, _) = admit(vec![late.clone()], Operation::Create).await;
        assert_eq!(refused.unwrap_err().message, "nodes \"n\" is forbidden: not yet ready to handle request");
        assert_eq!(begin.elapsed(), READY_WAIT);
        assert!(admit(vec![late.clone()], Operation::Update).await.0.is_ok(), "not handled, not waited for");
        let begin = tokio::time::Instant::now();
        let becomes_ready = async {
            tokio::time::sleep(Duration::from_secs(3)).await;
            late.0.store(true, Ordering::Relaxed);
        };
        let (admitted, ()) = tokio::join!(admit(vec![late.clone()], Operation::Create), becomes_ready);
        assert!(admitted.0.is_ok());
        assert!(begin.elapsed() < Duration::from_secs(4), "no longer than it takes");
    }

    #[tokio::test]
    async fn a_dry_run_explains() {
        let plugins: Vec<Arc<dyn Plugin>> =
            vec![Arc::new(AlwaysAdmit), Arc::new(TaintNodesByCondition), Arc::new(AlwaysDeny), Arc::new(AlwaysAdmit)];
        let (refused, notes) = admit(plugins, Operation::Create).await;
        assert!(refused.is_err());
        assert_eq!(
            notes.explanations().collect::<Vec<_>>(),
            ["TaintNodesByCondition changed spec", "AlwaysDeny denied the request"]
        );
    }
}
