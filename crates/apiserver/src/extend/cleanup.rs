//! Cleanup: deletes the objects of definitions that were deleted, and gives names that became free to definitions that were
//! refused them. Upstream: `controller/finalizer`, `controller/status` of `apiextensions-apiserver`.
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::catalog::Served;
use crate::catalog::record::parse;
use crate::custom::cleanup::{self, Progress};
use crate::custom::conditions::ESTABLISHED;
use crate::custom::registrar::{GROUP, Known, PLURAL};
use crate::shared::Server;
use crate::write::commit::{Committer, Refused};
use crate::write::delete::{self, DeleteOptions};
use crate::write::retry::RETRIES_MAX;

/// How often it is looked whether objects with finalizers of their own are gone.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// After this the definition says that its objects do not go.
const PATIENCE: Duration = Duration::from_secs(60);

/// Runs until the server ends.
pub async fn run(server: Arc<Server>) {
    // By UID: since when the objects of a definition are being deleted.
    let mut changed = server.definitions.subscribe();
    let mut begun: HashMap<String, Instant> = HashMap::new();
    loop {
        for known in server.definitions.refused() {
            if server.definitions.could_have_more(&known) {
                change(&server, &known, |_| {}).await;
            }
        }
        let leaving = server.definitions.leaving();
        begun.retain(|uid, _| leaving.iter().any(|known| known.definition.metadata.uid == *uid));
        for known in &leaving {
            let since = *begun.entry(known.definition.metadata.uid.clone()).or_insert_with(Instant::now);
            advance(&server, known, since).await;
        }
        let again = server.definitions.leaving().iter().any(|known| known.storage.is_some());
        if again {
            let _ = tokio::time::timeout(LOOK_EVERY, changed.changed()).await;
        } else if changed.changed().await.is_err() {
            return;
        }
    }
}

/// One step of a definition's deletion.
async fn advance(server: &Server, known: &Known, since: Instant) {
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
    change(server, known, |object| cleanup::tell(object, &progress, now)).await;
}

/// Deletes all objects of a kind without asking admission, as a change of what is served is not theirs to refuse. Gives how
/// many are left, held by finalizers of their own.
async fn objects(server: &Server, served: &Served) -> Result<usize, String> {
    let options = DeleteOptions::default();
    let view = server.store.list(served.store, None, None, None);
    let mut failure = None;
    for record in view.iter().filter(|r| !r.meta().deleting) {
        let name = &record.key().name;
        // By its own form: nobody needs to convert what is on its way out.
        match delete::once(server, served, name, &options, record, parse(record)).await {
            // A conflict is tried again in the next round.
            Ok(_) | Err(Refused::Gone | Refused::Conflict | Refused::Exists) => {}
            Err(Refused::Status(status)) => failure = Some(status.message),
        }
    }
    match failure {
        Some(why) => Err(why),
        None => Ok(server.store.count(served.store)),
    }
}

/// Changes a definition as it is stored now, unless it is another one of the same name.
async fn change(server: &Server, known: &Known, change: impl Fn(&mut serde_json::Value)) {
    let name = &known.definition.metadata.name;
    let Some(served) = server.catalog.any(GROUP, PLURAL) else { return };
    for _ in 0..=RETRIES_MAX {
        let Some(record) = server.store.get(served.store, "", name) else { return };
        let mut object = parse(&record);
        if object["metadata"]["uid"] != known.definition.metadata.uid.as_str() {
            return;
        }
        change(&mut object);
        let committer = Committer::of(server);
        let outcome = if delete::ends_with_update(&served, &object) {
            committer.delete(&served, &record, Some(object)).await
        } else {
            committer.update(&served, &record, object).await
        };
        match outcome {
            Err(Refused::Conflict) => {}
            Err(Refused::Status(status)) => {
                tracing::warn!(definition = %name, %status, "a definition could not be written");
                return;
            }
            _ => return,
        }
    }
}
