//! The environment of device selectors. The variable `device` has the device's driver, attributes and capacities (upstream
//! `k8s.io/dynamic-resource-allocation/cel`). A name without a domain belongs to the driver's domain.
use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use kelson_meta::Quantity;

use crate::library::semver;
use crate::types::decl::DeclType;
use crate::types::ty::Type;
use crate::value::Entries;
use crate::value::map::{entry, place};
use crate::value::opaque::Opaque;
use crate::{Activation, Budget, Env, Map, Program, Struct, Value};

/// The cost limit for one evaluation of a selector (`resourceapi.CELSelectorExpressionMaxCost`).
pub const SELECTOR_BUDGET: u64 = 1_000_000;
/// The most attributes and capacities of a device.
const NAMES_MAX: i64 = 32;
/// The longest domain, including the name of a driver, in bytes.
const DOMAIN_MAX: i64 = 63;

/// The data of a device that selectors can use.
#[derive(Clone, Copy, Debug)]
pub struct Device<'d> {
    /// The driver's name, which is also the domain of names without a domain.
    pub driver: &'d str,
    /// Whether several claims may share the device.
    pub allow_multiple_allocations: bool,
    /// The attributes by name. A name may have a domain.
    pub attributes: &'d BTreeMap<String, Attribute>,
    /// The capacities by name. A name may have a domain.
    pub capacity: &'d [(&'d str, Quantity)],
}

/// The value of an attribute.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Attribute {
    /// A value of type `int`.
    Int(i64),
    /// A value of type `bool`.
    Bool(bool),
    /// A value of type `string`.
    Text(String),
    /// A `version` according to semver.org.
    Version(String),
    /// A value of an unknown type. No selector can be evaluated for a device that has one.
    Unknown,
}

/// The environment of device selectors.
fn env() -> &'static Env {
    static ENV: OnceLock<Env> = OnceLock::new();
    ENV.get_or_init(|| {
        let domains = |value: DeclType| DeclType::map(DeclType::map(value, Some(NAMES_MAX)), Some(NAMES_MAX));
        let fields = [
            ("driver", DeclType::string(Some(DOMAIN_MAX)), true),
            ("allowMultipleAllocations", DeclType::bool(), true),
            ("attributes", domains(DeclType::dynamic()), true),
            ("capacity", domains(DeclType::of(Type::object("kubernetes.Quantity"))), true),
        ];
        let device = DeclType::object_named("kubernetes.DRADevice", fields);
        Env::builder().variable("device", &device).bindings().build()
    })
}

/// Compiles a selector.
///
/// # Errors
/// Returns the error in upstream's words.
pub fn compile(source: &str) -> Result<Program, String> {
    let program = env().compile(source).map_err(|e| match e {
        crate::CompileError::Issues { .. } => format!("compilation failed: {e}"),
        crate::CompileError::Instantiation(_) => format!("program instantiation failed: {e}"),
    })?;
    match program.output_type() {
        Type::Bool | Type::Dyn => Ok(program),
        other => Err(format!("must evaluate to bool or the unknown type, not {other}")),
    }
}

/// Whether a device satisfies a selector.
///
/// # Errors
/// Returns why the selector cannot be evaluated: a missing attribute, a type mismatch, or the cost limit.
pub fn matches(program: &Program, device: &Device<'_>) -> Result<bool, String> {
    let mut attributes: BTreeMap<&str, Entries<'_>> = BTreeMap::new();
    for (name, attribute) in device.attributes {
        let value = match attribute {
            Attribute::Int(n) => Value::Int(*n),
            Attribute::Bool(b) => Value::Bool(*b),
            Attribute::Text(text) => Value::borrowed(text),
            Attribute::Version(text) => {
                let version = semver::parse(text);
                let version = version.map_err(|e| format!("attribute {name}: parse semantic version: {e}"))?;
                Value::Opaque(Opaque::Semver(Arc::new(version)))
            }
            Attribute::Unknown => return Err(format!("attribute {name}: unsupported attribute value")),
        };
        put(&mut attributes, device.driver, name, value);
    }
    let mut capacity: BTreeMap<&str, Entries<'_>> = BTreeMap::new();
    for (name, amount) in device.capacity {
        put(&mut capacity, device.driver, name, Value::Opaque(Opaque::Quantity(*amount)));
    }
    let fields = vec![
        ("driver".into(), Value::borrowed(device.driver)),
        ("allowMultipleAllocations".into(), Value::Bool(device.allow_multiple_allocations)),
        ("attributes".into(), domains(attributes)),
        ("capacity".into(), domains(capacity)),
    ];
    let object = Struct { name: "kubernetes.DRADevice".into(), fields };
    let mut activation = Activation::new();
    activation.bind("device", Value::Map(Map::Struct(Arc::new(object))));
    let mut budget = Budget::new(SELECTOR_BUDGET).per_call(SELECTOR_BUDGET);
    let value = program.eval(&activation, &mut budget).map_err(|e| e.to_string())?;
    let wrong =
        || format!("CEL result of type {} could not be converted to bool: type conversion error", value.type_name());
    value.as_bool().ok_or_else(wrong)
}

/// Adds a value under the domain of its name.
fn put<'d>(to: &mut BTreeMap<&'d str, Entries<'d>>, driver: &'d str, name: &'d str, value: Value<'d>) {
    let (domain, id) = name.split_once('/').unwrap_or((driver, name));
    let (key, value) = entry(id, value);
    to.entry(domain).or_default().insert(key, value);
}

fn domains<'d>(all: BTreeMap<&'d str, Entries<'d>>) -> Value<'d> {
    let entries = all.into_iter().map(|(domain, ids)| entry(domain, place(ids)));
    Value::Map(Map::Domains(Arc::new(entries.collect())))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(source: &str, expected: Result<bool, &str>) {
        let attributes = [
            ("model", Attribute::Text("a100".into())),
            ("gpu.example.com/cores", Attribute::Int(8)),
            ("healthy", Attribute::Bool(true)),
            ("other.example.com/firmware", Attribute::Version("1.10.0".into())),
        ];
        let attributes = attributes.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        let capacity = [("memory", "40Gi".parse().unwrap())];
        let device = Device {
            driver: "gpu.example.com",
            allow_multiple_allocations: false,
            attributes: &attributes,
            capacity: &capacity,
        };
        let got = compile(source).and_then(|program| matches(&program, &device));
        match (got, expected) {
            (Ok(got), Ok(want)) => assert_eq!(got, want, "{source}"),
            (Err(got), Err(want)) => assert!(got.contains(want), "{source}: {got}"),
            (got, want) => panic!("{source}: {got:?} instead of {want:?}"),
        }
    }

    #[test]
    fn what_selectors_may_ask_of_a_device() {
        for (source, expected) in [
            ("device.driver == 'gpu.example.com'", Ok(true)),
            ("device.attributes['gpu.example.com'].model == 'a100'", Ok(true)),
            ("device.attributes['gpu.example.com'].cores > 4", Ok(true)),
            ("device.attributes['gpu.example.com'].healthy", Ok(true)),
            ("device.attributes['other.example.com'].firmware.isGreaterThan(semver('1.9.3'))", Ok(true)),
            ("device.capacity['gpu.example.com'].memory.compareTo(quantity('40Gi')) == 0", Ok(true)),
            ("device.capacity['gpu.example.com'].memory.isGreaterThan(quantity('80Gi'))", Ok(false)),
            ("device.allowMultipleAllocations", Ok(false)),
            ("cel.bind(d, device.attributes['gpu.example.com'], d.healthy && d.cores == 8)", Ok(true)),
            // A missing domain reads as an empty map, but `in` does not find it.
            ("has(device.attributes['nobody.example.com'].model)", Ok(false)),
            ("'nobody.example.com' in device.attributes", Ok(false)),
            ("'gpu.example.com' in device.attributes", Ok(true)),
            ("'model' in device.attributes['nobody.example.com']", Ok(false)),
            ("device.attributes['nobody.example.com'].model == 'a100'", Err("no such key: model")),
            ("device.attributes['gpu.example.com'].model > 3", Err("no such overload")),
            ("device.attributes['gpu.example.com'].model", Err("type string could not be converted to bool")),
            ("device.unknown == 'x'", Err("undefined field 'unknown'")),
            ("device.driver", Err("must evaluate to bool or the unknown type, not string")),
            ("device.driver ==", Err("compilation failed: ERROR: <input>:1:")),
        ] {
            check(source, expected);
        }
    }
}
