//! Columns of the server-side table (`meta.k8s.io/v1 Table`), and those that many kinds share. Cells are `table`'s.
use std::borrow::Cow;

use crate::text::Text;

/// The definition of one column, as `columnDefinitions` publishes it.
#[derive(Clone, Debug)]
pub struct Column {
    /// The header that kubectl prints, in capitals.
    pub name: Text,
    /// OpenAPI type of the cells: `string`, `integer`, `boolean`, `date`.
    pub kind: Text,
    /// OpenAPI format of the cells; `name` marks the column that identifies the object.
    pub format: Text,
    /// One sentence for people.
    pub description: Text,
    /// 0 is always shown, 1 only with `-o wide`.
    pub priority: i32,
}

impl Column {
    /// A column of text cells.
    pub const fn text(name: &'static str, description: &'static str) -> Self {
        Self::of("string", name, description)
    }
    /// A column of whole numbers.
    pub const fn integer(name: &'static str, description: &'static str) -> Self {
        Self::of("integer", name, description)
    }
    /// A column of `true` and `false`.
    pub const fn boolean(name: &'static str, description: &'static str) -> Self {
        Self::of("boolean", name, description)
    }
    /// A column whose text identifies the object (format `name`).
    pub const fn identifying(name: &'static str, description: &'static str) -> Self {
        Self::formatted("string", "name", name, description)
    }
    /// The same column, shown with `-o wide` only.
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
/// Time since creation.
pub const AGE: Column = Column::text("Age", "Time since the object was created.");
/// Name and creation time: the columns of kinds that have no printer of their own.
pub const NAME_CREATED: &[Column] = &[NAME, Column::of("date", "Created At", "Time at which the object was created.")];
/// Name and age: the columns of kinds whose printer shows nothing else.
pub const NAME_AGE: &[Column] = &[NAME, AGE];
/// Wide column: container names of a pod template.
pub const CONTAINERS: Column = Column::text("Containers", "Names of the containers in the template.").wide();
/// Wide column: container images of a pod template.
pub const IMAGES: Column = Column::text("Images", "Images of the containers in the template.").wide();
/// Wide column: label selector of a workload or service.
pub const SELECTOR: Column = Column::text("Selector", "Label selector of the pods.").wide();
