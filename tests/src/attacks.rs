//! What came of attacks under each rule, as a table for people: written where a variable says so.

use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use abi::Errno;

/// Names the folder; without it nothing is written.
const OUT: &str = "TOLLGATE_ATTACKS_OUT";

/// What one enforcer made of one rule.
#[derive(Clone, Debug, Default)]
pub struct Tried {
    /// The rule.
    pub rule: String,
    /// What carried it.
    pub enforcer: String,
    /// Attacks: what was done, what it gave under the rule, and without.
    pub attacks: Vec<(String, i32, i32)>,
    /// What is legitimate, in the same form.
    pub twins: Vec<(String, i32, i32)>,
}

/// Adds rows to the table of this name.
///
/// # Panics
/// If it cannot be written.
pub fn note(name: &str, rows: &[Tried]) {
    static LINES: Mutex<Vec<(String, String)>> = Mutex::new(Vec::new());
    let Some(folder) = std::env::var_os(OUT).map(PathBuf::from) else {
        return;
    };
    // A test that failed meanwhile has left whole lines.
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

/// An error number, or 1000 and a signal's.
fn said(number: i32) -> String {
    match number {
        0 => "done".to_owned(),
        1000.. => format!("signal {}", number - 1000),
        _ => Errno(number)
            .name()
            .map_or_else(|| number.to_string(), str::to_owned),
    }
}
