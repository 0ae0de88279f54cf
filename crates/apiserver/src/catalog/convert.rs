//! Conversion between the stored and a served version of a kind. Built-in kinds convert in memory. Custom resources may call a webhook,
//! with many objects in one call.
use std::sync::Arc;

use bytes::Bytes;
use futures::future::BoxFuture;
use kelson_meta::{Gvk, Status};
use kelson_store::Record;
use serde_json::Value;

use crate::catalog::record::parse;

/// Converts objects of a custom resource. Objects contain their version; a stored one may be in any version that has been the storage
/// version.
pub trait Converter: Send + Sync {
    /// Converts stored objects to the version `to`, in the same number and order. Objects that are already in that version are pruned
    /// and defaulted by the current schema, so that converting twice changes nothing.
    fn served<'a>(&'a self, to: &'a Gvk, objects: Vec<Value>) -> BoxFuture<'a, Result<Vec<Value>, Status>>;
    /// The JSON of records in the version `to`, in their order. It is computed once and cached in the record.
    fn forms<'a>(&'a self, to: &'a Gvk, records: &'a [Arc<Record>]) -> BoxFuture<'a, Result<Vec<Bytes>, Status>> {
        Box::pin(async move {
            let objects = self.served(to, records.iter().map(|record| parse(record)).collect()).await?;
            Ok(objects.iter().map(|object| kelson_codec::canonical_json(object).into()).collect())
        })
    }
    /// Converts an object to the storage version.
    fn stored<'a>(&'a self, object: Value) -> BoxFuture<'a, Result<Value, Status>>;
    /// Whether the bytes of a record are the object in the version `to`, so that they need not be decoded.
    fn is_plain(&self, to: &Gvk, record: &Record) -> bool {
        let _ = (to, record);
        false
    }
    /// Whether a record is in the version `to`, with or without current defaults.
    fn is_in(&self, to: &Gvk, record: &Record) -> bool {
        self.is_plain(to, record)
    }
    /// The mark of this object's record when it is written, see [`Record::mark`].
    fn mark(&self, stored: &Value) -> u32 {
        let _ = stored;
        0
    }
}

/// The conversion of a kind's stored version to the served one.
#[derive(Clone)]
pub enum Conversion {
    /// The versions are the same.
    Same,
    /// Built-in functions convert in memory and never wait.
    Builtin,
    /// A converter that may wait for a webhook.
    By(Arc<dyn Converter>),
}

impl Conversion {
    /// Converts stored objects to the served version. An error for a built-in kind is the server's fault (500); for others it is the
    /// converter's error.
    pub async fn forth(&self, storage: &Gvk, served: &Gvk, objects: Vec<Value>) -> Result<Vec<Value>, Status> {
        match self {
            Self::Same => Ok(objects),
            Self::Builtin => {
                let one = |o| kelson_resources::convert(storage, served, o);
                objects.into_iter().map(one).collect::<Result<_, _>>().map_err(|e| Status::internal(&e.message))
            }
            Self::By(converter) => {
                let asked = objects.len();
                let converted = converter.served(served, objects).await?;
                if converted.len() != asked {
                    let got = converted.len();
                    let why = format!("conversion for {served} returned {got} objects instead of {asked}");
                    return Err(Status::internal(why));
                }
                Ok(converted)
            }
        }
    }
    /// Converts one object from the served to the stored version.
    pub async fn back(&self, served: &Gvk, storage: &Gvk, object: Value) -> Result<Value, Status> {
        match self {
            Self::Same => Ok(object),
            Self::Builtin => kelson_resources::convert(served, storage, object),
            Self::By(converter) => converter.stored(object).await,
        }
    }
    /// Whether the bytes of a record are the object in the served version.
    pub fn is_plain(&self, served: &Gvk, record: &Record) -> bool {
        match self {
            Self::Same => true,
            Self::Builtin => false,
            Self::By(converter) => converter.is_plain(served, record),
        }
    }
}
