//! Commands that documents for new readers show are run, and their output is compared with what the document
//! shows. `BLESS=1` writes what the commands print where it differs.
//!
//! A block marked `console` is a session: lines after `$ ` are commands, the others their output. A line `...`
//! stands for any lines, and ` ...` at the end of a line for any text. A block after `<!-- file: NAME -->` is the
//! content of a file beside the session. In a block marked `console figures` numbers may be any numbers. All blocks
//! of a document are run in one shell and folder.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use e2e::{Limited, Scratch, need_root, program, repository};

/// Commands in blocks marked `sh`: they build the program that the sessions run, and run this test.
const BUILD: [&str; 7] = [
    "./x deb",
    "sudo apt install ./target/dist/tollgate_*.deb",
    "./x demo",
    "./x test",
    "make build",
    "make static",
    "export PATH=$PWD/target/release:$PATH",
];

/// How output is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Output {
    /// Times, process ids and names of this machine may differ.
    Exact,
    /// Numbers, and what is concluded from them, may differ.
    Figures,
}

/// A command and the lines that a document shows for it.
#[derive(Debug)]
struct Shown {
    command: String,
    output: Output,
    /// Lines of the document: after the command, up to the next one.
    lines: std::ops::Range<usize>,
}

/// What a document has to run.
#[derive(Debug, Default)]
struct Sessions {
    files: Vec<(String, String)>,
    commands: Vec<Shown>,
}

/// Reads the blocks of a document.
///
/// # Panics
/// If a block is neither a session nor a file nor known to build the program.
fn sessions(document: &str) -> Sessions {
    let lines: Vec<&str> = document.lines().collect();
    let mut found = Sessions::default();
    let mut file = None;
    let mut at = 0;
    while at < lines.len() {
        let line = lines[at];
        at += 1;
        if let Some(name) = line.strip_prefix("<!-- file: ") {
            file = name.strip_suffix(" -->");
        }
        let Some(kind) = line.strip_prefix("```") else {
            continue;
        };
        let length = lines[at..].iter().position(|line| *line == "```");
        let end = at + length.unwrap_or_else(|| panic!("line {at}: the block has no end"));
        match (kind, file.take()) {
            (_, Some(name)) => {
                let text = lines[at..end].join("\n") + "\n";
                found.files.push((name.to_owned(), text));
            }
            ("console", None) => session(&lines, at..end, Output::Exact, &mut found.commands),
            ("console figures", None) => {
                session(&lines, at..end, Output::Figures, &mut found.commands);
            }
            ("sh", None) => {
                for line in &lines[at..end] {
                    let command = line.split('#').next().unwrap_or_default().trim();
                    assert!(
                        BUILD.contains(&command),
                        "`{command}` is not run; use `console`"
                    );
                }
            }
            _ => panic!("line {at}: nothing runs a block marked `{kind}`"),
        }
        at = end + 1;
    }
    found
}

/// Reads the commands of one block.
fn session(lines: &[&str], block: std::ops::Range<usize>, output: Output, found: &mut Vec<Shown>) {
    let first = found.len();
    for at in block.clone() {
        if let Some(command) = lines[at].strip_prefix("$ ") {
            if let Some(last) = found[first..].last_mut() {
                last.lines.end = at;
            }
            found.push(Shown {
                command: command.to_owned(),
                output,
                lines: at + 1..block.end,
            });
        }
    }
    let starts = lines[block.start].starts_with("$ ");
    assert!(starts, "line {}: a session starts with `$ `", block.start);
}

/// Runs all commands in one shell, and returns what each printed: the standard error, then the standard output,
/// because the two meet in a terminal in any order, within lines too.
fn run(sessions: &Sessions) -> Vec<String> {
    let scratch = Scratch::new();
    let [bin, work] = ["bin", "work"].map(|name| scratch.path().join(name));
    for folder in [&bin, &work] {
        fs::create_dir(folder).expect("the scratch folder is writable");
    }
    symlink(program(), bin.join("tollgate")).expect("the scratch folder is writable");
    for (name, text) in &sessions.files {
        fs::write(work.join(name), text).expect("the scratch folder is writable");
    }
    let mut script = String::new();
    for (number, shown) in sessions.commands.iter().enumerate() {
        let command = &shown.command;
        script += &format!("{{ {command}\n}} </dev/null >../out.{number} 2>../err.{number}\n");
    }
    fs::write(scratch.path().join("session.sh"), script).expect("the scratch folder is writable");
    let path = std::env::var("PATH").expect("there is a PATH");
    let mut shell = Command::new("bash");
    shell.args(["--norc", "--noprofile", "../session.sh"]);
    shell.current_dir(&work).env("LC_ALL", "C.UTF-8");
    shell.env("PATH", format!("{}:{path}", bin.display()));
    Limited::start(&mut shell, Duration::from_secs(240)).finish(b"");
    let read = |name: String| {
        let text = fs::read_to_string(scratch.path().join(&name));
        text.unwrap_or_else(|error| panic!("the session did not get to {name}: {error}"))
    };
    let printed = |number: usize| read(format!("err.{number}")) + &read(format!("out.{number}"));
    (0..sessions.commands.len()).map(printed).collect()
}

/// Replaces what follows `before`, up to a character that ends it.
fn mask(line: &str, before: &str, ends: impl Fn(char) -> bool) -> String {
    let mut out = String::new();
    let mut rest = line;
    while let Some((head, tail)) = rest.split_once(before) {
        out += &(head.to_owned() + before + "#");
        rest = tail.find(&ends).map_or("", |end| &tail[end..]);
    }
    out + rest
}

/// Whether a word is a time of day with nanoseconds, as `09:40:57.106756663:`.
fn is_time(word: &str) -> bool {
    let digits = word.chars().filter(char::is_ascii_digit).count();
    digits == 15 && word.len() == 19 && word.matches(':').count() == 3
}

/// A line without what differs from run to run and from machine to machine.
fn normal(line: &str) -> String {
    let words: Vec<&str> = line
        .split(' ')
        .map(|word| if is_time(word) { "TIME:" } else { word })
        .collect();
    let mut line = words.join(" ");
    let word_ends = |c: char| c == ' ' || c == ')';
    for name in ["pid=", "ggparent=", "loginuid=", "container="] {
        line = mask(&line, name, word_ends);
    }
    for name in ["\"evt.time\":", "\"user.loginuid\":", "\"rule_line\":"] {
        line = mask(&line, name, |c| c == ',' || c == '}');
    }
    for name in [
        "\"hostname\":\"",
        "\"id\":\"",
        "\"time\":\"",
        "\"container.id\":\"",
        "\"proc.aname[3]\":\"",
    ] {
        line = mask(&line, name, |c| c == '"');
    }
    // Its beginning is a time, too.
    line = mask(&line, "\"output\":\"", |c| c == ' ');
    if line.starts_with("tollgate: policy ") {
        line = mask(&line, "(", |c| !c.is_ascii_digit());
    }
    line.trim_end().to_owned()
}

/// A line of a table of figures: words, and a mark for each number and unit, without the conclusion.
fn figures(line: &str) -> String {
    let line = normal(line);
    let number = |word: &str| word.parse::<f64>().is_ok();
    let words: Vec<&str> = line.split_whitespace().collect();
    let interval = words
        .windows(3)
        .position(|w| number(w[0]) && w[1] == "-" && number(w[2]));
    // Whether an index has figures depends on the noise of the machine.
    let of_index = (words.first() == Some(&"all")).then(|| &words[..words.len().min(3)]);
    let kept = interval.map_or(&words[..], |at| &words[..at + 3]);
    let kept = of_index.unwrap_or(kept);
    let word = |word: &&str| match word.split_once('/').map_or(*word, |(unit, _)| unit) {
        "ns" | "us" | "ms" | "s" => "UNIT".to_owned(),
        unit if number(unit) => "#".to_owned(),
        _ => (*word).to_owned(),
    };
    kept.iter().map(word).collect::<Vec<_>>().join(" ")
}

/// Whether lines are those that are shown, in which `...` stands for any lines.
fn fits(shown: &[String], printed: &[String]) -> bool {
    match shown.split_first() {
        None => printed.is_empty(),
        Some((first, rest)) if first == "..." => {
            (0..=printed.len()).any(|skip| fits(rest, &printed[skip..]))
        }
        Some((first, rest)) => printed.split_first().is_some_and(|(line, others)| {
            let is_same = match first.strip_suffix(" ...") {
                Some(start) => line.starts_with(start),
                None => line == first,
            };
            is_same && fits(rest, others)
        }),
    }
}

/// Whether a command printed what is shown. Alerts come from another process than the command's own output, so
/// that only their order among themselves counts.
fn is_as_shown(output: Output, shown: &[&str], printed: &[&str]) -> bool {
    let normal = |lines: &[&str]| -> Vec<String> {
        let progress = |line: &&&str| output == Output::Figures && line.starts_with("round ");
        let lines = lines.iter().filter(|line| !progress(line));
        let form = |line: &&str| match output {
            Output::Exact => normal(line),
            Output::Figures => figures(line),
        };
        lines.map(form).filter(|line| !line.is_empty()).collect()
    };
    let is_alert = |line: &String| line.starts_with("TIME:");
    let (shown_alerts, shown): (Vec<_>, Vec<_>) = normal(shown).into_iter().partition(is_alert);
    let (alerts, printed): (Vec<_>, Vec<_>) = normal(printed).into_iter().partition(is_alert);
    fits(&shown_alerts, &alerts) && fits(&shown, &printed)
}

/// Runs the commands of a document and reports the outputs that are not what it shows.
fn check(path: &str) {
    let file = repository().join(path);
    let text = fs::read_to_string(&file).expect("the document is part of the repository");
    let sessions = sessions(&text);
    assert!(!sessions.commands.is_empty(), "{path} has no session");
    let printed = run(&sessions);
    let lines: Vec<&str> = text.lines().collect();
    let mut differences = String::new();
    let mut blessed: Vec<String> = Vec::new();
    let mut copied = 0;
    for (shown, printed) in sessions.commands.iter().zip(&printed) {
        let printed: Vec<&str> = printed.trim_end().lines().collect();
        if is_as_shown(shown.output, &lines[shown.lines.clone()], &printed) {
            continue;
        }
        let (command, line) = (&shown.command, shown.lines.start);
        let expected = lines[shown.lines.clone()].join("\n");
        differences += &format!(
            "{path}:{line}: $ {command}\n{expected}\n--- printed:\n{}\n\n",
            printed.join("\n")
        );
        blessed.extend(
            lines[copied..shown.lines.start]
                .iter()
                .map(|line| (*line).to_owned()),
        );
        let is_progress =
            |line: &&&str| shown.output == Output::Figures && line.starts_with("round ");
        blessed.extend(
            printed
                .iter()
                .filter(|line| !is_progress(line))
                .map(|line| (*line).to_owned()),
        );
        copied = shown.lines.end;
    }
    if std::env::var_os("BLESS").is_some() && !differences.is_empty() {
        blessed.extend(lines[copied..].iter().map(|line| (*line).to_owned()));
        fs::write(Path::new(&file), blessed.join("\n") + "\n")
            .expect("the document can be written");
        return;
    }
    assert!(
        differences.is_empty(),
        "`BLESS=1` writes what the commands print:\n{differences}"
    );
}

#[test]
fn commands_of_the_readme_print_what_it_shows() {
    need_root!();
    check("README.md");
}

#[test]
fn commands_of_the_tutorial_print_what_it_shows() {
    need_root!();
    check("docs/tutorials/first-ten-minutes.md");
}

#[test]
fn other_output_than_shown_is_found() {
    let alert = "09:40:57.106756663: Warning A file was read (file=/etc/shadow pid=17 ggparent=bash user=root)";
    let later =
        "13:00:00.000000001: Warning A file was read (file=/etc/shadow pid=9 ggparent=x user=root)";
    let other = later.replace("/etc/shadow", "/etc/passwd");
    let exact = |shown: &[&str], printed: &[&str]| is_as_shown(Output::Exact, shown, printed);
    assert!(exact(&[alert, "cat: no"], &["cat: no", later]));
    assert!(!exact(&[alert], &[&other]));
    assert!(!exact(&[alert], &[]));
    assert!(!exact(&[alert], &[later, later]));
    assert!(!exact(&["cat: no"], &["cat: yes"]));
    assert!(exact(&["...", "end"], &["a", "b", "end"]));
    assert!(!exact(&["...", "end"], &["a", "end", "b"]));
    assert!(exact(&["a: 1 ..."], &["a: 1 2 3"]) && !exact(&["a: 1 ..."], &["a: 2"]));
    let counts = [
        "tollgate: policy p: Seccomp: fully enforced (93 call rules)",
        "tollgate: policy p: Seccomp: fully enforced (94 call rules)",
    ];
    assert!(exact(&counts[..1], &counts[1..]));
    assert!(!exact(
        &counts[..1],
        &[&counts[1].replace("fully", "partially")]
    ));
}

#[test]
fn numbers_of_figures_may_differ_and_words_may_not() {
    let shown = "getppid     tollgate       6  397 ns/call   35.4 ns  1.238  0.951 - 1.313   \
    inconclusive: noise hides effects below 26 %";
    let printed = "getppid  tollgate  6  1.41 us/call  12 ns  1.2  1.1 - 1.3  slower";
    let same = |shown: &str, printed: &[&str]| is_as_shown(Output::Figures, &[shown], printed);
    assert!(same(shown, &["round 1/6, about 7 s left", printed]));
    assert!(!same(shown, &[&printed.replace("tollgate", "strace")]));
    assert!(!same(shown, &[&printed.replace("getppid", "umask")]));
    assert!(!same(shown, &[]));
}

#[test]
#[should_panic(expected = "nothing runs a block marked `text`")]
fn a_block_that_nothing_runs_is_found() {
    sessions("```text\n$ tollgate run\n```\n");
}

#[test]
#[should_panic(expected = "`tollgate run` is not run")]
fn a_command_outside_a_session_is_found() {
    sessions("```sh\n./x test # all\ntollgate run\n```\n");
}
