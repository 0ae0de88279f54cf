//! Normalizing a tree in place and decoding its JSON have the same result. The trees are of all kinds, and some of
//! their values are missing, zero, null, misspelt, of another type or unknown.
use kelson_codec::{canonical_json, json, normalize};
use kelson_schema::{FieldType, Kind, Schema, TypeId};
use rand::{Rng, SeedableRng, rngs::StdRng};
use serde_json::{Map, Value, json};

const DEPTH_MAX: usize = 7;

struct Maker {
    rng: StdRng,
    /// One in this number of values does not match its type.
    odd: u32,
}

impl Maker {
    fn pick(&mut self, values: &[Value]) -> Value {
        values[self.rng.random_range(0..values.len())].clone()
    }

    fn object(&mut self, ty: TypeId, depth: usize) -> Value {
        let mut map = Map::new();
        let wanted = if depth < 2 { 0.7 } else { 0.3 };
        for field in ty.json_fields() {
            if depth < DEPTH_MAX && self.rng.random_bool(wanted) {
                map.insert(field.json().to_owned(), self.value(field.ty(), depth));
            }
        }
        if self.rng.random_ratio(1, self.odd * 4) {
            map.insert("unknownField".into(), json!(1));
        }
        Value::Object(map)
    }

    fn value(&mut self, ty: FieldType, depth: usize) -> Value {
        if self.rng.random_ratio(1, self.odd) {
            return self.pick(&[json!(null), json!("text"), json!(7), json!(1.5), json!(true), json!([]), json!({})]);
        }
        match ty.kind() {
            Kind::Bool => self.pick(&[json!(true), json!(false)]),
            Kind::Int32 => self.pick(&[json!(0), json!(5), json!(-1)]),
            Kind::Int64 => self.pick(&[json!(0), json!(1_i64 << 40)]),
            Kind::Double => self.pick(&[json!(0), json!(0.5), json!(3), json!(1e300), json!(u64::MAX), json!(2.0)]),
            Kind::String => self.pick(&[json!(""), json!("a\n\u{1}é")]),
            Kind::Bytes => self.pick(&[json!(""), json!("aGVsbG8="), json!("aGVs\nbG8=")]),
            Kind::Time | Kind::MicroTime => self.pick(&[
                json!("2026-01-02T03:04:05Z"),
                json!("2026-01-02T03:04:05.000000Z"),
                json!("2026-01-02T05:04:05.123456+02:00"),
                json!("0001-01-01T00:00:00Z"),
                json!("0001-01-01T00:00:00.000000Z"),
            ]),
            Kind::Duration => self.pick(&[json!("1h0m0s"), json!("90m"), json!("0")]),
            Kind::Quantity => self.pick(&[json!("1"), json!("1000m"), json!("0.5Gi"), json!(3), json!("0")]),
            Kind::IntOrString => self.pick(&[json!(0), json!(80), json!("http"), json!("")]),
            Kind::RawExtension | Kind::FieldsV1 | Kind::Json | Kind::Any => {
                self.pick(&[json!({"a": [1, {"b": null}]}), json!({"a": 1.0}), json!({"n": u64::MAX}), json!({})])
            }
            Kind::Struct(id) => self.object(id, depth + 1),
            Kind::SchemaOrBool(_) => json!(true),
            Kind::SchemaOrArray(id) => Value::Array(vec![self.object(id, depth + 1)]),
            Kind::SchemaOrStringArray(_) => json!(["a"]),
            Kind::List(elem) | Kind::WrappedList(elem) => {
                let count = self.rng.random_range(0..3);
                (0..count).map(|_| self.value(elem, depth + 1)).collect()
            }
            Kind::Map(of) => {
                let count = self.rng.random_range(0..3);
                let entries = (0..count).map(|i| (format!("k{i}"), self.value(of, depth + 1)));
                Value::Object(entries.collect())
            }
        }
    }
}

#[test]
fn normalising_a_tree_is_decoding_its_json() {
    let (mut valid, mut faulty) = (0, 0);
    for seed in 0..6 {
        for (group, version, kind, ty) in Schema::builtin().kinds() {
            // Most trees are valid in one half of the rounds, and few in the other.
            let odd = if seed % 2 == 0 { 4_000 } else { 12 };
            let mut maker = Maker { rng: StdRng::seed_from_u64(seed), odd };
            let value = maker.object(ty, 0);
            let decoded = json::decode(Some(ty), &canonical_json(&value), true);
            let normalized = normalize(ty, value.clone(), true);
            match (decoded, normalized) {
                (Ok(a), Ok(b)) => {
                    assert_eq!(a.value, b.value, "{group}/{version} {kind}, seed {seed}: {value}");
                    assert_eq!(a.strict, b.strict, "{group}/{version} {kind}, seed {seed}: {value}");
                    valid += 1;
                }
                (Err(a), Err(b)) => {
                    assert_eq!(a, b, "{group}/{version} {kind}, seed {seed}: {value}");
                    faulty += 1;
                }
                (a, b) => panic!("{group}/{version} {kind}, seed {seed}: {a:?} and {b:?} of {value}"),
            }
        }
    }
    assert!(valid > 500 && faulty > 100, "{valid} valid and {faulty} faulty trees");
}
