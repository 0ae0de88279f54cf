//! `spec` in upstream's internal form: parts that are equal in all versions are moved to the spec, so that their errors
//! have the paths `spec.validation`, `spec.subresources` and so on.
use kelson_meta::tree::{flag, items, same};
use serde_json::Value;

/// A definition's `spec`.
pub(super) struct Spec<'a> {
    pub spec: &'a Value,
    pub versions: &'a [Value],
    /// The part that all versions share. Null if they differ or have none.
    pub schema: &'a Value,
    pub subresources: &'a Value,
    pub columns: &'a Value,
    pub fields: &'a Value,
    shared: [bool; 4],
}

const PER_VERSION: [&str; 4] = ["schema", "subresources", "additionalPrinterColumns", "selectableFields"];

impl<'a> Spec<'a> {
    pub fn of(spec: &'a Value) -> Self {
        let versions = items(&spec["versions"]);
        let shared = PER_VERSION.map(|key| versions.iter().all(|v| same(&v[key], &versions[0][key])));
        let above = |at: usize| match versions.first() {
            Some(first) if shared[at] => &first[PER_VERSION[at]],
            _ => &Value::Null,
        };
        Self { spec, versions, schema: above(0), subresources: above(1), columns: above(2), fields: above(3), shared }
    }
    fn own(&self, at: usize, version: &'a Value) -> &'a Value {
        if self.shared[at] { &Value::Null } else { &version[PER_VERSION[at]] }
    }
    pub fn schema_of(&self, version: &'a Value) -> &'a Value {
        self.own(0, version)
    }
    pub fn subresources_of(&self, version: &'a Value) -> &'a Value {
        self.own(1, version)
    }
    pub fn columns_of(&self, version: &'a Value) -> &'a Value {
        self.own(2, version)
    }
    pub fn fields_of(&self, version: &'a Value) -> &'a Value {
        self.own(3, version)
    }
    pub fn preserves_unknown(&self) -> bool {
        flag(&self.spec["preserveUnknownFields"])
    }
}
