//! The changes of one write, in its version and in the versions that entries name, and their effect on the owners of
//! fields.
use super::{
    compare::Comparison,
    fields::FieldSet,
    managed::{Managed, ManagerId, Owned},
};
use std::collections::BTreeMap;

/// The changes of one write, in each version that is needed.
#[derive(Debug, Default)]
pub(super) struct Changes {
    /// The comparison in the version of the write.
    pub own: Comparison,
    /// The comparisons in other versions. `None` means that the version is no longer served; the fields owned in it are
    /// dropped.
    pub others: BTreeMap<String, Option<Comparison>>,
}

impl Changes {
    pub(super) fn of(own: Comparison) -> Self {
        Self { own, others: BTreeMap::new() }
    }
    /// Returns the comparison in the version of an entry.
    fn to(&self, owned: &Owned) -> Option<&Comparison> {
        self.others.get(&owned.api_version).map_or(Some(&self.own), Option::as_ref)
    }

    /// Returns the changed fields that other managers own, by manager.
    pub(super) fn conflicts<'a>(&self, managed: &'a Managed, but: &ManagerId) -> Vec<(&'a ManagerId, FieldSet)> {
        let others = managed.0.iter().filter(|(id, _)| *id != but);
        let taken = others.filter_map(|(id, owned)| {
            let changed = self.to(owned)?;
            let owned = owned.fields.set();
            let mut fields = owned.intersection(&changed.modified);
            fields.absorb(owned.intersection(&changed.added));
            Some((id, fields))
        });
        taken.filter(|(_, fields)| !fields.is_empty()).collect()
    }

    /// Removes changed and removed fields from all other managers. Returns the fields that have a new value in the
    /// write's version.
    pub(super) fn take(self, managed: &mut Managed, but: Option<&ManagerId>) -> FieldSet {
        managed.0.retain(|id, owned| {
            if Some(id) == but {
                return !owned.fields.is_empty();
            }
            let Some(changed) = self.to(owned) else { return false };
            for gone in [&changed.modified, &changed.added, &changed.removed] {
                owned.fields.subtract(gone);
            }
            !owned.fields.is_empty()
        });
        let mut set = self.own.modified;
        set.absorb(self.own.added);
        set
    }
}
