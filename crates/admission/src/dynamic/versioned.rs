//! The objects of a request, converted to the versions that webhooks and policies match.
use std::borrow::Cow;

use kelson_meta::Status;
use serde_json::Value;

use super::matching::Match;
use crate::{Attributes, Versions};

/// The new and the old object in one version.
#[derive(Debug, Default)]
pub struct VersionedObjects<'a> {
    /// The object after the request; `None` when there is none.
    pub object: Option<Cow<'a, Value>>,
    /// The object before the request.
    pub old: Option<Cow<'a, Value>>,
}

/// The conversions made so far for one request.
#[derive(Debug, Default)]
pub struct Versioned<'a>(Vec<(Match<'a>, VersionedObjects<'a>)>);

/// Converts one object if necessary.
async fn show<'a>(
    a: &Attributes<'_>,
    versions: &dyn Versions,
    form: &Match<'_>,
    object: Option<Cow<'a, Value>>,
) -> Result<Option<Cow<'a, Value>>, Status> {
    let Some(object) = object else { return Ok(None) };
    let shown = versions.show(a.resource, &form.resource, &form.kind, &object).await?;
    Ok(Some(shown.map_or(object, Cow::Owned)))
}

impl<'a> Versioned<'a> {
    /// Converts the request's objects to a form, unless that was done already.
    ///
    /// # Errors
    /// An object cannot be converted.
    pub async fn make(
        &mut self,
        a: &'a Attributes<'_>,
        versions: &dyn Versions,
        form: &Match<'a>,
    ) -> Result<(), Status> {
        if self.get(form).is_none() {
            self.0.push((form.clone(), VersionedObjects::of(a, versions, form).await?));
        }
        Ok(())
    }

    /// Returns the objects in a form that was made before.
    pub fn get(&self, form: &Match<'_>) -> Option<&VersionedObjects<'a>> {
        self.0.iter().find(|(made, _)| made == form).map(|(_, shown)| shown)
    }
}

impl<'a> VersionedObjects<'a> {
    /// Converts the request's objects to a form.
    ///
    /// # Errors
    /// An object cannot be converted.
    pub async fn of(a: &'a Attributes<'_>, versions: &dyn Versions, form: &Match<'_>) -> Result<Self, Status> {
        let object = show(a, versions, form, a.whole_object()).await?;
        Ok(Self { object, old: show(a, versions, form, a.old_object.map(|old| Cow::Borrowed(old.get()))).await? })
    }
}
