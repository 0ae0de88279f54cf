//! Cached JSON of records in the version of their readers, if that differs from the stored JSON: defaulted by the current schema or
//! converted. It is made once for all readers and cached in its record (upstream has a cache for each version).
use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use kelson_meta::Status;
use kelson_store::Record;
use parking_lot::Mutex;
use serde_json::Value;
use tokio::sync::watch;

use crate::catalog::record::parse;

/// Result of making forms; `None` while it is in progress.
type Ending = Option<Result<(), Status>>;

/// The address of a record that is being held, and the number of the form.
type Key = (usize, u32);

/// The forms that are being made.
#[derive(Default)]
pub struct Forms(Mutex<HashMap<Key, watch::Receiver<Ending>>>);

/// Forms that one reader makes. Others wait until it is dropped.
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
    /// The JSON of records in a form. `make` makes the missing ones in one call.
    ///
    /// # Errors
    /// The error of `make`, also if another reader called it.
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
                // If the other reader was cancelled there is no outcome; its records are claimed again.
                if let Ok(outcome) = other.wait_for(Option::is_some).await
                    && let Some(Err(status)) = &*outcome
                {
                    return Err(status.clone());
                }
            }
        }
    }

    /// Claims records whose form is not being made. Returns these records, and receivers of the results of other readers.
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
                // The same record may be requested twice.
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
