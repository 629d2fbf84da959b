//! Questions to the collector, and what to say if it does not answer.

use std::env;
use std::path::PathBuf;

use diagnostics::exit::Exit;
use diagnostics::failure::Failure;
use outputs::collector::CollectorReader;
use serde_json::Value;

use super::args::{Asked, FilterOptions};

/// The collector that is asked.
pub(super) struct Client {
    reader: CollectorReader,
    url: String,
}

impl Client {
    pub(super) fn open(asked: &Asked) -> Result<Self, Failure> {
        let variable = |name: &str| env::var_os(name).filter(|value| !value.is_empty());
        let url = asked.url.clone();
        let url = url.or_else(|| variable("TOLLGATE_COLLECTOR")?.into_string().ok());
        let url = url.ok_or_else(|| {
            Failure::new(
                Exit::BadInput,
                "cannot ask the collector: no address is given",
            )
            .help("name it with --collector https://HOST:6443, or in TOLLGATE_COLLECTOR")
        })?;
        let token = asked.token_file.clone();
        let token = token.or_else(|| variable("TOLLGATE_TOKEN_FILE").map(PathBuf::from));
        let token = token.ok_or_else(|| {
            Failure::new(Exit::BadInput, "cannot ask the collector: no token is given").help(
                "make one with `tollgate serve token create --role viewer`, and name its file with --token-file",
            )
        })?;
        let reader = CollectorReader::open(&url, &token, asked.ca.clone());
        let reader = reader.map_err(|error| {
            Failure::from_error(Exit::BadInput, &error).help("see `tollgate help alerts list`")
        })?;
        Ok(Self { reader, url })
    }

    pub(super) fn get(&self, path: &str) -> Result<Value, Failure> {
        self.answer(self.reader.get(path))
    }

    pub(super) fn put(&self, path: &str, body: &Value) -> Result<Value, Failure> {
        self.answer(self.reader.put(path, body))
    }

    pub(super) fn post(&self, path: &str, body: &Value) -> Result<Value, Failure> {
        self.answer(self.reader.post(path, body))
    }

    /// Downloads a file.
    pub(super) fn bytes(&self, path: &str) -> Result<Vec<u8>, Failure> {
        match self.reader.bytes(path) {
            Ok(Ok(data)) => Ok(data),
            Ok(Err(refused)) => Err(self.refused(&refused)),
            Err(error) => Err(self.silent(&error)),
        }
    }

    fn silent(&self, error: &std::io::Error) -> Failure {
        let url = &self.url;
        let message = format!("cannot ask the collector at {url}: {error}");
        Failure::new(Exit::Unsupported, message)
            .help("see whether it runs; for its own certificate, name it with --collector-ca")
    }

    fn answer(&self, answer: std::io::Result<(u16, Value)>) -> Result<Value, Failure> {
        let (status, answer) = answer.map_err(|error| self.silent(&error))?;
        match (200..300).contains(&status) {
            true => Ok(answer),
            false => Err(self.refused(&(status, answer))),
        }
    }

    fn refused(&self, (status, answer): &(u16, Value)) -> Failure {
        let url = &self.url;
        let cause = plain(answer["error"].as_str().unwrap_or("it gives no reason"));
        let failure = Failure::new(
            Exit::BadInput,
            format!("the collector at {url} refuses: {cause}"),
        );
        match status {
            401 => failure.help("make a token with `tollgate serve token create --role viewer`"),
            403 => failure.help("make one with `tollgate serve token create --role operator`"),
            404 => failure
                .help("see `tollgate alerts list --hidden`, `fleet status` or `fleet captures`"),
            503 => failure.help("try again"),
            _ => failure.help("see `tollgate help alerts list`"),
        }
    }
}

/// Returns text of a sender for a terminal.
pub(super) fn plain(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars() {
        match c {
            '"' | '\\' => out.push(c),
            c => outputs::json::write_escaped(&mut out, c.encode_utf8(&mut [0; 4])),
        }
    }
    out
}

/// Returns a value as JSON for a terminal: what the collector escaped stays escaped.
pub(super) fn json_text(value: &Value) -> String {
    let mut out = String::new();
    for c in value.to_string().chars() {
        match c.is_ascii() && !c.is_ascii_control() {
            true => out.push(c),
            false => outputs::json::write_escaped(&mut out, c.encode_utf8(&mut [0; 4])),
        }
    }
    out
}

/// Returns the filter as it stands in a URL, with further members.
pub(super) fn query(filter: &FilterOptions, further: &[(&str, String)]) -> String {
    let group = filter.group.map(|group| group.to_string());
    let members = [
        ("from", &filter.from),
        ("to", &filter.to),
        ("severity", &filter.severity),
        ("rule", &filter.rule),
        ("host", &filter.host),
        ("program", &filter.program),
        ("group", &group),
        ("q", &filter.text),
    ];
    let members = members
        .into_iter()
        .filter_map(|(name, value)| Some((name, value.as_deref()?)));
    let further = further.iter().map(|(name, value)| (*name, &**value));
    let hidden = filter.hidden.then_some(("acknowledged", "true"));
    let members = members.chain(further).chain(hidden);
    let members = members.map(|(name, value)| format!("{name}={}", escaped(value)));
    members.collect::<Vec<_>>().join("&")
}

/// Escapes all that has a meaning in a URL.
fn escaped(text: &str) -> String {
    let mut out = String::new();
    for byte in text.bytes() {
        match byte.is_ascii_alphanumeric() || b"-_.".contains(&byte) {
            true => out.push(char::from(byte)),
            false => out.push_str(&format!("%{byte:02X}")),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_is_escaped_and_text_cannot_control_a_terminal() {
        let filter = FilterOptions {
            from: None,
            to: None,
            severity: Some("Error".to_owned()),
            rule: Some("a&b é".to_owned()),
            host: None,
            program: None,
            group: Some(7),
            text: None,
            hidden: true,
        };
        let text = query(&filter, &[("limit", "5".to_owned())]);
        assert_eq!(
            text,
            "severity=Error&rule=a%26b%20%C3%A9&group=7&limit=5&acknowledged=true"
        );
        assert_eq!(plain("\u{1b}[2J\"é"), "\\u001b[2J\"é");
    }
}
