//! Alerts for people: two lines on a terminal, with colours and what is known about the process.

use rules::{Alert, AlertValue, Priority};

use crate::internal;
use crate::json;

/// Properties of the terminal that alerts are shown on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Screen {
    /// Width at which lines are cut; `None` for no limit.
    pub(crate) columns: Option<usize>,
    /// Use colours.
    pub(crate) colour: bool,
}

/// Width of the column of priorities, with the blank after it: that of `Informational`, cut.
const PRIORITY_WIDTH: usize = 10;
/// Maximum number of ancestors that are shown.
const ANCESTORS: usize = 4;

/// How a piece of a line looks.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Style {
    Plain,
    Bold,
    Dim,
    Priority(Priority),
}

impl Style {
    /// Returns the parameters of the escape sequence.
    fn code(self) -> &'static str {
        match self {
            Self::Plain => "",
            Self::Bold => "1",
            Self::Dim | Self::Priority(Priority::Debug) => "2",
            Self::Priority(Priority::Emergency | Priority::Alert | Priority::Critical) => "1;31",
            Self::Priority(Priority::Error) => "31",
            Self::Priority(Priority::Warning) => "33",
            Self::Priority(Priority::Notice) => "36",
            Self::Priority(Priority::Informational) => "34",
        }
    }
}

/// A line that is cut at the width of the screen.
struct Line {
    screen: Screen,
    text: String,
    width: usize,
    is_full: bool,
}

impl Line {
    fn new(screen: Screen) -> Self {
        Self {
            screen,
            text: String::new(),
            width: 0,
            is_full: false,
        }
    }

    /// Appends text. What the workload may have chosen is escaped here, so no control character
    /// passes.
    fn push(&mut self, style: Style, text: &str) {
        let mut visible = String::new();
        json::write_visible(&mut visible, text);
        if self.is_full || visible.is_empty() {
            return;
        }
        let room = self
            .screen
            .columns
            .map(|columns| columns - self.width.min(columns));
        if room.is_some_and(|room| width(&visible) > room) {
            visible = cut(&visible, room.unwrap_or_default());
            self.is_full = true;
        }
        self.width += width(&visible);
        let code = style.code();
        if self.screen.colour && !code.is_empty() {
            self.text
                .push_str(&format!("\u{1b}[{code}m{visible}\u{1b}[0m"));
        } else {
            self.text.push_str(&visible);
        }
    }

    /// Appends a piece with two blanks before it.
    fn piece(&mut self, style: Style, text: Option<String>) {
        if let Some(text) = text {
            self.push(style, &format!("  {text}"));
        }
    }

    fn finish(mut self) -> String {
        self.text.truncate(self.text.trim_end().len());
        self.text.push('\n');
        self.text
    }
}

/// Number of columns that a text takes. Characters from U+1100 on, some of which are wide, count as
/// two, so that a line is rather cut too early than wrapped.
fn width(text: &str) -> usize {
    text.chars().map(columns).sum()
}

fn columns(c: char) -> usize {
    if c < '\u{1100}' || c == ELLIPSIS {
        1
    } else {
        2
    }
}

const ELLIPSIS: char = '\u{2026}';

/// Cuts a text to a width; the last column shows that something is missing.
fn cut(text: &str, room: usize) -> String {
    let mut left = room.saturating_sub(1);
    let fits = |c: &char| {
        let fits = columns(*c) <= left;
        left = left.saturating_sub(columns(*c));
        fits
    };
    let mut out: String = text.chars().take_while(fits).collect();
    if room > 0 {
        out.push(ELLIPSIS);
    }
    out
}

/// Formats an alert as one or two lines.
pub(crate) fn alert(alert: &Alert, screen: Screen) -> String {
    let mut first = Line::new(screen);
    first.push(
        Style::Priority(alert.priority),
        &format!("{:<PRIORITY_WIDTH$}", short(alert.priority)),
    );
    first.push(Style::Bold, &alert.rule);
    let what = what(alert);
    let second = details(alert, screen);
    if second.is_some() || screen.columns.is_none() {
        first.push(Style::Plain, &format!(": {what}"));
        return first.finish() + &second.map(Line::finish).unwrap_or_default();
    }
    // Nothing is known but the message, which may take both lines.
    let room = screen.columns.map_or(usize::MAX, |columns| {
        columns.saturating_sub(first.width + 2)
    });
    let (head, rest) = wrapped(&what, room);
    first.push(Style::Plain, &format!(": {head}"));
    let mut text = first.finish();
    if !rest.is_empty() {
        let mut second = Line::new(screen);
        second.push(Style::Dim, &format!("{:PRIORITY_WIDTH$}{rest}", ""));
        text += &second.finish();
    }
    text
}

/// Splits a text at the last blank before a width.
fn wrapped(text: &str, room: usize) -> (&str, &str) {
    if width(text) <= room {
        return (text, "");
    }
    let mut taken = 0;
    let mut blank = None;
    for (at, c) in text.char_indices() {
        taken += columns(c);
        if taken > room {
            break;
        }
        if c == ' ' {
            blank = Some(at);
        }
    }
    blank.map_or((text, ""), |at| (&text[..at], &text[at + 1..]))
}

/// Returns the priority in at most nine letters.
fn short(priority: Priority) -> String {
    match priority {
        Priority::Informational => "Info".to_owned(),
        _ => priority.to_string(),
    }
}

/// Returns what happened: the message without the values behind it, which the second line shows. Of
/// an alert by the program itself, the whole message.
pub(crate) fn what(alert: &Alert) -> String {
    let message = alert.message.trim();
    let after_rule = message.strip_prefix(&*alert.rule);
    let message = after_rule
        .and_then(|rest| rest.strip_prefix(": "))
        .unwrap_or(message);
    if &*alert.source == internal::SOURCE {
        return message.to_owned();
    }
    let end = [" (", " | "]
        .iter()
        .filter_map(|mark| message.find(mark))
        .min();
    let what = message[..end.unwrap_or(message.len())].trim();
    if what.is_empty() { message } else { what }.to_owned()
}

/// The line about the process and the object; `None` if nothing is known about either. Distant
/// ancestors are left out where the line would be too long.
fn details(alert: &Alert, screen: Screen) -> Option<Line> {
    let unlimited = Screen {
        columns: None,
        ..screen
    };
    let fits = |ancestors: &usize| {
        let line = details_with(alert, unlimited, *ancestors);
        let width = line.map_or(0, |line| line.width);
        screen.columns.is_none_or(|columns| width <= columns)
    };
    let ancestors = (1..=ANCESTORS).rev().find(fits).unwrap_or(1);
    details_with(alert, screen, ancestors)
}

fn details_with(alert: &Alert, screen: Screen, ancestors: usize) -> Option<Line> {
    let known = Known(alert);
    let mut line = Line::new(screen);
    line.push(Style::Plain, &" ".repeat(PRIORITY_WIDTH - 2));
    let pid = known.text("proc.pid").map(|pid| format!("pid {pid}"));
    let pieces = [
        pid,
        known.user(),
        known.process(ancestors),
        known.object(),
        known.container(),
    ];
    if pieces.iter().all(Option::is_none) {
        return None;
    }
    for piece in pieces {
        line.piece(Style::Dim, piece);
    }
    Some(line)
}

/// Identifies alerts that differ in nothing but their time: the same rule, process and object.
pub(crate) fn likeness(alert: &Alert) -> String {
    let known = Known(alert);
    let parts = [
        known.user(),
        known.process(ANCESTORS),
        known.object(),
        known.container(),
    ];
    if parts.iter().all(Option::is_none) {
        return alert.message.clone();
    }
    let parts: Vec<String> = parts.into_iter().flatten().collect();
    parts.join("\0")
}

/// One line for alerts that were not shown one by one: `x37 in 10 s`.
pub(crate) fn repeated(count: u64, seconds: u64, rule: &str, what: &str, screen: Screen) -> String {
    let mut line = Line::new(screen);
    let times = format!("x{count} in {seconds} s");
    line.push(
        Style::Dim,
        &format!("{:PRIORITY_WIDTH$}{times}  {rule}: {what}", ""),
    );
    line.finish()
}

/// Returns the object of an alert for the line of its repetitions.
pub(crate) fn object(alert: &Alert) -> String {
    Known(alert).object().unwrap_or_else(|| what(alert))
}

/// What is known about an alert's process and object.
struct Known<'a>(&'a Alert);

impl Known<'_> {
    /// Returns a field, if it has a value.
    fn text(&self, name: &str) -> Option<String> {
        let details = self.0.details.context.iter();
        let mut all = details.chain(&self.0.fields);
        let (_, value) = all.find(|(field, value)| &**field == name && is_known(value))?;
        Some(plain(value))
    }

    fn user(&self) -> Option<String> {
        let uid = || self.text("user.uid").map(|uid| format!("uid {uid}"));
        self.text("user.name").or_else(uid)
    }

    /// The process and some ancestors, the nearest first; more are three dots.
    fn process(&self, ancestors: usize) -> Option<String> {
        let mut chain = vec![self.text("proc.name")?];
        let parent = self
            .text("proc.pname")
            .or_else(|| self.text("proc.aname[1]"));
        let older = (2..=ANCESTORS).map(|n| self.text(&format!("proc.aname[{n}]")));
        for name in std::iter::once(parent).chain(older) {
            match name {
                Some(_) if chain.len() > ancestors => {
                    chain.push("...".to_owned());
                    break;
                }
                Some(name) => chain.push(name),
                None => break,
            }
        }
        Some(chain.join(" < "))
    }

    /// The file or connection, else the command line.
    fn object(&self) -> Option<String> {
        let names = ["fd.name", "fs.path.target", "fs.path.name", "proc.cmdline"];
        names.iter().find_map(|name| self.text(name))
    }

    fn container(&self) -> Option<String> {
        let name = self
            .text("container.name")
            .or_else(|| self.text("container.id"));
        let name = name.filter(|name| name != "host")?;
        Some(format!("container {name}"))
    }
}

fn is_known(value: &AlertValue) -> bool {
    match value {
        AlertValue::Absent => false,
        AlertValue::Text(text) => !text.is_empty() && !text.starts_with("<NA"),
        _ => true,
    }
}

/// Formats a value as text.
pub(crate) fn plain(value: &AlertValue) -> String {
    match value {
        AlertValue::Absent => String::new(),
        AlertValue::Bool(value) => value.to_string(),
        AlertValue::Float(value) => value.to_string(),
        AlertValue::Int(value) => value.to_string(),
        AlertValue::Uint(value) => value.to_string(),
        AlertValue::Text(text) => text.clone(),
        AlertValue::List(values) => values.iter().map(plain).collect::<Vec<_>>().join(","),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use rules::AlertDetails;

    use super::*;

    const NARROW: Screen = Screen {
        columns: Some(80),
        colour: false,
    };
    const WIDE: Screen = Screen {
        columns: None,
        colour: false,
    };

    pub(crate) fn reading(file: &str) -> Alert {
        let text = |name: &str, value: &str| (name.into(), AlertValue::Text(value.to_owned()));
        Alert {
            message: format!("A sensitive file was opened for reading (file={file} user=root)"),
            fields: vec![text("fd.name", file), text("user.name", "root")],
            details: AlertDetails {
                file: Some("rules/default.yaml".into()),
                line: 12,
                process: None,
                context: vec![
                    ("proc.pid".into(), AlertValue::Int(4711)),
                    text("proc.name", "cat"),
                    text("proc.pname", "sh"),
                    text("proc.aname[2]", "bash"),
                    ("proc.aname[3]".into(), AlertValue::Absent),
                    text("proc.aname[4]", "systemd"),
                    text("container.id", "host"),
                ],
            },
            ..crate::channel::testing::alert()
        }
    }

    #[test]
    fn an_alert_takes_two_lines_of_eighty_columns() {
        assert_eq!(
            alert(&reading("/etc/shadow"), NARROW),
            "Warning   Read sensitive file untrusted: A sensitive file was opened for reading\n          \
             pid 4711  root  cat < sh < bash  /etc/shadow\n"
        );
        let long = reading(&format!("/{}", "x".repeat(100)));
        let lines = alert(&long, NARROW);
        assert_eq!(lines.lines().count(), 2);
        assert!(lines.lines().all(|line| width(line) <= 80), "{lines}");
        assert!(lines.ends_with("x\u{2026}\n"), "{lines}");
        // `--wide` cuts nothing.
        assert!(alert(&long, WIDE).contains(&"x".repeat(100)));
    }

    #[test]
    fn distant_ancestors_make_room_for_the_file() {
        let file = "/home/somebody/.config/secrets";
        let lines = alert(&reading(file), NARROW);
        assert!(
            lines.ends_with(&format!("  cat < sh < bash  {file}\n")),
            "{lines}"
        );
        let file = "/home/somebody/.config/more/an/secrets";
        let lines = alert(&reading(file), NARROW);
        assert!(
            lines.ends_with(&format!("  cat < sh < ...  {file}\n")),
            "{lines}"
        );
    }

    #[test]
    fn colours_frame_what_is_shown_and_nothing_else() {
        let screen = Screen {
            colour: true,
            ..NARROW
        };
        let coloured = alert(&reading("/etc/shadow"), screen);
        assert!(coloured.starts_with("\u{1b}[33mWarning   \u{1b}[0m\u{1b}[1mRead sensitive"));
        let bare = regex::Regex::new("\u{1b}\\[[0-9;]*m").unwrap();
        let bare = bare.replace_all(&coloured, "");
        assert_eq!(bare, alert(&reading("/etc/shadow"), NARROW));
    }

    #[test]
    fn what_the_workload_chose_cannot_control_the_terminal() {
        let mut hostile = reading("/tmp/\u{1b}]0;pwned\u{7}\n\u{9b}2J\u{202e}x");
        hostile.message = "what \u{1b}[2J happened\r (x=1)".to_owned();
        for screen in [NARROW, WIDE] {
            let lines = alert(&hostile, screen);
            let is_control = |c: char| c.is_control() && c != '\n';
            assert!(
                !lines.contains(is_control) && !lines.contains('\u{202e}'),
                "{lines:?}"
            );
            assert_eq!(lines.lines().count(), 2, "{lines:?}");
        }
        let lines = alert(&hostile, WIDE);
        assert!(
            lines.contains(r"/tmp/\u001b]0;pwned\u0007\n\u009b2J\u202ex"),
            "{lines}"
        );
        let line = repeated(2, 10, "R", "a\u{1b}[2J", NARROW);
        assert_eq!(line, "          x2 in 10 s  R: a\\u001b[2J\n");
    }

    #[test]
    fn wide_characters_count_as_two_columns() {
        let lines = alert(&reading(&"\u{65e5}".repeat(100)), NARROW);
        assert!(lines.lines().all(|line| width(line) <= 80), "{lines}");
        let second = lines.lines().nth(1).unwrap();
        assert!(second.ends_with(ELLIPSIS), "{second}");
    }

    #[test]
    fn an_alert_of_the_program_itself_shows_its_message_on_both_lines() {
        let gap = Alert {
            rule: "Tollgate internal: unwatched gap".into(),
            priority: Priority::Critical,
            source: internal::SOURCE.into(),
            message: "calls were unwatched for 21 ms: killed by signal 9 (gaps=1 calls=15)"
                .to_owned(),
            fields: vec![("tollgate.gap.count".into(), AlertValue::Uint(1))],
            details: AlertDetails::default(),
            ..reading("")
        };
        assert_eq!(
            alert(&gap, NARROW),
            "Critical  Tollgate internal: unwatched gap: calls were unwatched for 21 ms:\n          \
             killed by signal 9 (gaps=1 calls=15)\n"
        );
    }

    #[test]
    fn likeness_ignores_time_and_pid() {
        let (one, mut other) = (reading("/etc/shadow"), reading("/etc/shadow"));
        other.time_ns += 1;
        other.details.context[0].1 = AlertValue::Int(4712);
        assert_eq!(likeness(&one), likeness(&other));
        assert_ne!(likeness(&one), likeness(&reading("/etc/gshadow")));
    }
}
