//! Applies the granted resources to a pod and its running containers (KEP-1287), as one action of the executor.
use kelson_cri::proto as cri;
use tokio::time::Instant;

use super::event::Step;
use super::execute::Executor;
use super::terminate;
use crate::cgroups::resources::{Limits, container_resources, unbound_cpu};
use crate::pod::{self, Member};

impl Executor {
    /// Raises the pod's limits before those of its containers and lowers them afterwards: the kernel rejects a child that may use more than
    /// its parent.
    pub(super) async fn resize(&self, containers: &[(String, String)]) {
        let mut held = Vec::new();
        let began = Instant::now();
        let error = self.try_resize(containers, &mut held).await.err();
        self.parts.effects.metrics.resizes().carried_out(error.is_none(), began.elapsed());
        self.report_step(Step::Resized { held, error }).await;
    }

    async fn try_resize(
        &self,
        containers: &[(String, String)],
        held: &mut Vec<(String, Limits)>,
    ) -> Result<(), String> {
        let (parts, pod) = (&self.parts, &*self.pod);
        let members = containers.iter().filter_map(|(id, name)| Some((id, pod::member(pod, name)?)));
        let members: Vec<(&String, Member<'_>)> = members.collect();
        for (id, m) in &members {
            self.may_shrink(id, m).await?;
        }
        parts.cgroups.raise(pod).await?;
        let memory = parts.node.borrow().machine_memory;
        for (id, m) in &members {
            let mut linux = container_resources(pod, m.role, &m.container, memory, terminate::may_lower_oom());
            parts.placement.placed(pod::uid(pod), &m.container.name).bind(&mut linux);
            if !parts.config.cpu_quota {
                unbound_cpu(&mut linux);
            }
            parts.swap.bind(pod, &m.container, &mut linux);
            parts.memory.bind(pod, &m.container, &mut linux);
            let request = cri::UpdateContainerResourcesRequest {
                container_id: (*id).clone(),
                linux: Some(linux),
                ..Default::default()
            };
            let updated = parts.effects.runtime.update_container_resources(request).await;
            updated.map_err(|e| format!("container {:?}: {}", m.container.name, e.message))?;
            held.push(((*id).clone(), Limits::of(pod, &m.container)));
        }
        parts.cgroups.ensure(pod, parts.unbound_cpu(pod)).await
    }

    /// A limit below the current usage would kill the container at once; then the old limit stays.
    async fn may_shrink(&self, id: &str, m: &Member<'_>) -> Result<(), String> {
        let wanted = Limits::of(&self.pod, &m.container).memory;
        let now = self.runtime.containers.iter().find(|c| c.id == id).and_then(|c| c.limits).map_or(0, |l| l.memory);
        if wanted == 0 || (now != 0 && wanted >= now) {
            return Ok(());
        }
        let stats = self.parts.effects.runtime.container_stats(id).await.map_err(|e| e.message)?;
        let usage = stats.and_then(|s| s.memory).and_then(|m| m.usage_bytes).map(|b| b.value);
        let name = &m.container.name;
        match usage {
            None => Err(format!("missing container {name:?} memory usage")),
            Some(used) if i64::try_from(used).is_ok_and(|used| used < wanted) => Ok(()),
            Some(used) => Err(format!(
                "attempting to set container {name:?} memory limit ({wanted}) below current usage ({used})"
            )),
        }
    }
}
