//! The supported parts of Falco, as the page `docs/reference/falco-compat.md`.

use clap::{Args, Command};
use event::field::{Supplied, docs};
use rules::Code;
use rules::condition::ast::{Op, Transformer};

use super::args::Falco;

/// Returns the page, made from the program's own tables.
pub(super) fn page() -> String {
    let mut out = String::from(
        "# Falco compatibility\n\nPrinted by `tollgate falco --compat`; a test compares this page with \
        the program. [Replace Falco](../howto/replace-falco.md) lists the differences.\n\n## Options\n\n\
         | option | meaning |\n|---|---|\n",
    );
    push_options(&mut out);
    out.push_str("\n## Keys that have an effect\n\n| key | type |\n|---|---|\n");
    for (key, json_type) in config::keys() {
        row(&mut out, &[&format!("`{key}`"), json_type]);
    }
    out.push_str(
        "\n`webserver.listen_address` is 127.0.0.1 unless it is set, where Falco has 0.0.0.0; a value that \
         other hosts can reach is used, with a warning.\n",
    );
    out.push_str(
        "\n## Keys without effect\n\nA value that changes nothing is accepted silently; any other is \
        warned about. The key of a group covers all keys below it.\n\n| key | why |\n|---|---|\n",
    );
    for (key, why) in config::ineffective_keys() {
        row(&mut out, &[&format!("`{key}`"), why]);
    }
    out.push_str("\n## Operators and transformers\n\n");
    let ops = Op::ALL.iter().map(|op| format!("`{}`", op.word()));
    let ops: Vec<_> = ops.chain(["`exists`".to_owned()]).collect();
    let transformers = Transformer::ALL.iter();
    let transformers: Vec<_> = transformers
        .map(|known| format!("`{}`", known.word()))
        .collect();
    out.push_str(&format!(
        "{}\n\n`regex` has the syntax of RE2 and matches a whole value.\n\n{}\n",
        ops.join(" "),
        transformers.join(" ")
    ));
    out.push_str("\n## Fields\n\n| class | fields | never set | why |\n|---|---|---|---|\n");
    push_fields(&mut out);
    out.push_str("\n## Problems of rule files\n\n| code | severity | meaning |\n|---|---|---|\n");
    for code in Code::ALL {
        let severity = format!("{:?}", code.severity()).to_lowercase();
        row(
            &mut out,
            &[&format!("`{}`", code.name()), &severity, code.title()],
        );
    }
    out
}

/// Appends a row for each option.
fn push_options(out: &mut String) {
    let command = Falco::augment_args(Command::new("falco"));
    for option in command
        .get_arguments()
        .filter(|option| !option.is_hide_set())
    {
        let short = option.get_short().map(|short| format!("`-{short}`"));
        let long = option.get_long().map(|long| format!("`--{long}`"));
        let names: Vec<_> = short.into_iter().chain(long).collect();
        let help = option.get_help().map(ToString::to_string);
        // An option that Falco has and that has no text here shows an empty cell.
        row(out, &[&names.join(" "), &help.unwrap_or_default()]);
    }
}

/// Appends a row for each class of fields.
fn push_fields(out: &mut String) {
    for (class, fields) in docs() {
        let never = fields.iter().filter_map(|field| match field.supplied {
            Supplied::Yes => None,
            Supplied::No(why) => Some((field.name, why)),
        });
        let names: Vec<_> = never.clone().map(|(name, _)| format!("`{name}`")).collect();
        let mut reasons: Vec<_> = never.map(|(_, why)| why).collect();
        reasons.sort_unstable();
        reasons.dedup();
        let cells = [
            class.name,
            &fields.len().to_string(),
            &names.join(" "),
            &reasons.join("; "),
        ];
        row(out, &cells);
    }
}

fn row(out: &mut String, cells: &[&str]) {
    let cells: Vec<_> = cells.iter().map(|cell| cell.replace('|', "\\|")).collect();
    out.push_str(&format!("| {} |\n", cells.join(" | ")));
}
