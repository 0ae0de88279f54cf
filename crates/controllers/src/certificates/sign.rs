//! Signs approved requests of the built-in signers.
use std::sync::Arc;

use base64::Engine as _;
use kelson_client::{Client, WorkQueue};
use kelson_meta::{Clock, ObjectKey, format_seconds};
use kelson_pki::{sign_request, validate_for_signer};
use serde_json::{Value, json};

use super::approve::add_condition;
use crate::shared::config::Config;
use crate::shared::context::{Context, SyncError, WORKERS, update_value};
use crate::shared::informers::SharedInformer;
use crate::views::CsrView;
use crate::views::condition::Condition;

struct Signer {
    client: Client,
    clock: Arc<dyn Clock>,
    csrs: SharedInformer<CsrView>,
    config: Arc<Config>,
}

/// Starts the signing controller. Without a CA it signs nothing.
pub fn start(ctx: &Arc<Context>) {
    if ctx.config.authorities.borrow().signs_nothing() {
        return;
    }
    let queue: WorkQueue<ObjectKey> = WorkQueue::default();
    let me = Arc::new(Signer {
        client: ctx.client(),
        clock: Arc::clone(&ctx.clock),
        csrs: ctx.informers.csrs.reader(),
        config: Arc::clone(&ctx.config),
    });
    me.csrs.on_change(crate::shared::context::enqueue_self(&queue));
    ctx.run_queue_of(me.csrs.clone(), &queue, WORKERS, move |key| {
        let me = Arc::clone(&me);
        async move { me.sync(&key).await }
    });
}

impl Signer {
    async fn sync(&self, key: &ObjectKey) -> Result<(), SyncError> {
        let Some(csr) = self.csrs.get(key) else { return Ok(()) };
        if !csr.status.certificate.is_empty() || !csr.has("Approved") || csr.has("Denied") || csr.has("Failed") {
            return Ok(());
        }
        let request =
            csr.request().map_err(|e| SyncError::Other(format!("unable to parse csr {:?}: {e}", key.name)))?;
        match validate_for_signer(&csr.spec.signer_name, request, &csr.spec.usages) {
            Ok(true) => {}
            Ok(false) => return Ok(()),
            Err(refusal) => return self.fail(&csr, &refusal.0).await,
        }
        let authorities = self.config.authorities.borrow().clone();
        let Some(ca) = authorities.of(&csr.spec.signer_name) else { return Ok(()) };
        let now = self.clock.now();
        let lifetime = self.config.signing_duration;
        let signed = sign_request(ca, request, &csr.spec.usages, csr.spec.expiration_seconds, lifetime, now)
            .map_err(|e| SyncError::Other(format!("error auto signing csr: {e}")))?;
        let encoded = base64::engine::general_purpose::STANDARD.encode(signed);
        self.write(&csr, |v| {
            kelson_meta::tree::map_at(v, "status").insert("certificate".into(), json!(encoded));
        })
        .await
    }

    async fn fail(&self, csr: &CsrView, why: &str) -> Result<(), SyncError> {
        let now = format_seconds(self.clock.now());
        let condition = Condition::new("Failed", "True", "SignerValidationFailure", why, &now).updated_at(&now);
        self.write(csr, |v| add_condition(v, &condition)).await
    }

    async fn write(&self, csr: &CsrView, change: impl FnOnce(&mut Value)) -> Result<(), SyncError> {
        let m = &csr.metadata;
        update_value::<CsrView>(&self.client, "", &m.name, "status", &m.resource_version, change).await?;
        Ok(())
    }
}
