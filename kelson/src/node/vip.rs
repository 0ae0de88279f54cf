//! The addresses of `kelson server --vip`: one of several servers has them, elected by a Lease. Clients outside of the
//! cluster use them; nodes know every server.
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use kelson_announce::{SharedAddresses, SharedConfig, remove_leftovers};
use kelson_client::{BoxFuture, Client, EventRecorder, ObjectRef};
use kelson_meta::SystemClock;
use kelson_ranges::Ranges;
use kelson_tasks::{OnPanic, Tasks};

use crate::cli::ServerArgs;
use crate::control_plane::ControlPlane;
use crate::leading::{Candidate, Part, Term};

/// The lease of the server with the addresses, in `kube-system`.
const LEASE: &str = "kelson-vip";
/// The timeout for removing the addresses.
const END_MAX: Duration = Duration::from_secs(3);

/// Returns whether a server that listens on `bind` is reached at `ip`, which the machine gets later.
fn reaches(bind: IpAddr, ip: IpAddr) -> bool {
    bind.is_unspecified() && (bind.is_ipv6() || ip.is_ipv4())
}

/// The addresses of a server that starts.
pub struct Vip(Option<Arc<SharedAddresses>>);

impl Vip {
    /// Checks the addresses and removes what an earlier run left on an interface.
    ///
    /// # Errors
    /// The server cannot have an address.
    pub async fn prepare(server: &ServerArgs, ranges: &Ranges) -> anyhow::Result<Self> {
        let args = &server.vip;
        if args.vip.is_empty() {
            remove_leftovers(&server.data_dir).await?;
            return Ok(Self(None));
        }
        for ip in args.addresses() {
            if !reaches(server.bind_address, ip) {
                let bind = server.bind_address;
                bail!(
                    "--vip {ip}: the API server must listen on all addresses of its family, but --bind-address is {bind}"
                );
            }
        }
        let config = SharedConfig {
            addresses: args.vip.clone(),
            interface: args.vip_interface.clone(),
            reserved: vec![ranges.cluster, ranges.service],
            data_dir: server.data_dir.clone(),
        };
        Ok(Self(Some(Arc::new(SharedAddresses::prepare(config).await.context("--vip")?))))
    }

    /// Has the addresses while this server holds the lease, or always if it is the only one. `None` without addresses.
    pub fn start(self, control_plane: &ControlPlane, tasks: &Tasks) -> Option<Part> {
        let shared = self.0?;
        let about = ObjectRef {
            api_version: "coordination.k8s.io/v1".to_owned(),
            kind: "Lease".to_owned(),
            namespace: "kube-system".to_owned(),
            name: LEASE.to_owned(),
            ..ObjectRef::default()
        };
        let client = Client::new(control_plane.administrator(), "vip");
        let host = kelson_platform::process::host_name();
        let events = EventRecorder::start_in(tasks, client, Arc::new(SystemClock), "kelson-vip", &host);
        let group = tasks.clone();
        let start = move |term: &Term| {
            let (shared, term, tasks) = (Arc::clone(&shared), term.clone(), group.child("vip"));
            let (of_task, recorder) = (tasks.clone(), (events.clone(), about.clone()));
            tasks.spawn_graceful("vip", OnPanic::EndProcess, async move {
                let tenure = Box::new(move || term.remaining());
                shared.hold(tenure, recorder, of_task.token().cancelled()).await;
            });
            Box::pin(async move {
                tasks.shutdown(END_MAX).await;
            }) as BoxFuture<()>
        };
        let component = Candidate { name: LEASE, end_max: END_MAX, start: Box::new(start) };
        Some(Part::start(component, control_plane.elector(LEASE), tasks))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_on_one_address_is_not_reached_at_another() {
        let check = |bind: &str, ip: &str| reaches(bind.parse().unwrap(), ip.parse().unwrap());
        assert!(check("0.0.0.0", "192.0.2.9") && check("::", "192.0.2.9") && check("::", "2001:db8::9"));
        assert!(!check("0.0.0.0", "2001:db8::9") && !check("192.0.2.1", "192.0.2.9"));
    }
}
