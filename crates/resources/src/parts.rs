//! Parses some parts of an object's JSON. The columns of a table need few of them, and to skip the rest is cheaper than to build its tree.
use std::borrow::Cow;
use std::fmt;
use std::ops::Range;

use kelson_codec::json::unescaped;
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
    /// These members of an object's metadata, which come before its labels where fields have the declared order.
    Leading(&'static [(&'static str, Parts)]),
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
pub const IDENTITY: Parts = Parts::Leading(&[
    ("name", Parts::All),
    ("namespace", Parts::All),
    ("creationTimestamp", Parts::All),
    ("deletionTimestamp", Parts::All),
]);

impl Parts {
    /// Parses these parts of a JSON document. The grammar of the other parts is not checked.
    ///
    /// # Errors
    /// It is no JSON.
    pub fn parse(self, json: &str) -> Result<Value, serde_json::Error> {
        self.parse_beside(json, None)
    }

    /// As [`Parts::parse`], if the range of the object's metadata is known. What follows its leading members is not looked at.
    ///
    /// # Errors
    /// It is no JSON.
    pub fn parse_beside(self, json: &str, metadata: Option<Range<usize>>) -> Result<Value, serde_json::Error> {
        if !matches!(self, Self::All)
            && let Some(value) = Walk::whole(json, self, metadata)
        {
            return Ok(value);
        }
        self.parse_checked(json)
    }

    /// As [`Parts::parse`], for any JSON.
    fn parse_checked(self, json: &str) -> Result<Value, serde_json::Error> {
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
            Self::Only(members) | Self::Leading(members) => named(members).unwrap_or(Self::Nothing),
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

/// Nesting of the needed parts up to which a [`Walk`] builds them.
const WALK_DEPTH_MAX: usize = 64;
/// The member of metadata that precedes its [`LATE`] members in the declared order. It follows them where fields are sorted by name.
const REVISION: &str = "resourceVersion";
/// The members of metadata after the leading ones.
const LATE: [&str; 5] = ["labels", "annotations", "ownerReferences", "finalizers", "managedFields"];

/// A walk over compact JSON, such as that of stored objects. It builds what is needed and passes over the rest, of which it looks only at
/// strings and brackets. Its methods return `None` for other JSON, and for text that is no JSON.
struct Walk<'a> {
    text: &'a str,
    at: usize,
    depth: usize,
    /// The object's metadata in the text, if it is known.
    metadata: Option<Range<usize>>,
}

impl<'a> Walk<'a> {
    /// The parts of a document.
    fn whole(text: &'a str, parts: Parts, metadata: Option<Range<usize>>) -> Option<Value> {
        let mut walk = Walk { text, at: 0, depth: 0, metadata };
        let value = walk.value(parts)?;
        (walk.at == text.len()).then_some(value)
    }

    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn value(&mut self, parts: Parts) -> Option<Value> {
        match self.peek()? {
            b'{' => self.object(parts),
            b'[' => self.array(parts),
            b'"' => self.string().map(|text| Value::String(text.into_owned())),
            _ => {
                let start = self.at;
                self.pass_word();
                serde_json::from_str(&self.text[start..self.at]).ok()
            }
        }
    }

    /// Enters an object or array. Returns whether it is empty, and then leaves it.
    fn enter(&mut self, end: u8) -> Option<bool> {
        (self.at, self.depth) = (self.at + 1, self.depth + 1);
        if self.depth > WALK_DEPTH_MAX {
            return None;
        }
        let is_empty = self.peek()? == end;
        if is_empty {
            (self.at, self.depth) = (self.at + 1, self.depth - 1);
        }
        Some(is_empty)
    }

    /// Whether another member or element follows; leaves the object or array otherwise.
    fn follows(&mut self, end: u8) -> Option<bool> {
        let byte = self.peek()?;
        self.at += 1;
        if byte == end {
            self.depth -= 1;
        }
        (byte == end || byte == b',').then_some(byte != end)
    }

    fn object(&mut self, parts: Parts) -> Option<Value> {
        let mut map = Map::new();
        // Where the object ends, if no member is needed after the first late one.
        let end = self.metadata.as_ref().filter(|range| range.start == self.at).map(|range| range.end.wrapping_sub(1));
        let end = end.filter(|_| matches!(parts, Parts::Leading(_)));
        let mut is_declared = false;
        let mut follows = !self.enter(b'}')?;
        while follows {
            let name = self.string()?;
            if self.peek()? != b':' {
                return None;
            }
            self.at += 1;
            if let Some(end) = end {
                if is_declared && LATE.contains(&&*name) {
                    self.at = end;
                    return (!self.follows(b'}')?).then_some(Value::Object(map));
                }
                is_declared |= name == REVISION;
            }
            match parts.member(&name) {
                Parts::Nothing => {
                    self.pass()?;
                    if matches!(parts, Parts::Names) {
                        map.insert(name.into_owned(), Value::Null);
                    }
                }
                needed => {
                    map.insert(name.into_owned(), self.value(needed)?);
                }
            }
            follows = self.follows(b'}')?;
        }
        Some(Value::Object(map))
    }

    fn array(&mut self, parts: Parts) -> Option<Value> {
        let each = if let Parts::Each(each) = parts { *each } else { Parts::All };
        let mut list = Vec::new();
        let mut follows = !self.enter(b']')?;
        while follows {
            list.push(self.value(each)?);
            follows = self.follows(b']')?;
        }
        Some(Value::Array(list))
    }

    /// Reads a string. The cursor is on its quote.
    fn string(&mut self) -> Option<Cow<'a, str>> {
        let start = self.at;
        self.pass_string()?;
        let quoted = &self.text[start..self.at];
        let text = &quoted[1..quoted.len() - 1];
        if unescaped(text.as_bytes()) == text.len() {
            return Some(Cow::Borrowed(text));
        }
        serde_json::from_str(quoted).ok().map(Cow::Owned)
    }

    /// Passes over a string. The cursor is on its quote.
    fn pass_string(&mut self) -> Option<()> {
        if self.peek()? != b'"' {
            return None;
        }
        self.at += 1;
        loop {
            self.at += unescaped(self.text.as_bytes().get(self.at..)?);
            match self.peek()? {
                b'"' => {
                    self.at += 1;
                    return Some(());
                }
                b'\\' => self.at += 2,
                _ => return None,
            }
        }
    }

    /// Passes over a number, `true`, `false` or `null`.
    fn pass_word(&mut self) {
        while self.peek().is_some_and(|byte| !matches!(byte, b',' | b'}' | b']')) {
            self.at += 1;
        }
    }

    /// Passes over a value.
    fn pass(&mut self) -> Option<()> {
        let mut open = 0usize;
        loop {
            match self.peek()? {
                b'"' => self.pass_string()?,
                b'{' | b'[' => {
                    (self.at, open) = (self.at + 1, open + 1);
                    continue;
                }
                b'}' | b']' if open > 0 => (self.at, open) = (self.at + 1, open - 1),
                b'}' | b']' => return None,
                b',' | b':' if open > 0 => {
                    self.at += 1;
                    continue;
                }
                _ => {
                    let start = self.at;
                    self.pass_word();
                    (self.at > start).then_some(())?;
                }
            }
            if open == 0 {
                return Some(());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// Every served kind with all its fields, and the parts that its row shows.
    fn objects() -> Vec<(String, Parts)> {
        let each = kelson_schema::resource::resources().filter_map(|r| {
            let ty = kelson_schema::Schema::builtin().by_gvk(r.group, r.version, r.kind)?;
            let object = Value::Object(kelson_schema::sample::object(ty));
            let parts = crate::strategy(r.group, r.plural).map_or(UNMANAGED, |strategy| strategy.row_parts());
            Some((object.to_string(), parts))
        });
        each.collect()
    }

    #[test]
    fn the_walk_gives_what_the_parser_gives() {
        const NAMED: Parts =
            Parts::Only(&[("b", Parts::Only(&[("d", Parts::Each(&Parts::Names))])), ("metadata", IDENTITY)]);
        let objects = objects();
        assert!(objects.len() > 60, "{}", objects.len());
        for (json, parts) in &objects {
            for parts in [*parts, Parts::All, UNMANAGED, IDENTITY] {
                assert_eq!(Walk::whole(json, parts, None), Some(parts.parse_checked(json).unwrap()), "{json}");
            }
        }
        // Damage to what is needed is never overlooked. Text that the parser accepts never has another value.
        let small = r#"{"a":[1,-2.5e3,true,null,"x\"\\\u00e9"],"b":{"c":{},"d":[[],{"e":"f"}]},"metadata":{"managedFields":[{"f":{}}],"name":"é"}}"#;
        let mut walked = 0;
        for at in (0..small.len()).filter(|at| small.is_char_boundary(*at)) {
            let next = (at + 1..=small.len()).find(|next| small.is_char_boundary(*next)).unwrap();
            for instead in ["", "\"", "\\", "\u{1}", " ", "x", "0", "{", "}", "]", ",", ":", "null"] {
                let json = [&small[..at], instead, &small[next..]].concat();
                for parts in [Parts::All, UNMANAGED, NAMED] {
                    let (walk, checked) = (Walk::whole(&json, parts, None), parts.parse_checked(&json).ok());
                    walked += usize::from(walk.is_some());
                    if checked.is_some() || matches!(parts, Parts::All) {
                        assert!(walk.is_none() || walk == checked, "{parts:?} {json}");
                    }
                }
            }
        }
        assert!(walked > 500, "{walked}");
    }

    #[test]
    fn what_no_column_shows_is_not_parsed() {
        let json = r#"{"metadata":{"managedFields":[{"f:x":nothing 01}],"name":"a"},"spec":{"x":[{"y":\\}]}}"#;
        let parts = Parts::Only(&[("metadata", IDENTITY)]);
        assert_eq!(parts.parse(json).unwrap(), json!({"metadata": {"name": "a"}}));
        let deep = "[".repeat(WALK_DEPTH_MAX + 1) + &"]".repeat(WALK_DEPTH_MAX + 1);
        assert!(Walk::whole(&deep, UNMANAGED, None).is_none() && UNMANAGED.parse(&deep).is_ok());
    }

    #[test]
    fn what_follows_the_leading_members_is_not_looked_at() {
        const PARTS: Parts = Parts::Only(&[("metadata", IDENTITY), ("spec", Parts::All)]);
        let parse = |metadata: &str| {
            let json = format!(r#"{{"kind":"K","metadata":{metadata},"spec":{{"x":1}}}}"#);
            let begin = json.find(metadata).unwrap();
            PARTS.parse_beside(&json, Some(begin..begin + metadata.len())).ok()
        };
        let expected = Some(json!({"metadata": {"name": "a", "creationTimestamp": "t"}, "spec": {"x": 1}}));
        // The declared order, in which the labels and what follows them are no JSON.
        let declared = r#"{"name":"a","resourceVersion":"7","creationTimestamp":"t","labels":]]"f":nothing}"#;
        assert_eq!(parse(declared), expected);
        // The order of names, and others in which a late member is first.
        for metadata in [
            r#"{"annotations":{"a":"b"},"creationTimestamp":"t","managedFields":[],"name":"a","resourceVersion":"7","uid":"u"}"#,
            r#"{"labels":{},"name":"a","creationTimestamp":"t","resourceVersion":"7"}"#,
            r#"{"name":"a","creationTimestamp":"t","labels":{}}"#,
            r#"{"name":"a","creationTimestamp":"t"}"#,
        ] {
            assert_eq!(parse(metadata), expected, "{metadata}");
        }
        // A range that is not the object's is no reason to fail.
        let json =
            r#"{"metadata":{"resourceVersion":"7","name":"a","creationTimestamp":"t","labels":{}},"spec":{"x":1}}"#;
        for range in [12..13, 12..json.len() + 9, 12..12, 0..0] {
            assert_eq!(PARTS.parse_beside(json, Some(range.clone())).ok(), expected, "{range:?}");
        }
    }

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
