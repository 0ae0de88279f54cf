//! From the embedded store to the data of a new etcd member. The store has no history, so etcd's is compacted at the
//! store's revision; the last change of each resource is stored with it (`floors`), so that watches continue.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use kelson_etcd::export::Export;
use kelson_etcd::mvcc::{Revision, Version};
use kelson_platform::files::{make_private, make_private_dir};
use kelson_store::{AtRest, Inventory, Record, Store, StoreError, StoreOptions, Writer};
use kelson_tasks::FILES;

use super::place::{self, Change};
use super::{MoveError, Moved, io_at, store_at};
use crate::floors;
use crate::key::Keys;
use crate::value::{self, MediaType};

/// The time in seconds for which objects that expire share a lease.
const SHARED_LEASE_S: u64 = 60;

/// The options of a move into etcd.
pub struct IntoEtcd {
    /// The data directory of the server, which the caller has locked.
    pub data_dir: PathBuf,
    /// `--etcd-prefix`: the prefix of all keys.
    pub prefix: String,
    /// `--storage-media-type`: the form in which built-in kinds are stored.
    pub media: MediaType,
    /// Encryption at rest, which is the same before and after.
    pub store: StoreOptions,
}

/// Moves the embedded store, if there is one, before the first member of a new cluster starts. To be called by a server
/// that has no member yet and is to get one.
///
/// # Errors
/// See [`MoveError`].
pub async fn before_first_member(options: IntoEtcd) -> Result<Option<Moved>, MoveError> {
    let data_dir = options.data_dir.clone();
    FILES.run(move || place::settle(&data_dir)).await?.map_err(io_at(&options.data_dir))?;
    let data_dir = options.data_dir.clone();
    match FILES.run(move || place::has_store(&data_dir)).await? {
        true => into_etcd(options).await.map(Some),
        false => Ok(None),
    }
}

/// Makes the data of a new etcd member of the embedded store in `store`. The member must be started as the first one of a
/// new cluster, with `--data-dir` [`place::member_data`]. Objects have the same revisions there, but the version of a
/// key, which the store does not count, is 1 or 2: created, or changed since.
///
/// # Errors
/// See [`MoveError`].
pub async fn into_etcd(options: IntoEtcd) -> Result<Moved, MoveError> {
    let data_dir = options.data_dir.clone();
    FILES.run(move || place::settle(&data_dir)).await?.map_err(io_at(&options.data_dir))?;
    let (store_dir, at_rest) = (place::store(&options.data_dir), options.store.at_rest.clone());
    let (dir, has_member) = (options.data_dir.clone(), place::has_member(&options.data_dir));
    if !place::has_store(&options.data_dir) {
        return Err(MoveError::Absent(store_dir));
    }
    if has_member {
        return Err(MoveError::Both { store: store_dir, member: place::member_data(&dir) });
    }
    let opened = store_dir.clone();
    let store = StoreOptions { must_exist: true, ..options.store };
    let store = FILES.run(move || Store::open_dir(&opened, store)).await?.map_err(store_at(&store_dir))?;
    let (keys, media) = (Keys::under(&options.prefix), options.media);
    let source = store.clone();
    let written = FILES.run(move || {
        let inventory = source.inventory().map_err(store_at(place::store(&dir)))?;
        let to = Change::IntoEtcd.begin(&dir).map_err(io_at(&dir))?;
        write(&inventory, &keys, media, at_rest.as_ref(), &to)?;
        Ok::<_, MoveError>((inventory.revision(), inventory.len()))
    });
    let written = written.await?;
    store.close().await;
    let (revision, objects) = written?;
    let dir = options.data_dir.clone();
    let aside = FILES.run(move || Change::IntoEtcd.finish(&dir)).await?.map_err(io_at(options.data_dir))?;
    tracing::info!(revision, objects, before = %aside.display(), "moved all objects from the embedded store to etcd");
    Ok(Moved { revision, objects, aside })
}

/// Writes everything as the data directory of a member.
fn write(
    inventory: &Inventory,
    keys: &Keys,
    media: MediaType,
    at_rest: Option<&Arc<dyn AtRest>>,
    to: &Path,
) -> Result<(), MoveError> {
    let mut versions = Vec::with_capacity(inventory.len() + 1);
    let mut leases = BTreeMap::new();
    let now_s = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    for record in inventory.records() {
        let value = sealed(record, media, at_rest).map_err(store_at(to))?;
        let lease = lease(record.meta().expires_at_s, now_s, &mut leases);
        let (revision, created) = (signed(record.revision()), signed(record.create_revision()));
        let version = Version {
            revision: Revision { main: revision, sub: 0 },
            created,
            number: if revision == created { 1 } else { 2 },
            lease,
            value: value.into(),
        };
        versions.push((Bytes::from(keys.of(record.key())), version));
    }
    let main = signed(inventory.revision());
    // The store's last change may be an object, which is at the same revision.
    let revision = Revision { main, sub: 1 };
    let value = floors::encode(inventory.revision(), inventory.floors()).into();
    versions.push((keys.beside(floors::KEY).into(), Version { revision, created: main, number: 1, lease: 0, value }));
    let export = Export::new(versions, leases.into_iter().collect(), main);

    let dir = to.join("member").join("snap");
    make_private_dir(&dir).map_err(io_at(&dir))?;
    let path = dir.join("db");
    let mut file = File::create_new(&path).map_err(io_at(&path))?;
    make_private(&path).map_err(io_at(&path))?;
    export.write(&mut file).and_then(|_| file.sync_all()).map_err(io_at(&path))?;
    place::sync_all(to).map_err(io_at(to))
}

/// Returns the value under an object's key.
fn sealed(record: &Record, media: MediaType, at_rest: Option<&Arc<dyn AtRest>>) -> Result<Vec<u8>, StoreError> {
    let key = record.key();
    let plain = value::encode_json(media, key, &record.bytes())?;
    let Some(at_rest) = at_rest.filter(|at_rest| at_rest.writer(key.resource) != Some(Writer::CLEAR)) else {
        return Ok(plain);
    };
    let sealed = at_rest.seal(key, &plain).map_err(StoreError::Sealed)?;
    Ok(sealed.map_or(plain, |sealed| sealed.bytes))
}

/// Returns the ID of the lease of an object that expires, and adds it with the seconds that are left; 0 for none.
fn lease(expires_at_s: u64, now_s: u64, leases: &mut BTreeMap<i64, i64>) -> i64 {
    if expires_at_s == 0 {
        return 0;
    }
    let minute = expires_at_s.div_ceil(SHARED_LEASE_S);
    let left = (minute * SHARED_LEASE_S).saturating_sub(now_s).max(1);
    leases.insert(signed(minute), signed(left));
    signed(minute)
}

fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_that_expire_in_the_same_minute_share_a_lease() {
        let mut leases = BTreeMap::new();
        let ids = [0, 600, 601, 630, 60].map(|at_s| lease(at_s, 590, &mut leases));
        assert_eq!(ids, [0, 10, 11, 11, 1]);
        assert_eq!(leases, BTreeMap::from([(10, 10), (11, 70), (1, 1)]));
    }
}
