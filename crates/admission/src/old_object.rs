//! The stored object of an update or a delete. That of a delete is parsed when a plugin first reads it, since few plugins do.
use std::fmt;
use std::sync::OnceLock;

use serde_json::Value;

/// An object that is parsed at its first use.
pub struct LazyObject {
    value: OnceLock<Value>,
    parse: Box<dyn Fn() -> Value + Send + Sync>,
}

impl LazyObject {
    /// An object that `parse` returns when it is needed.
    pub fn new(parse: impl Fn() -> Value + Send + Sync + 'static) -> Self {
        Self { value: OnceLock::new(), parse: Box::new(parse) }
    }

    /// Whether the object was needed so far.
    pub fn is_parsed(&self) -> bool {
        self.value.get().is_some()
    }

    /// The object, which is parsed if it was not before.
    pub fn get(&self) -> &Value {
        self.value.get_or_init(&self.parse)
    }

    /// The object by value.
    pub fn into_value(self) -> Value {
        let Self { value, parse } = self;
        value.into_inner().unwrap_or_else(parse)
    }
}

impl From<Value> for LazyObject {
    fn from(value: Value) -> Self {
        Self { value: value.into(), parse: Box::new(|| Value::Null) }
    }
}

impl fmt::Debug for LazyObject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LazyObject({:?})", self.value.get())
    }
}

/// The stored object that admission compares with the new one, or whose deletion it may reject.
#[derive(Debug, Clone, Copy)]
pub enum OldObject<'a> {
    /// An object that the handler needs anyway.
    Parsed(&'a Value),
    /// An object that only plugins may need.
    Lazy(&'a LazyObject),
}

impl<'a> OldObject<'a> {
    /// The object before the change.
    pub fn get(self) -> &'a Value {
        match self {
            Self::Parsed(value) => value,
            Self::Lazy(lazy) => lazy.get(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use serde_json::json;

    use super::*;

    #[test]
    fn an_object_is_parsed_at_its_first_use_and_once() {
        let parsed = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&parsed);
        let lazy = LazyObject::new(move || json!({"n": count.fetch_add(1, Ordering::Relaxed)}));
        assert!(!lazy.is_parsed());
        assert_eq!(OldObject::Lazy(&lazy).get(), &json!({"n": 0}));
        assert_eq!((lazy.is_parsed(), lazy.into_value()), (true, json!({"n": 0})));
        assert_eq!(parsed.load(Ordering::Relaxed), 1);
        assert_eq!(LazyObject::from(json!(1)).into_value(), json!(1));
    }
}
