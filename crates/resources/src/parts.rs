//! Parses some parts of an object's JSON. The columns of a table need few of them, and to skip the rest is cheaper than to build its tree.
use std::borrow::Cow;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

/// The parts of a JSON value that a reader needs. A value of another shape than expected is kept whole.
#[derive(Debug, Clone, Copy)]
pub enum Parts {
    /// The whole value.
    All,
    /// Nothing: the member is left out.
    Nothing,
    /// These members of an object, and no others.
    Only(&'static [(&'static str, Parts)]),
    /// The members of an object, these in part.
    With(&'static [(&'static str, Parts)]),
    /// These parts of each element of an array.
    Each(&'static Parts),
    /// The names of an object's members, each with null as its value.
    Names,
}

/// An object without its managed fields, which no column shows.
pub const UNMANAGED: Parts = Parts::With(&[("metadata", Parts::With(&[("managedFields", Parts::Nothing)]))]);
/// The metadata that most columns show: name, namespace, age.
pub const IDENTITY: Parts = Parts::Only(&[
    ("name", Parts::All),
    ("namespace", Parts::All),
    ("creationTimestamp", Parts::All),
    ("deletionTimestamp", Parts::All),
]);

impl Parts {
    /// Parses these parts of a JSON document.
    ///
    /// # Errors
    /// It is no JSON.
    pub fn parse(self, json: &str) -> Result<Value, serde_json::Error> {
        let mut document = serde_json::Deserializer::from_str(json);
        let value = self.deserialize(&mut document)?;
        document.end()?;
        Ok(value)
    }

    /// Returns the needed part of an object's member.
    fn member(self, name: &str) -> Self {
        let named = |members: &[(&str, Self)]| members.iter().find(|(n, _)| *n == name).map(|(_, parts)| *parts);
        match self {
            Self::All | Self::Each(_) => Self::All,
            Self::Nothing | Self::Names => Self::Nothing,
            Self::Only(members) => named(members).unwrap_or(Self::Nothing),
            Self::With(members) => named(members).unwrap_or(Self::All),
        }
    }
}

impl<'de> DeserializeSeed<'de> for Parts {
    type Value = Value;
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        match self {
            Self::All => serde::Deserialize::deserialize(deserializer),
            _ => deserializer.deserialize_any(self),
        }
    }
}

impl<'de> Visitor<'de> for Parts {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }
    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }
    fn visit_bool<E>(self, v: bool) -> Result<Value, E> {
        Ok(v.into())
    }
    fn visit_i64<E>(self, v: i64) -> Result<Value, E> {
        Ok(v.into())
    }
    fn visit_u64<E>(self, v: u64) -> Result<Value, E> {
        Ok(v.into())
    }
    fn visit_f64<E>(self, v: f64) -> Result<Value, E> {
        Ok(v.into())
    }
    fn visit_str<E>(self, v: &str) -> Result<Value, E> {
        Ok(v.into())
    }
    fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<Value, A::Error> {
        let each = if let Self::Each(parts) = self { *parts } else { Self::All };
        let mut list = Vec::new();
        while let Some(element) = elements.next_element_seed(each)? {
            list.push(element);
        }
        Ok(list.into())
    }
    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Value, A::Error> {
        let mut map = Map::new();
        while let Some(name) = members.next_key::<Cow<'de, str>>()? {
            match self.member(&name) {
                Self::Nothing => {
                    members.next_value::<IgnoredAny>()?;
                    if matches!(self, Self::Names) {
                        map.insert(name.into_owned(), Value::Null);
                    }
                }
                parts => {
                    map.insert(name.into_owned(), members.next_value_seed(parts)?);
                }
            }
        }
        Ok(map.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn only_the_parts_are_parsed() {
        const PARTS: Parts = Parts::Only(&[
            ("metadata", IDENTITY),
            ("n", Parts::Names),
            ("spec", Parts::With(&[("list", Parts::Each(&Parts::Only(&[("name", Parts::All)])))])),
            ("data", Parts::Names),
            ("absent", Parts::All),
        ]);
        let object = json!({"metadata": {"name": "a", "managedFields": [1], "uid": "u"}, "n": [1, -2, 0.5, true, null, "x\n"],
            "spec": {"list": [{"name": "x", "rest": [1]}, 7, {"rest": 1}], "other": {}}, "data": {"k": "v", "l": {}}});
        for (parts, expected) in [
            (Parts::All, object.clone()),
            (
                PARTS,
                json!({"metadata": {"name": "a"}, "n": [1, -2, 0.5, true, null, "x\n"],
                    "spec": {"list": [{"name": "x"}, 7, {}], "other": {}}, "data": {"k": null, "l": null}}),
            ),
            (UNMANAGED, {
                let mut rest = object.clone();
                rest["metadata"].as_object_mut().unwrap().remove("managedFields");
                rest
            }),
        ] {
            assert_eq!(parts.parse(&object.to_string()).unwrap(), expected, "{parts:?}");
        }
        assert_eq!(PARTS.parse("null").unwrap(), Value::Null);
        assert!(PARTS.parse("{} x").is_err() && PARTS.parse("{\"metadata\":}").is_err());
    }
}
