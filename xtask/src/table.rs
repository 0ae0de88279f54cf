//! Writes the type table as Rust: plain integers and one string pool, so that it costs neither relocations nor start-up.
use crate::model::{Field, Model, Ty};
use anyhow::{Context, Result, ensure};
use std::{
    collections::{BTreeMap, HashMap},
    fmt::Write,
};

#[derive(Default)]
struct Pool {
    text: String,
    seen: HashMap<String, u32>,
}

impl Pool {
    /// Offset and length packed: `offset << 10 | length`.
    fn add(&mut self, s: &str) -> u32 {
        assert!(s.len() < 1024, "string too long for the pool");
        if let Some(at) = self.seen.get(s) {
            return *at;
        }
        let offset = self.text.find(s).unwrap_or_else(|| {
            self.text.push_str(s);
            self.text.len() - s.len()
        });
        let packed = (offset as u32) << 10 | s.len() as u32;
        self.seen.insert(s.to_owned(), packed);
        packed
    }
}

#[derive(Default)]
struct Refs {
    rows: Vec<(u8, u32)>,
    seen: BTreeMap<(u8, u32), u32>,
}

impl Refs {
    fn row(&mut self, tag: u8, arg: u32) -> u32 {
        if let Some(at) = self.seen.get(&(tag, arg)) {
            return *at;
        }
        let at = self.rows.len() as u32;
        self.rows.push((tag, arg));
        self.seen.insert((tag, arg), at);
        at
    }

    fn add(&mut self, ty: &Ty) -> u32 {
        const SCALARS: &[&str] = &[
            "Bool",
            "Int32",
            "Int64",
            "Double",
            "String",
            "Bytes",
            "Time",
            "MicroTime",
            "Duration",
            "Quantity",
            "IntOrString",
            "RawExtension",
            "FieldsV1",
            "Json",
            "Any",
        ];
        match ty {
            Ty::Scalar(name) => {
                let tag = SCALARS.iter().position(|s| s == name).expect("scalars are listed");
                self.row(tag as u8, 0)
            }
            Ty::Struct(id) => self.row(20, *id as u32),
            Ty::Union("OrBool", id) => self.row(21, *id as u32),
            Ty::Union("OrArray", id) => self.row(22, *id as u32),
            Ty::Union(_, id) => self.row(23, *id as u32),
            Ty::List(elem) => {
                let elem = self.add(elem);
                self.row(24, elem)
            }
            Ty::Map(value) => {
                let value = self.add(value);
                self.row(25, value)
            }
            Ty::Wrapped(elem) => {
                let elem = self.add(elem);
                self.row(26, elem)
            }
        }
    }
}

/// The text of the generated file `types.rs`.
pub fn render(model: &Model) -> Result<String> {
    let (mut pool, mut refs) = (Pool::default(), Refs::default());
    let (mut types, mut fields, mut names) = (String::new(), String::new(), String::new());
    let (mut enums, mut unions) = (Vec::new(), Vec::new());
    let (mut field_count, mut name_count) = (0usize, 0usize);
    let mut starts = Vec::new();
    for ty in &model.types {
        starts.push(field_count);
        field_count += ty.fields.len();
    }
    for (id, ty) in model.types.iter().enumerate() {
        writeln!(fields, "    // {}.{}", ty.package, ty.name)?;
        for (i, f) in ty.fields.iter().enumerate() {
            if !f.values.is_empty() {
                enums.push(format!(
                    "    E({}, {}), // {}.{}\n",
                    starts[id] + i,
                    pool.add(&f.values.join(",")),
                    ty.name,
                    f.json
                ));
            }
            let merge_key = pool.add(&f.patch_merge_key);
            let (name, keys, default) = (pool.add(&f.json), pool.add(&f.map_keys.join(",")), pool.add(&f.default));
            let flags = flags(f)?;
            writeln!(
                fields,
                "    F({name}, {}, {flags}, {}, {keys}, {merge_key}, {default}), // {}",
                f.number,
                refs.add(&f.ty),
                label(f)
            )?;
        }
        let view = json_view(model, id, &starts)?;
        let declared = declared(model, id);
        for (json, field, via) in &view {
            let via = via.map_or(u16::MAX as usize, |v| v);
            let rank = declared.iter().position(|name| name == json).context("a field that is not declared")?;
            writeln!(names, "    N({}, {field}, {via}, {rank}),", pool.add(json))?;
        }
        if let Some(union) = &ty.union {
            let members: Vec<_> = union.members.iter().map(|(json, name)| format!("{json}={name}")).collect();
            let (by, members) = (pool.add(&union.discriminator), pool.add(&members.join(",")));
            unions.push(format!("    U({id}, {by}, {members}), // {}.{}\n", ty.package, ty.name));
        }
        let flags = u8::from(ty.proto) | u8::from(ty.atomic) << 1;
        writeln!(
            types,
            "    T({}, {}, {}, {}, {name_count}, {}, {flags}), // {id} {}.{}",
            pool.add(&ty.package),
            pool.add(&ty.name),
            starts[id],
            ty.fields.len(),
            view.len(),
            ty.package,
            ty.name
        )?;
        name_count += view.len();
    }
    ensure!(field_count < u16::MAX as usize && name_count < u16::MAX as usize, "table too large for its indices");
    let kinds = kinds(model, &mut pool)?;
    let mut out =
        String::from("//! Generated by `cargo xtask schema`; do not edit. The rows' meaning: `crate::rows`.\n");
    out.push_str("use crate::rows::{\n    EnumRow as E, FieldRow as F, KindRow as K, NameRow as N, RefRow as R, TypeRow as T, UnionRow as U,\n};\n\n");
    section(&mut out, "TYPES", "T", model.types.len(), &types)?;
    section(&mut out, "FIELDS", "F", field_count, &fields)?;
    section(&mut out, "NAMES", "N", name_count, &names)?;
    section(&mut out, "ENUMS", "E", enums.len(), &enums.concat())?;
    section(&mut out, "UNIONS", "U", unions.len(), &unions.concat())?;
    let mut rows = String::new();
    for (tag, arg) in &refs.rows {
        writeln!(rows, "    R({tag}, {arg}),")?;
    }
    section(&mut out, "REFS", "R", refs.rows.len(), &rows)?;
    section(&mut out, "KINDS", "K", model.kinds.len(), &kinds)?;
    pooled(&mut out, &pool.text)?;
    Ok(out)
}

/// The rows of the kinds.
fn kinds(model: &Model, pool: &mut Pool) -> Result<String> {
    let mut kinds = String::new();
    for ((group, version, kind), id) in &model.kinds {
        writeln!(
            kinds,
            "    K({}, {}, {}, {id}), // {group}/{version} {kind}",
            pool.add(group),
            pool.add(version),
            pool.add(kind)
        )?;
    }
    Ok(kinds)
}

/// The text that all names are pieces of, in lines that an editor can show.
fn pooled(out: &mut String, text: &str) -> Result<()> {
    out.push_str("#[rustfmt::skip]\npub(crate) static POOL: &str = concat!(\n");
    let mut at = 0;
    while at < text.len() {
        let end = (at + 110).min(text.len());
        writeln!(out, "    {:?},", &text[at..end])?;
        at = end;
    }
    out.push_str(");\n");
    Ok(())
}

fn section(out: &mut String, name: &str, row: &str, count: usize, rows: &str) -> Result<()> {
    writeln!(out, "#[rustfmt::skip]\npub(crate) static {name}: [{row}; {count}] = [\n{rows}];\n")?;
    Ok(())
}

fn label(f: &Field) -> &str {
    if f.inline { "(inline)" } else { &f.json }
}

fn flags(f: &Field) -> Result<u32> {
    let mut flags = 0u32;
    for (bit, on) in [f.pointer, f.omitempty, f.omitzero, f.inline, f.required].into_iter().enumerate() {
        flags |= u32::from(on) << bit;
    }
    flags |= u32::from(shown_when_absent(f)) << 12;
    match f.map_type.as_str() {
        "atomic" => flags |= 1 << 5,
        "granular" => flags |= 1 << 6,
        other => ensure!(other.is_empty(), "map type {other}"),
    }
    flags |= match f.list_type.as_str() {
        "" => 0,
        "atomic" => 1,
        "set" => 2,
        "map" => 3,
        other => anyhow::bail!("list type {other}"),
    } << 7;
    for strategy in f.patch_strategy.split(',').filter(|s| !s.is_empty()) {
        flags |= match strategy {
            "merge" => 1 << 9,
            "replace" => 1 << 10,
            "retainKeys" => 1 << 11,
            other => anyhow::bail!("patch strategy {other}"),
        };
    }
    Ok(flags)
}

/// Whether canonical JSON shows the field when nothing is set; see `kelson_schema::Field::shown_when_absent`.
fn shown_when_absent(f: &Field) -> bool {
    let plain = match &f.ty {
        Ty::Scalar(name) => matches!(*name, "Bool" | "Int32" | "Int64" | "Double" | "String" | "Bytes" | "Any"),
        Ty::List(_) | Ty::Map(_) | Ty::Wrapped(_) => true,
        Ty::Struct(_) | Ty::Union(..) => false,
    };
    !f.omitzero && !(f.omitempty && (f.pointer || plain))
}

/// The JSON names of a type in the order in which they are declared, those of an embedded struct where it is embedded.
fn declared(model: &Model, id: usize) -> Vec<String> {
    let mut fields: Vec<&Field> = model.types[id].fields.iter().collect();
    fields.sort_by_key(|f| f.declared);
    let names = fields.into_iter().flat_map(|f| match f.ty {
        Ty::Struct(inner) if f.inline => declared(model, inner),
        _ => vec![f.json.clone()],
    });
    names.collect()
}

/// JSON names of a type with inlined structs flattened: name, field, and the outer inline field it comes through.
fn json_view(model: &Model, id: usize, starts: &[usize]) -> Result<Vec<(String, usize, Option<usize>)>> {
    let mut out: Vec<(String, usize, Option<usize>)> = Vec::new();
    for (i, f) in model.types[id].fields.iter().enumerate() {
        if f.inline {
            let Ty::Struct(inner) = f.ty else { anyhow::bail!("inline field that is no struct") };
            for (json, field, _) in json_view(model, inner, starts)? {
                out.push((json, field, Some(starts[id] + i)));
            }
        } else {
            out.push((f.json.clone(), starts[id] + i, None));
        }
    }
    // An outer field hides an inlined one of the same name.
    out.sort_by(|a, b| a.0.cmp(&b.0).then(a.2.is_some().cmp(&b.2.is_some())));
    out.dedup_by(|b, a| a.0 == b.0);
    Ok(out)
}
