//! Reads the published `generated.proto` files: message names and the number of every field. Only syntax that these
//! files use is supported; anything else is an error.
use anyhow::{Context, Result, bail};
use std::collections::BTreeMap;

/// A `message` of a `.proto` file.
#[derive(Debug, Default, Clone)]
pub struct Message {
    /// Field name to number and declared type (`repeated`/`optional` stripped; maps as `map<K, V>`).
    pub fields: BTreeMap<String, (u32, String)>,
}

/// A `.proto` file.
#[derive(Debug, Default)]
pub struct ProtoFile {
    /// The proto package, such as `k8s.io.api.core.v1`.
    pub package: String,
    /// Messages by name.
    pub messages: BTreeMap<String, Message>,
}

/// Parses the text of one file.
pub fn parse(text: &str) -> Result<ProtoFile> {
    let mut file = ProtoFile::default();
    let mut current: Option<(String, Message)> = None;
    let mut in_comment = false;
    for (number, raw) in text.lines().enumerate() {
        let line = raw.split("//").next().unwrap_or("").trim();
        if in_comment || line.starts_with("/*") {
            in_comment = !line.contains("*/");
            continue;
        }
        if line.is_empty() {
            continue;
        }
        if let Some(rest) = line.strip_prefix("package ") {
            file.package = rest.trim_end_matches(';').to_owned();
        } else if let Some(rest) = line.strip_prefix("message ") {
            let name = rest.split_whitespace().next().context("message without a name")?;
            current = Some((name.to_owned(), Message::default()));
        } else if line == "}" {
            let (name, message) = current.take().context("stray }")?;
            file.messages.insert(name, message);
        } else if let Some((_, message)) = &mut current {
            let (name, field) = field(line).with_context(|| format!("{} line {}: {line}", file.package, number + 1))?;
            message.fields.insert(name, field);
        } else if !(line.starts_with("syntax")
            || line.starts_with("import")
            || line.starts_with("option")
            || line == "}")
        {
            bail!("not understood: {line}");
        }
    }
    Ok(file)
}

fn field(line: &str) -> Result<(String, (u32, String))> {
    let (decl, number) = line.trim_end_matches(';').rsplit_once('=').context("no field number")?;
    let number = number.trim().parse::<u32>()?;
    let decl = decl.trim();
    let (ty, name) = decl.rsplit_once(' ').context("no field name")?;
    let ty = ["optional ", "repeated ", "required "].iter().find_map(|label| ty.strip_prefix(label)).unwrap_or(ty);
    Ok((name.to_owned(), (number, ty.trim().to_owned())))
}
