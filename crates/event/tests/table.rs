//! The event table and the field registry are consistent with each other and with Falco's rule file.

use std::collections::HashSet;
use std::path::Path;

use abi::{ArgKind, Syscall};
use event::field::{self, ArgumentKind, Field, FieldError, Supplied};
use event::{DescriptorSource, EventKind, ParamSource, ParamSpec, ParamType, PathParams};

#[test]
fn kinds_have_names_of_their_own_and_are_found_by_them() {
    let mut seen = HashSet::new();
    for kind in EventKind::all() {
        assert!(seen.insert(kind.name()), "{} stands twice", kind.name());
        assert_eq!(EventKind::from_name(kind.name()), Ok(kind));
    }
    for call in Syscall::all() {
        let kind = EventKind::of_syscall(call);
        assert_eq!(kind.name(), call.event_name());
        assert!(kind.is_syscall());
    }
    assert!(
        !EventKind::from_name("procexit")
            .expect("it has a row")
            .is_syscall()
    );
    assert!(
        !EventKind::from_name("openat")
            .expect("it has a row")
            .is_generic()
    );
    assert!(
        EventKind::from_name("move_mount")
            .expect("abi has it")
            .is_generic()
    );
    let error = EventKind::from_name("opnat").expect_err("misspelt");
    assert_eq!(
        error.to_string(),
        "cannot find an event named `opnat`; did you mean `openat`?"
    );
}

#[test]
fn parameters_have_names_of_their_own_and_one_result_at_most() {
    for kind in EventKind::all() {
        let params = kind.spec().params;
        let names: HashSet<_> = params.iter().map(|param| param.name).collect();
        assert_eq!(names.len(), params.len(), "{}", kind.name());
        let results = params
            .iter()
            .filter(|param| param.source == ParamSource::Result)
            .count();
        assert!(results <= 1, "{}", kind.name());
        for (at, param) in params.iter().enumerate() {
            assert_eq!(kind.param_index(param.name), Some(at));
        }
    }
}

/// The rows were written by hand, the call table from the kernel's: a path in a row must be the address of a
/// path in the table, and so on.
#[test]
fn sources_fit_the_arguments_of_the_call() {
    let mut other_sets = Vec::new();
    for call in Syscall::all().filter(|call| call.alias_of().is_none() && !call.args().is_empty()) {
        let kind = EventKind::of_syscall(call);
        for param in kind.spec().params {
            let what = format!("{} {}", kind.name(), param.name);
            assert_fits(param, call, &what);
            if let ParamSource::Register(at) = param.source
                && let ArgKind::Flags(set) = argument(call, at, &what)
                && let ParamType::Flags(own) = param.ty
                && own.name() != set.name()
            {
                other_sets.push(format!("{what}: {} not {}", own.name(), set.name()));
            }
        }
    }
    assert_eq!(other_sets, Vec::<String>::new());
}

fn argument(call: Syscall, position: u8, what: &str) -> ArgKind {
    let arg = call.args().get(usize::from(position));
    arg.unwrap_or_else(|| panic!("{what}: no arg")).kind
}

/// Checks that a parameter's source is an argument of a kind that fits.
fn assert_fits(param: &ParamSpec, call: Syscall, what: &str) {
    let arg = |position| argument(call, position, what);
    let fits = match param.source {
        ParamSource::Path { path, base } => {
            let starts_at = |base| matches!(arg(base), ArgKind::DirFd);
            matches!(arg(path), ArgKind::Path) && base.is_none_or(starts_at)
        }
        // What a link leads to, a device or a mount source: paths that are not made absolute.
        ParamSource::Text(at) => matches!(arg(at), ArgKind::Text | ArgKind::Path),
        ParamSource::Register(at) => match param.ty {
            ParamType::Fd => matches!(arg(at), ArgKind::Fd | ArgKind::DirFd | ArgKind::Int32),
            ParamType::Mode => matches!(arg(at), ArgKind::Mode),
            ParamType::Pid => matches!(arg(at), ArgKind::Pid),
            ParamType::Uid => matches!(arg(at), ArgKind::Uid),
            ParamType::Gid => matches!(arg(at), ArgKind::Gid),
            ParamType::Signal => matches!(arg(at), ArgKind::Signal),
            _ => call.args().len() > usize::from(at),
        },
        ParamSource::Field { arg: at, .. } => call.args()[usize::from(at)].is_pointer(),
        ParamSource::Buffer { arg: at, len } => {
            matches!(arg(at), ArgKind::Buffer) && matches!(arg(len), ArgKind::Size)
        }
        _ => true,
    };
    assert!(fits, "{what}");
}

#[test]
fn descriptors_point_at_parameters_and_arguments_that_exist() {
    for call in Syscall::all().filter(|call| call.alias_of().is_none() && !call.args().is_empty()) {
        let kind = EventKind::of_syscall(call);
        let is_fd = |at: u8| {
            matches!(
                call.args().get(usize::from(at)).map(|arg| arg.kind),
                Some(ArgKind::Fd | ArgKind::DirFd)
            )
        };
        match kind.spec().descriptor {
            DescriptorSource::Opened { name, flags } => {
                let params = kind.spec().params;
                assert!(matches!(params[usize::from(name)].ty, ParamType::Path));
                let flags = params[usize::from(flags)];
                assert!(flags.name == "flags" || kind.name() == "creat");
            }
            DescriptorSource::Argument(fd)
            | DescriptorSource::Duplicated(fd)
            | DescriptorSource::Accepted(fd)
            | DescriptorSource::Addressed { fd, .. }
            | DescriptorSource::Message { fd, .. } => assert!(is_fd(fd), "{}", kind.name()),
            _ => {}
        }
    }
}

#[test]
fn paths_that_a_call_works_on_are_paths_or_texts_of_the_row() {
    for kind in EventKind::all() {
        let positions = match kind.spec().paths {
            PathParams::None => Vec::new(),
            PathParams::One(at) => vec![at],
            PathParams::Two { source, target } => vec![source, target],
            PathParams::Descriptor => {
                assert_ne!(
                    kind.spec().descriptor,
                    DescriptorSource::None,
                    "{}",
                    kind.name()
                );
                Vec::new()
            }
        };
        for at in positions {
            let param = kind.spec().params[usize::from(at)];
            let is_path = matches!(param.ty, ParamType::Path | ParamType::Text);
            assert!(is_path, "{} {}", kind.name(), param.name);
        }
    }
}

#[test]
fn fields_have_names_of_their_own_and_are_described() {
    let mut seen = HashSet::new();
    for (class, fields) in field::docs() {
        assert!(!class.description.is_empty());
        for spec in fields {
            assert!(seen.insert(spec.name), "{} stands twice", spec.name);
            assert_eq!(spec.class().name, class.name);
            assert!(
                spec.description.ends_with('.'),
                "{}: {}",
                spec.name,
                spec.description
            );
            let own = field::lookup(spec.name).expect("every field is found");
            assert_eq!(own.name, spec.name);
            if let Supplied::No(reason) = spec.supplied {
                assert!(!reason.is_empty(), "{}", spec.name);
            }
        }
    }
}

/// Counts of Falco 0.44.1 with its container plugin, as far as it lists them; it does not list deprecated
/// fields and fields that only its tables show.
#[test]
fn every_class_has_at_least_as_many_fields_as_falco() {
    let least = [
        ("evt", 53),
        ("syscall", 1),
        ("proc", 73),
        ("thread", 17),
        ("user", 6),
        ("group", 2),
        ("fd", 46),
        ("fdlist", 6),
        ("fs.path", 6),
        ("container", 29),
        ("k8s", 29),
    ];
    let counts: Vec<_> = field::docs()
        .map(|(class, fields)| (class.name, fields.len()))
        .collect();
    for (name, least) in least {
        let found = counts
            .iter()
            .find(|(class, _)| *class == name)
            .map(|(_, count)| *count);
        assert!(found >= Some(least), "{name}: {found:?} of {least}");
    }
}

#[test]
fn fields_with_arguments_are_read_and_printed_alike() {
    for text in [
        "proc.name",
        "proc.aname",
        "proc.aname[2]",
        "proc.env[HOME]",
        "proc.env",
        "proc.aenv[3]",
        "proc.aenv[PATH]",
        "evt.arg.flags",
        "evt.rawarg.fd",
        "evt.arg[1]",
        "evt.type.is.open",
        "evt.abspath",
        "evt.abspath.src",
        "fd.types[0]",
        "fd.cip.name",
        "thread.cgroup.memory",
        "container.mount.dest[/lib]",
        "k8s.ns.label[app]",
        "proc.args[0]",
    ] {
        let field = Field::parse(text).unwrap_or_else(|error| panic!("{text}: {error}"));
        assert_eq!(field.to_string(), text);
    }
    // A label may be named either way; brackets are the way without doubt.
    let label = Field::parse("container.label.io.kubernetes/app").expect("a label");
    assert_eq!(label.to_string(), "container.label[io.kubernetes/app]");
}

#[test]
fn wrong_fields_are_errors_with_a_way_out() {
    let rows = [
        (
            "proc.nmae",
            "cannot find a field named `proc.nmae`; did you mean `proc.name`?",
        ),
        (
            "nothing.like.it",
            "cannot find a field named `nothing.like.it`",
        ),
        ("proc.name[1]", "`proc.name` takes no argument"),
        ("proc.name[]", "`proc.name` takes no argument"),
        (
            "proc.aname[x]",
            "cannot read the index `x` of `proc.aname`: it must be a whole number from 0",
        ),
        (
            "proc.aname[-1]",
            "cannot read the index `-1` of `proc.aname`: it must be a whole number from 0",
        ),
        (
            "proc.aname[1",
            "cannot read `proc.aname[1`: the `]` at its end is missing",
        ),
        (
            "evt.arg",
            "cannot use `evt.arg` without an argument; write `evt.arg.NAME`",
        ),
        (
            "evt.arg.flasg",
            "cannot find a part named `flasg` of `evt.arg`; did you mean `flags`?",
        ),
        (
            "evt.abspath.source",
            "cannot find a part named `source` of `evt.abspath`",
        ),
        (
            "container.mount",
            "cannot use `container.mount` without an argument; write `container.mount[NAME]`",
        ),
    ];
    for (text, expected) in rows {
        let error = Field::parse(text).expect_err(text);
        assert_eq!(error.to_string(), expected);
    }
    assert!(matches!(
        field::lookup("x"),
        Err(FieldError::Unknown { .. })
    ));
}

#[test]
fn every_row_of_the_registry_can_be_named() {
    for (_, fields) in field::docs() {
        for spec in fields {
            let text = match spec.argument {
                ArgumentKind::Index { required: true } => format!("{}[0]", spec.name),
                ArgumentKind::Name { required: true }
                | ArgumentKind::IndexOrName { required: true }
                | ArgumentKind::Label => format!("{}[x]", spec.name),
                ArgumentKind::Suffix { required: true, .. } => format!("{}.x", spec.name),
                ArgumentKind::Param => format!("{}.name", spec.name),
                _ => spec.name.to_owned(),
            };
            Field::parse(&text).unwrap_or_else(|error| panic!("{text}: {error}"));
        }
    }
}

/// Reads the published rules, if present, and looks up every field that they name.
#[test]
fn all_fields_of_the_published_rules_are_known() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../../shared/reference/upstream/falco_rules.yaml");
    let Ok(text) = std::fs::read_to_string(&file) else {
        testing::skip!("needs Falco's stable rules beside the repository", || Ok(
            format!("cannot read {}", file.display())
        ));
    };
    let mut found = 0;
    // Comments and descriptions speak of fields too, but not always of ones that exist.
    let code = text
        .lines()
        .filter(|line| !line.trim_start().starts_with('#'));
    for word in code
        .flat_map(|line| line.split(|c: char| !(c.is_ascii_alphanumeric() || "._[]".contains(c))))
    {
        let name = word.trim_matches('.');
        let Some((class, rest)) = name.split_once('.') else {
            continue;
        };
        let is_class = ["evt", "proc", "fd", "user", "group", "thread", "container"];
        if !is_class.contains(&class) || rest.is_empty() || rest.ends_with("log") {
            continue;
        }
        Field::parse(name).unwrap_or_else(|error| panic!("{name}: {error}"));
        found += 1;
    }
    assert!(
        found > 100,
        "only {found} fields: the file has another form than expected"
    );
}
