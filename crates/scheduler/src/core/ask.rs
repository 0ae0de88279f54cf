//! Handles the answers of extenders.
use std::cmp::Reverse;
use std::sync::Arc;

use tokio::time::Instant;

use super::question::{Answer, Question, Room, RoomQuestion};
use super::{Core, Step};
use crate::evaluation::preempt::{Candidate, best};
use crate::metrics::Attempt;
use crate::plugins::table::PluginSet;
use crate::reason::Reason;
use crate::view::Pod;

impl Core {
    /// Reports whether an extender filters or scores nodes for this pod.
    pub(super) fn asks(&self, pod: &Pod) -> bool {
        self.extenders.iter().any(|e| e.is_asked(&pod.spec))
    }

    /// Reports whether an extender takes part in preemption for this pod.
    pub(super) fn asks_for_room(&self, pod: &Pod) -> bool {
        self.extenders.iter().any(|e| e.is_asked_for_room(&pod.spec))
    }

    /// Continues with a pod after extenders answered. The error is that of an extender that is not ignorable.
    pub fn answered(&mut self, question: Question, answer: Result<Answer, String>, now: Instant) -> Step {
        let Question { pod, profile, mut unfit, begun, .. } = question;
        let Some(pod) = self.queue.get(&pod.uid).map(Arc::clone) else { return Step::Idle(Some(now)) };
        let answer = match answer {
            Ok(answer) => answer,
            Err(why) => {
                self.metrics.attempt(profile, Attempt::Error, begun.elapsed());
                return self.faulty(pod, why, now);
            }
        };
        for (node, why, preemptible) in answer.refused {
            unfit.plugins = unfit.plugins.and(PluginSet::EXTENDERS);
            unfit.tally.count(&Reason(why.into()), 1);
            if let Some(i) = self.cluster.position(&node).filter(|_| preemptible) {
                unfit.preemptible.push(i as u32);
            }
        }
        // A node may have been deleted while extenders were asked.
        let there = |(name, total): &(Box<str>, i64)| Some((self.cluster.position(name)?, *total));
        let left: Vec<(usize, i64)> = answer.nodes.iter().filter_map(there).collect();
        let totals: Vec<i64> = left.iter().map(|(_, total)| *total).collect();
        match self.deciders[profile].selector.pick(&totals) {
            Some(at) => self.place(pod, left[at].0, begun),
            None => {
                unfit.plugins = unfit.plugins.and(PluginSet::EXTENDERS);
                let step = self.unfit(profile, pod, unfit, now);
                self.metrics.attempt(profile, Attempt::Unschedulable, begun.elapsed());
                step
            }
        }
    }

    /// Continues with a preemption after extenders answered.
    pub fn rooms_answered(&mut self, question: RoomQuestion, answer: Result<Vec<Room>, String>, now: Instant) -> Step {
        let RoomQuestion { pod, unfit, .. } = question;
        let Some(pod) = self.queue.get(&pod.uid).map(Arc::clone) else { return Step::Idle(Some(now)) };
        let rooms = match answer {
            Ok(rooms) => rooms,
            Err(why) => return self.without_room(pod, &unfit, &format!("preemption: {why}"), now),
        };
        let candidates = rooms.into_iter().filter_map(|room| {
            let mut victims = room.victims;
            victims.sort_by_key(|p| (Reverse(p.spec.priority), p.started_s));
            Some(Candidate { node: self.cluster.position(&room.node)?, victims, violations: room.violations })
        });
        match best(candidates.collect()) {
            Some(c) => self.make_room(pod, &unfit, None, c.node, c.victims),
            None => {
                let text = "preemption: no candidate node for preemption";
                self.without_room(pod, &unfit, text, now)
            }
        }
    }
}
