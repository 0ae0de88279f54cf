//! Renews the client certificate at a jittered 70 to 90 % of its life. The client re-reads the file: no restart.
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use kelson_client::Client;
use kelson_meta::{Backoff, Clock};
use kelson_pki::{Key, Renewal};
use kelson_tasks::FILES;

use super::bootstrap::request_client;
use super::store::{self, Store};

/// Pauses after failures.
const RETRY: Backoff = Backoff::new(Duration::from_secs(2), Duration::from_secs(300));
/// The clock is looked at this often while waiting: it may jump.
const LOOK: Duration = Duration::from_secs(600);

/// Runs until the task is ended; ends at once where there is no stored certificate (a kubeconfig of another kind).
pub async fn client(client: Client, clock: Arc<dyn Clock>, cert_dir: PathBuf, node_name: String) {
    let files = Store::new("kubelet-client", &cert_dir);
    let mut retry = RETRY.base;
    loop {
        let stored = files.clone();
        let Ok(Ok(Some(current))) = FILES.run(move || stored.current()).await else { return };
        let Ok(info) = store::info(&current) else { return };
        let renewal = Renewal::random(info.not_before, info.not_after);
        while !renewal.wait(clock.now()).is_zero() {
            tokio::time::sleep(renewal.wait(clock.now()).min(LOOK)).await;
        }
        let outcome = async {
            let key = Key::generate()?;
            let issued = request_client(&client, &key, &node_name, false).await?;
            files.update(&issued, clock.now()).await
        };
        match outcome.await {
            Ok(()) => {
                tracing::info!("client certificate renewed");
                retry = RETRY.base;
            }
            Err(e) => {
                tracing::warn!(error = %e, "client certificate not renewed");
                tokio::time::sleep(retry).await;
                retry = RETRY.after(Some(retry));
            }
        }
    }
}
