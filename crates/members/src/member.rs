//! A running member.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use kelson_etcd::endpoint::ClientTlsFiles;
use kelson_etcd::proto;
use kelson_metrics::Registry;
use kelson_tasks::FILES;
use parking_lot::Mutex;
use tokio::sync::broadcast;

use crate::admit::{Admitter, Change, InitialCluster};
use crate::decide::{label, standing_without};
use crate::error::{AdmitError, MemberError};
use crate::event::{Events, MemberEvent};
use crate::joiner::Joiner;
use crate::layout::Layout;
use crate::local::{Local, client_url, reason};
use crate::metrics::Metrics;
use crate::options::MemberOptions;
use crate::peer::Peers;
use crate::pki::Certificates;
use crate::program::Program;
use crate::settings::{Phase, Settings};
use crate::settle::{Start, settle};
use crate::steward::Steward;
use crate::supervise::{SharedSettings, Supervised};
use crate::upkeep::Upkeep;

/// The interval at which a member that starts is asked.
const ASK: Duration = Duration::from_millis(50);
/// The interval of log lines about what a start waits for.
const REPORT: Duration = Duration::from_secs(10);
/// How long a member that stops tries to hand its leadership over.
const HAND_OVER_MAX: Duration = Duration::from_secs(3);
/// How long a member that stops looks for the others.
const LOOK_MAX: Duration = Duration::from_secs(4);

/// A member of an etcd cluster that this process started and supervises. It runs until [`Member::shutdown`]; if this process
/// ends without that, the system kills it.
pub struct Member {
    layout: Layout,
    settings: SharedSettings,
    local: Local,
    supervised: Supervised,
    admitter: Admitter,
    /// One admission at a time.
    turn: tokio::sync::Mutex<()>,
    events: Events,
    metrics: Arc<Metrics>,
}

impl Member {
    /// Starts the member and waits until it can serve the API server: until it has a leader, however long that takes, unless
    /// it cannot run. A quorum of members must be started for that.
    ///
    /// # Errors
    /// There is no supported etcd, flags contradict the settings, or etcd ends again and again.
    pub async fn start(options: MemberOptions, start: Start) -> Result<Self, MemberError> {
        let layout = options.layout();
        let program = Program::find(&options).await?;
        let (files, given) = (layout.clone(), options.clone());
        let now = options.clock.now();
        let settings = FILES.run(move || {
            let settings = settle(&files, &given, &start)?;
            let certificates = Certificates::new(&files, &settings.name, &settings.peer_url);
            certificates.ensure(settings.phase == Phase::New, now)?;
            settings.write(&files)?;
            Ok::<_, MemberError>(settings)
        });
        let settings = settings.await??;
        program.check_step(settings.cluster_minor)?;
        tracing::info!(
            path = %program.path.display(), version = %program.version, name = settings.name, peer = settings.peer_url,
            "starting the etcd member"
        );
        let local = Local::new(&layout, settings.client_port).await?;
        let name = settings.name.clone();
        let settings = Arc::new(Mutex::new(settings));
        let tasks = options.tasks.child("etcd-member");
        let version = program.version;
        let supervised = Supervised::start(program, &layout, &settings, options.quota_bytes, &tasks).await?;
        let admitter = Admitter { own_name: name, local: local.clone(), peers: Peers::new(&layout) };
        let (events, metrics) = (Events::new(), Arc::new(Metrics::new()));
        let member = Self {
            admitter,
            supervised,
            local,
            settings,
            layout,
            turn: tokio::sync::Mutex::default(),
            events,
            metrics,
        };
        let ready = member.until_ready().await.and_then(|()| member.supervised.started(&member.layout));
        if let Err(error) = ready {
            member.supervised.stop().await;
            return Err(error);
        }
        member.settled(version.minor).await?;
        let steward = Steward::new(member.local.clone(), member.events.clone());
        let mut steward = Some(steward);
        let (local, events) = (member.local.clone(), member.events.clone());
        tasks.supervise("etcd-steward", move || {
            let next = steward.take().unwrap_or_else(|| Steward::new(local.clone(), events.clone()));
            next.run()
        });
        member.keep(&options, &tasks);
        Ok(member)
    }

    /// Starts the tasks that look after certificates, space and timeouts.
    fn keep(&self, options: &MemberOptions, tasks: &kelson_tasks::Tasks) {
        let upkeep = Upkeep {
            layout: self.layout.clone(),
            settings: Arc::clone(&self.settings),
            local: self.local.clone(),
            peers: self.admitter.peers.clone(),
            events: self.events.clone(),
            metrics: Arc::clone(&self.metrics),
            clock: Arc::clone(&options.clock),
            reports: self.supervised.reports(),
        };
        let upkeep = Arc::new(upkeep);
        tasks.supervise("etcd-upkeep", move || Arc::clone(&upkeep).run());
    }

    /// Waits until the member is a voter and knows a leader.
    async fn until_ready(&self) -> Result<(), MemberError> {
        let mut reports = self.supervised.reports();
        let failed = async {
            loop {
                if let Some(failure) = reports.borrow_and_update().start_failure(&self.layout) {
                    return failure;
                }
                if reports.changed().await.is_err() {
                    return MemberError::Ended { what: "is not supervised".to_owned(), tail: String::new() };
                }
            }
        };
        let ready = async {
            let mut next_report = tokio::time::Instant::now() + REPORT;
            loop {
                let status = self.local.status().await;
                if status.as_ref().is_ok_and(|status| status.leader != 0 && !status.is_learner) {
                    return;
                }
                if tokio::time::Instant::now() >= next_report {
                    next_report = tokio::time::Instant::now() + REPORT;
                    self.report_wait(status.ok()).await;
                }
                tokio::time::sleep(ASK).await;
            }
        };
        tokio::select! {
            () = ready => Ok(()),
            failure = failed => Err(failure),
        }
    }

    /// Logs what the start waits for.
    async fn report_wait(&self, status: Option<proto::StatusResponse>) {
        match status {
            Some(status) if status.is_learner => {
                tracing::info!("the etcd member copies the data of the cluster; waiting until it is a voter");
            }
            _ => {
                let url = self.settings.lock().peer_url.clone();
                let members = self.admitter.peers.members(&url).await.unwrap_or_default();
                let running = self.running(&members).await;
                let missing: Vec<&str> = members.iter().filter(|m| !running.contains(&m.id)).map(label).collect();
                tracing::warn!(
                    missing = missing.join(", "),
                    "etcd has no leader yet; waiting for a quorum of its members"
                );
            }
        }
    }

    /// Notes in the settings that etcd has its list of members.
    async fn settled(&self, minor: u32) -> Result<(), MemberError> {
        let settings = {
            let mut settings = self.settings.lock();
            settings.phase = Phase::Member;
            settings.cluster_minor.get_or_insert(minor);
            settings.clone()
        };
        let layout = self.layout.clone();
        FILES.run(move || settings.write(&layout)).await?
    }

    /// Returns the name of the member.
    pub fn name(&self) -> &str {
        &self.admitter.own_name
    }

    /// Returns the minor version of the cluster, 5 for 3.5, if it is known.
    pub fn cluster_minor(&self) -> Option<u32> {
        self.settings.lock().cluster_minor
    }

    /// Returns the addresses for the API server, as of `--etcd-servers`.
    pub fn servers(&self) -> Vec<String> {
        vec![client_url(self.settings.lock().client_port)]
    }

    /// Returns the CA, the client certificate and its key.
    pub fn tls(&self) -> ClientTlsFiles {
        self.layout.client_tls()
    }

    /// Returns the metrics of the member, `kelson_etcd_member_…`.
    pub fn metrics(&self) -> Registry {
        self.metrics.registry.clone()
    }

    /// Returns what happens to members from now on.
    pub fn events(&self) -> broadcast::Receiver<MemberEvent> {
        self.events.subscribe()
    }

    /// Returns why the member cannot be written now, if so: a quota that is used up, or damaged data. For a health check.
    pub fn fault(&self) -> Option<String> {
        self.metrics.fault()
    }

    /// Admits a server that has a [`Joiner`] at these peer URLs: dials them, removes the lost member with the same name if
    /// there is one, and adds a learner. The answer to a repeated request is the same.
    ///
    /// # Errors
    /// The URL does not lead to the joining server, its name or URL is in use, or it must wait:
    /// [`AdmitError::is_temporary`].
    pub async fn admit(&self, name: &str, peer_urls: &[String]) -> Result<InitialCluster, AdmitError> {
        let _turn = self.turn.lock().await;
        let changed = |change| match change {
            Change::Added(id) => {
                tracing::info!(member = name, id = format!("{id:x}"), "added a learner to etcd");
                self.events.send(MemberEvent::Joined { name: name.to_owned() });
            }
            Change::Replaced(id) => {
                tracing::warn!(
                    member = name,
                    id = format!("{id:x}"),
                    "removed a lost etcd member whose server joins again"
                );
                self.events.send(MemberEvent::Replaced { name: name.to_owned() });
            }
        };
        self.admitter.admit(name, peer_urls, changed).await
    }

    /// Prepares a stop while the API server still works: warns if the cluster has no quorum without this member, and hands
    /// leadership over.
    pub async fn hand_over(&self) {
        if tokio::time::timeout(LOOK_MAX, self.leave_in_order()).await.is_err() {
            tracing::warn!("looking at the other etcd members timed out; stopping this one");
        }
    }

    /// Ends etcd. Stores on the member must be closed before.
    pub async fn shutdown(&self) {
        self.supervised.stop().await;
        tracing::info!("stopped the etcd member");
    }

    async fn leave_in_order(&self) {
        let (Ok(status), Ok(members)) = (self.local.status().await, self.local.members(false).await) else { return };
        if members.iter().filter(|member| !member.is_learner).count() < 2 {
            return;
        }
        let own = status.header.map_or(0, |header| header.member_id);
        let running = self.running(&members).await;
        let standing = standing_without(&members, &running, own);
        if !standing.has_quorum() {
            tracing::warn!(
                missing = standing.missing.join(", "),
                running = standing.up,
                voters = standing.voters,
                "etcd has no quorum without this member: the API cannot be written until a missing member starts"
            );
            return;
        }
        let to = members.iter().find(|m| !m.is_learner && m.id != own && running.contains(&m.id));
        if let Some(to) = to.filter(|_| status.leader == own) {
            match tokio::time::timeout(HAND_OVER_MAX, self.local.move_leader(to.id)).await {
                Ok(Ok(())) => tracing::info!(to = label(to), "handed the leadership of etcd over"),
                Ok(Err(e)) => {
                    tracing::warn!(to = label(to), error = reason(&e), "handing the leadership of etcd over failed")
                }
                Err(_) => tracing::warn!(to = label(to), "handing the leadership of etcd over timed out"),
            }
        }
    }

    /// Returns the IDs of members that answer at their peer URLs.
    async fn running(&self, members: &[proto::Member]) -> HashSet<u64> {
        running(&self.admitter.peers, members).await
    }
}

/// Returns the IDs of members that answer at their peer URLs; all are asked at once.
pub(crate) async fn running(peers: &Peers, members: &[proto::Member]) -> HashSet<u64> {
    let asked = members.iter().map(|member| async { (member.id, peers.is_running(&member.peer_urls).await) });
    let answers = futures::future::join_all(asked).await;
    answers.into_iter().filter_map(|(id, runs)| runs.then_some(id)).collect()
}

impl Joiner {
    /// Closes the listener, starts the member with the list that [`Member::admit`] returned, and waits until the cluster has
    /// made it a voter.
    ///
    /// # Errors
    /// [`MemberError::StaleCluster`]: the list is out of date, so the server prepares and asks again. Others as of
    /// [`Member::start`].
    pub async fn start(self, initial: InitialCluster) -> Result<Member, MemberError> {
        Member::start(self.into_options().await, Start::Join(initial)).await
    }
}

/// Checks that there is an etcd program for a member, before anything is changed for it: one that can run in a cluster of the
/// minor version `cluster_minor`, if that is known.
///
/// # Errors
/// There is none, or its release is not supported.
pub async fn check_program(options: &MemberOptions, cluster_minor: Option<u32>) -> Result<(), MemberError> {
    Program::find(options).await?.check_step(cluster_minor)
}

/// Returns the settings of this server's member, if it has one.
///
/// # Errors
/// They cannot be read.
pub async fn settings(data_dir: &std::path::Path) -> Result<Option<Settings>, MemberError> {
    let layout = Layout::new(data_dir);
    FILES.run(move || Settings::read(&layout)).await?
}
