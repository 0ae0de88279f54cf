//! Runs one provider: first the cache, then a run that all lookups that could use its answer share. A waiting lookup
//! may be dropped; a run without waiters is stopped; when a run is stopped from outside, the remaining waiters start
//! another. No lock is held while a plugin runs. A failure concerns the image that the plugin was called for: it is
//! shared by those who wait for that image, and remembered only as a back-off. A lookup that waited for another image
//! gets a separate run.
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use kelson_meta::{Backoff, Clock};
use kelson_tasks::{OnPanic, Tasks};
use parking_lot::Mutex;
use tokio::sync::{Semaphore, watch};
use tokio::task::AbortHandle;
use tokio::time::Instant;

use super::cache::{Answer, Cache, key, later};
use super::exec::Executor;
use super::fault::{FaultReason, PluginError, PluginFault};
use super::identity::{Identity, PodIdentity, ServiceAccounts, identify};
use super::protocol::{KeyType, Request, Response};
use crate::config::{CacheType, ProviderConfig};
use crate::metrics::Metrics;
use crate::reference;

/// First wait after a failure.
pub const BACKOFF_MIN: Duration = Duration::from_secs(1);
/// Longest wait after failures; short, so that a mended plugin is soon noticed.
pub const BACKOFF_MAX: Duration = Duration::from_secs(60);
/// Failures remembered per provider.
const FAILURES_MAX: usize = 1000;
/// The maximum number of runs that one lookup may wait for without getting an answer.
const ROUNDS_MAX: usize = 16;

/// The shared dependencies of providers.
pub(crate) struct Effects {
    pub executor: Arc<dyn Executor>,
    pub accounts: Arc<dyn ServiceAccounts>,
    pub clock: Arc<dyn Clock>,
    pub metrics: Arc<Metrics>,
    /// The runs under way. Each belongs to those who wait for it and ends with the last of them.
    pub tasks: Tasks,
    /// Processes at once, over all providers.
    pub slots: Semaphore,
}

/// A provider with its cache and its runs under way.
pub(crate) struct Provider {
    pub config: ProviderConfig,
    state: Mutex<State>,
}

struct State {
    cache: Cache,
    flights: HashMap<Vec<u8>, Flight>,
    next_flight: u64,
    /// Reach of the last answer; before the first, the registry is a good guess.
    key_type: Option<KeyType>,
    /// Whether the last answer could be kept.
    kept: bool,
    failures: HashMap<Vec<u8>, Failure>,
}

struct Flight {
    number: u64,
    waiters: usize,
    landed: watch::Receiver<Option<Outcome>>,
    task: AbortHandle,
}

struct Failure {
    fault: Arc<PluginFault>,
    delay: Duration,
    until: Instant,
}

/// The result of a run.
#[derive(Clone)]
struct Outcome {
    result: Result<Arc<Answer>, Arc<PluginFault>>,
    /// Whether the answer is in the cache, so that others of the same identity may have it.
    kept: bool,
    image: String,
    pod_uid: String,
    took: Duration,
}

/// The lookups with which a run is shared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Sharing {
    /// All that the last answer's scope included.
    Reach,
    /// Those for the same image: a run for another one has failed.
    Image,
    /// Only those of the same pod: a run for another one did not apply.
    Pod,
}

/// An answer, with the identity it was given for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Provided {
    /// Name of the provider.
    pub plugin: String,
    /// The plugin's answer, shared with all that waited for the run.
    pub answer: Arc<Answer>,
    /// The service account whose token was used, if any.
    pub service_account: Option<super::identity::Coordinates>,
    /// Whether it came from the cache.
    pub cached: bool,
}

impl Provider {
    pub(crate) fn new(config: ProviderConfig, now: Instant) -> Self {
        let state = State {
            cache: Cache::new(now),
            flights: HashMap::new(),
            next_flight: 0,
            key_type: None,
            kept: true,
            failures: HashMap::new(),
        };
        Self { config, state: Mutex::new(state) }
    }

    /// Returns the cached answer of a provider without an identity; never waits.
    pub(crate) fn kept(&self, image: &str) -> Option<Provided> {
        if self.config.token_attributes.is_some() {
            return None;
        }
        let answer = self.state.lock().cache.get(Instant::now(), &[], image)?;
        Some(Provided { plugin: self.config.name.clone(), answer, service_account: None, cached: true })
    }

    /// Credentials for an image that matches; `Ok(None)`: the provider is not for this pod.
    pub(crate) async fn provide(
        self: &Arc<Self>,
        effects: &Arc<Effects>,
        image: &str,
        pod: &PodIdentity,
    ) -> Result<Option<Provided>, PluginError> {
        let attributes = self.config.token_attributes.as_ref();
        let identity = match identify(attributes, effects.accounts.as_ref(), pod).await {
            Ok(Some(identity)) => identity,
            Ok(None) => return Ok(None),
            Err(fault) => return Err(self.error(image, Arc::new(fault), Duration::ZERO, true)),
        };
        let provided = |answer, cached| {
            let service_account = identity.request.as_ref().map(|r| r.service_account.clone());
            Some(Provided { plugin: self.config.name.clone(), answer, service_account, cached })
        };
        let mut sharing = Sharing::Reach;
        for _ in 0..ROUNDS_MAX {
            let waiter = match self.enter(effects, image, pod, &identity, sharing)? {
                Entered::Cached(answer) => return Ok(provided(answer, true)),
                Entered::Waiting(waiter) => waiter,
            };
            let Some(outcome) = waiter.landed().await else { continue };
            let own = outcome.pod_uid == pod.uid;
            match outcome.result {
                Ok(answer) => {
                    let reaches = match answer.key_type {
                        KeyType::Image => outcome.image == image,
                        KeyType::Registry => reference::registry(&outcome.image) == reference::registry(image),
                        KeyType::Global => true,
                    };
                    let allowed = identity.request.is_none() || outcome.kept || own;
                    if reaches && allowed {
                        return Ok(provided(answer, false));
                    }
                    if !allowed {
                        sharing = Sharing::Pod;
                    }
                }
                Err(fault) if fault.reason.of_one_pod() && !own => sharing = Sharing::Pod,
                Err(_) if outcome.image != image => sharing = sharing.max(Sharing::Image),
                Err(fault) => return Err(self.error(image, fault, outcome.took, true)),
            }
        }
        let fault = PluginFault::new(FaultReason::Cancelled, "was interrupted repeatedly", "");
        Err(self.error(image, Arc::new(fault), Duration::ZERO, true))
    }

    fn error(&self, image: &str, fault: Arc<PluginFault>, took: Duration, fresh: bool) -> PluginError {
        PluginError { plugin: self.config.name.clone(), image: image.to_owned(), fault, took, fresh }
    }

    /// Looks in the cache and at past failures, else joins the run that fits or begins one; in one step.
    fn enter(
        self: &Arc<Self>,
        effects: &Arc<Effects>,
        image: &str,
        pod: &PodIdentity,
        identity: &Identity,
        sharing: Sharing,
    ) -> Result<Entered, PluginError> {
        let now = Instant::now();
        let mut state = self.state.lock();
        if let Some(answer) = state.cache.get(now, &identity.key, image) {
            return Ok(Entered::Cached(answer));
        }
        for pod_uid in ["", &pod.uid] {
            if let Some(f) = state.failures.get(&failure_key(identity, image, pod_uid)).filter(|f| now < f.until) {
                let left = f.until.duration_since(now).as_secs_f64();
                let message = format!("next try in {left:.0}s, after: {}", f.fault.message);
                let fault = PluginFault::new(FaultReason::BackOff, message, f.fault.stderr.clone());
                return Err(self.error(image, Arc::new(fault), Duration::ZERO, false));
            }
        }
        let key = state.flight_key(image, pod, identity, sharing);
        if let Some(flight) = state.flights.get_mut(&key) {
            flight.waiters += 1;
            let (number, landed) = (flight.number, flight.landed.clone());
            return Ok(Entered::Waiting(Waiter { provider: self.clone(), key, number, landed }));
        }
        state.next_flight += 1;
        let number = state.next_flight;
        let (done, landed) = watch::channel(None);
        let flying = Flying {
            provider: self.clone(),
            effects: effects.clone(),
            key: key.clone(),
            number,
            image: image.to_owned(),
            pod_uid: pod.uid.clone(),
            identity: identity.clone(),
            done,
        };
        let task = effects.tasks.spawn("credential-plugin", OnPanic::Contain, flying.fly());
        state.flights.insert(key.clone(), Flight { number, waiters: 1, landed: landed.clone(), task });
        Ok(Entered::Waiting(Waiter { provider: self.clone(), key, number, landed }))
    }
}

impl State {
    /// By what runs are shared: as far as the last answer reached, unless less is shared.
    fn flight_key(&self, image: &str, pod: &PodIdentity, identity: &Identity, sharing: Sharing) -> Vec<u8> {
        let mut out = Vec::new();
        let by_pod = sharing == Sharing::Pod || (identity.request.is_some() && !self.kept);
        let key_type = match sharing {
            Sharing::Reach if !by_pod => self.key_type.unwrap_or(KeyType::Registry),
            _ => KeyType::Image,
        };
        key(&mut out, &identity.key, key_type, image);
        if by_pod && identity.request.is_some() {
            out.push(0);
            out.extend_from_slice(pod.uid.as_bytes());
        }
        out
    }

    fn remember(&mut self, key: Vec<u8>, fault: Arc<PluginFault>, now: Instant) {
        if self.failures.len() >= FAILURES_MAX {
            self.failures.retain(|_, f| now < f.until);
        }
        if self.failures.len() >= FAILURES_MAX {
            self.failures.clear();
        }
        // Forgotten after it was over for as long as it may last.
        let before = self.failures.get(&key).filter(|f| now < later(f.until, BACKOFF_MAX));
        let delay = Backoff::new(BACKOFF_MIN, BACKOFF_MAX).after(before.map(|f| f.delay));
        self.failures.insert(key, Failure { fault, delay, until: later(now, delay) });
    }
}

fn failure_key(identity: &Identity, image: &str, pod_uid: &str) -> Vec<u8> {
    let mut out = Vec::new();
    key(&mut out, &identity.key, KeyType::Image, image);
    out.push(0);
    out.extend_from_slice(pod_uid.as_bytes());
    out
}

enum Entered {
    Cached(Arc<Answer>),
    Waiting(Waiter),
}

/// A place in a run; leaving the last one ends it.
struct Waiter {
    provider: Arc<Provider>,
    key: Vec<u8>,
    number: u64,
    landed: watch::Receiver<Option<Outcome>>,
}

impl Waiter {
    /// Returns the result of the run; `None` when it was stopped from outside.
    async fn landed(mut self) -> Option<Outcome> {
        self.landed.wait_for(Option::is_some).await.ok()?.clone()
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        let mut state = self.provider.state.lock();
        let Some(flight) = state.flights.get_mut(&self.key).filter(|f| f.number == self.number) else { return };
        flight.waiters -= 1;
        if flight.waiters == 0 {
            let flight = state.flights.remove(&self.key);
            drop(state);
            if let Some(f) = flight {
                f.task.abort();
            }
        }
    }
}

/// A run in progress, in a separate task.
struct Flying {
    provider: Arc<Provider>,
    effects: Arc<Effects>,
    key: Vec<u8>,
    number: u64,
    image: String,
    pod_uid: String,
    identity: Identity,
    done: watch::Sender<Option<Outcome>>,
}

impl Drop for Flying {
    /// In any case, also after a panic in an executor, no lookup joins it any more.
    fn drop(&mut self) {
        let mut state = self.provider.state.lock();
        if state.flights.get(&self.key).is_some_and(|f| f.number == self.number) {
            state.flights.remove(&self.key);
        }
    }
}

impl Flying {
    async fn fly(self) {
        let outcome = self.attempt().await;
        let done = self.done.clone();
        // The cache has the answer before the run is removed from the table, so that no second run starts in between.
        drop(self);
        done.send_replace(Some(outcome));
    }

    async fn attempt(&self) -> Outcome {
        // Closed never: the semaphore lives as long as the effects. Held until the answer is in the cache, so that who gets
        // it next finds the answer there.
        let metrics = &self.effects.metrics;
        let waiting = metrics.process("waiting");
        let _slot = self.effects.slots.acquire().await;
        drop(waiting);
        let _running = metrics.process("running");
        let now = Instant::now();
        let again = self.provider.state.lock().cache.get(now, &self.identity.key, &self.image);
        if let Some(answer) = again {
            return self.outcome(Ok(answer), true, Duration::ZERO);
        }
        let (token, token_expires) = match &self.identity.request {
            None => (None, None),
            Some(request) => match self.effects.accounts.token(request).await {
                Ok(t) => (Some(t.token), t.expires),
                Err(e) => {
                    let why = format!("failed to get service account token: {e}");
                    return self.failed(PluginFault::new(FaultReason::Token, why, ""), Duration::ZERO);
                }
            },
        };
        let request = Request { image: self.image.clone(), token, annotations: self.identity.annotations.clone() };
        let config = &self.provider.config;
        let began = Instant::now();
        let answered = self.effects.executor.run(config, &request).await;
        let took = began.elapsed();
        let answered = answered.and_then(|r| self.refuse_echo(&request, r));
        self.effects.metrics.ran(&config.name, took, answered.is_ok());
        match answered {
            Ok(response) => self.succeeded(response, token_expires, took),
            Err(fault) => self.failed(fault, took),
        }
    }

    /// A token that comes back as a password is the pod's: it must not be kept for the whole service account.
    fn refuse_echo(&self, request: &Request, response: Response) -> Result<Response, PluginFault> {
        let shared = self.provider.config.token_attributes.as_ref().is_some_and(|t| t.cache_type != CacheType::Token);
        match &request.token {
            Some(token) if shared && response.auth.values().any(|l| &l.password == token) => Err(PluginFault::new(
                FaultReason::EchoedToken,
                "credential provider plugin returned the service account token as the password which is not allowed when service account cache type is not set to 'Token'",
                "",
            )),
            _ => Ok(response),
        }
    }

    fn succeeded(&self, response: Response, token_expires: Option<Timestamp>, took: Duration) -> Outcome {
        let config = &self.provider.config;
        let Response { key_type, cache_duration, auth } = response;
        let answer = Arc::new(Answer { key_type, cache_duration, logins: auth.into_iter().collect() });
        let now = Instant::now();
        let mut expires = later(now, cache_duration.unwrap_or(config.default_cache_duration));
        let by_token = config.token_attributes.as_ref().is_some_and(|t| t.cache_type == CacheType::Token);
        if let (true, Some(end)) = (by_token, token_expires) {
            // A token's expiry is in wall-clock time.
            let left = Duration::try_from(end.duration_since(self.effects.clock.now())).unwrap_or_default();
            expires = expires.min(later(now, left));
        }
        let kept = expires > now;
        let mut state = self.provider.state.lock();
        state.key_type = Some(answer.key_type);
        state.kept = kept;
        for pod_uid in ["", &self.pod_uid] {
            state.failures.remove(&failure_key(&self.identity, &self.image, pod_uid));
        }
        if kept {
            state.cache.put(now, &self.identity.key, &self.image, answer.clone(), expires);
        }
        drop(state);
        self.outcome(Ok(answer), kept, took)
    }

    fn failed(&self, fault: PluginFault, took: Duration) -> Outcome {
        let fault = Arc::new(fault);
        let pod_uid = if fault.reason.of_one_pod() { self.pod_uid.as_str() } else { "" };
        let key = failure_key(&self.identity, &self.image, pod_uid);
        self.provider.state.lock().remember(key, fault.clone(), Instant::now());
        self.outcome(Err(fault), false, took)
    }

    fn outcome(&self, result: Result<Arc<Answer>, Arc<PluginFault>>, kept: bool, took: Duration) -> Outcome {
        Outcome { result, kept, image: self.image.clone(), pod_uid: self.pod_uid.clone(), took }
    }
}
