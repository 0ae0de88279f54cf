//! Records in the form that readers of a version see, where that is not the JSON that is stored: completed by today's schema, or
//! converted. A form is made once, whatever the number of readers, and kept with its record (upstream has a cache of each version).
use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use kelson_meta::Status;
use kelson_store::Record;
use parking_lot::Mutex;
use serde_json::Value;
use tokio::sync::watch;

use crate::catalog::record::parse;

/// How the making of some forms ended; `None` while it is under way.
type Ending = Option<Result<(), Status>>;

/// A record, by its address while somebody holds it, and the number of the form.
type Key = (usize, u32);

/// The forms that are being made.
#[derive(Default)]
pub struct Forms(Mutex<HashMap<Key, watch::Receiver<Ending>>>);

/// Forms that one reader makes. Others wait for it until it is dropped.
struct Claim<'a> {
    forms: &'a Forms,
    keys: Vec<Key>,
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        let mut underway = self.forms.0.lock();
        for key in &self.keys {
            underway.remove(key);
        }
    }
}

impl Forms {
    /// The JSON of records in a form, which `make` makes of those that do not have it yet: of all of them at once.
    ///
    /// # Errors
    /// What `make` refuses, whichever reader has asked it.
    pub async fn of<F>(
        &self,
        (id, oldest): (u32, u32),
        records: &[Arc<Record>],
        make: impl Fn(Vec<Value>) -> F,
    ) -> Result<Vec<Bytes>, Status>
    where
        F: Future<Output = Result<Vec<Value>, Status>>,
    {
        loop {
            let found: Option<Vec<Bytes>> = records.iter().map(|record| record.form(id)).collect();
            if let Some(found) = found {
                return Ok(found);
            }
            let (done, ended) = watch::channel(None);
            let (mine, others, claim) = self.claim(id, records, &ended);
            if !mine.is_empty() {
                let outcome = make(mine.iter().map(|record| parse(record)).collect()).await;
                let outcome = outcome.and_then(|objects| {
                    if objects.len() != mine.len() {
                        let (got, asked) = (objects.len(), mine.len());
                        return Err(Status::internal(format!("the conversion gave {got} objects instead of {asked}")));
                    }
                    for (record, object) in mine.iter().zip(objects) {
                        record.set_form(id, oldest, &kelson_codec::canonical_json(&object).into());
                    }
                    Ok(())
                });
                drop(claim);
                done.send_replace(Some(outcome.clone()));
                outcome?;
            }
            for mut other in others {
                // Where the other reader went away there is no outcome, and its records are claimed again.
                if let Ok(outcome) = other.wait_for(Option::is_some).await
                    && let Some(Err(status)) = &*outcome
                {
                    return Err(status.clone());
                }
            }
        }
    }

    /// Claims the records whose form nobody makes; gives these, and the ends of what others make.
    fn claim<'a>(
        &'a self,
        id: u32,
        records: &[Arc<Record>],
        ended: &watch::Receiver<Ending>,
    ) -> (Vec<Arc<Record>>, Vec<watch::Receiver<Ending>>, Claim<'a>) {
        let (mut mine, mut others, mut keys) = (Vec::new(), Vec::new(), Vec::new());
        let mut underway = self.0.lock();
        for record in records {
            let key = (Arc::as_ptr(record).addr(), id);
            match underway.get(&key) {
                // The same record may be asked for twice.
                Some(other) if other.same_channel(ended) => {}
                Some(other) => others.push(other.clone()),
                None if record.form(id).is_some() => {}
                None => {
                    underway.insert(key, ended.clone());
                    keys.push(key);
                    mine.push(Arc::clone(record));
                }
            }
        }
        drop(underway);
        (mine, others, Claim { forms: self, keys })
    }
}
