//! The v2 document in protobuf (`openapi.v2` messages), which kubectl uses for validation if there is no v3 document (kinds without
//! PATCH, unknown kinds). It is encoded from the JSON tree with the published field numbers.
use serde_json::{Map, Value};

/// A protobuf message under construction.
#[derive(Default)]
struct Message(Vec<u8>);

impl Message {
    fn varint(&mut self, mut n: u64) {
        while n >= 0x80 {
            self.0.push((n as u8 & 0x7f) | 0x80);
            n >>= 7;
        }
        self.0.push(n as u8);
    }
    fn bytes(&mut self, field: u32, bytes: &[u8]) {
        self.varint(u64::from(field << 3 | 2));
        self.varint(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
    }
    fn text(&mut self, field: u32, value: &Value) {
        if let Some(text) = value.as_str().filter(|t| !t.is_empty()) {
            self.bytes(field, text.as_bytes());
        }
    }
    fn texts(&mut self, field: u32, value: &Value) {
        for text in value.as_array().into_iter().flatten().filter_map(Value::as_str) {
            self.bytes(field, text.as_bytes());
        }
    }
    fn flag(&mut self, field: u32, value: &Value) {
        if value == true {
            self.varint(u64::from(field << 3));
            self.varint(1);
        }
    }
    fn message(&mut self, field: u32, message: Message) {
        self.bytes(field, &message.0);
    }
    /// Extensions as `NamedAny` entries.
    fn extensions(&mut self, field: u32, object: &Value) {
        for (name, value) in entries(object).filter(|(k, _)| k.starts_with("x-")) {
            self.message(field, named(name, any(value)));
        }
    }
}

fn entries(value: &Value) -> impl Iterator<Item = (&String, &Value)> {
    value.as_object().into_iter().flat_map(Map::iter)
}

fn named(name: &str, value: Message) -> Message {
    let mut out = Message::default();
    out.bytes(1, name.as_bytes());
    out.message(2, value);
    out
}

fn within(field: u32, inner: Message) -> Message {
    let mut out = Message::default();
    out.message(field, inner);
    out
}

/// `Any` contains YAML, of which JSON is a subset.
fn any(value: &Value) -> Message {
    let mut out = Message::default();
    out.bytes(2, format!("{value}\n").as_bytes());
    out
}

pub fn document(value: &Value) -> Vec<u8> {
    let mut out = Message::default();
    out.text(1, &value["swagger"]);
    let mut info = Message::default();
    info.text(1, &value["info"]["title"]);
    info.text(2, &value["info"]["version"]);
    out.message(2, info);
    let mut paths = Message::default();
    for (path, item) in entries(&value["paths"]) {
        paths.message(2, named(path, path_item(item)));
    }
    out.message(8, paths);
    let mut definitions = Message::default();
    for (name, definition) in entries(&value["definitions"]) {
        definitions.message(1, named(name, schema(definition)));
    }
    out.message(9, definitions);
    let mut parameters = Message::default();
    for (name, shared) in entries(&value["parameters"]) {
        parameters.message(1, named(name, parameter(shared)));
    }
    if !parameters.0.is_empty() {
        out.message(10, parameters);
    }
    for requirement in value["security"].as_array().into_iter().flatten() {
        let mut one = Message::default();
        for (name, _) in entries(requirement) {
            one.message(1, named(name, Message::default()));
        }
        out.message(12, one);
    }
    let mut schemes = Message::default();
    for (name, scheme) in entries(&value["securityDefinitions"]) {
        let mut key = Message::default();
        for (field, part) in [(1, "type"), (2, "name"), (3, "in"), (4, "description")] {
            key.text(field, &scheme[part]);
        }
        schemes.message(1, named(name, within(2, key)));
    }
    if !schemes.0.is_empty() {
        out.message(13, schemes);
    }
    out.0
}

/// `ParametersItem`: a parameter or a reference.
fn parameter_item(value: &Value) -> Message {
    if !value["$ref"].is_string() {
        return within(1, parameter(value));
    }
    let mut reference = Message::default();
    reference.text(1, &value["$ref"]);
    within(2, reference)
}

/// The fields of a `PathItem` for operations.
const METHODS: [(u32, &str); 7] =
    [(2, "get"), (3, "put"), (4, "post"), (5, "delete"), (6, "options"), (7, "head"), (8, "patch")];

fn path_item(item: &Value) -> Message {
    let mut out = Message::default();
    for (field, method) in METHODS {
        if item[method].is_object() {
            out.message(field, operation(&item[method]));
        }
    }
    for p in item["parameters"].as_array().into_iter().flatten() {
        out.message(9, parameter_item(p));
    }
    out
}

fn operation(value: &Value) -> Message {
    let mut out = Message::default();
    out.texts(1, &value["tags"]);
    out.text(3, &value["description"]);
    out.text(5, &value["operationId"]);
    out.texts(6, &value["produces"]);
    out.texts(7, &value["consumes"]);
    for p in value["parameters"].as_array().into_iter().flatten() {
        out.message(8, parameter_item(p));
    }
    let mut responses = Message::default();
    for (code, response) in entries(&value["responses"]) {
        let mut answer = Message::default();
        answer.text(1, &response["description"]);
        if response["schema"].is_object() {
            answer.message(2, within(1, schema(&response["schema"])));
        }
        responses.message(1, named(code, within(1, answer)));
    }
    out.message(9, responses);
    out.texts(10, &value["schemes"]);
    out.extensions(13, value);
    out
}

fn parameter(value: &Value) -> Message {
    let mut out = Message::default();
    match value["in"].as_str() {
        Some("body") => {
            out.text(2, &value["name"]);
            out.text(3, &value["in"]);
            out.flag(4, &value["required"]);
            out.message(5, schema(&value["schema"]));
            within(1, out)
        }
        Some("path") => {
            out.flag(1, &value["required"]);
            out.text(2, &value["in"]);
            out.text(3, &value["description"]);
            out.text(4, &value["name"]);
            out.text(5, &value["type"]);
            out.flag(19, &value["uniqueItems"]);
            within(2, within(4, out))
        }
        _ => {
            out.flag(1, &value["required"]);
            out.text(2, &value["in"]);
            out.text(3, &value["description"]);
            out.text(4, &value["name"]);
            out.text(6, &value["type"]);
            out.flag(20, &value["uniqueItems"]);
            within(2, within(3, out))
        }
    }
}

fn schema(value: &Value) -> Message {
    let mut out = Message::default();
    out.text(1, &value["$ref"]);
    out.text(2, &value["format"]);
    out.text(4, &value["description"]);
    if !value["default"].is_null() {
        out.message(5, any(&value["default"]));
    }
    out.texts(19, &value["required"]);
    for one in value["enum"].as_array().into_iter().flatten() {
        out.message(20, any(one));
    }
    if value["additionalProperties"].is_object() {
        out.message(21, within(1, schema(&value["additionalProperties"])));
    }
    if let Some(ty) = value["type"].as_str() {
        let mut item = Message::default();
        item.bytes(1, ty.as_bytes());
        out.message(22, item);
    }
    if value["items"].is_object() {
        out.message(23, within(1, schema(&value["items"])));
    }
    if value["properties"].is_object() {
        let mut properties = Message::default();
        for (name, property) in entries(&value["properties"]) {
            properties.message(1, named(name, schema(property)));
        }
        out.message(25, properties);
    }
    out.extensions(31, value);
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn known_bytes() {
        let doc = json!({"swagger": "2.0", "info": {"title": "t", "version": "v"}, "paths": {},
            "definitions": {"a": {"type": "object", "$ref": "r"}}});
        // swagger, info, empty paths, one definition.
        let expected = [
            &[0x0a, 3][..],
            b"2.0",
            &[0x12, 6, 0x0a, 1],
            b"t",
            &[0x12, 1],
            b"v",
            &[0x42, 0],
            &[0x4a, 21, 0x0a, 19, 0x0a, 1],
            b"a",
            &[0x12, 14, 0x0a, 1],
            b"r",
            &[0xb2, 1, 8, 0x0a, 6],
            b"object",
        ]
        .concat();
        assert_eq!(document(&doc), expected);
    }
}
