//! Accounts of `fixtures/calls.c`: the calls that a monitor must have seen, compared with alerts.

use std::fmt;

use abi::Errno;
use abi::constant::O_DIRECTORY;
use serde_json::Value;

use crate::{Alert, Pattern};

/// A line of the account of `fixtures/calls.c`.
#[derive(Debug)]
pub struct Line {
    pid: i64,
    /// The call's name.
    pub call: String,
    result: i64,
    number: u64,
    /// First argument; `None` if the memory could not be read.
    one: Option<String>,
    two: String,
}

/// A family of related calls.
#[derive(Debug)]
pub struct Family {
    /// Name of the family in the program's arguments.
    pub name: &'static str,
    condition: &'static str,
    /// Fields that the rule prints besides the type, the pid and the result.
    fields: &'static [&'static str],
    /// Returns the patterns of the fields for a line.
    patterns: fn(&Line) -> Vec<String>,
    /// Returns true if the alert is about set-up work of the program.
    is_setup: fn(&Alert, account: &str) -> bool,
}

/// Opens of files, successful or not.
pub const OPENS: Family = Family {
    name: "opens",
    condition: "evt.type in (open, openat, openat2, creat)",
    fields: &["evt.rawarg.name", "evt.rawarg.flags"],
    patterns: |line| {
        let path = line.one.clone().unwrap_or_else(|| "<NA>".to_owned());
        let unreadable = line.call == "openat2" && line.result == Errno::EFAULT.result();
        let known = line.call != "creat" && !unreadable;
        let flags = if known {
            line.number.to_string()
        } else {
            "<NA>".to_owned()
        };
        vec![path, flags]
    },
    is_setup: |alert, account| {
        let folder = (
            alert.field("evt.rawarg.name"),
            alert.field("evt.rawarg.flags"),
        );
        alert.field("evt.rawarg.name") == account
            || folder == (".".to_owned(), O_DIRECTORY.u64().to_string())
    },
};

/// Executions of programs, successful or not.
pub const EXECS: Family = Family {
    name: "execs",
    condition: "evt.type in (execve, execveat)",
    fields: &["proc.cmdline"],
    patterns: |line| {
        // A failed exec leaves the caller unchanged.
        let arguments = if line.result == 0 {
            line.two.clone()
        } else {
            " execs ".to_owned()
        };
        vec![format!("*{arguments}*")]
    },
    is_setup: |alert, _| {
        alert.field("proc.cmdline").contains(" execs ") && alert.field("evt.rawres") == "0"
    },
};

/// Connections.
pub const CONNECTS: Family = Family {
    name: "connects",
    condition: "evt.type = connect",
    fields: &["fd.name", "fd.type"],
    patterns: |line| {
        let address = line.one.clone().unwrap_or_default();
        match line.number {
            AF_INET => vec![format!("*{address}"), "ipv4".to_owned()],
            AF_INET6 => vec![format!("*{address}"), "ipv6".to_owned()],
            _ => vec![format!("*{address}"), "unix".to_owned()],
        }
    },
    is_setup: |_, _| false,
};

/// Links, sockets, descriptors and tracing.
pub const VARIOUS: Family = Family {
    name: "various",
    condition: "(evt.type in (symlink, symlinkat, link, linkat, ptrace, socket, dup, dup2, dup3) \
                or (evt.type = close and evt.rawarg.fd in (77, 9999)))",
    fields: &[
        "evt.arg.target",
        "evt.arg.linkpath",
        "evt.arg.oldpath",
        "evt.arg.newpath",
        "evt.arg.request",
        "evt.arg.domain",
    ],
    patterns: |line| {
        let mut patterns = vec!["<NA>".to_owned(); 6];
        let one = line.one.clone().unwrap_or_default();
        match line.call.as_str() {
            "symlink" | "symlinkat" => {
                patterns[0] = one;
                patterns[1] = format!("*{}", line.two);
            }
            "link" | "linkat" => {
                patterns[2] = format!("*{one}");
                patterns[3] = format!("*{}", line.two);
            }
            "ptrace" if line.number == 7 => patterns[4] = "PTRACE_CONT".to_owned(),
            "ptrace" => patterns[4] = "PTRACE_ATTACH".to_owned(),
            "socket" if line.number == AF_INET => patterns[5] = "AF_INET".to_owned(),
            "socket" if line.number == 1 => patterns[5] = "AF_*".to_owned(),
            "socket" => patterns[5] = "*".to_owned(),
            _ => {}
        }
        patterns
    },
    is_setup: |_, _| false,
};

const AF_INET: u64 = abi::constant::AF_INET.u64();
const AF_INET6: u64 = abi::constant::AF_INET6.u64();

/// Differences between an account and alerts.
#[derive(Debug)]
pub struct Compared<'a> {
    /// Calls without an alert, with the expected patterns.
    pub missed: Vec<(Line, Vec<String>)>,
    /// Alerts without a call.
    pub without_cause: Vec<&'a Alert>,
}

impl Compared<'_> {
    /// Returns true if there are no differences.
    pub fn is_exact(&self) -> bool {
        self.missed.is_empty() && self.without_cause.is_empty()
    }
}

impl fmt::Display for Compared<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(formatter, "missed:")?;
        for (line, patterns) in &self.missed {
            writeln!(formatter, "  {line:?} {patterns:?}")?;
        }
        writeln!(formatter, "seen without cause:")?;
        self.without_cause
            .iter()
            .try_for_each(|alert| writeln!(formatter, "  {alert}"))
    }
}

impl Family {
    /// Returns the rule `Seen`, which matches every call of the family. `pid`: the field with the caller's own
    /// pid.
    pub fn rule(&self, pid: &str) -> String {
        let fields: Vec<_> = self
            .fields
            .iter()
            .map(|field| format!("{field}=%{field}"))
            .collect();
        format!(
            "- rule: Seen\n  desc: every call of a family\n  condition: >\n    {} and proc.name in (calls, script, \"3\", \"4\")\n  \
             output: seen %evt.type %{pid} %evt.rawres {}\n  priority: DEBUG\n",
            self.condition,
            fields.join(" ")
        )
    }

    /// Matches each line with one alert of the rule, in any order. An exact comparison leaves neither lines nor
    /// alerts.
    pub fn compare<'a>(
        &self,
        alerts: &'a [Alert],
        lines: Vec<Line>,
        account: &str,
        pid: &str,
    ) -> Compared<'a> {
        let mut alerts: Vec<_> = alerts.iter().filter(|alert| alert.rule == "Seen").collect();
        alerts.retain(|alert| !(self.is_setup)(alert, account));
        let mut missed = Vec::new();
        for line in lines {
            let patterns = (self.patterns)(&line);
            let found = alerts
                .iter()
                .position(|alert| self.fits(alert, &line, &patterns, pid));
            match found {
                Some(at) => drop(alerts.swap_remove(at)),
                None => missed.push((line, patterns)),
            }
        }
        Compared {
            missed,
            without_cause: alerts,
        }
    }

    fn fits(&self, alert: &Alert, line: &Line, patterns: &[String], pid: &str) -> bool {
        let mut pairs = self.fields.iter().zip(patterns);
        alert.field("evt.type") == line.call
            && alert.field(pid) == line.pid.to_string()
            && alert.field("evt.rawres") == line.result.to_string()
            && pairs.all(|(field, pattern)| {
                // Values from programs may contain stars, so a pattern without our stars is compared literally.
                let text = alert.field(field);
                text == *pattern || Pattern(pattern).fits(&text)
            })
    }
}

impl Line {
    /// Parses all lines of an account.
    ///
    /// # Panics
    /// If a line does not parse.
    pub fn all(account: &str) -> Vec<Self> {
        account.lines().map(Self::parse).collect()
    }

    fn parse(line: &str) -> Self {
        let value: Value = serde_json::from_str(line).expect("the account is JSON");
        let number = |key: &str| value[key].as_i64().expect("a number");
        let text = |key: &str| value[key].as_str().map(decode);
        Self {
            pid: number("pid"),
            call: value["call"].as_str().expect("a name").to_owned(),
            result: number("result"),
            number: value["number"].as_u64().expect("a number"),
            one: text("one"),
            two: text("two").unwrap_or_default(),
        }
    }
}

fn decode(hex: &str) -> String {
    let bytes: Vec<u8> = (0..hex.len() / 2)
        .map(|at| u8::from_str_radix(&hex[2 * at..2 * at + 2], 16).expect("hexadecimal"))
        .collect();
    String::from_utf8_lossy(&bytes).into_owned()
}
