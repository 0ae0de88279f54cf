//! The objects of a request in the version in which somebody wants to see them.
use std::borrow::Cow;

use kelson_meta::Status;
use serde_json::Value;

use super::matching::Match;
use crate::{Attributes, Versions};

/// New and old object in one version.
#[derive(Debug, Default)]
pub struct Shown<'a> {
    /// As after the request; `None` where there is none.
    pub object: Option<Cow<'a, Value>>,
    /// As before the request.
    pub old: Option<Cow<'a, Value>>,
}

/// The versions made so far for one request.
#[derive(Debug, Default)]
pub struct Versioned<'a>(Vec<(Match<'a>, Shown<'a>)>);

/// One object, converted where it must be.
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
    /// Makes the request's objects in a form, unless they are made already.
    ///
    /// # Errors
    /// For what cannot be converted.
    pub async fn make(
        &mut self,
        a: &'a Attributes<'_>,
        versions: &dyn Versions,
        form: &Match<'a>,
    ) -> Result<(), Status> {
        if self.get(form).is_none() {
            self.0.push((form.clone(), Shown::of(a, versions, form).await?));
        }
        Ok(())
    }

    /// The objects in a form that was made before.
    pub fn get(&self, form: &Match<'_>) -> Option<&Shown<'a>> {
        self.0.iter().find(|(made, _)| made == form).map(|(_, shown)| shown)
    }
}

impl<'a> Shown<'a> {
    /// The request's objects in a form.
    ///
    /// # Errors
    /// For what cannot be converted.
    pub async fn of(a: &'a Attributes<'_>, versions: &dyn Versions, form: &Match<'_>) -> Result<Self, Status> {
        let object = show(a, versions, form, a.whole_object()).await?;
        Ok(Self { object, old: show(a, versions, form, a.old_object.map(Cow::Borrowed)).await? })
    }
}
