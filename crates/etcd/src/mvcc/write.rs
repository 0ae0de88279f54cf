//! Puts and deletions.

use bytes::Bytes;

use super::history::{Revision, Version};
use super::range::KeyRange;
use super::read::{self, header};
use super::state::{Change, State};
use crate::error::Error;
use crate::proto::{DeleteRangeRequest, DeleteRangeResponse, PutRequest, PutResponse, RangeRequest, RangeResponse};

impl State {
    /// Writes one key.
    ///
    /// # Errors
    /// The lease does not exist, or the value or lease to keep is of a key that does not exist.
    pub fn put(&mut self, r: &PutRequest) -> Result<PutResponse, Error> {
        self.check_lease(r.lease)?;
        let mut write = Write::new(self);
        let answer = write.put(r);
        write.end();
        answer
    }

    /// Deletes the keys of a range.
    pub fn delete_range(&mut self, r: &DeleteRangeRequest) -> DeleteRangeResponse {
        let mut write = Write::new(self);
        let answer = write.delete_range(r);
        write.end();
        answer
    }

    /// Deletes the keys of a lease, at one revision; [`State::end_lease`] then removes the lease.
    ///
    /// # Errors
    /// The lease does not exist.
    pub fn revoke(&mut self, id: i64) -> Result<(), Error> {
        let lease = self.leases.get(id).ok_or(Error::LeaseNotFound)?;
        let keys: Vec<Bytes> = lease.keys.iter().cloned().collect();
        let mut write = Write::new(self);
        keys.iter().for_each(|key| write.delete(key));
        write.end();
        Ok(())
    }
}

/// One transaction in progress.
pub(super) struct Write<'a> {
    state: &'a mut State,
    changes: u32,
}

impl<'a> Write<'a> {
    pub fn new(state: &'a mut State) -> Self {
        Self { state, changes: 0 }
    }

    pub fn state(&self) -> &State {
        self.state
    }

    /// Returns the revision of its changes.
    fn next(&self) -> i64 {
        self.state.applied.saturating_add(1)
    }

    /// Returns the revision that the transaction reads, including its own changes.
    pub fn revision(&self) -> i64 {
        if self.changes == 0 { self.state.applied } else { self.next() }
    }

    pub fn end(self) -> i64 {
        let revision = self.revision();
        self.state.applied = revision;
        revision
    }

    pub fn range(&self, r: &RangeRequest) -> Result<RangeResponse, Error> {
        read::range(&self.state.index, r, self.revision(), self.state.compacted())
    }

    pub fn put(&mut self, r: &PutRequest) -> Result<PutResponse, Error> {
        let before = self.state.index.newest(&r.key);
        if before.is_none() && (r.ignore_value || r.ignore_lease) {
            return Err(Error::KeyNotFound);
        }
        let prev_kv = before.filter(|_| r.prev_kv).map(|version| version.key_value(&r.key));
        let value = match before {
            Some(version) if r.ignore_value => version.value.clone(),
            // A decoded value shares the buffer of its whole request, which must not live as long as the value.
            _ => Bytes::copy_from_slice(&r.value),
        };
        let old_lease = before.map_or(0, |version| version.lease);
        let lease = if r.ignore_lease { old_lease } else { r.lease };
        let (created, number) = before.map_or((self.next(), 0), |version| (version.created, version.number));
        let version = Version { revision: self.take_revision(), created, number: number + 1, lease, value };
        self.push(&r.key, version, old_lease);
        Ok(PutResponse { header: header(self.revision()), prev_kv })
    }

    pub fn delete_range(&mut self, r: &DeleteRangeRequest) -> DeleteRangeResponse {
        let range = KeyRange::new(&r.key, &r.range_end);
        let mut keys = Vec::new();
        let mut prev_kvs = Vec::new();
        for (key, version) in self.state.index.range(&range, self.revision()) {
            keys.push(key.clone());
            if r.prev_kv {
                prev_kvs.push(version.key_value(key));
            }
        }
        keys.iter().for_each(|key| self.delete(key));
        let deleted = i64::try_from(keys.len()).unwrap_or(i64::MAX);
        DeleteRangeResponse { header: header(self.revision()), deleted, prev_kvs }
    }

    fn delete(&mut self, key: &Bytes) {
        let old_lease = self.state.index.newest(key).map_or(0, |version| version.lease);
        let version = Version::deletion(self.take_revision());
        self.push(key, version, old_lease);
    }

    fn push(&mut self, key: &Bytes, version: Version, old_lease: i64) {
        let (revision, lease) = (version.revision, version.lease);
        let key = self.state.index.push(key, version);
        self.state.leases.moved(&key, old_lease, lease);
        self.state.log.push_back(Change { revision, key });
    }

    fn take_revision(&mut self) -> Revision {
        let revision = Revision { main: self.next(), sub: self.changes };
        self.changes += 1;
        revision
    }
}
