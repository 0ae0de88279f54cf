//! Looks after the member of this server: certificates, space and alarms, the speed of its disk, timeouts for its next start.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use kelson_etcd::proto::{AlarmMember, AlarmType, Member, StatusResponse};
use kelson_meta::Clock;
use kelson_tasks::FILES;
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::Instant;
use tonic::Status;

use crate::event::{Events, MemberEvent};
use crate::layout::Layout;
use crate::local::{Local, reason};
use crate::metrics::Metrics;
use crate::peer::Peers;
use crate::pki::Certificates;
use crate::space::{self, Buckets, FSYNC_MAX, Space, SpaceStep, faster, is_own_slot, space_step};
use crate::status::{self, MemberStatus};
use crate::steady::{Window, are_all_steady};
use crate::supervise::{Report, SharedSettings};

/// The interval of looks.
const LOOK: Duration = Duration::from_secs(30);
/// The history that is kept when a used-up quota makes a compaction necessary, as of the API server's own compactions.
const HISTORY: Duration = Duration::from_secs(300);
/// The pause between two changes of the leader because of its disk.
const HAND_OVER_PAUSE: Duration = Duration::from_secs(600);
/// The pause between two warnings about the disk.
const WARN_PAUSE: Duration = Duration::from_secs(3600);
/// The histogram of syncs in etcd's metrics.
const FSYNC: &str = "etcd_disk_wal_fsync_duration_seconds";
/// The heartbeats that a leader has sent late, in etcd's metrics.
const LATE: &str = "etcd_server_heartbeat_send_failures_total";
/// The quota in etcd's metrics.
const QUOTA: &str = "etcd_server_quota_backend_bytes";

/// The upkeep of one member.
pub(crate) struct Upkeep {
    pub layout: Layout,
    pub settings: SharedSettings,
    pub local: Local,
    pub peers: Peers,
    pub events: Events,
    pub metrics: Arc<Metrics>,
    pub clock: Arc<dyn Clock>,
    pub reports: watch::Receiver<Report>,
}

/// The state that the upkeep keeps between two checks.
#[derive(Default)]
struct Memory {
    fsyncs: Buckets,
    /// Revisions that etcd had, with the time, the oldest first.
    revisions: VecDeque<(Instant, i64)>,
    handed_over: Option<Instant>,
    warned: Option<Instant>,
    alarms: HashSet<i32>,
    /// The measures that decide timeouts.
    window: Window,
    /// Whether all voters are steady, as far as that is known.
    are_steady: Option<bool>,
}

/// The result of one check.
struct Look {
    status: StatusResponse,
    own: u64,
    members: Vec<Member>,
    alarms: Vec<AlarmMember>,
    space: Space,
    p99: Option<Duration>,
}

impl Look {
    fn is_leader(&self) -> bool {
        self.own == self.status.leader
    }

    fn has(&self, alarm: AlarmType) -> bool {
        self.alarms.iter().any(|of| of.member_id == self.own && of.alarm == alarm as i32)
    }
}

impl Upkeep {
    /// Looks after the member until the task is cancelled.
    pub async fn run(self: Arc<Self>) {
        let memory = Mutex::new(Memory::default());
        loop {
            self.renew().await;
            if let Err(error) = self.look(&memory).await {
                tracing::debug!(error = reason(&error), "looking after the etcd member failed; retrying");
            }
            self.measure(&memory).await;
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Renews certificates that are due.
    async fn renew(&self) {
        let (name, url) = {
            let settings = self.settings.lock();
            (settings.name.clone(), settings.peer_url.clone())
        };
        let (certificates, now) = (Certificates::new(&self.layout, &name, &url), self.clock.now());
        match FILES.run(move || certificates.ensure(false, now)).await {
            Ok(Ok(written)) if written.is_empty() => {}
            Ok(Ok(written)) => {
                tracing::info!(certificates = written.join(", "), "renewed certificates of the etcd member")
            }
            Ok(Err(error)) => tracing::error!(%error, "renewing certificates of the etcd member failed; retrying"),
            Err(error) => tracing::error!(%error, "renewing certificates of the etcd member failed; retrying"),
        }
    }

    async fn look(&self, memory: &Mutex<Memory>) -> Result<(), Status> {
        let look = self.read(memory).await?;
        self.show(&look);
        self.report_alarms(&look, memory);
        self.report_disk(&look, memory);
        let any_alarm = look.alarms.iter().any(|alarm| alarm.alarm == AlarmType::Nospace as i32);
        let all = if any_alarm { Vec::new() } else { self.exchange(&look, memory).await? };
        let own_id = format!("{:x}", look.own);
        let waits = look.is_leader() && all.iter().any(|other| other.is_fragmented && other.id != own_id);
        match space_step(look.space, look.has(AlarmType::Nospace), any_alarm, waits) {
            SpaceStep::None => {}
            SpaceStep::Defragment => self.defragment_locked().await?,
            SpaceStep::DefragmentInSlot => self.defragment_in_slot(&look).await?,
            SpaceStep::Clear => {
                let alarm = AlarmMember { member_id: look.own, alarm: AlarmType::Nospace as i32 };
                self.local.clear_alarm(alarm).await?;
                tracing::info!("there is room below the quota of etcd again; cleared the alarm");
            }
        }
        if any_alarm && look.is_leader() {
            self.compact(memory).await?;
        }
        self.hand_over(&look, &all, memory).await
    }

    async fn read(&self, memory: &Mutex<Memory>) -> Result<Look, Status> {
        let status = self.local.status().await?;
        let (members, alarms) = (self.local.members(false).await?, self.local.alarms().await?);
        let page = self.local.metrics().await.map_err(|e| Status::unavailable(e.to_string()))?;
        let page = String::from_utf8_lossy(&page);
        let (fsyncs, late) = (space::histogram(&page, FSYNC), space::value(&page, LATE).unwrap_or(0.0));
        let quota = space::value(&page, QUOTA).map_or(status.db_size_quota, |bytes| bytes as i64);
        let header = status.header.unwrap_or_default();
        let mut memory = memory.lock();
        let p99 = space::p99(&memory.fsyncs, &fsyncs);
        memory.window.add_counters(&fsyncs, late);
        memory.fsyncs = fsyncs;
        let now = Instant::now();
        memory.revisions.push_back((now, header.revision));
        while memory.revisions.get(1).is_some_and(|(at, _)| now.duration_since(*at) >= HISTORY) {
            memory.revisions.pop_front();
        }
        let space = Space { size: status.db_size, in_use: status.db_size_in_use, quota };
        Ok(Look { own: header.member_id, status, members, alarms, space, p99 })
    }

    fn show(&self, look: &Look) {
        let metrics = &self.metrics;
        let learners = look.members.iter().filter(|member| member.is_learner).count();
        let count = |n: usize| i64::try_from(n).unwrap_or(i64::MAX);
        metrics.members.with_label_values(&["learner"]).set(count(learners));
        metrics.members.with_label_values(&["voter"]).set(count(look.members.len() - learners));
        metrics.is_leader.set(i64::from(look.is_leader()));
        metrics.restarts.set(i64::try_from(self.reports.borrow().restarts).unwrap_or(i64::MAX));
        metrics.size.set(look.space.size);
        metrics.in_use.set(look.space.in_use);
        metrics.quota.set(look.space.quota);
        for alarm in [AlarmType::Nospace, AlarmType::Corrupt] {
            metrics.alarms.with_label_values(&[AlarmType::name_of(alarm as i32)]).set(i64::from(look.has(alarm)));
        }
        if let Some(p99) = look.p99 {
            metrics.fsync_p99.set(p99.as_secs_f64());
        }
    }

    fn report_alarms(&self, look: &Look, memory: &Mutex<Memory>) {
        let now: HashSet<i32> = look.alarms.iter().filter(|of| of.member_id == look.own).map(|of| of.alarm).collect();
        let before = std::mem::replace(&mut memory.lock().alarms, now.clone());
        for alarm in now.difference(&before) {
            let alarm = AlarmType::name_of(*alarm);
            tracing::error!(
                alarm,
                size = look.space.size,
                in_use = look.space.in_use,
                quota = look.space.quota,
                "the etcd member raised an alarm; the API accepts no writes but deletions until it is cleared"
            );
            self.events.send(MemberEvent::Alarm { name: self.settings.lock().name.clone(), alarm: alarm.to_owned() });
        }
        let fault = look.alarms.first().map(|of| {
            let (alarm, id) = (AlarmType::name_of(of.alarm), of.member_id);
            let member = look.members.iter().find(|member| member.id == id).map_or("?", |member| member.name.as_str());
            format!("etcd member {member} has the alarm {alarm}")
        });
        self.metrics.set_fault(fault);
    }

    fn report_disk(&self, look: &Look, memory: &Mutex<Memory>) {
        let Some(p99) = look.p99.filter(|p99| *p99 > FSYNC_MAX) else { return };
        let mut memory = memory.lock();
        if memory.warned.is_some_and(|at| at.elapsed() < WARN_PAUSE) {
            return;
        }
        memory.warned = Some(Instant::now());
        let p99_ms = u64::try_from(p99.as_millis()).unwrap_or(u64::MAX);
        tracing::warn!(
            p99_ms,
            "the disk of the etcd member is slow: a sync should take less than 10 ms; use a faster disk"
        );
        self.events.send(MemberEvent::SlowDisk { name: self.settings.lock().name.clone(), p99_ms });
    }

    /// Publishes the status of this member, and returns those of all.
    async fn exchange(&self, look: &Look, memory: &Mutex<Memory>) -> Result<Vec<MemberStatus>, Status> {
        let own = MemberStatus {
            name: self.settings.lock().name.clone(),
            id: format!("{:x}", look.own),
            version: look.status.version.clone(),
            size_bytes: look.space.size,
            in_use_bytes: look.space.in_use,
            quota_bytes: look.space.quota,
            is_fragmented: look.space.is_fragmented(),
            fsync_p99_ms: look.p99.map(|p99| u64::try_from(p99.as_millis()).unwrap_or(u64::MAX)),
            applied_index: look.status.raft_applied_index,
            is_steady: memory.lock().window.is_steady(),
        };
        status::publish(&self.local, &own).await?;
        let all = status::all(&self.local).await?;
        let voters = look.members.iter().filter(|member| !member.is_learner).map(|member| format!("{:x}", member.id));
        let are_steady = voters.map(|id| all.iter().find(|status| status.id == id)?.is_steady);
        memory.lock().are_steady = are_all_steady(are_steady);
        Ok(all)
    }

    async fn defragment_locked(&self) -> Result<(), Status> {
        let name = self.settings.lock().name.clone();
        let Some(lease) = status::lock(&self.local, &name).await? else { return Ok(()) };
        let done = self.defragment().await;
        self.local.revoke(lease).await?;
        done
    }

    async fn defragment_in_slot(&self, look: &Look) -> Result<(), Status> {
        let voters: Vec<u64> = look.members.iter().filter(|m| !m.is_learner).map(|m| m.id).collect();
        match is_own_slot(self.clock.now().as_second(), look.own, look.status.leader, &voters) {
            true => self.defragment().await,
            false => Ok(()),
        }
    }

    async fn defragment(&self) -> Result<(), Status> {
        let begun = Instant::now();
        self.local.defragment().await?;
        self.metrics.defragmentations.inc();
        tracing::info!(took = ?begun.elapsed(), "defragmented the database of the etcd member");
        Ok(())
    }

    /// Compacts up to a revision of some minutes ago: with a used-up quota the API servers cannot agree on who does it.
    async fn compact(&self, memory: &Mutex<Memory>) -> Result<(), Status> {
        let oldest = memory.lock().revisions.front().copied();
        let Some((_, revision)) = oldest.filter(|(at, _)| at.elapsed() >= HISTORY) else { return Ok(()) };
        match self.local.compact(revision).await {
            Ok(()) => tracing::info!(revision, "compacted etcd, because its quota is used up"),
            Err(error) => tracing::debug!(revision, error = reason(&error), "etcd is compacted already"),
        }
        Ok(())
    }

    /// Hands leadership over when this member's disk is much slower than another one's.
    async fn hand_over(&self, look: &Look, all: &[MemberStatus], memory: &Mutex<Memory>) -> Result<(), Status> {
        let Some(p99) = look.p99.filter(|_| look.is_leader()) else { return Ok(()) };
        if memory.lock().handed_over.is_some_and(|at| at.elapsed() < HAND_OVER_PAUSE) {
            return Ok(());
        }
        let voters = look.members.iter().filter(|member| !member.is_learner && member.id != look.own);
        let others: Vec<(u64, Duration)> = voters
            .filter_map(|member| {
                let status = all.iter().find(|status| status.id == format!("{:x}", member.id))?;
                Some((member.id, Duration::from_millis(status.fsync_p99_ms?)))
            })
            .collect();
        let Some(to) = faster(p99, &others) else { return Ok(()) };
        memory.lock().handed_over = Some(Instant::now());
        self.local.move_leader(to).await?;
        tracing::warn!(to = format!("{to:x}"), p99 = ?p99, "handed the leadership of etcd over to a member with a faster disk");
        Ok(())
    }

    /// Measures round trips to the other members, and notes timeouts and the cluster's version for the next start.
    async fn measure(&self, memory: &Mutex<Memory>) {
        let Ok(members) = self.local.members(false).await else { return };
        let own = self.settings.lock().peer_url.clone();
        let (mut longest, mut minor, mut is_complete) = (Duration::ZERO, None, true);
        for url in members.iter().flat_map(|member| &member.peer_urls) {
            match self.peers.ask(url).await {
                Ok((greeting, _)) if *url == own => minor = greeting.cluster_minor(),
                Ok((_, round_trip)) => longest = longest.max(round_trip),
                Err(_) => is_complete = false,
            }
        }
        self.metrics.round_trip.set(longest.as_secs_f64());
        let (round_trip, is_steady, is_enough) = {
            let mut memory = memory.lock();
            // The member that did not answer may be the farthest one.
            if is_complete {
                memory.window.add_round_trip(longest);
            }
            (memory.window.round_trip(), memory.are_steady, memory.window.is_full())
        };
        let changed = {
            let mut settings = self.settings.lock();
            let before = settings.clone();
            if let Some(round_trip) = round_trip {
                settings.timeouts = settings.timeouts.next(round_trip, is_steady, is_enough);
            }
            settings.cluster_minor = minor.or(settings.cluster_minor);
            (before != *settings).then(|| settings.clone())
        };
        let Some(settings) = changed else { return };
        let (layout, heartbeat_ms) = (self.layout.clone(), settings.timeouts.heartbeat_ms);
        tracing::info!(
            ?round_trip,
            ?is_steady,
            heartbeat_ms,
            "the settings of the etcd member changed; they apply at its next start"
        );
        match FILES.run(move || settings.write(&layout)).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::warn!(%error, "writing the settings of the etcd member failed"),
            Err(error) => tracing::warn!(%error, "writing the settings of the etcd member failed"),
        }
    }
}
