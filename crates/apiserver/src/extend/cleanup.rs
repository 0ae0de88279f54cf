//! Cleanup of custom resources: deletes the objects of deleted definitions, and accepts names that became free for definitions that
//! were waiting for them. Upstream: `controller/finalizer`, `controller/status` of `apiextensions-apiserver`.
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::catalog::Served;
use crate::catalog::record::parse;
use crate::custom::cleanup::{self, Progress};
use crate::custom::conditions::ESTABLISHED;
use crate::custom::registrar::{GROUP, PLURAL, RegisteredDefinition};
use crate::shared::Server;
use crate::write::commit::{Committer, WriteError};
use crate::write::delete::{self, DeleteOptions};
use crate::write::retry::RETRIES_MAX;

/// Interval of checks whether objects with finalizers have been deleted.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// After this time, the definition's status says that objects could not be deleted.
const PATIENCE: Duration = Duration::from_secs(60);

/// Runs until the server stops.
pub async fn run(server: Arc<Server>) {
    // By UID: when the deletion of a definition's objects began.
    let mut changed = server.definitions.subscribe();
    let mut begun: HashMap<String, Instant> = HashMap::new();
    loop {
        for known in server.definitions.with_rejected_names() {
            if server.definitions.would_get_other_names(&known) {
                change(&server, &known, |_| {}).await;
            }
        }
        let leaving = server.definitions.deleting();
        begun.retain(|uid, _| leaving.iter().any(|known| known.definition.metadata.uid == *uid));
        for known in &leaving {
            let since = *begun.entry(known.definition.metadata.uid.clone()).or_insert_with(Instant::now);
            advance(&server, known, since).await;
        }
        let again = server.definitions.deleting().iter().any(|known| known.storage.is_some());
        if again {
            let _ = tokio::time::timeout(LOOK_EVERY, changed.changed()).await;
        } else if changed.changed().await.is_err() {
            return;
        }
    }
}

/// Makes one step of a definition's deletion.
async fn advance(server: &Server, known: &RegisteredDefinition, since: Instant) {
    let definition = &known.definition;
    let overlaps = || {
        let names = kelson_schema::resource::resources();
        names.into_iter().any(|r| r.group == definition.spec.group && r.plural == definition.spec.names.plural)
    };
    let progress = match &known.storage {
        _ if overlaps() => Progress::Overlapping,
        Some(served) if definition.has(ESTABLISHED) => match objects(server, served).await {
            Ok(0) => Progress::Done,
            Ok(_) if since.elapsed() > PATIENCE => Progress::Stuck,
            Ok(_) => Progress::Underway,
            Err(why) => Progress::Failed(why),
        },
        _ => Progress::NeverEstablished,
    };
    let now = server.clock.now();
    change(server, known, |object| cleanup::set_progress(object, &progress, now)).await;
}

/// Deletes all objects of a kind without admission, because it must not prevent a change of the served kinds. Returns how many remain
/// because of finalizers.
async fn objects(server: &Server, served: &Served) -> Result<usize, String> {
    let options = DeleteOptions::default();
    let view = server.store.list(served.store, None, None, None);
    let mut failure = None;
    for record in view.iter().filter(|r| !r.meta().deleting) {
        let name = &record.key().name;
        // In the stored version: objects that are being deleted need no conversion.
        match delete::try_delete(server, served, name, &options, record, parse(record)).await {
            // A conflict is retried in the next round.
            Ok(_) | Err(WriteError::Gone | WriteError::Conflict | WriteError::Exists) => {}
            Err(WriteError::Status(status)) => failure = Some(status.message),
        }
    }
    match failure {
        Some(why) => Err(why),
        None => Ok(server.store.count(served.store)),
    }
}

/// Changes the stored definition, unless it is another one with the same name.
async fn change(server: &Server, known: &RegisteredDefinition, change: impl Fn(&mut serde_json::Value)) {
    let name = &known.definition.metadata.name;
    let Some(served) = server.catalog.any(GROUP, PLURAL) else { return };
    for _ in 0..=RETRIES_MAX {
        let Some(record) = server.store.get(served.store, "", name) else { return };
        let mut object = parse(&record);
        if object["metadata"]["uid"] != known.definition.metadata.uid.as_str() {
            return;
        }
        change(&mut object);
        let committer = Committer::new(server);
        let outcome = if delete::ends_with_update(&served, &object) {
            committer.delete(&served, &record, Some(object)).await
        } else {
            committer.update(&served, &record, object).await
        };
        match outcome {
            Err(WriteError::Conflict) => {}
            Err(WriteError::Status(status)) => {
                tracing::warn!(definition = %name, %status, "failed to update a definition");
                return;
            }
            _ => return,
        }
    }
}
