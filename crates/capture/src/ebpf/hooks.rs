//! Hooks on the return of calls, chosen by trying.
//!
//! | hooks | cost | requirements |
//! |---|---|---|
//! | functions | planned calls only | BPF programs on functions, a non-preemptible kernel, rules on few calls |
//! | per-call | every call a little | no calls by a foreign convention: they pass these tracepoints unseen |
//! | raw | every call | none |
//!
//! Tracepoints of calls are not attached together with functions: one is enough to send every call of the
//! host through the slow entry and exit paths of the kernel.

use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};

use abi::Arch;
use libbpf_rs::{Link, MapCore, MapFlags, Object, OpenObject, ProgramInput};
use serde::{Deserialize, Serialize};

use super::attempts::{lacking, other_conventions, tracepoint, try_functions, with_causes};
use super::error::Error;
use super::functions::{self, FIRST_RUN, Function, Functions, PLAIN_EXAMPLE};
use super::tables::Tables;

/// Kind of hooks.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
pub enum Hooks {
    /// The cheapest hooks that work and see every call.
    #[default]
    Auto,
    /// The functions that carry out planned calls (`fexit`).
    Functions,
    /// The tracepoints of planned calls.
    PerCall,
    /// The one tracepoint of all calls.
    Raw,
    /// An empty program on that tracepoint, which sees nothing: for measurements.
    Nothing,
}

impl Hooks {
    fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Functions => "functions",
            Self::PerCall => "per-call",
            Self::Raw => "raw",
            Self::Nothing => "nothing",
        }
    }
}

/// Result of the choice of hooks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attachment {
    /// Hooks that are attached.
    pub hooks: Hooks,
    /// Number of places they are attached to.
    pub places: usize,
    /// Reasons why cheaper hooks are not used.
    pub reasons: Vec<String>,
    /// Calls that pass unseen. Hooks that miss harmful calls are used only on request.
    pub unseen: Vec<String>,
}

impl Attachment {
    /// Returns a short description of the hooks, and of the calls that they miss.
    pub fn in_short(&self) -> String {
        let hooks = match self.hooks {
            Hooks::Functions => format!("{} kernel functions", self.places),
            Hooks::PerCall => format!("{} tracepoints", self.places),
            Hooks::Nothing => "an empty program, for measurements".to_owned(),
            _ => "sys_exit tracepoint".to_owned(),
        };
        match self.unseen.is_empty() {
            true => hooks,
            false => format!("{hooks}; NOT WATCHED: {}", self.unseen.join("; ")),
        }
    }
}

impl fmt::Display for Attachment {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.hooks {
            Hooks::Functions => write!(to, "functions: {} hooked by fexit", self.places)?,
            Hooks::PerCall => write!(to, "per-call: {} tracepoints", self.places)?,
            Hooks::Nothing => write!(to, "nothing: an empty program at tp_btf/sys_exit")?,
            _ => write!(to, "raw: tp_btf/sys_exit")?,
        }
        for reason in &self.reasons {
            write!(to, "; {reason}")?;
        }
        for unseen in &self.unseen {
            write!(to, "; NOT WATCHED: {unseen}")?;
        }
        Ok(())
    }
}

/// Maximum number of functions or tracepoints; attaching more costs more than it saves.
const PLACES_LIMIT: usize = 160;
const CALL_PROGRAM: &str = "sys_exit";
const EMPTY_PROGRAM: &str = "nothing";
const PER_CALL_PROGRAM: &str = "call_exit";
/// Programs by type of function.
const BODIES: [(&str, &str); 2] = [
    ("function_exit", "bodies"),
    ("function_exit_plain", "bodies_plain"),
];
const FIRST_RUN_PROGRAM: &str = "first_run";
/// Example of a call with arguments; any will do.
const EXAMPLE: &str = "close";

/// Hooks that can be attached, found before the programs are loaded.
#[derive(Debug)]
pub(super) struct Options {
    wanted: Hooks,
    functions: Result<Functions, String>,
    /// Calls that would pass the tracepoints of calls unseen.
    other_conventions: Option<String>,
}

impl Options {
    pub(super) fn find(wanted: Hooks) -> Self {
        let functions = match wanted {
            Hooks::Auto | Hooks::Functions => try_functions(),
            Hooks::PerCall | Hooks::Raw | Hooks::Nothing => Err("not asked for".to_owned()),
        };
        Self {
            wanted,
            functions,
            other_conventions: other_conventions(),
        }
    }

    /// Drops the functions, because the kernel refused the programs for them.
    pub(super) fn without_functions(self, why: String) -> Self {
        Self {
            functions: Err(why),
            ..self
        }
    }

    pub(super) fn has_functions(&self) -> bool {
        self.functions.is_ok()
    }

    /// Selects the programs to load: those that may be attached.
    pub(super) fn prepare(&self, open: &mut OpenObject) -> Result<(), Error> {
        let per_call = self.wanted == Hooks::PerCall
            || (self.wanted == Hooks::Auto && self.other_conventions.is_none());
        for mut program in open.progs_mut() {
            let name = program.name().to_string_lossy().into_owned();
            let target = match (&self.functions, name.as_str()) {
                (_, EMPTY_PROGRAM) if self.wanted == Hooks::Nothing => {
                    program.set_autoload(true);
                    continue;
                }
                (_, PER_CALL_PROGRAM) if per_call => {
                    program.set_autoload(true);
                    continue;
                }
                (Ok(functions), _) => functions.example(&name),
                (Err(_), _) => None,
            };
            if let Some(target) = target {
                program
                    .set_attach_target(0, Some(target))
                    .map_err(Error::load)?;
                program.set_autoload(true);
            }
        }
        Ok(())
    }
}

impl Functions {
    /// Returns the function that one of our programs is loaded for.
    fn example(&self, program: &str) -> Option<String> {
        if program == FIRST_RUN_PROGRAM {
            return Some(FIRST_RUN.to_owned());
        }
        if program == "function_execveat" {
            return Some(format!("{}execveat", native_prefix()));
        }
        let index = BODIES.iter().position(|(name, _)| *name == program)?;
        Some(examples()[index].clone())
    }

    /// Returns the index of our program for a function.
    fn body(&self, function: Function) -> Option<usize> {
        examples().iter().position(|name| {
            let example = self.named(name);
            example.is_some_and(|example| example.prototype == function.prototype)
        })
    }
}

/// Returns one function of each type.
pub(super) fn examples() -> [String; 2] {
    [
        format!("{}{EXAMPLE}", native_prefix()),
        PLAIN_EXAMPLE.to_owned(),
    ]
}

pub(super) fn native_prefix() -> &'static str {
    if cfg!(target_arch = "aarch64") {
        "__arm64_sys_"
    } else {
        "__x64_sys_"
    }
}

/// Name of the program that inspects a descriptor of this program.
const SHOW_PROGRAM: &str = "show_file";

/// Attached programs; dropping this detaches them.
pub(super) struct Attached {
    object: Object,
    loaded: BTreeSet<String>,
    options: Options,
    links: Vec<Link>,
    functions: Vec<OwnedFd>,
    /// Names of the tracepoints or functions in use.
    places: BTreeSet<String>,
    /// Calls that the kernel lacks.
    lacking: Vec<&'static str>,
    attachment: Option<Attachment>,
}

impl Attached {
    pub(super) fn new(object: Object, loaded: BTreeSet<String>, options: Options) -> Self {
        Self {
            object,
            loaded,
            options,
            links: Vec::new(),
            functions: Vec::new(),
            places: BTreeSet::new(),
            lacking: Vec::new(),
            attachment: None,
        }
    }

    /// Returns whether the kernel has loaded a program.
    pub(super) fn is_loaded(&self, name: &str) -> bool {
        self.loaded.contains(name)
    }

    /// Attaches one program to its hook.
    pub(super) fn attach(&mut self, name: &'static str) -> Result<(), Error> {
        let program = self
            .object
            .progs_mut()
            .find(|program| program.name() == name);
        let program = program.ok_or(Error::Missing { name })?;
        let link = program.attach();
        self.links
            .push(link.map_err(|cause| Error::Attach { name, cause })?);
        Ok(())
    }

    /// Makes the kernel compute the identity of the file behind one of this program's descriptors. Returns
    /// the number of identities (for an overlay one for each layer), which [`super::maps::Maps::shown`] holds
    /// then.
    pub(super) fn show(&mut self, descriptor: RawFd) -> Result<usize, Error> {
        let program = self
            .object
            .progs_mut()
            .find(|program| program.name() == SHOW_PROGRAM);
        let program = program.ok_or(Error::Missing { name: SHOW_PROGRAM })?;
        let mut context = i64::from(descriptor).to_ne_bytes();
        let input = ProgramInput {
            context_in: Some(&mut context),
            ..ProgramInput::default()
        };
        let output = program.test_run(input).map_err(Error::map)?;
        Ok(usize::try_from(output.return_value).unwrap_or(0))
    }

    /// Attaches hooks for the calls of these tables, in the cheapest way that sees them all.
    pub(super) fn attach_calls(&mut self, tables: &Tables) -> Result<Attachment, Error> {
        let calls = returning(tables);
        let mut reasons = Vec::new();
        let wanted = self.options.wanted;
        if matches!(wanted, Hooks::Auto | Hooks::Functions) {
            match self.attach_functions(&calls) {
                Ok(()) => return Ok(self.chosen(Hooks::Functions, reasons)),
                Err(why) => reasons.push(format!("functions not available: {why}")),
            }
            if wanted == Hooks::Functions {
                return Err(Error::Hooks {
                    hooks: wanted.name(),
                    why: reasons.join("; "),
                });
            }
        }
        if matches!(wanted, Hooks::Auto | Hooks::PerCall) {
            match self.attach_per_call(&calls) {
                Ok(()) => return Ok(self.chosen(Hooks::PerCall, reasons)),
                Err(why) => reasons.push(format!("per-call tracepoints not available: {why}")),
            }
            if wanted == Hooks::PerCall {
                return Err(Error::Hooks {
                    hooks: wanted.name(),
                    why: reasons.join("; "),
                });
            }
        }
        if wanted == Hooks::Nothing {
            self.attach(EMPTY_PROGRAM)?;
            return Ok(self.chosen(wanted, reasons));
        }
        self.attach(CALL_PROGRAM)?;
        self.places.insert(CALL_PROGRAM.to_owned());
        Ok(self.chosen(Hooks::Raw, reasons))
    }

    /// Attaches hooks for new rules. Hooks on calls that rules no longer ask for stay: the program returns at once.
    pub(super) fn attach_more(&mut self, tables: &Tables) -> Result<(), Error> {
        let hooks = self.attachment.as_ref().map(|attachment| attachment.hooks);
        let calls = returning(tables);
        let more = match hooks {
            Some(Hooks::Functions) => self.attach_functions(&calls),
            Some(Hooks::PerCall) => self.attach_per_call(&calls),
            _ => return Ok(()),
        };
        let Err(why) = more else { return Ok(()) };
        // Both kinds together would report calls twice.
        self.functions.clear();
        let kept = self.links.len().min(self.kept_links());
        self.links.truncate(kept);
        self.places.clear();
        self.attach(CALL_PROGRAM)?;
        self.places.insert(CALL_PROGRAM.to_owned());
        self.chosen(Hooks::Raw, vec![format!("the new rules need more: {why}")]);
        Ok(())
    }

    /// Returns the number of links that are not for calls: they are created first.
    fn kept_links(&self) -> usize {
        self.links.len().saturating_sub(match self.attachment {
            Some(Attachment {
                hooks: Hooks::PerCall,
                ..
            }) => self.places.len(),
            _ => 0,
        })
    }

    fn chosen(&mut self, hooks: Hooks, reasons: Vec<String>) -> Attachment {
        let mut unseen = Vec::new();
        if hooks == Hooks::Nothing {
            unseen.push("any call".to_owned());
        }
        if hooks == Hooks::Functions {
            // No function carries them out.
            unseen.push(
                "calls that this kernel does not have, such as those of x32 programs".to_owned(),
            );
        }
        if hooks == Hooks::PerCall {
            unseen.extend(self.options.other_conventions.clone());
            if !self.lacking.is_empty() {
                let lacking = self.lacking.join(", ");
                unseen.push(format!("calls that this kernel does not have ({lacking})"));
            }
        }
        let attachment = Attachment {
            hooks,
            places: self.places.len(),
            reasons,
            unseen,
        };
        self.attachment = Some(attachment.clone());
        attachment
    }

    fn attach_functions(&mut self, calls: &[(Arch, &'static str)]) -> Result<(), String> {
        let functions = self.options.functions.as_ref().map_err(Clone::clone)?;
        let found = functions.of(calls).map_err(|missing| {
            let missing: Vec<_> = missing.into_iter().take(5).collect();
            format!("no kernel function known for {}", missing.join(", "))
        })?;
        // Without it a second name of a function is hooked, too, or refused with its name.
        let symbols = fs::read("/proc/kallsyms").unwrap_or_default();
        let found = functions::distinct(found, &symbols);
        if found.len() > PLACES_LIMIT {
            return Err(format!("the rules need {} functions", found.len()));
        }
        let mut hooked = Vec::new();
        for (name, function) in &found {
            if self.places.contains(name) {
                continue;
            }
            let body = functions.body(*function);
            let body = body.ok_or_else(|| format!("{name} is of an unknown type"))?;
            let hook = self.hook(*function, body);
            hooked.push((name.clone(), hook.map_err(|why| format!("{name}: {why}"))?));
        }
        let is_first = self.places.is_empty();
        for (name, hook) in hooked {
            self.places.insert(name);
            self.functions.push(hook);
        }
        if is_first {
            self.attach(FIRST_RUN_PROGRAM)
                .map_err(|error| with_causes(&error))?;
        }
        Ok(())
    }

    fn hook(&self, function: Function, body: usize) -> Result<OwnedFd, String> {
        let (program, map) = BODIES[body];
        let loaded = self.object.progs().find(|loaded| loaded.name() == program);
        let loaded = loaded.ok_or_else(|| format!("there is no {program}"))?;
        let bodies = self.object.maps().find(|found| found.name() == map);
        let bodies = bodies.ok_or_else(|| format!("there is no {map}"))?;
        let descriptor = loaded.as_fd().as_raw_fd();
        bodies
            .update(
                &0_u32.to_ne_bytes(),
                &descriptor.to_ne_bytes(),
                MapFlags::ANY,
            )
            .map_err(|error| with_causes(&error))?;
        let stub = sys::bpf::load_return_hook(function.id, Some(bodies.as_fd()));
        let stub = stub.map_err(|error| error.to_string())?;
        sys::bpf::attach_hook(stub.as_fd()).map_err(|error| error.to_string())
    }

    fn attach_per_call(&mut self, calls: &[(Arch, &'static str)]) -> Result<(), String> {
        if let (Some(others), Hooks::Auto) = (&self.options.other_conventions, self.options.wanted)
        {
            return Err(format!("{others} would pass unseen"));
        }
        let native: Vec<_> = calls
            .iter()
            .filter(|(arch, _)| Some(*arch) == Arch::native())
            .collect();
        if native.len() > PLACES_LIMIT {
            return Err(format!("the rules need {} calls", native.len()));
        }
        let mut events = BTreeSet::new();
        let mut without = Vec::new();
        for (_, call) in native {
            match tracepoint(call) {
                Some(event) => {
                    events.insert(event);
                }
                None => without.push(*call),
            }
        }
        if !without.is_empty() {
            self.lacking = lacking(without)?;
        }
        for event in events {
            if self.places.contains(&event) {
                continue;
            }
            let mut programs = self.object.progs_mut();
            let program = programs.find(|program| program.name() == PER_CALL_PROGRAM);
            let program = program.ok_or_else(|| format!("there is no {PER_CALL_PROGRAM}"))?;
            let link =
                program.attach_tracepoint(libbpf_rs::TracepointCategory::Syscalls, event.as_str());
            let link = link.map_err(|error| format!("{event}: {}", with_causes(&error)))?;
            self.links.push(link);
            self.places.insert(event);
        }
        Ok(())
    }
}

/// Returns the calls of the tables except those that never return, which no hook here sees.
fn returning(tables: &Tables) -> Vec<(Arch, &'static str)> {
    let mut calls = tables.calls();
    calls.retain(|(_, call)| !["exit", "exit_group", "rt_sigreturn", "sigreturn"].contains(call));
    calls
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_short_form_names_hooks_and_unwatched_calls() {
        let attachment = |hooks, places, unseen: &[&str]| {
            let unseen = unseen.iter().map(|call| (*call).to_owned()).collect();
            let reasons = vec!["a".to_owned()];
            let attachment = Attachment {
                hooks,
                places,
                reasons,
                unseen,
            };
            attachment.in_short()
        };
        assert_eq!(attachment(Hooks::Raw, 1, &[]), "sys_exit tracepoint");
        assert_eq!(attachment(Hooks::Functions, 9, &[]), "9 kernel functions");
        assert_eq!(
            attachment(Hooks::PerCall, 7, &["a", "b"]),
            "7 tracepoints; NOT WATCHED: a; b"
        );
    }

    #[test]
    fn what_was_chosen_is_said_with_its_reasons() {
        let attachment = Attachment {
            hooks: Hooks::Raw,
            places: 1,
            reasons: vec![
                "functions not available: a".to_owned(),
                "per-call tracepoints not available: \
            b"
                .to_owned(),
            ],
            unseen: Vec::new(),
        };
        assert_eq!(
            attachment.to_string(),
            "raw: tp_btf/sys_exit; functions not available: a; per-call tracepoints not available: b"
        );
        let attachment = Attachment {
            hooks: Hooks::PerCall,
            places: 7,
            reasons: Vec::new(),
            unseen: vec!["calls by x".to_owned()],
        };
        assert_eq!(
            attachment.to_string(),
            "per-call: 7 tracepoints; NOT WATCHED: calls by x"
        );
    }
}
