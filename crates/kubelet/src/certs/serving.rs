//! Requests and renews the serving certificate (`kubernetes.io/kubelet-serving`) and swaps it in under the listener.
use std::sync::Arc;
use std::time::Duration;

use kelson_pki::{Issued, KUBELET_SERVING, Key, Renewal, San, SwappableCertificate};

use super::CertError;
use super::request::{Wanted, certificate};
use super::store::{self, Store};
use crate::effects::Context;

/// How long one request may wait for approval before a new one is filed.
const WAIT: Duration = Duration::from_secs(15 * 60);
/// First delay after a failure.
const RETRY_MIN: Duration = Duration::from_secs(1);
/// Longest delay.
const RETRY_MAX: Duration = Duration::from_secs(300);
/// The clock is looked at this often while waiting.
const LOOK: Duration = Duration::from_secs(600);

/// Runs for ever.
pub async fn run(ctx: Arc<Context>, serving: Arc<SwappableCertificate>) {
    let files = Store::new("kubelet-server", &ctx.config.cert_dir);
    let mut retry = RETRY_MIN;
    loop {
        if let Some(due) = due(&ctx, &files) {
            while !due.wait(ctx.clock.now()).is_zero() {
                tokio::time::sleep(due.wait(ctx.clock.now()).min(LOOK)).await;
            }
        }
        match renew(&ctx, &files, &serving).await {
            Ok(()) => {
                tracing::info!("serving certificate issued");
                retry = RETRY_MIN;
            }
            Err(e) => {
                tracing::warn!(error = %e, "serving certificate not issued");
                tokio::time::sleep(retry).await;
                retry = (retry * 2).min(RETRY_MAX);
            }
        }
    }
}

/// When the stored certificate is due; `None`: now, because there is none or it names other addresses.
fn due(ctx: &Context, files: &Store) -> Option<Renewal> {
    let current = files.current().ok()??;
    let info = store::info(&current).ok()?;
    let named = wanted_sans(ctx).iter().all(|s| info.sans.contains(s));
    (named && info.is_valid_at(ctx.clock.now())).then(|| Renewal::random(info.not_before, info.not_after))
}

fn wanted_sans(ctx: &Context) -> Vec<San> {
    let mut sans = vec![San::Dns(ctx.config.node_name.clone())];
    sans.extend(ctx.config.node_ips.iter().map(|ip| San::Ip(*ip)));
    sans
}

async fn renew(ctx: &Context, files: &Store, serving: &SwappableCertificate) -> Result<(), CertError> {
    let key = Key::generate()?;
    let wanted = Wanted {
        key: &key,
        common_name: format!("system:node:{}", ctx.config.node_name),
        organizations: vec!["system:nodes".into()],
        sans: wanted_sans(ctx),
        signer: KUBELET_SERVING,
        usage: "server auth",
        name: None,
    };
    let cert_pem = certificate(&ctx.client, &wanted, WAIT).await?;
    let issued = Issued { cert_pem, key: key.clone() };
    files.update(&issued, ctx.clock.now())?;
    serving.swap(&issued)?;
    Ok(())
}
