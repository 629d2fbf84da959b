//! The terminal that alerts are shown on: whether a program has it to itself, and what waits for it.

use std::borrow::Cow;
use std::fs::{self, File};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::termios::{LocalModes, OutputModes, Termios, tcgetattr, tcgetpgrp, tcgetwinsize};

use crate::channel::{Delivery, DeliveryError};
use crate::hold::{Held, Repetitions};
use crate::internal;
use crate::pretty::{self, Screen};
use crate::stream::{LineFormat, LineStream};

/// Interval at which a terminal is looked at while alerts wait for it.
const LOOK: Duration = Duration::from_millis(50);
/// Width of a terminal that does not say it.
const COLUMNS: usize = 80;
/// Programs whose command line, edited in raw mode, is no reason to hold alerts.
const SHELLS: [&str; 11] = [
    "ash", "bash", "busybox", "csh", "dash", "fish", "ksh", "mksh", "sh", "tcsh", "zsh",
];

/// Who reads keys from the terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TerminalUse {
    /// The kernel edits lines: output may come at any time.
    Lines,
    /// A shell edits its command line.
    Prompt,
    /// A program in raw mode, which draws the screen.
    Program,
}

impl TerminalUse {
    /// Looks at the terminal. A terminal that does not answer is free.
    fn of(file: &File, modes: Option<&Termios>) -> Self {
        let is_raw = |modes: &Termios| {
            let lines = LocalModes::ICANON | LocalModes::ECHO;
            !modes.local_modes.intersects(lines)
        };
        match modes.is_some_and(is_raw) {
            false => Self::Lines,
            true if has_shell_in_front(file) => Self::Prompt,
            true => Self::Program,
        }
    }
}

/// Returns true if the leader of the foreground process group is a shell.
fn has_shell_in_front(file: &File) -> bool {
    let Ok(group) = tcgetpgrp(file) else {
        return false;
    };
    let name = fs::read_to_string(format!("/proc/{}/comm", group.as_raw_nonzero()));
    name.is_ok_and(|name| SHELLS.contains(&name.trim_end()))
}

/// Alerts on their way to a terminal.
#[derive(Debug)]
pub(crate) struct Terminal {
    held: Held,
    /// Repetitions, where these are not shown one by one.
    repetitions: Option<Repetitions>,
    is_wide: bool,
    colour: bool,
    /// Time before which a terminal in use is not looked at again.
    next_look: Option<Instant>,
}

impl Terminal {
    /// Creates the state for a terminal. `folds` counts repetitions.
    pub(crate) fn new(folds: bool, is_wide: bool) -> Self {
        Self {
            held: Held::default(),
            repetitions: folds.then(Repetitions::default),
            is_wide,
            colour: wants_colour(),
            next_look: None,
        }
    }

    /// Returns the size and colours of the terminal at this time.
    pub(crate) fn screen(&self, file: &File) -> Screen {
        let columns = tcgetwinsize(file).map_or(0, |size| usize::from(size.ws_col));
        let columns = if columns == 0 { COLUMNS } else { columns };
        Screen {
            columns: (!self.is_wide).then_some(columns),
            colour: self.colour,
        }
    }

    /// Number of alerts that the terminal does not show yet.
    pub(crate) fn held(&self) -> usize {
        let hidden = self.repetitions.as_ref().map_or(0, Repetitions::hidden);
        let hidden = usize::try_from(hidden).unwrap_or(usize::MAX);
        self.held.count().saturating_add(hidden)
    }

    /// Time at which something is to be shown, or the terminal is to be looked at.
    pub(crate) fn due(&self) -> Option<Instant> {
        if let Some(look) = self.next_look {
            return Some(look);
        }
        self.repetitions.as_ref()?.due()
    }

    /// Shows alerts, unless a program has the terminal to itself.
    pub(crate) fn deliver(
        &mut self,
        stream: &mut LineStream,
        file: &File,
        alerts: &[Arc<Delivery>],
    ) -> Result<(), DeliveryError> {
        let modes = tcgetattr(file).ok();
        let terminal_use = TerminalUse::of(file, modes.as_ref());
        if terminal_use == TerminalUse::Program || !self.held.is_empty() {
            alerts.iter().for_each(|alert| self.held.push(alert));
            self.next_look = Some(Instant::now() + LOOK);
            return Ok(());
        }
        let mut lines = Vec::new();
        self.lines_of(stream, alerts, &mut lines);
        write(stream, file, lines, (terminal_use, modes.as_ref()))
    }

    /// Shows what waits, if a program has given the terminal back or `everything` is to be shown.
    pub(crate) fn release(
        &mut self,
        stream: &mut LineStream,
        file: &File,
        everything: bool,
    ) -> Result<(), DeliveryError> {
        let modes = tcgetattr(file).ok();
        let terminal_use = TerminalUse::of(file, modes.as_ref());
        if terminal_use == TerminalUse::Program && !everything {
            self.next_look = Some(Instant::now() + LOOK);
            return Ok(());
        }
        self.next_look = None;
        let (alerts, left_out) = self.held.take();
        let mut lines = Vec::new();
        self.lines_of(stream, &alerts, &mut lines);
        for (rule, times) in left_out {
            if let Some(last) = alerts.last() {
                let notice = last.beside(internal::left_out(&rule, times));
                lines.push(stream.format().line(&notice).into_owned());
            }
        }
        if let (Some(repetitions), LineFormat::Pretty(screen)) =
            (&mut self.repetitions, stream.format())
        {
            for repeated in repetitions.take(Instant::now(), everything) {
                let (rule, what) = (&repeated.rule, &repeated.what);
                let (count, seconds) = (repeated.count, repeated.seconds);
                lines.push(pretty::repeated(count, seconds, rule, what, screen));
            }
        }
        write(stream, file, lines, (terminal_use, modes.as_ref()))
    }

    /// Appends the lines of the alerts that are shown, and counts the others.
    fn lines_of(&mut self, stream: &LineStream, alerts: &[Arc<Delivery>], lines: &mut Vec<String>) {
        let now = Instant::now();
        for alert in alerts {
            let repetitions = self.repetitions.as_mut();
            if repetitions.is_none_or(|seen| seen.is_shown(alert.alert(), now)) {
                lines.push(stream.format().line(alert).into_owned());
            }
        }
    }
}

fn write(
    stream: &mut LineStream,
    file: &File,
    mut lines: Vec<String>,
    (terminal_use, modes): (TerminalUse, Option<&Termios>),
) -> Result<(), DeliveryError> {
    let translates = OutputModes::OPOST | OutputModes::ONLCR;
    if modes.is_some_and(|modes| !modes.output_modes.contains(translates)) {
        // The terminal does not return the carriage by itself.
        for line in &mut lines {
            *line = line.replace('\n', "\r\n");
        }
    }
    if let (TerminalUse::Prompt, Some(first)) = (terminal_use, lines.first_mut()) {
        // Not behind what has been typed.
        first.insert_str(0, "\r\n");
    } else if let (true, Some(first)) = (take_status_line(), lines.first_mut()) {
        // The rest of the status line, which ends with a carriage return. What a command has printed stays.
        first.insert_str(0, "\u{1b}[K");
    }
    stream.write_lines(file, lines.into_iter().map(Cow::Owned))
}

/// Returns true unless `NO_COLOR` (<https://no-color.org>) or `TERM=dumb` disables colours.
fn wants_colour() -> bool {
    let no_color = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    let is_dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb");
    !no_color && !is_dumb
}

/// Set while the cursor is at the beginning of a status line.
static STATUS_LINE: AtomicBool = AtomicBool::new(false);

/// Notes that a status line has been drawn, which ends with a carriage return: the next alert clears it.
pub fn status_line_was_drawn() {
    STATUS_LINE.store(true, Ordering::Relaxed);
}

fn take_status_line() -> bool {
    STATUS_LINE.swap(false, Ordering::Relaxed)
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::fd::OwnedFd;

    use rustix::pty::{OpenptFlags, openpt, ptsname, unlockpt};
    use rustix::termios::{OptionalActions, tcsetattr};

    use super::*;
    use crate::channel::testing;
    use crate::format::Format;
    use crate::queue::LineOutput;

    /// A terminal, and the end at which a user would sit.
    fn terminal() -> (File, OwnedFd) {
        let user = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).expect("terminals can be made");
        unlockpt(&user).expect("it is ours");
        let name = ptsname(&user, Vec::new()).expect("it has a name");
        let name = name.into_string().expect("it is a path");
        let file = File::options().read(true).write(true).open(name);
        (file.expect("it is there"), user)
    }

    fn set_raw(file: &File, is_raw: bool) {
        let mut modes = tcgetattr(file).expect("a terminal");
        modes
            .local_modes
            .set(LocalModes::ICANON | LocalModes::ECHO, !is_raw);
        tcsetattr(file, OptionalActions::Now, &modes).expect("a terminal");
    }

    /// Reads what is there now. The kernel passes it on a little later than it is written.
    fn shown(user: &OwnedFd) -> String {
        let ready = rustix::io::ioctl_fionread(user).expect("a terminal");
        let mut bytes = vec![0; usize::try_from(ready).expect("some bytes")];
        let mut user = File::from(user.try_clone().expect("a descriptor"));
        user.read_exact(&mut bytes).expect("that much is there");
        String::from_utf8(bytes).expect("text")
    }

    /// Reads until a text has come.
    fn shown_up_to(user: &OwnedFd, end: &str) -> String {
        let mut text = String::new();
        let start = Instant::now();
        while !text.contains(end) {
            assert!(start.elapsed() < Duration::from_secs(10), "{text}");
            text += &shown(user);
        }
        text
    }

    #[test]
    fn a_program_in_raw_mode_is_not_painted_over_and_no_alert_is_lost() {
        let (file, user) = terminal();
        let mut stream = LineStream::new(LineOutput::Stream);
        let mut terminal = Terminal::new(false, false);
        let alerts = testing::deliveries(300, Format::default());
        terminal
            .deliver(&mut stream, &file, &alerts[..1])
            .expect("it is written");
        shown_up_to(&user, "n=0\r\n");
        set_raw(&file, true);
        terminal
            .deliver(&mut stream, &file, &alerts[1..])
            .expect("they wait");
        terminal
            .release(&mut stream, &file, false)
            .expect("they wait");
        std::thread::sleep(LOOK);
        assert_eq!((shown(&user).as_str(), terminal.held()), ("", 299));
        assert!(terminal.due().is_some());
        set_raw(&file, false);
        // The buffer of a terminal is smaller than what waits.
        let reader = std::thread::spawn(move || shown_up_to(&user, "more while a program"));
        terminal
            .release(&mut stream, &file, false)
            .expect("they are written");
        let text = reader.join().expect("it has read");
        assert_eq!(text.matches("n=").count(), 256, "{text}");
        assert!(text.contains("t: 43 more while a program"), "{text}");
        assert_eq!((terminal.held(), terminal.due()), (0, None));
    }

    #[test]
    fn at_the_end_everything_is_shown_whatever_the_mode() {
        let (file, user) = terminal();
        let mut stream = LineStream::new(LineOutput::Stream);
        let mut terminal = Terminal::new(false, false);
        set_raw(&file, true);
        let alerts = testing::deliveries(2, Format::default());
        terminal
            .deliver(&mut stream, &file, &alerts)
            .expect("they wait");
        terminal
            .release(&mut stream, &file, true)
            .expect("they are written");
        shown_up_to(&user, "n=1\r\n");
    }

    #[test]
    fn a_password_prompt_is_no_reason_to_hold() {
        let (file, _user) = terminal();
        let mut modes = tcgetattr(&file).expect("a terminal");
        modes.local_modes.remove(LocalModes::ECHO);
        assert_eq!(TerminalUse::of(&file, Some(&modes)), TerminalUse::Lines);
        modes.local_modes.remove(LocalModes::ICANON);
        assert_eq!(TerminalUse::of(&file, Some(&modes)), TerminalUse::Program);
    }
}
