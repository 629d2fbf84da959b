//! Results of attacks under each rule, written as a table if a variable requests it.

use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use abi::Errno;

/// Variable that names the folder; without it nothing is written.
const OUT: &str = "TOLLGATE_ATTACKS_OUT";

/// Results of one rule under one enforcer.
#[derive(Clone, Debug, Default)]
pub struct Tried {
    /// The rule.
    pub rule: String,
    /// The enforcer of the rule.
    pub enforcer: String,
    /// Attacks: description, result under the rule, result without.
    pub attacks: Vec<(String, i32, i32)>,
    /// Legitimate operations, in the same form.
    pub twins: Vec<(String, i32, i32)>,
}

/// Adds rows to the table of this name.
///
/// # Panics
/// If the table cannot be written.
pub fn note(name: &str, rows: &[Tried]) {
    static LINES: Mutex<Vec<(String, String)>> = Mutex::new(Vec::new());
    let Some(folder) = std::env::var_os(OUT).map(PathBuf::from) else {
        return;
    };
    // A test that panicked meanwhile has left whole lines.
    let mut lines = LINES.lock().unwrap_or_else(PoisonError::into_inner);
    lines.extend(rows.iter().map(|row| (name.to_owned(), line(row))));
    let mut own: Vec<&str> = lines
        .iter()
        .filter(|(table, _)| table == name)
        .map(|(_, line)| line.as_str())
        .collect();
    own.sort_unstable();
    own.dedup();
    let mut text = String::from(
        "| rule | enforcer | attack: error (without the rule) | still done | \n|---|---|---|---|\n",
    );
    text.push_str(&own.concat());
    fs::create_dir_all(&folder).expect("the folder can be made");
    fs::write(folder.join(format!("{name}.md")), text).expect("the folder is writable");
}

fn line(row: &Tried) -> String {
    let mut attacks = String::new();
    for (deed, bound, free) in &row.attacks {
        let _ = write!(attacks, "`{deed}`: {} ({})<br>", said(*bound), said(*free));
    }
    let done = |(deed, bound, free): &(String, i32, i32)| match (bound, free) {
        (0, 0) => format!("`{deed}`"),
        (bound, free) => format!("`{deed}`: {} ({})", said(*bound), said(*free)),
    };
    let twins: Vec<_> = row.twins.iter().map(done).collect();
    let attacks = attacks.trim_end_matches("<br>");
    format!(
        "| `{}` | {} | {attacks} | {} |\n",
        row.rule,
        row.enforcer,
        twins.join(", ")
    )
}

/// Formats an error number, or a signal as 1000 plus its number.
fn said(number: i32) -> String {
    match number {
        0 => "done".to_owned(),
        1000.. => format!("signal {}", number - 1000),
        _ => Errno(number)
            .name()
            .map_or_else(|| number.to_string(), str::to_owned),
    }
}
