//! Reads the tables of a TOML file as far as the configuration of a container engine needs them: headers,
//! and values on the line of their key, or arrays over several lines.

/// A table with its keys.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Table {
    /// The parts of the header's key, without quotes. Empty for the top of the file.
    pub(crate) path: Vec<String>,
    values: Vec<(String, String)>,
}

impl Table {
    /// Returns the text of a value, as in the file.
    pub(crate) fn value(&self, key: &str) -> Option<&str> {
        let mut values = self.values.iter();
        values.find_map(|(name, value)| (name == key).then_some(value.as_str()))
    }

    /// Returns a string.
    pub(crate) fn string(&self, key: &str) -> Option<String> {
        strings(self.value(key)?).into_iter().next()
    }

    /// Returns the strings of an array; none if the key is missing.
    pub(crate) fn strings(&self, key: &str) -> Vec<String> {
        self.value(key).map(strings).unwrap_or_default()
    }

    /// Returns true if the header ends in these parts.
    pub(crate) fn ends_in(&self, parts: &[&str]) -> bool {
        self.path.len() >= parts.len()
            && self.path[self.path.len() - parts.len()..]
                .iter()
                .zip(parts)
                .all(|(own, part)| own == part)
    }
}

/// Returns the tables of a file. The first one is the top of the file.
pub(crate) fn tables(text: &str) -> Vec<Table> {
    let mut tables = vec![Table::default()];
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        let line = uncommented(line);
        if let Some(header) = line.strip_prefix('[') {
            let path = key_parts(header.trim_end_matches(']'));
            tables.push(Table {
                path,
                values: Vec::new(),
            });
        } else if let Some((key, value)) = line.split_once('=') {
            let mut value = value.trim().to_owned();
            while value.starts_with('[') && !value.ends_with(']') {
                let Some(more) = lines.next() else { break };
                value.push_str(uncommented(more));
            }
            let key = key_parts(key.trim()).join(".");
            let table = tables.last_mut().expect("the top of the file is there");
            table.values.push((key, value));
        }
    }
    tables
}

/// A line without a comment and without blanks around it.
fn uncommented(line: &str) -> &str {
    let mut quote = None;
    let end = line.char_indices().find_map(|(at, letter)| {
        match (quote, letter) {
            (None, '#') => return Some(at),
            (None, '"' | '\'') => quote = Some(letter),
            (Some(open), _) if open == letter => quote = None,
            _ => {}
        }
        None
    });
    line[..end.unwrap_or(line.len())].trim()
}

/// The parts of a dotted key, without quotes.
fn key_parts(key: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    let mut quote = None;
    for letter in key.chars() {
        match (quote, letter) {
            (None, '.') => parts.push(String::new()),
            (None, '"' | '\'') => quote = Some(letter),
            (Some(open), _) if open == letter => quote = None,
            (None, ' ' | '\t') => {}
            _ => parts
                .last_mut()
                .expect("there is always one part")
                .push(letter),
        }
    }
    parts
}

/// The strings in a value, without their quotes.
fn strings(value: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut rest = value;
    while let Some(start) = rest.find(['"', '\'']) {
        let quote = &rest[start..=start];
        let inner = &rest[start + 1..];
        let Some(end) = inner.find(quote) else { break };
        found.push(inner[..end].to_owned());
        rest = &inner[end + 1..];
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_with_either_quote_and_arrays_over_lines_are_read() {
        let text = "version = 3 # new\n[plugins.'io.containerd.cri.v1.runtime'.containerd]\n\
                    default = \"a#b\"\n [plugins.\"x.y\" . z]\n  list = [\n   'one', # 1\n   \"two\"\n  ]\n";
        let tables = tables(text);
        assert_eq!(tables[0].value("version"), Some("3"));
        let path = ["plugins", "io.containerd.cri.v1.runtime", "containerd"];
        assert_eq!(tables[1].path, path);
        assert_eq!(tables[1].string("default").as_deref(), Some("a#b"));
        assert!(tables[2].ends_in(&["x.y", "z"]) && !tables[2].ends_in(&["y", "z"]));
        assert_eq!(tables[2].strings("list"), ["one", "two"]);
        assert!(tables[2].strings("none").is_empty());
    }
}
