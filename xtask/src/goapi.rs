//! Reads the facts in struct tags and markers of the published API packages: JSON names, `omitempty`, pointers,
//! inlining, protobuf numbers, patch strategies, list types. Only declarations are read; descriptions are skipped.
use anyhow::{Context, Result, bail};
use std::{collections::BTreeMap, fs, path::Path};

/// A declared field of a struct.
#[derive(Debug, Clone)]
pub struct GoField {
    /// The declared name; empty for an embedded type.
    pub name: String,
    /// The declared type, such as `*int32`, `[]Container`, `map[string]string`, `metav1.ObjectMeta`.
    pub ty: String,
    /// The JSON name; empty when the struct is inlined.
    pub json: String,
    pub inline: bool,
    pub omitempty: bool,
    pub omitzero: bool,
    /// The protobuf field number in the tag, if there is one.
    pub number: Option<u32>,
    /// The protobuf field name in the tag.
    pub proto_name: String,
    pub patch_strategy: String,
    pub patch_merge_key: String,
    pub markers: Vec<(String, String)>,
}

/// A named type.
#[derive(Debug, Clone)]
pub enum GoType {
    Struct {
        fields: Vec<GoField>,
        markers: Vec<(String, String)>,
    },
    /// A type `type X Y` or `type X = Y`, with the file's imports applied to Y.
    Named(String),
}

/// A package: its import path and types. Type references are `path.Name` or a builtin.
#[derive(Debug, Default)]
pub struct GoPackage {
    pub types: BTreeMap<String, GoType>,
    /// The value of `const GroupName`, when the package is an API group version.
    pub group: Option<String>,
    /// String constants: name, declared type (may be empty) and value.
    pub constants: Vec<(String, String, String)>,
    /// Types that are marked as enumerations of their constants.
    pub enums: Vec<String>,
}

impl GoPackage {
    /// Returns the values of an enumeration, sorted; empty for any other type.
    pub fn values(&self, name: &str) -> Vec<String> {
        let of_type = self.constants.iter().filter(|(_, ty, _)| ty == name && self.enums.iter().any(|e| e == name));
        let mut values: Vec<String> = of_type.map(|(_, _, value)| value.clone()).collect();
        values.sort();
        values.dedup();
        values
    }

    /// Returns the value of a constant.
    pub fn constant(&self, name: &str) -> Option<&str> {
        self.constants.iter().find(|(n, ..)| n == name).map(|(_, _, value)| value.as_str())
    }
}

/// Reads all non-test, non-generated files of one directory.
pub fn package(dir: &Path, import_path: &str) -> Result<GoPackage> {
    let mut package = GoPackage::default();
    let mut names: Vec<_> = fs::read_dir(dir)
        .with_context(|| dir.display().to_string())?
        .filter_map(|e| e.ok()?.file_name().into_string().ok())
        .filter(|n| n.ends_with(".go"))
        .filter(|n| {
            !n.ends_with("_test.go") && !n.starts_with("zz_") && !n.contains("generated") && !n.ends_with("_string.go")
        })
        .collect();
    names.sort();
    for name in names {
        let text = fs::read_to_string(dir.join(&name))?;
        file(&mut package, &text, import_path).with_context(|| format!("{import_path}/{name}"))?;
    }
    Ok(package)
}

fn file(package: &mut GoPackage, text: &str, import_path: &str) -> Result<()> {
    let imports = imports(text);
    let mut markers: Vec<(String, String)> = Vec::new();
    let mut lines = text.lines();
    let mut in_comment = false;
    while let Some(line) = lines.next() {
        let trimmed = line.trim();
        if in_comment {
            in_comment = !trimmed.contains("*/");
            continue;
        }
        if trimmed.starts_with("/*") {
            in_comment = !trimmed.contains("*/");
            continue;
        }
        if let Some(comment) = trimmed.strip_prefix("//") {
            marker(comment, &mut markers);
            continue;
        }
        if let Some(rest) = line.strip_prefix("const GroupName = ") {
            package.group = Some(rest.trim().trim_matches('"').to_owned());
        }
        package.constants.extend(constant(trimmed));
        if let Some(rest) = line.strip_prefix("type ") {
            let (name, body) = rest.split_once(' ').context("type without a body")?;
            if body.starts_with("struct") {
                let fields = if body.trim_end().ends_with('}') {
                    Vec::new()
                } else {
                    fields(&mut lines, &imports, import_path)?
                };
                package.types.insert(name.to_owned(), GoType::Struct { fields, markers: std::mem::take(&mut markers) });
            } else if !body.starts_with("interface") && !body.starts_with("func") {
                let target = body.trim_start_matches("= ").split("//").next().unwrap_or("").trim();
                if markers.iter().any(|(key, _)| key == "enum") {
                    package.enums.push(name.to_owned());
                }
                package.types.insert(name.to_owned(), GoType::Named(qualify(target, &imports, import_path)));
            }
        }
        if !trimmed.is_empty() {
            markers.clear();
        }
    }
    Ok(())
}

/// Parses `Name Type = "value"`, `Name = "value"` or `Name = Type("value")`, alone or in a list of constants.
fn constant(line: &str) -> Option<(String, String, String)> {
    let (declared, value) = line.trim_start_matches("const ").split_once(" = ")?;
    let (convert, value) = match value.split_once("(\"") {
        Some((ty, rest)) => (ty, rest),
        None => ("", value.strip_prefix('"')?),
    };
    let value = value.split('"').next()?;
    let words: Vec<&str> = declared.split_whitespace().collect();
    let (name, ty) = match words[..] {
        [name] => (name, convert),
        [name, ty] => (name, ty),
        _ => return None,
    };
    Some((name.to_owned(), ty.to_owned(), value.to_owned()))
}

fn imports(text: &str) -> BTreeMap<String, String> {
    let mut map = BTreeMap::new();
    let mut inside = false;
    for line in text.lines() {
        let line = line.trim();
        if line == "import (" {
            inside = true;
        } else if inside && line == ")" {
            inside = false;
        } else if inside || (line.starts_with("import ") && line.contains('"')) {
            let line = line.trim_start_matches("import ");
            let Some((alias, path)) = line.split_once('"') else { continue };
            let path = path.trim_end_matches('"');
            let alias = if alias.trim().is_empty() { path.rsplit('/').next().unwrap_or(path) } else { alias.trim() };
            map.insert(alias.to_owned(), path.to_owned());
        }
    }
    map
}

fn marker(comment: &str, markers: &mut Vec<(String, String)>) {
    if let Some(text) = comment.trim().strip_prefix('+') {
        let (key, value) = text.split_once('=').unwrap_or((text, ""));
        markers.push((key.trim().to_owned(), value.trim().to_owned()));
    }
}

fn fields<'a>(
    lines: &mut impl Iterator<Item = &'a str>,
    imports: &BTreeMap<String, String>,
    path: &str,
) -> Result<Vec<GoField>> {
    let mut out = Vec::new();
    let mut markers = Vec::new();
    let mut in_comment = false;
    for line in lines {
        if in_comment || line.trim().starts_with("/*") {
            in_comment = !line.contains("*/");
            continue;
        }
        if line.starts_with('}') {
            return Ok(out);
        }
        let line = line.trim();
        if let Some(comment) = line.strip_prefix("//") {
            marker(comment, &mut markers);
            continue;
        }
        if line.is_empty() {
            continue;
        }
        if let Some(field) =
            field(line, std::mem::take(&mut markers), imports, path).with_context(|| line.to_owned())?
        {
            out.push(field);
        }
    }
    bail!("struct without an end")
}

fn field(
    line: &str,
    markers: Vec<(String, String)>,
    imports: &BTreeMap<String, String>,
    path: &str,
) -> Result<Option<GoField>> {
    let (decl, tags) = match line.split_once('`') {
        Some((decl, rest)) => (decl, rest.split('`').next().unwrap_or("")),
        None => (line.split("//").next().unwrap_or(""), ""),
    };
    let words: Vec<&str> = decl.split_whitespace().collect();
    let (name, ty) = match words.as_slice() {
        [ty] => ("", *ty),
        [name, ty] => (*name, *ty),
        _ => return Ok(None),
    };
    let json = tag(tags, "json").unwrap_or_default();
    let mut parts = json.split(',');
    let json_name = parts.next().unwrap_or("");
    let options: Vec<&str> = parts.collect();
    if json_name == "-" || (json.is_empty() && (!name.is_empty() || tag(tags, "protobuf").as_deref() == Some("-"))) {
        return Ok(None);
    }
    let mut number = None;
    let mut proto_name = String::new();
    for part in tag(tags, "protobuf").unwrap_or_default().split(',') {
        if let Ok(n) = part.parse::<u32>() {
            number = Some(n);
        } else if let Some(n) = part.strip_prefix("name=") {
            proto_name = n.to_owned();
        }
    }
    Ok(Some(GoField {
        name: name.to_owned(),
        ty: qualify(ty, imports, path),
        json: json_name.to_owned(),
        inline: json_name.is_empty(),
        omitempty: options.contains(&"omitempty"),
        omitzero: options.contains(&"omitzero"),
        number,
        proto_name,
        patch_strategy: tag(tags, "patchStrategy").unwrap_or_default(),
        patch_merge_key: tag(tags, "patchMergeKey").unwrap_or_default(),
        markers,
    }))
}

fn tag(tags: &str, key: &str) -> Option<String> {
    let mut rest = tags;
    loop {
        let (name, after) = rest.trim_start().split_once(":\"")?;
        let (value, after) = after.split_once('"')?;
        if name == key {
            return Some(value.to_owned());
        }
        rest = after;
    }
}

/// Formats a type reference with full import paths: `*T`, `[]T`, `map[K]V` keep their shape.
fn qualify(ty: &str, imports: &BTreeMap<String, String>, path: &str) -> String {
    if let Some(rest) = ty.strip_prefix('*') {
        return format!("*{}", qualify(rest, imports, path));
    }
    if let Some(rest) = ty.strip_prefix("[]") {
        return format!("[]{}", qualify(rest, imports, path));
    }
    if let Some(rest) = ty.strip_prefix("map[")
        && let Some((key, value)) = rest.split_once(']')
    {
        return format!("map[{}]{}", qualify(key, imports, path), qualify(value, imports, path));
    }
    const BUILTIN: &[&str] =
        &["string", "bool", "int", "int32", "int64", "uint8", "byte", "float64", "interface{}", "any"];
    if BUILTIN.contains(&ty) || ty.contains('{') {
        return ty.to_owned();
    }
    match ty.split_once('.') {
        Some((alias, name)) => format!("{}.{name}", imports.get(alias).map_or(alias, String::as_str)),
        None => format!("{path}.{ty}"),
    }
}
