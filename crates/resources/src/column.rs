//! Columns of the server-side table (`meta.k8s.io/v1 Table`), including those that many kinds share. `table` formats
//! the cells.
use std::borrow::Cow;

use crate::text::Text;

/// The definition of a column, as in `columnDefinitions`.
#[derive(Clone, Debug)]
pub struct Column {
    /// The header, which kubectl prints in capitals.
    pub name: Text,
    /// The OpenAPI type of the cells: `string`, `integer`, `boolean`, `date`.
    pub kind: Text,
    /// The OpenAPI format of the cells; `name` marks the column that identifies the object.
    pub format: Text,
    /// One sentence for users.
    pub description: Text,
    /// The priority: 0 is always shown, 1 only with `-o wide`.
    pub priority: i32,
}

impl Column {
    /// Creates a column of strings.
    pub const fn text(name: &'static str, description: &'static str) -> Self {
        Self::of("string", name, description)
    }
    /// Creates a column of integers.
    pub const fn integer(name: &'static str, description: &'static str) -> Self {
        Self::of("integer", name, description)
    }
    /// Creates a column of booleans.
    pub const fn boolean(name: &'static str, description: &'static str) -> Self {
        Self::of("boolean", name, description)
    }
    /// Creates a column whose string identifies the object (format `name`).
    pub const fn identifying(name: &'static str, description: &'static str) -> Self {
        Self::formatted("string", "name", name, description)
    }
    /// Returns the column, shown with `-o wide` only.
    pub const fn wide(mut self) -> Self {
        self.priority = 1;
        self
    }

    const fn of(kind: &'static str, name: &'static str, description: &'static str) -> Self {
        Self::formatted(kind, "", name, description)
    }
    const fn formatted(
        kind: &'static str,
        format: &'static str,
        name: &'static str,
        description: &'static str,
    ) -> Self {
        Self {
            name: Cow::Borrowed(name),
            kind: Cow::Borrowed(kind),
            format: Cow::Borrowed(format),
            description: Cow::Borrowed(description),
            priority: 0,
        }
    }
}

/// The column that identifies the object.
pub const NAME: Column = Column::identifying("Name", "Name of the object.");
/// The time since creation.
pub const AGE: Column = Column::text("Age", "Time since the object was created.");
/// Name and creation time: the columns of kinds without a printer.
pub const NAME_CREATED: &[Column] = &[NAME, Column::of("date", "Created At", "Time at which the object was created.")];
/// Name and age: the columns of kinds whose printer shows nothing else.
pub const NAME_AGE: &[Column] = &[NAME, AGE];
/// A wide column with the container names of a pod template.
pub const CONTAINERS: Column = Column::text("Containers", "Names of the containers in the template.").wide();
/// A wide column with the container images of a pod template.
pub const IMAGES: Column = Column::text("Images", "Images of the containers in the template.").wide();
/// A wide column with the label selector of a workload or service.
pub const SELECTOR: Column = Column::text("Selector", "Label selector of the pods.").wide();
