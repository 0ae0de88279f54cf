//! Whether a cron schedule can be read: five fields, or a macro, in the dialect of the reference's cron library.
const MACROS: &[&str] = &["@yearly", "@annually", "@monthly", "@weekly", "@daily", "@midnight", "@hourly"];
const MONTHS: &[&str] = &["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"];
const DAYS: &[&str] = &["sun", "mon", "tue", "wed", "thu", "fri", "sat"];

struct Field {
    min: u32,
    max: u32,
    names: &'static [&'static str],
}

const FIELDS: [Field; 5] = [
    Field { min: 0, max: 59, names: &[] },
    Field { min: 0, max: 23, names: &[] },
    Field { min: 1, max: 31, names: &[] },
    Field { min: 1, max: 12, names: MONTHS },
    Field { min: 0, max: 6, names: DAYS },
];

/// Why `schedule` is none; a time zone prefix is skipped.
pub fn check(schedule: &str) -> Result<(), String> {
    let mut spec = schedule;
    if spec.starts_with("TZ=") || spec.starts_with("CRON_TZ=") {
        spec = spec.split_once(' ').map_or("", |(_, rest)| rest.trim());
    }
    if spec.is_empty() {
        return Err("empty spec string".to_owned());
    }
    if let Some(every) = spec.strip_prefix("@every ") {
        return if duration(every) { Ok(()) } else { Err(format!("failed to parse duration {spec}")) };
    }
    if spec.starts_with('@') {
        return if MACROS.contains(&spec) { Ok(()) } else { Err(format!("unrecognized descriptor: {spec}")) };
    }
    let fields: Vec<&str> = spec.split_whitespace().collect();
    if fields.len() != FIELDS.len() {
        return Err(format!("expected exactly 5 fields, found {}: [{}]", fields.len(), fields.join(" ")));
    }
    for (text, rule) in fields.iter().zip(&FIELDS) {
        for part in text.split(',').filter(|p| !p.is_empty()) {
            range(part, rule)?;
        }
    }
    Ok(())
}

fn range(text: &str, f: &Field) -> Result<(), String> {
    let mut halves = text.split('/');
    let (base, step) = (halves.next().unwrap_or_default(), halves.next());
    if halves.next().is_some() {
        return Err(format!("too many slashes: {text}"));
    }
    let (low, high) = if matches!(base, "*" | "?") {
        (f.min, f.max)
    } else {
        match base.split('-').collect::<Vec<_>>().as_slice() {
            [one] => {
                let n = number(one, f)?;
                (n, if step.is_some() { f.max } else { n })
            }
            [a, b] => (number(a, f)?, number(b, f)?),
            _ => return Err(format!("too many hyphens: {text}")),
        }
    };
    if let Some(s) = step {
        let n: u32 = s.parse().map_err(|_| format!("failed to parse int from {s}"))?;
        if n == 0 {
            return Err(format!("step of range should be a positive number: {text}"));
        }
    }
    if low < f.min {
        return Err(format!("beginning of range ({low}) below minimum ({}): {text}", f.min));
    }
    if high > f.max {
        return Err(format!("end of range ({high}) above maximum ({}): {text}", f.max));
    }
    if low > high {
        return Err(format!("beginning of range ({low}) beyond end of range ({high}): {text}"));
    }
    Ok(())
}

fn number(text: &str, f: &Field) -> Result<u32, String> {
    let lower = text.to_ascii_lowercase();
    if let Some(i) = f.names.iter().position(|n| *n == lower) {
        return Ok(f.min + i as u32);
    }
    text.parse().map_err(|_| format!("failed to parse int from {text}: strconv.Atoi: parsing {text:?}: invalid syntax"))
}

/// `1h30m`-like spans.
fn duration(s: &str) -> bool {
    let mut rest = s.trim();
    if rest.is_empty() {
        return false;
    }
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        let unit = rest[digits..].find(|c: char| c.is_ascii_digit()).map_or(rest.len(), |i| digits + i);
        if digits == 0 || !matches!(&rest[digits..unit], "ns" | "us" | "ms" | "s" | "m" | "h") {
            return false;
        }
        rest = &rest[unit..];
    }
    true
}

#[cfg(test)]
mod tests {
    use super::check;

    #[test]
    fn schedules() {
        for ok in
            ["* * * * *", "*/5 0-6 1,15 jan mon-fri", "@hourly", "@every 1h30m", "0 0 ? * SUN", "TZ=UTC 0 0 * * *"]
        {
            assert_eq!(check(ok), Ok(()), "{ok}");
        }
        for bad in ["", "* * * *", "60 * * * *", "*/0 * * * *", "5-1 * * * *", "@never", "x * * * *", "* * * * 7"] {
            assert!(check(bad).is_err(), "{bad}");
        }
    }
}
