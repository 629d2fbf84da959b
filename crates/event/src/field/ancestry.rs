//! Programs and ancestors of the calling process.

use std::sync::Arc;

use bumpalo::collections::Vec;

use super::text::{Text, copied};
use crate::{Comm, CommandLine, Event, ExecutableFile, Image, Lookup, Process, Value};

/// Maximum number of ancestors that are followed. In deeper trees the answer is unknown, not wrong.
pub(super) const MAX_ANCESTORS: usize = 128;

/// A process, with the image that applies to an event.
pub(super) enum Subject<'a> {
    /// The caller, with the event's image.
    Caller(&'a Process, Arc<Image>),
    /// An ancestor or leader, with its current image.
    Other(Arc<Process>),
}

impl<'a> Subject<'a> {
    pub(super) fn caller(event: &Event<'a>) -> Self {
        Self::Caller(event.process, Arc::clone(&event.image))
    }

    pub(super) fn process(&self) -> &Process {
        match self {
            Self::Caller(process, _) => process,
            Self::Other(process) => process,
        }
    }

    fn image(&self) -> Arc<Image> {
        match self {
            Self::Caller(_, image) => Arc::clone(image),
            Self::Other(process) => process.image(),
        }
    }

    /// Returns the command name at exec. For a process other than the caller that has exited, falls back to
    /// the last name seen.
    pub(super) fn comm(&self, event: &Event<'a>) -> Lookup<Comm> {
        let process = match self {
            Self::Caller(..) => return event.comm().clone(),
            Self::Other(process) => process,
        };
        if process.has_exited() {
            return Lookup::Found(process.exec_name());
        }
        match event.world.comm(process) {
            Lookup::Missing => Lookup::Found(process.exec_name()),
            found => found,
        }
    }

    pub(super) fn comm_value(&self, event: &Event<'a>) -> Value<'a> {
        found(self.comm(event), |comm| {
            copied(event.arena, comm.as_bytes())
        })
    }

    /// Computes a value from the command line.
    pub(super) fn command_line<T>(
        &self,
        event: &Event<'a>,
        look: impl FnOnce(&CommandLine) -> T,
    ) -> Lookup<T> {
        let image = self.image();
        cached(
            &image.command_line,
            || event.world.command_line(self.process(), &image),
            look,
        )
    }

    /// Computes a value from the executable file.
    pub(super) fn executable_file<T>(
        &self,
        event: &Event<'a>,
        look: impl FnOnce(&ExecutableFile) -> T,
    ) -> Lookup<T> {
        let image = self.image();
        cached(
            &image.executable_file,
            || event.world.executable_file(self.process(), &image),
            look,
        )
    }

    /// Returns whether the subject's user may write the executable file.
    pub(super) fn executable_writable(&self, event: &Event<'a>) -> Lookup<bool> {
        let image = self.image();
        cached(
            &image.executable_writable,
            || event.world.executable_writable(self.process(), &image),
            |writable| *writable,
        )
    }

    /// Computes a value from the environment: `NAME=value` entries, each ended by a NUL.
    pub(super) fn environment<T>(
        &self,
        event: &Event<'a>,
        look: impl FnOnce(&[u8]) -> T,
    ) -> Lookup<T> {
        let image = self.image();
        cached(
            &image.environment,
            || event.world.environment(self.process(), &image),
            |bytes: &std::vec::Vec<u8>| look(bytes),
        )
    }

    /// Returns `argv[0]`.
    pub(super) fn exe(&self, event: &Event<'a>) -> Value<'a> {
        found(
            self.command_line(event, |line| copied(event.arena, &line.exe)),
            |value| value,
        )
    }

    /// Returns the path of the executable.
    pub(super) fn exe_path(&self, event: &Event<'a>) -> Value<'a> {
        let image = self.image();
        let path = cached(
            &image.executable,
            || event.world.executable(self.process(), &image),
            |path: &std::vec::Vec<u8>| copied(event.arena, path),
        );
        found(path, |value| value)
    }

    /// Returns all arguments but the first, separated by spaces.
    pub(super) fn args(&self, event: &Event<'a>) -> Value<'a> {
        let joined = self.command_line(event, |line| {
            let mut text = Text::new(event.arena);
            text.join(line.args.iter().map(std::vec::Vec::as_slice));
            text.value()
        });
        found(joined, |value| value)
    }

    /// Returns the command name and the arguments.
    pub(super) fn command(&self, event: &Event<'a>) -> Value<'a> {
        let comm = match self.comm(event) {
            Lookup::Found(comm) => comm,
            Lookup::Missing => return Value::Absent,
            Lookup::Unknown => return Value::Unknown,
        };
        self.after(event, comm.as_bytes())
    }

    /// Returns `first` and the arguments.
    pub(super) fn after(&self, event: &Event<'a>, first: &[u8]) -> Value<'a> {
        let line = self.command_line(event, |line| {
            let mut text = Text::new(event.arena);
            let args = line.args.iter().map(std::vec::Vec::as_slice);
            text.join(std::iter::once(first).chain(args));
            text.value()
        });
        match line {
            Lookup::Found(value) => value,
            // A kernel thread or an exited process: only its name is known.
            Lookup::Missing => copied(event.arena, first),
            Lookup::Unknown => Value::Unknown,
        }
    }

    /// Returns the environment as one text.
    pub(super) fn all_environment(&self, event: &Event<'a>) -> Value<'a> {
        let text = self.environment(event, |bytes| {
            let mut text = Text::new(event.arena);
            text.join(variables(bytes));
            text.value()
        });
        found(text, |value| value)
    }

    /// Returns the value of one environment variable.
    pub(super) fn variable(&self, event: &Event<'a>, name: &str) -> Value<'a> {
        let value = self.environment(event, |bytes| {
            let value = variables(bytes).find_map(|variable| {
                variable
                    .strip_prefix(name.as_bytes())?
                    .strip_prefix(b"=".as_slice())
            });
            value.map_or(Value::Absent, |value| copied(event.arena, value))
        });
        found(value, |value| value)
    }
}

fn variables(bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    bytes
        .split(|byte| *byte == 0)
        .filter(|variable| !variable.is_empty())
}

/// Returns a fact that does not change while the image lives, looked up only once.
fn cached<F, T>(
    cell: &std::sync::OnceLock<Option<F>>,
    ask: impl FnOnce() -> Lookup<F>,
    look: impl FnOnce(&F) -> T,
) -> Lookup<T> {
    if cell.get().is_none() {
        let answer = match ask() {
            Lookup::Found(fact) => Some(fact),
            Lookup::Missing => None,
            // The fact may become known later.
            Lookup::Unknown => return Lookup::Unknown,
        };
        // Another thread may have stored its answer first, which is as good.
        let _ = cell.set(answer);
    }
    match cell.get() {
        Some(Some(fact)) => Lookup::Found(look(fact)),
        _ => Lookup::Missing,
    }
}

/// Converts a lookup into a value.
pub(super) fn found<'a, T>(lookup: Lookup<T>, show: impl FnOnce(T) -> Value<'a>) -> Value<'a> {
    match lookup {
        Lookup::Found(found) => show(found),
        Lookup::Missing => Value::Absent,
        Lookup::Unknown => Value::Unknown,
    }
}

/// Computes a field for a process.
pub(super) type AncestorField<'a> = for<'e> fn(&Subject<'a>, &'e Event<'a>) -> Value<'a>;

/// Returns the caller for level 0, its parent for 1, and so on; `None` beyond the oldest ancestor.
pub(super) fn ancestor<'a>(event: &Event<'a>, level: u32) -> Option<Subject<'a>> {
    let mut parent = match level {
        0 => return Some(Subject::caller(event)),
        _ => event.process.parent()?,
    };
    for _ in 1..level {
        parent = parent.parent()?;
    }
    Some(Subject::Other(parent))
}

/// Computes a field for the ancestor at `level`. Without a level, returns the values of all ancestors,
/// nearest first and without the caller.
pub(super) fn tell<'a>(
    event: &Event<'a>,
    level: Option<u32>,
    tell: AncestorField<'a>,
) -> Value<'a> {
    if let Some(level) = level {
        return match ancestor(event, level) {
            Some(subject) => tell(&subject, event),
            None => Value::Absent,
        };
    }
    let mut values = Vec::new_in(event.arena);
    let mut next = event.process.parent();
    while let Some(process) = next {
        if values.len() == MAX_ANCESTORS {
            return Value::Unknown;
        }
        next = process.parent();
        match tell(&Subject::Other(process), event) {
            Value::Absent => {}
            value => values.push(value),
        }
    }
    match values.is_empty() {
        true => Value::Absent,
        false => Value::List(values.into_bump_slice()),
    }
}
