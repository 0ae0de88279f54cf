//! `metadata.managedFields`: reading, writing and ordering its entries.
use super::owned::OwnedFields;
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// The number of entries of plain writes per object. Older ones are merged into `ancient-changes`.
pub const UPDATE_MANAGERS_MAX: usize = 10;

/// The kind of write that made an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Operation {
    /// A server-side apply: fields that are not applied again are removed.
    Apply,
    /// Any other write.
    Update,
}

impl Operation {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Apply => "Apply",
            Self::Update => "Update",
        }
    }
}

/// The identity of a field manager. Writes with equal ids share an entry.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ManagerId {
    /// The manager's name.
    pub manager: String,
    /// Kind of write.
    pub operation: Operation,
    /// The version of the written fields. Empty for [`Operation::Apply`], which has one entry for all versions.
    pub api_version: String,
    /// The subresource written through; empty for the main resource.
    pub subresource: String,
}

impl ManagerId {
    /// Makes an id. The version is dropped for applies.
    pub fn new(manager: &str, operation: Operation, api_version: &str, subresource: &str) -> Self {
        let api_version = if operation == Operation::Apply { "" } else { api_version };
        let manager = if manager.is_empty() { "unknown" } else { manager };
        Self {
            manager: manager.to_owned(),
            operation,
            api_version: api_version.to_owned(),
            subresource: subresource.to_owned(),
        }
    }
}

/// The fields that a manager owns.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Owned {
    /// The owned paths.
    pub fields: OwnedFields,
    /// The API version in which the paths are named.
    pub api_version: String,
    /// The time of the last change, RFC 3339. Absent for entries that never had one.
    pub time: Option<String>,
}

/// The reason why the elements of `metadata.managedFields` cannot be read, with upstream's messages. Entries are
/// numbered from 0.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EntriesError {
    /// The operation of an entry is neither `Apply` nor `Update`.
    #[error("operation must be `Apply` or `Update`")]
    Operation,
    /// An entry has no `apiVersion`.
    #[error("apiVersion must not be empty")]
    ApiVersion,
    /// An entry has no `fieldsType`.
    #[error("missing fieldsType in managed fields entry {0}")]
    NoFieldsType(usize),
    /// The `fieldsType` of an entry is not `FieldsV1`.
    #[error("invalid fieldsType {found:?} in managed fields entry {entry}")]
    FieldsType {
        /// The value in the entry.
        found: String,
        /// The index of the entry.
        entry: usize,
    },
    /// `fieldsV1` is not a set of paths.
    #[error("error decoding set in managed fields entry {0}")]
    Fields(usize),
}

/// All entries of an object.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Managed(pub BTreeMap<ManagerId, Owned>);

impl Managed {
    /// Reads an object's entries.
    ///
    /// # Errors
    /// Fails at the first entry that cannot be read.
    pub fn read(object: &Value) -> Result<Self, EntriesError> {
        Self::of_entries(object["metadata"]["managedFields"].as_array().cloned().unwrap_or_default())
    }

    /// Parses the elements of `managedFields`; see [`Managed::read`].
    pub(super) fn of_entries(entries: Vec<Value>) -> Result<Self, EntriesError> {
        let mut out = BTreeMap::new();
        for (i, mut entry) in entries.into_iter().enumerate() {
            let fields = entry.get_mut("fieldsV1").map(Value::take).unwrap_or_default();
            let text = |key: &str| entry[key].as_str().unwrap_or("");
            let operation = match text("operation") {
                "Apply" => Operation::Apply,
                "Update" => Operation::Update,
                _ => return Err(EntriesError::Operation),
            };
            if text("apiVersion").is_empty() {
                return Err(EntriesError::ApiVersion);
            }
            match text("fieldsType") {
                "FieldsV1" => {}
                "" => return Err(EntriesError::NoFieldsType(i)),
                other => return Err(EntriesError::FieldsType { found: other.to_owned(), entry: i }),
            }
            let fields = OwnedFields::from_fields_v1(fields).ok_or(EntriesError::Fields(i))?;
            let mut id = ManagerId::new("", operation, text("apiVersion"), text("subresource"));
            id.manager = text("manager").to_owned();
            let owned = Owned {
                fields,
                api_version: text("apiVersion").to_owned(),
                time: entry["time"].as_str().map(str::to_owned),
            };
            out.insert(id, owned);
        }
        Ok(Self(out))
    }

    /// Reports whether the object requests the removal of its entries: `managedFields` is an empty list or one empty
    /// entry.
    pub fn is_reset(object: &Value) -> bool {
        match object["metadata"]["managedFields"].as_array().map(Vec::as_slice) {
            Some([]) => true,
            Some([only]) => only.as_object().is_some_and(|e| e.values().all(|v| v.is_null() || v == "")),
            _ => false,
        }
    }

    /// Writes the entries in upstream's order. Without entries the field is removed.
    pub fn write(self, object: &mut Value) {
        let Some(metadata) =
            object.as_object_mut().map(|o| o.entry("metadata").or_insert_with(|| Value::Object(Map::new())))
        else {
            return;
        };
        let Value::Object(metadata) = metadata else { return };
        if self.0.is_empty() {
            metadata.remove("managedFields");
            return;
        }
        let mut entries: Vec<(ManagerId, Owned)> = self.0.into_iter().collect();
        entries.sort_by(|(a, x), (b, y)| {
            (a.operation, &x.time, &a.manager, &x.api_version, &a.subresource).cmp(&(
                b.operation,
                &y.time,
                &b.manager,
                &y.api_version,
                &b.subresource,
            ))
        });
        let entries = entries.into_iter().map(|(id, owned)| {
            let mut entry = Map::new();
            entry.insert("apiVersion".into(), owned.api_version.into());
            entry.insert("fieldsType".into(), "FieldsV1".into());
            entry.insert("fieldsV1".into(), owned.fields.into_fields_v1());
            entry.insert("manager".into(), id.manager.into());
            entry.insert("operation".into(), id.operation.name().into());
            if let Some(time) = owned.time {
                entry.insert("time".into(), time.into());
            }
            if !id.subresource.is_empty() {
                entry.insert("subresource".into(), id.subresource.into());
            }
            Value::Object(entry)
        });
        metadata.insert("managedFields".into(), Value::Array(entries.collect()));
    }

    /// Merges the oldest plain writes of a version into one entry until the number of entries is within the limit.
    pub(super) fn cap(&mut self) {
        let mut updaters: Vec<ManagerId> =
            self.0.keys().filter(|id| id.operation == Operation::Update).cloned().collect();
        let mut count = updaters.len();
        if count <= UPDATE_MANAGERS_MAX {
            return;
        }
        updaters.sort_by(|a, b| (&self.0[a].time, a).cmp(&(&self.0[b].time, b)));
        let mut first_of: BTreeMap<String, ManagerId> = BTreeMap::new();
        for id in updaters {
            if count <= UPDATE_MANAGERS_MAX {
                return;
            }
            let Some(owned) = self.0.get(&id).cloned() else { continue };
            let version = owned.api_version.clone();
            let bucket = ManagerId::new("ancient-changes", Operation::Update, &version, "");
            match first_of.get(&version) {
                Some(first) => {
                    if !self.0.contains_key(&bucket)
                        && let Some(moved) = self.0.remove(first)
                    {
                        self.0.insert(bucket.clone(), moved);
                    }
                    self.0.remove(&id);
                    if let Some(ancient) = self.0.get_mut(&bucket) {
                        ancient.fields.absorb(owned.fields.set().into_owned());
                        ancient.time = owned.time;
                    }
                    count -= 1;
                }
                None => {
                    first_of.insert(version, id);
                }
            }
        }
    }

    /// Reports whether two objects differ only in their entries. `bare` has no entries.
    pub(super) fn is_all_that_differs(object: &Value, bare: &Value) -> bool {
        let (Some(object), Some(bare)) = (object.as_object(), bare.as_object()) else { return object == bare };
        let same = |(key, value): (&String, &Value)| match (key.as_str(), value, bare.get(key)) {
            ("metadata", Value::Object(with), Some(Value::Object(without))) => {
                with.len() == without.len() + usize::from(with.contains_key("managedFields"))
                    && without.iter().all(|(key, value)| with.get(key) == Some(value))
            }
            (_, value, other) => other == Some(value),
        };
        object.len() == bare.len() && object.iter().all(same)
    }

    /// Removes an object's entries and returns them.
    pub(super) fn take(object: &mut Value) -> Option<Value> {
        object.get_mut("metadata").and_then(Value::as_object_mut)?.remove("managedFields")
    }

    /// Removes an object's entries.
    pub fn clear(object: &mut Value) {
        if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
            metadata.remove("managedFields");
        }
    }
}

/// Undoes a write that changes only the times of entries: `new` gets the old entries back, so the store sees no change.
/// It is called after defaulting and admission, like upstream's `IgnoreManagedFieldsTimestampsTransformer`.
pub fn keep_times(old: &Value, new: &mut Value) {
    let entries = |object: &Value| object["metadata"]["managedFields"].as_array().cloned().unwrap_or_default();
    // Most writes change something else, which is detected without reading the entries.
    if !same_but_entries(old, new) || old["metadata"]["managedFields"] == new["metadata"]["managedFields"] {
        return;
    }
    let before = entries(old);
    if bare(before.clone()) == bare(entries(new)) {
        new["metadata"]["managedFields"] = Value::Array(before);
    }
}

/// Returns the entries without their times, in an order that does not depend on the times.
fn bare(mut entries: Vec<Value>) -> Vec<Value> {
    for entry in &mut entries {
        if let Some(entry) = entry.as_object_mut() {
            entry.remove("time");
        }
    }
    entries.sort_by_cached_key(Value::to_string);
    entries
}

/// Reports whether two objects differ only in their entries.
fn same_but_entries(old: &Value, new: &Value) -> bool {
    let (Some(old), Some(new)) = (old.as_object(), new.as_object()) else { return false };
    let same_metadata = |a: &Value, b: &Value| match (a.as_object(), b.as_object()) {
        (Some(a), Some(b)) => {
            a.len() == b.len() && b.iter().all(|(key, value)| key == "managedFields" || a.get(key) == Some(value))
        }
        _ => a == b,
    };
    old.len() == new.len()
        && new.iter().all(|(key, value)| match old.get(key) {
            Some(before) if key == "metadata" => same_metadata(before, value),
            before => before == Some(value),
        })
}
