//! Where alerts go beside a command, and how they read.

use std::fs;
use std::process::{Command, Stdio};
use std::time::Duration;

use e2e::{Finished, Limited, Scratch};
use serde_json::Value;

const LIMIT: Duration = Duration::from_secs(60);

/// A rule about opening the file `mark`, with the name of the file in its output.
const MARK: &str = "\
- rule: Mark
  desc: x
  condition: evt.type in (open, openat) and fd.name contains /mark
  output: the mark was opened (file=%fd.name)
  priority: WARNING
";

struct Lab {
    scratch: Scratch,
}

impl Lab {
    fn new() -> Self {
        let scratch = Scratch::new();
        scratch.file("rules.yaml", 0o644, MARK);
        scratch.file("mark", 0o644, "");
        Self { scratch }
    }

    /// `tollgate run OPTIONS -r rules.yaml -- sh -c SCRIPT` in the scratch folder.
    fn run(&self, options: &[&str], script: &str) -> Finished {
        let mut command = Command::new(e2e::program());
        command
            .current_dir(self.scratch.path())
            .arg("run")
            .args(options)
            .args(["-r", "rules.yaml", "--", "sh", "-c", script])
            .stdin(Stdio::null());
        let finished = Limited::start(&mut command, LIMIT).finish(b"");
        assert_eq!(finished.code(), 0, "{finished:?}");
        finished
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.scratch.path().join(name)).expect("it was written")
    }

    /// Runs an expect(1) script; `start ARGS` in it spawns `tollgate run ARGS`.
    fn expect(&self, columns: u16, script: &str) -> Finished {
        let head = format!(
            "set timeout 20\nset stty_init {{rows 24 cols {columns}}}\n\
             proc want {{text}} {{ expect -re $text {{}} timeout {{ exit 8 }} eof {{ exit 9 }} }}\n\
             proc over {{}} {{ catch {{ expect eof }} }}\n\
             proc start {{args}} {{ global spawn_id; spawn -noecho {} run -r rules.yaml {{*}}$args }}\n",
            e2e::program().display()
        );
        let file = self
            .scratch
            .file("script.exp", 0o644, format!("{head}{script}\n"));
        let mut command = Command::new("expect");
        command
            .arg("-f")
            .arg(file)
            .current_dir(self.scratch.path())
            .env("TERM", "xterm")
            .env_remove("NO_COLOR")
            .stdin(Stdio::null());
        let finished = Limited::start(&mut command, LIMIT).finish(b"");
        assert_eq!(finished.code(), 0, "{finished:?}");
        finished
    }
}

/// Removes escape sequences of colours.
fn without_colours(text: &str) -> String {
    let mut parts = text.split("\u{1b}[");
    let mut out = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let end = part.find(|c: char| c.is_ascii_alphabetic());
        out.push_str(&part[end.map_or(part.len(), |end| end + 1)..]);
    }
    out
}

const ROWS: &str = "echo row1; cat mark; echo row2";

#[test]
fn the_commands_output_is_its_own() {
    let lab = Lab::new();
    let finished = lab.run(&[], ROWS);
    assert_eq!(finished.stdout, "row1\nrow2\n");
    // The alert is all that there is to say.
    let [alert] = &finished.stderr.lines().collect::<Vec<_>>()[..] else {
        panic!("one line: {finished:?}")
    };
    assert!(
        alert.contains(": Warning the mark was opened (file="),
        "{alert}"
    );
    let finished = lab.run(&["--json"], ROWS);
    assert_eq!(finished.stdout, "row1\nrow2\n");
    let alert: Value = serde_json::from_str(finished.stderr.trim()).expect("one object");
    assert_eq!(alert["rule"], "Mark");
}

#[test]
fn a_log_takes_the_alerts_and_the_summary_says_so() {
    let lab = Lab::new();
    for _ in 0..2 {
        let finished = lab.run(&["--log", "alerts"], "cat mark mark");
        assert_eq!(finished.stdout, "");
        assert_eq!(
            finished.stderr,
            "tollgate: 2 alerts\n      2  Warning        Mark\n"
        );
    }
    // It is appended to.
    assert_eq!(lab.read("alerts").lines().count(), 4);
    let finished = lab.run(&["--log", "-", "-q"], ROWS);
    assert_eq!(finished.stderr, "");
    assert_eq!(finished.stdout.lines().count(), 3, "{finished:?}");
}

#[test]
fn the_configuration_switches_the_stream_off_and_the_option_writes_it_nevertheless() {
    let lab = Lab::new();
    lab.scratch
        .file("config.yaml", 0o644, "stdout_output: {enabled: false}\n");
    let finished = lab.run(&["-c", "config.yaml"], ROWS);
    assert_eq!(finished.stdout, "row1\nrow2\n");
    assert!(
        !finished.stderr.contains("the mark was opened"),
        "{finished:?}"
    );
    lab.run(&["-c", "config.yaml", "--log", "alerts"], ROWS);
    assert_eq!(lab.read("alerts").lines().count(), 1);
    // Enabled by name, it still does not go to the command's output.
    lab.scratch
        .file("config.yaml", 0o644, "stdout_output: {enabled: true}\n");
    let finished = lab.run(&["-c", "config.yaml"], ROWS);
    assert_eq!(finished.stdout, "row1\nrow2\n");
    assert_eq!(finished.stderr.lines().count(), 1, "{finished:?}");
}

#[test]
fn a_program_that_gets_alerts_prints_beside_the_commands_output() {
    let lab = Lab::new();
    let options = [
        "-q",
        "-o",
        "program_output.enabled=true",
        "-o",
        "program_output.program=sed s/^/program:/",
    ];
    let finished = lab.run(&options, ROWS);
    assert_eq!(finished.stdout, "row1\nrow2\n");
    assert!(finished.stderr.contains("program:"), "{finished:?}");
}

#[test]
fn each_format_can_be_chosen_and_json_names_the_rule() {
    let lab = Lab::new();
    let of = |format: &str| lab.run(&["-q", "--format", format], "cat mark").stderr;
    let json: Value = serde_json::from_str(of("json").trim()).expect("one object");
    assert_eq!(json["rule_id"], "mark");
    assert_eq!(json["rule_file"], "rules.yaml");
    assert_eq!(json["rule_line"], 1);
    assert_eq!(json["id"].as_str().map(str::len), Some(16));
    assert!(of("falco").contains(": Warning the mark was opened (file="));
    let line = of("line");
    assert_eq!(line.lines().count(), 1, "{line}");
    for part in [
        "priority=Warning rule=Mark id=",
        " what=\"the mark was opened\" ",
        " proc.name=cat ",
        " proc.pname=sh ",
    ] {
        assert!(line.contains(part), "{part}: {line}");
    }
    let pretty = of("pretty");
    assert_eq!(pretty.lines().count(), 2, "{pretty}");
    assert!(
        pretty.starts_with("Warning   Mark: the mark was opened\n"),
        "{pretty}"
    );
    assert!(pretty.contains("  cat < sh < "), "{pretty}");
}

/// The other outputs are for programs: `--format` of the stream does not change them.
#[test]
fn other_outputs_keep_their_format() {
    let lab = Lab::new();
    let options = [
        "-q",
        "--format",
        "line",
        "-o",
        "file_output.enabled=true",
        "-o",
        "file_output.filename=file",
    ];
    let finished = lab.run(&options, "cat mark");
    assert!(finished.stderr.starts_with("time="), "{finished:?}");
    let file = lab.read("file");
    assert!(
        file.contains(": Warning the mark was opened (file="),
        "{file}"
    );
}

#[test]
fn no_format_passes_what_a_file_name_would_do_to_a_terminal() {
    let lab = Lab::new();
    let name = "mark\u{1b}]0;owned\u{7}\u{1b}[2J\n\u{9b}31m";
    fs::write(lab.scratch.path().join(name), "").expect("the folder is writable");
    for format in ["pretty", "line", "falco", "json"] {
        let options = ["-q", "--format", format, "--wide"];
        let finished = lab.run(&options, "for file in mark?*; do cat \"$file\"; done");
        let is_control = |c: char| c.is_control() && c != '\n';
        assert!(
            !finished.stderr.contains(is_control),
            "{format}: {finished:?}"
        );
        assert!(
            finished.stderr.contains(r"\u001b]0;owned\u0007"),
            "{format}: {finished:?}"
        );
    }
    // On a terminal, with the colours of the alert.
    let finished = lab.expect(
        200,
        "start -q -- sh -c {for file in mark?*; do cat \"$file\"; done}\nover",
    );
    let bare = without_colours(&finished.stdout);
    let is_control = |c: char| c.is_control() && !matches!(c, '\n' | '\r');
    assert!(!bare.contains(is_control), "{finished:?}");
    assert!(bare.contains(r"\u001b]0;owned\u0007"), "{finished:?}");
}

#[test]
fn a_terminal_gets_two_lines_that_fit_and_a_count_of_repetitions() {
    let lab = Lab::new();
    let script = "start -- sh -c {n=0; while [ $n -lt 37 ]; do : < mark; n=$((n + 1)); done}\nover";
    for columns in [80, 120] {
        let finished = lab.expect(columns, script);
        assert!(
            finished.stdout.contains("\u{1b}[33mWarning"),
            "{finished:?}"
        );
        let text = without_colours(&finished.stdout);
        let lines: Vec<_> = text.lines().map(str::trim_end).collect();
        assert!(
            lines
                .iter()
                .all(|line| line.chars().count() <= usize::from(columns)),
            "{text}"
        );
        assert_eq!(lines[0], "Warning   Mark: the mark was opened", "{text}");
        assert!(lines[1].contains("  sh < expect"), "{text}");
        assert!(lines[1].ends_with("/mark"), "{text}");
        let folded = lines[2].trim_start();
        assert!(
            folded.starts_with("x37 in ") && folded.contains(" s  Mark: "),
            "{text}"
        );
        assert_eq!(
            lines[3..],
            ["tollgate: 37 alerts", "     37  Warning        Mark"],
            "{text}"
        );
    }
    // Nothing is coloured, cut or said where that is not wanted.
    let finished = lab.expect(
        80,
        "set env(NO_COLOR) 1\nstart -q --wide -- sh -c {: < mark}\nover",
    );
    assert!(!finished.stdout.contains('\u{1b}'), "{finished:?}");
    assert_eq!(finished.stdout.lines().count(), 2, "{finished:?}");
    let finished = lab.expect(80, "start -- true\nover");
    assert_eq!(finished.stdout, "tollgate: no alerts\r\n");
}

/// The mark is opened while the program has the screen; the log has it at once, the terminal when the
/// program has ended.
#[test]
fn a_program_that_draws_the_screen_is_not_painted_over() {
    let lab = Lab::new();
    lab.scratch.file("text", 0o644, "first\nsecond\n");
    for (program, quit) in [
        ("less text", "q"),
        ("vim -u NONE -n text", ":q\\r"),
        ("top", "q"),
    ] {
        let _ = fs::remove_file(lab.scratch.path().join("log"));
        let script = format!(
            "start -q -o file_output.enabled=true -o file_output.filename=log \
             -- sh -c {{(sleep 1; : < mark; : < mark) & exec {program}}}\n\
             set deadline [expr {{[clock seconds] + 20}}]\n\
             while {{![file exists log] || [file size log] == 0}} {{\n\
                 if {{[clock seconds] > $deadline}} {{ exit 7 }}\n\
                 expect -timeout 1 -re {{nothing like this}} {{}}\n\
             }}\n\
             expect -timeout 1 -re {{nothing like this}} {{}}\n\
             send_user \"<quit>\"\nsend \"{quit}\"\nover"
        );
        let finished = lab.expect(80, &script);
        let (before, after) = finished.stdout.split_once("<quit>").expect("it was sent");
        let count = |text: &str| without_colours(text).matches("the mark was opened").count();
        assert_eq!(
            (count(before), count(after)),
            (0, 1),
            "{program}: {finished:?}"
        );
        assert!(
            without_colours(after).contains("x2 in "),
            "{program}: {finished:?}"
        );
    }
}

/// A shell edits its command line in raw mode, too, and its user waits for the alert.
#[test]
fn an_alert_is_shown_at_the_prompt_of_a_shell() {
    let lab = Lab::new();
    lab.expect(
        80,
        "start -q -- bash --norc --noprofile -i\nwant {[#$] }\nsend \": < mark\\r\"\n\
         want {the mark was opened}\nsend \"exit\\r\"\nover",
    );
}
